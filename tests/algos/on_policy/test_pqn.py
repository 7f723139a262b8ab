import functools

import jax
import numpy as np
import pytest
from value_cases import moved, numpy_values

from algos.on_policy.pqn import PQNConfig, action_value_loss, rollout_epsilon, value_targets
from algos.on_policy.sample_epochs import hide_unseen_observations
from algos.types import ActionSpec, ObservationSpec, Rollout

T, E, A, F = 6, 2, 2, 4
SIZES = ActionSpec("discrete", (3, 2))
TINY = {"widths": (8,), "horizon": T, "num_minibatches": 2, "normalize_observation": False}
GAMMA, LAMBDA = 0.9, 0.7


def rollout_of(seed=0, garbage=0.0):
    """A rollout in which agents die and episodes are cut; one agent is dead from its third decision on."""
    noise, shape = np.random.default_rng(seed), (T, E, A)
    alive = np.ones(shape, bool)
    alive[2:, 0, 1] = False
    boundary = noise.random(shape) < 0.3
    boundary[1, 0, 1] = True
    discount = np.where(boundary & (noise.random(shape) < 0.5), np.float32(0.0), np.float32(1.0))
    discount[1, 0, 1] = 0.0
    normal = lambda *axes: np.float32(noise.standard_normal(axes))  # noqa: E731
    return Rollout(
        obs=np.where(alive[..., None], normal(*shape, F), np.float32(garbage)),
        action=np.int32(np.stack([noise.integers(0, 3, shape), noise.integers(0, 2, shape)], -1)),
        extras={"value": np.where(alive, normal(*shape), np.float32(garbage))},
        reward=np.where(alive, normal(*shape), 0.0).astype(np.float32),
        reset=np.zeros(shape, bool),
        discount=discount,
        boundary=boundary,
        bootstrap=np.where(boundary & (discount > 0), normal(*shape), np.float32(0.0)),
        alive=alive,
        mask=None,
        carry=(),
        last_value=normal(E, A),
    )


@functools.cache
def learner(core="none"):
    """A configuration, its agent and first state."""
    config = PQNConfig(**TINY, core={"kind": core, "width": 8}, epsilon_end=0.2)
    agent = config.make((F,), SIZES, samples=E * A, updates=20)
    return config, agent, jax.tree.map(np.asarray, jax.jit(agent.init)(jax.random.key(0)))


def batch_of(rollout, core="none"):
    config, _, state = learner(core)
    hyper = {"gamma": GAMMA, "gae_lambda": LAMBDA, "reward_scale": 2.0, "reward_clamp": np.inf}
    if core != "none":
        rollout = rollout.replace(carry=((np.ones((1, E, A, 8), np.float32),),))
    seen = hide_unseen_observations(rollout)
    return jax.jit(functools.partial(value_targets, config))(state, seen, hyper)


def test_targets_are_returns_with_the_best_actions_values():
    rollout = rollout_of()
    batch = batch_of(rollout)
    expected = np.zeros((T, E, A))
    following, after = rollout.last_value, rollout.last_value
    for t in reversed(range(T)):
        mixed = (1.0 - LAMBDA) * following + LAMBDA * after
        mixed = np.where(rollout.boundary[t], rollout.bootstrap[t], mixed)
        expected[t] = 2.0 * rollout.reward[t] + GAMMA * np.where(rollout.discount[t] > 0, mixed, 0.0)
        following, after = rollout.extras["value"][t], expected[t]
    found = np.asarray(batch.target).reshape(T, E, A)
    np.testing.assert_allclose(found, np.where(rollout.alive, expected, 0.0), rtol=1e-4, atol=1e-5)


def test_the_values_of_agents_that_are_out_are_learnt():
    """Rewards that come after their end reach them by these values, where a rollout ends in between."""
    rollout = rollout_of()
    out = ~rollout.alive & (np.arange(T) > 1)[:, None, None]
    assert out.any()
    batch = batch_of(rollout.replace(out=out))
    np.testing.assert_array_equal(np.asarray(batch.alive).reshape(T, E, A), rollout.alive | out)
    assert np.isfinite(np.asarray(batch.target)).all() and (np.asarray(batch.target)[out.ravel()] != 0).all()


@pytest.mark.parametrize("core", ["none", "gru"])
def test_what_is_seen_of_the_dead_is_not_learnt_from(core):
    batches = [batch_of(rollout_of(garbage=x), core) for x in (0.0, np.nan)]
    jax.tree.map(np.testing.assert_array_equal, *batches)
    rows = (T * E * A,) if core == "none" else (E * A, T)
    assert batches[0].target.shape == rows and batches[0].obs.shape == (*rows, F)
    assert batches[0].idle.shape == rows[:1]


def test_the_loss_is_that_of_the_taken_actions_in_a_network_of_normalised_layers():
    config, _, state = learner()
    batch, params = batch_of(rollout_of()), moved(state.params)
    policy = config.networks(ObservationSpec((F,)), SIZES)
    loss, samples = jax.jit(functools.partial(action_value_loss, policy))(params, batch)
    values, (first, second) = numpy_values(params, np.asarray(batch.obs)), np.asarray(batch.action).T
    rows = np.arange(len(first))
    chosen = values[rows, first] + values[rows, 3 + second]
    np.testing.assert_allclose(samples["value"], chosen, rtol=1e-4, atol=1e-5)
    errors = np.square(chosen - np.asarray(batch.target))[np.asarray(batch.alive)]
    np.testing.assert_allclose(loss, 0.5 * errors.mean(), rtol=1e-4)


def test_exploration_falls_over_its_part_of_the_run():
    _, agent, state = learner()
    found = [float(rollout_epsilon(state.replace(updates=np.int32(n)))) for n in (0, 5, 10, 20)]
    np.testing.assert_allclose(found, [1.0, 0.6, 0.2, 0.2], rtol=1e-5)
    mask = np.broadcast_to([True, False, True, False, True], (500, A, 5))
    obs, reset = np.ones((500, A, F), np.float32), np.zeros((500, A), bool)
    action, _, extras = jax.jit(agent.act)(state, jax.random.key(1), obs, (), reset, mask)
    assert set(np.unique(action[..., 0])) == {0, 2} and set(np.unique(action[..., 1])) == {1}
    assert set(extras) == {"value"} and agent.teach is None


@pytest.mark.parametrize(
    ("settings", "sizes", "message"),
    [
        ({"epsilon": -0.1}, {}, "epsilon=-0.1: must be a number from 0 to 1"),
        ({"exploration_fraction": 0.0}, {}, "exploration_fraction=0.0: must be a number from"),
        ({"epochs": 0}, {}, "epochs=0: must be a whole number of at least 1"),
        ({"num_minibatches": 5}, {}, "num_minibatches=5: must divide the 24 samples"),
        ({"num_minibatches": 3, "core": {"kind": "gru"}}, {}, "num_minibatches=3: must divide the 4 agents"),
        ({}, {"action": ActionSpec("continuous", (2,))}, "algo=pqn: needs discrete actions"),
        ({}, {"updates": None}, "total_updates=None: must be given with algo=pqn"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, sizes, message):
    action = {"action": SIZES, "samples": E * A, "updates": 10} | sizes
    with pytest.raises(ValueError, match=message):
        PQNConfig(**TINY | settings).make((F,), **action)
