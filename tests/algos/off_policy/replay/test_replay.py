import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_others
from replay_model import FEATURES, NUMBER, experience, goal, play

from algos.off_policy.replay.replay import ReplayConfig, make_replay, samples_for_ratio

ROWS, LIMIT = 4, 9
EVERYTHING = {
    "prioritized": True,
    "n_step": 3,
    "success_capacity": 23,
    "success_ratio": 0.25,
    "hindsight_ratio": 0.5,
}


@cache
def make(capacity=60, batch_size=16, goals=True, between=False, **settings):
    return make_replay(
        ReplayConfig(capacity=capacity, **settings),
        rows=ROWS,
        observation_size=FEATURES,
        action_size=2,
        batch_size=batch_size,
        episode_limit=LIMIT,
        goal=goal() if goals else None,
        between=between,
    )


def learn(replay, trace=None):
    """`(state, key, transitions) -> (state, samples)`: adds, draws and reprioritises once per step."""

    def step(state, inputs):
        key, transition = inputs
        if trace is not None:
            trace.append(None)
        state = replay.add(state, transition)
        state, batch = replay.sample(state, key, 0.9)
        return replay.reprioritize(state, batch.index, batch.reward), batch

    def run(state, key, transitions):
        keys = jax.random.split(key, transitions.reward.shape[0])
        return jax.lax.scan(step, state, (keys, transitions))

    return run


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "replay.capacity=0: must be a whole number of at least 1"),
        ({"n_step": 0}, "replay.n_step=0: must be a whole number of at least 1"),
        ({"n_step": 1.5}, "replay.n_step=1.5: "),
        ({"priority_exponent": 1.5}, "replay.priority_exponent=1.5: must be a number from 0 to 1"),
        ({"importance_samples": 0}, "replay.importance_samples=0: "),
        ({"priority_epsilon": 0.0}, "replay.priority_epsilon=0.0: "),
        ({"prioritized": "yes"}, "replay.prioritized=yes: must be true or false"),
        ({"success_capacity": 2.5}, "replay.success_capacity=2.5: "),
        ({"success_ratio": 0.5}, "replay.success_capacity=0: "),
        (
            {"success_capacity": 9, "success_ratio": 0.5, "hindsight_ratio": 0.6},
            "replay.hindsight_ratio=0.6: ",
        ),
        ({"hindsight_strategy": "past"}, "replay.hindsight_strategy=past: unknown; allowed: future, final"),
        ({"capacity": 15}, "replay.capacity=15: must be at least 16 for batches of 16"),
        ({"capacity": 19, "n_step": 4}, "replay.capacity=19: must be at least 20 for batches of 16 and 4 "),
        (
            {"hindsight_ratio": 0.5, "goals": False},
            "replay.hindsight_ratio=0.5: this environment has no goals",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings", [{}, EVERYTHING, {"prioritized": True}, {"success_capacity": 9, "success_ratio": 0.5}]
)
def test_nbytes_is_what_init_allocates(settings):
    replay = make(**settings)
    assert replay.nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(replay.init()))


def test_parts_that_are_off_have_no_state():
    plain = make(goals=False).init()
    assert plain.choice is None and plain.ends is None and plain.successes is None
    per_transition = (2 * FEATURES + 2 + 1 + 1) * 4 + 1
    assert make(capacity=4096).nbytes == 4096 * per_transition + ROWS * (4 + 4 + 1)
    assert make(success_capacity=500).nbytes == make().nbytes


def test_small_ratios_still_take_one_sample_and_full_ones_take_all():
    assert [samples_for_ratio(ratio, 16) for ratio in (0.0, 0.01, 0.25, 0.5, 1.0)] == [0, 1, 4, 8, 16]
    replay = make(success_capacity=23, success_ratio=1.0)
    state = play(replay, replay.init(), experience(0, 20, ROWS))
    _, batch = jax.jit(replay.sample)(state, jax.random.key(0), 0.9)
    assert (batch.index == -1).all()


def test_intermediate_states_are_not_read_unless_requested():
    for settings in ({"n_step": 3}, {"n_step": 1, "between": True}):
        replay = make(**settings)
        assert jax.eval_shape(replay.sample, replay.init(), jax.random.key(0), 0.9)[1].between is None


def test_everything_together_under_scan_is_traced_once():
    replay, trace = make(**EVERYTHING, between=True), []
    run = jax.jit(learn(replay, trace), donate_argnums=0)
    state = replay.init()
    for seed in range(3):
        state, batch = run(state, jax.random.key(seed), experience(seed, 10, ROWS))
        assert np.isfinite(batch.reward).all() and np.isfinite(batch.weight).all()
    assert len(trace) == 1
    again = jax.eval_shape(replay.init)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), again
    )


@pytest.mark.thorough
def test_batched_runs_equal_single_runs():
    """Two axes of runs, each run with successes at times of its own."""
    replay = make(**EVERYTHING)
    seeds = [[0, 1, 2], [3, 4, 5]]
    runs = [[experience(seed, 30, ROWS, end=0.1 * (seed % 3)) for seed in line] for line in seeds]
    stacked = jax.tree.map(
        lambda *x: np.stack(x).reshape(2, 3, *x[0].shape), *(run for line in runs for run in line)
    )
    keys = jax.random.split(jax.random.key(0), (2, 3))
    batched = jax.jit(jax.vmap(jax.vmap(learn(replay), (None, 0, 0)), (None, 0, 0)))
    single = jax.jit(learn(replay))
    state, batch = jax.tree.map(np.asarray, batched(replay.init(), keys, stacked))
    for i in range(2):
        for j in range(3):
            one = single(replay.init(), keys[i, j], runs[i][j])
            many = jax.tree.map(lambda x, i=i, j=j: x[i, j], (state, batch))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), many, one)
    assert (np.asarray(state.successes.ring.count)[:, 0] == 0).all()
    assert (np.asarray(state.successes.ring.count)[:, 1:] > 0).all()


@pytest.mark.parametrize("runs", mark_others([None, 2], 2))
def test_no_buffer_is_copied_inside_a_scan(runs):
    """Every step writes a few rows; XLA must not copy a whole buffer for that."""
    replay = make(capacity=ROWS * 700, **(EVERYTHING | {"success_capacity": 901}))
    state, key, transitions = replay.init(), jax.random.key(0), experience(0, 10, ROWS)
    run = learn(replay)
    if runs:
        state, transitions = jax.tree.map(lambda x: np.stack([x] * runs), (state, transitions))
        run, key = jax.vmap(run), jax.random.split(key, runs)
    buffers = {leaf.shape for leaf in jax.tree.leaves(state) if leaf.size >= 900}
    assert len(buffers) == 7

    def copied(**donated):
        text = jax.jit(run, **donated).lower(state, key, transitions).compile().as_text()
        shapes = re.findall(r"= \w+\[([\d,]+)\]\S* (?:copy|select|concatenate|copy-start)\(", text)
        return buffers & {tuple(int(size) for size in shape.split(",")) for shape in shapes}

    # What is not donated has to be copied once, each buffer of it: the search does find copies.
    assert copied() == buffers
    assert not copied(donate_argnums=0)


def test_gamma_may_differ_between_batched_draws():
    replay = make(n_step=2)
    state = play(replay, replay.init(), experience(0, 20, ROWS, end=0.0, alive=1.1))
    draw = jax.jit(jax.vmap(lambda gamma: replay.sample(state, jax.random.key(0), gamma)[1]))
    batch = draw(jnp.array([0.0, 0.5]))
    np.testing.assert_array_equal(batch.obs[0, :, NUMBER], batch.obs[1, :, NUMBER])
    newest = batch.obs[1, :, NUMBER] > 19 * ROWS
    np.testing.assert_array_equal(batch.discount[0], 0.0)
    np.testing.assert_array_equal(batch.discount[1], np.where(newest, 0.5, 0.25))
