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
from algos.off_policy.replay.rings import draw_uniform, init_ring, make_windows, read_samples
from algos.types import Transition

ROWS, SLOTS = 4, 11


@cache
def make(n_step=1, batch_size=40, **settings):
    config = ReplayConfig(capacity=ROWS * SLOTS + 3, n_step=n_step, **settings)
    return make_replay(
        config, rows=ROWS, observation_size=6, action_size=2, batch_size=batch_size, episode_limit=100
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_hold_their_newest_transitions_in_order(seed):
    replay = make()
    transitions = experience(seed, 48, ROWS, alive=(0.4, 0.8, 1.0)[seed])
    state, model = replay.init(), Model(ROWS, SLOTS)
    for begin in range(0, 48, 8):
        part = cut(transitions, begin, begin + 8)
        state = play(replay, state, part)
        fill(model, part)
        for row in range(ROWS):
            assert_holds(contents(state.ring, row), model.rows[row])
        assert replay.size(state) == sum(len(steps) for steps in model.rows)


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("steps", [3, 9, 40])
def test_every_sample_is_the_n_step_return_of_its_transition(n_step, steps):
    replay = make(n_step)
    transitions = experience(steps, steps, ROWS)
    state = play(make(), make().init(), transitions)
    model = fill(Model(ROWS, SLOTS), transitions)
    gamma = 0.5
    batch = draws(replay, state, 12, gamma)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

    for i, number in enumerate(batch.obs[:, NUMBER]):
        row, place = model.find(number)
        spanned = window(row, place, n_step)
        reward, discount = returns(spanned, gamma)
        np.testing.assert_array_equal(batch.obs[i], row[place].obs)
        np.testing.assert_array_equal(batch.action[i], row[place].action)
        np.testing.assert_array_equal(batch.next_obs[i], spanned[-1].next_obs)
        assert batch.reward[i] == reward and batch.discount[i] == discount
    assert set(batch.obs[:, NUMBER]) == {step.number for steps in model.rows for step in steps}
    assert (batch.weight == 1).all()


@pytest.mark.parametrize(("steps", "burn_in"), [(4, 0), (9, 0), (40, 0), (9, 5), (40, 2)])
def test_sequences_run_through_ends_and_show_the_last_observations_of_cut_episodes(steps, burn_in):
    """Recounts every sequence decision by decision: what is observed, and where the memory is empty.

    And whether it is learnt from: not among the first decisions, unless all that the memory should hold is in
    the sequence.
    """
    length, gamma = 6, 0.5
    replay = make(sequence=length, burn_in=burn_in)
    transitions = experience(steps, steps, ROWS, terminal=0.5, end=0.3)
    state = play(make(), make().init(), transitions)
    model = fill(Model(ROWS, SLOTS), transitions)
    batch = draws(replay, state, 12, gamma)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    learnt, finals, warming = set(), 0, 0
    for i, number in enumerate(batch.obs[:, 0, NUMBER]):
        row, place = model.find(number)
        stream, restarts = [], False
        whole = row[place - 1].last if place else len(row) < SLOTS
        for step in row[place:]:
            whole |= restarts
            stream.append((step, step.obs, restarts, whole))
            restarts = step.last
            if step is row[-1] or (step.last and step.discount):
                stream.append((None, step.next_obs, False, whole))
        stream = stream[: length + 1]
        known = len(stream)
        seen = np.concatenate([batch.obs[i], batch.next_obs[i, -1:]])
        np.testing.assert_array_equal(seen[:known], [obs for _, obs, *_ in stream])
        np.testing.assert_array_equal(batch.next_obs[i, : known - 1], seen[1:known])
        np.testing.assert_array_equal(batch.reset[i, :known], [reset for *_, reset, _ in stream])
        inside = [
            step is not None and (place >= burn_in or whole)
            for place, (step, *_, whole) in enumerate(stream[:length])
        ]
        np.testing.assert_array_equal(batch.inside[i], inside + [False] * (length - len(inside)))
        for j, (step, *_) in enumerate(stream[:length]):
            if step is not None:
                np.testing.assert_array_equal(batch.action[i, j], step.action)
                assert batch.reward[i, j] == step.reward and batch.discount[i, j] == gamma * step.discount
                learnt.add(step.number)
        finals += sum(step is None for step, *_ in stream[:length])
        warming += len(inside) - sum(inside)
    assert (warming > finals) == (burn_in > 0)
    assert learnt == {step.number for held in model.rows for step in held} and finals


def test_windows_stop_at_truncation_termination_interruption_and_the_newest_step():
    """Row 0 is cut by a time limit, row 1 terminates, row 2 misses a step, row 3 goes on."""
    replay = make(n_step=3)
    steps = 4
    flags = np.zeros((steps, ROWS), bool)
    boundary, alive, discount = flags.copy(), ~flags, np.ones((steps, ROWS), np.float32)
    boundary[1, 0] = boundary[1, 1] = True
    discount[1, 1] = 0.0
    alive[2, 2] = False
    obs = jnp.tile(jnp.arange(steps * 1.0)[:, None, None], (1, ROWS, 6))
    transitions = Transition(
        obs, obs[..., :2], jnp.ones((steps, ROWS)), discount, obs + 1, boundary, flags, alive
    )
    ring = play(replay, replay.init(), jax.tree.map(jnp.asarray, transitions)).ring
    gamma = 0.9
    row, slot = jnp.array([0, 1, 2, 3, 3, 3]), jnp.array([0, 0, 0, 0, 2, 3])
    look_and_read = jax.jit(
        lambda: read_samples(ring, make_windows(ring, row, slot, 3, gamma), jnp.ones(6), row, between=True)
    )
    batch = look_and_read()
    np.testing.assert_allclose(batch.reward, [1.9, 1.9, 1.9, 2.71, 1.9, 1.0], rtol=1e-6)
    np.testing.assert_allclose(batch.discount, [0.81, 0.0, 0.81, 0.729, 0.81, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(batch.next_obs[:, 0], [2, 2, 2, 3, 4, 4])
    on_the_way = [[0.9, 0.0], [0.9, 0.0], [0.9, 0.0], [0.9, 0.81], [0.9, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(batch.between.factor, on_the_way, rtol=1e-6)
    passed = np.asarray(batch.between.obs)[..., 0][np.asarray(on_the_way) > 0]
    np.testing.assert_array_equal(passed, [1, 1, 1, 1, 2, 3])


def test_all_held_transitions_are_equally_likely_although_rows_hold_different_numbers():
    count = jnp.array([3, 0, 8, 1, 5])
    cursor = jnp.array([1, 0, 6, 1, 5])
    ring = init_ring(5, 8, 1, 1).replace(count=count, cursor=cursor)
    row, slot = jax.jit(lambda key: draw_uniform(key, ring, 34_000))(jax.random.key(0))
    seen = np.zeros((5, 8), int)
    np.add.at(seen, (np.asarray(row), np.asarray(slot)), 1)
    held = np.zeros((5, 8), bool)
    held[0, [6, 7, 0]] = held[2] = held[3, 0] = held[4, :5] = True
    np.testing.assert_array_equal(seen > 0, held)
    assert stats.chisquare(seen[held]).pvalue > 1e-3


def test_an_empty_replay_gives_finite_samples():
    for prioritized in (False, True):
        replay = make(n_step=2, prioritized=prioritized)
        _, batch = jax.jit(replay.sample)(replay.init(), jax.random.key(0), 0.9)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(batch))
