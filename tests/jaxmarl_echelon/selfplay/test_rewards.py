"""Reward transforms against worked examples."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.results import share_beaten
from jaxmarl_echelon.selfplay import rewards
from jaxmarl_echelon.selfplay.rewards import RewardContext

ALL = jnp.ones(4, bool)
FOUR = jnp.array([1.0, -1.0, 1.0, 1.0])


def test_role_advantage_reads_its_baseline_first():
    transform, seat = rewards.role_advantage(seats=2), jnp.zeros(1, jnp.int32)
    state, found = transform.init(), []
    for reward in FOUR:
        state, advantage = transform.apply(state, reward[None], RewardContext(jnp.ones(1, bool), seat=seat))
        found.append(float(advantage[0]))
    np.testing.assert_allclose(found, [1, -1.05, 1.0025, 0.952375], atol=1e-6)
    np.testing.assert_allclose(state, [[0.09524375, 0.0]], atol=1e-7)


def test_role_advantage_of_a_batch():
    """40 games of mean -.1 at once; those of another role and masked ones do not count."""
    transform = rewards.role_advantage(seats=2)
    given = jnp.concatenate([jnp.tile(jnp.array([0.9, -1.1]), 20), jnp.array([7.0, 5.0])])
    context = RewardContext(jnp.arange(42) != 40, seat=(jnp.arange(42) >= 41).astype(jnp.int32))
    state, found = transform.apply(jnp.array([[0.2, 0.0]]), given, context)
    np.testing.assert_allclose(state[0], [-0.061446353, 0.25], atol=1e-6)
    np.testing.assert_allclose(found[:2], [0.7, -1.3], atol=1e-6)
    assert found[40] == 0.0 and found[41] == 5.0


def test_role_advantage_by_game():
    transform = rewards.role_advantage(seats=2, games=2, tau=1.0)
    context = RewardContext(ALL, game=jnp.array([0, 0, 1, 1]), seat=jnp.array([0, 1, 0, 1]))
    state, _ = transform.apply(transform.init(), FOUR, context)
    np.testing.assert_array_equal(state, [[1, -1], [1, 1]])
    _, found = transform.apply(state, FOUR, context)
    np.testing.assert_array_equal(found, 0.0)


SCORES = [
    ([3.0, 1.0], [1, -1]),
    ([2.0, 2.0], [0, 0]),
    ([5.0, 1.0, 1.0], [1, -0.5, -0.5]),
    ([0.0, 2, 1], [-1, 1, 0]),
]


@pytest.mark.parametrize("scores,expected", SCORES)
def test_win_draw_loss(scores, expected):
    """By the points of games' final scores."""
    points = share_beaten(jnp.array(scores))
    _, found = rewards.win_draw_loss().apply((), jnp.array(scores), RewardContext(points >= 0, score=points))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_normalize():
    given = jnp.array([1.0, -1.0, 1.0, 0.0])
    _, found = rewards.normalize_rewards().apply((), given, RewardContext(ALL))
    np.testing.assert_allclose(found, [0.75, -1.25, 0.75, -0.25], atol=1e-6)
    _, found = rewards.normalize_rewards(z=True).apply((), given, RewardContext(ALL))
    np.testing.assert_allclose(found, [0.904534, -1.507557, 0.904534, -0.301511], atol=1e-5)
    context = RewardContext(jnp.array([1, 1, 1, 1, 0], bool), game=jnp.array([0, 1, 0, 1, 1]))
    _, found = rewards.normalize_rewards(games=2).apply((), jnp.array([1.0, -1, 3, 5, 99]), context)
    np.testing.assert_allclose(found, [-1, -3, 1, 3, 0], atol=1e-6)


def test_the_standard_set_of_steps():
    """A good move of a lost game has -1 + 1.5 + 1; a bad one without form -1 + 0 - 1."""
    steps = rewards.chain_transforms([rewards.reward_for_format(), rewards.penalty_for_invalid_move()])
    context = RewardContext(ALL[:2], well_formed=jnp.array([True, False]), invalid=jnp.array([False, True]))
    _, found = steps.apply(steps.init(), jnp.array([-1.0, -1.0]), context)
    np.testing.assert_allclose(found, [1.5, -2.0])
    _, found = rewards.discount_rewards(0.5).apply(
        (), jnp.ones(2), RewardContext(ALL[:2], to_come=jnp.array([2, 0]))
    )
    np.testing.assert_allclose(found, [0.25, 1.0])
