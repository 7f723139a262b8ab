import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_model import (
    NUMBER,
    Model,
    assert_holds,
    contents,
    cut,
    draws,
    experience,
    fill,
    play,
    returns,
    window,
)
from scipy import stats

from algos.off_policy.replay.replay import ReplayConfig, make_replay

ROWS, SLOTS, CAPACITY, GAMMA = 4, 13, 29, 0.5


@cache
def make(episode_limit=SLOTS, batch_size=40, ratio=0.25, capacity=CAPACITY, between=False, **settings):
    config = ReplayConfig(capacity=ROWS * SLOTS, success_capacity=capacity, success_ratio=ratio, **settings)
    sizes = {"rows": ROWS, "observation_size": 6, "action_size": 2}
    return make_replay(config, **sizes, batch_size=batch_size, episode_limit=episode_limit, between=between)


@pytest.mark.parametrize(
    ("episode_limit", "capacity", "end"),
    [(SLOTS, CAPACITY, 0.2), (3, CAPACITY, 0.2), (5, 5, 0.1), (SLOTS, SLOTS, 0.03)],
)
def test_exactly_the_successful_episodes_are_kept_whole(episode_limit, capacity, end):
    replay = make(episode_limit, capacity=capacity)
    transitions = experience(5, 96, ROWS, end=end, alive=0.95, limit=episode_limit)
    state, model = replay.init(), Model(ROWS, SLOTS, success_capacity=capacity)
    for begin in range(0, 96, 8):
        state = play(replay, state, cut(transitions, begin, begin + 8))
        fill(model, cut(transitions, begin, begin + 8))
        assert_holds(contents(state.successes.ring, 0), model.successes)
    assert len(model.successes) == capacity
    assert replay.size(state) == sum(len(steps) for steps in model.rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"episode_limit": SLOTS + 1},
            f"replay.capacity={ROWS * SLOTS}: must be at least {ROWS * (SLOTS + 1)} with success_ratio=0.25 "
            f"for whole episodes of up to {SLOTS + 1} decisions and {ROWS} parallel agents",
        ),
        (
            {"capacity": 12},
            "replay.success_capacity=12: must be at least 13 with success_ratio=0.25 for whole episodes",
        ),
    ],
)
def test_a_replay_in_which_a_success_would_be_cut_is_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make(**settings)
    assert "\n" not in str(error.value)
    make(**settings, ratio=0.0)


@pytest.mark.parametrize("prioritized", [False, True])
def test_each_batch_ends_with_its_share_of_successes(prioritized):
    replay = make(n_step=3, prioritized=prioritized, between=True)
    transitions = experience(5, 60, ROWS, end=0.2, limit=SLOTS)
    state = play(replay, replay.init(), transitions)
    model = fill(Model(ROWS, SLOTS, success_capacity=CAPACITY), transitions)
    batch = draws(replay, state, 200, GAMMA)

    assert (batch.weight[:, 30:] == 1).all() and (batch.index[:, 30:] == -1).all()
    assert (batch.index[:, :30] >= 0).all()
    numbers = [step.number for step in model.successes]
    for k in range(8):
        for b in range(30, 40):
            place = numbers.index(batch.obs[k, b, NUMBER])
            spanned = window(model.successes, place, 3)
            assert (batch.reward[k, b], batch.discount[k, b]) == returns(spanned, GAMMA)
            np.testing.assert_array_equal(batch.next_obs[k, b], spanned[-1].next_obs)
            for j, step in enumerate(spanned[1:]):
                np.testing.assert_array_equal(batch.between.obs[k, b, j], step.obs)
    counts = [(batch.obs[:, 30:, NUMBER] == number).sum() for number in numbers]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_without_successes_the_whole_batch_comes_from_the_rows():
    replay, plain = make(prioritized=True), make(prioritized=True, ratio=0.0)
    transitions = experience(5, 20, ROWS, success=0.0)
    transitions = transitions.replace(success=transitions.boundary & ~transitions.alive)
    batches = []
    for one in (replay, plain):
        state = play(one, one.init(), transitions)
        batches.append(jax.jit(one.sample)(state, jax.random.key(0), GAMMA)[1])
    jax.tree.map(np.testing.assert_array_equal, *batches)
    assert (batches[0].index >= 0).all()


def test_priorities_are_not_touched_by_successes():
    replay = make(prioritized=True, priority_exponent=1.0)
    state = play(replay, replay.init(), experience(5, 60, ROWS, end=0.2))
    state, batch = jax.jit(replay.sample)(state, jax.random.key(0), GAMMA)
    priority = jnp.where(batch.index < 0, 1e6, 0.5)
    after = jax.jit(replay.reprioritize)(state, batch.index, priority)
    expected = np.ones(ROWS * SLOTS)
    expected[np.asarray(batch.index[:30])] = 0.5
    np.testing.assert_allclose(after.choice.tree[-16:].ravel()[: ROWS * SLOTS], expected, rtol=1e-5)
    assert after.choice.largest == 1.0
