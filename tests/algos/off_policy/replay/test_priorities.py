from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_model import NUMBER, cut, draws, experience, play
from scipy import stats

from algos.off_policy.replay.priorities import (
    ARITY,
    find_leaves,
    init_tree,
    set_leaves,
    tree_depth,
    tree_total,
)
from algos.off_policy.replay.replay import ReplayConfig, make_replay

ROWS, SLOTS = 3, 7
HELD = ROWS * SLOTS
ALPHA, EPSILON = 0.6, 1e-2


def leaves(tree, count):
    """All leaves, the unused ones too, must be those asked for and zeros."""
    lowest = np.asarray(tree[-(ARITY ** (tree_depth(tree) - 1)) :]).ravel()
    assert (lowest[count:] == 0).all()
    return lowest[:count]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 64, 65, 300])
def test_sums_hold_after_any_settings(count):
    rng = np.random.default_rng(count)
    tree, expected = init_tree(count), np.zeros(count)
    update = jax.jit(set_leaves)
    for _ in range(20):
        index = rng.integers(-3, count, 16)
        value = rng.integers(0, 50, 16).astype(np.float32)
        tree = np.asarray(update(tree, index.astype(np.int32), value))
        for i in set(index[index >= 0]):
            expected[i] = value[index == i].max()
        np.testing.assert_array_equal(leaves(tree, count), expected)
        assert tree_total(tree) == expected.sum()
    for group in range((tree.shape[0] - 1) // ARITY):
        below = np.asarray(tree[ARITY * group + 1 : ARITY * group + 1 + ARITY])
        np.testing.assert_array_equal(tree[group], below.sum(-1))


def test_a_query_finds_the_leaf_where_the_running_sum_exceeds_it():
    values = np.float32([0.0, 2, 1, 0, 0, 3, 0, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0])
    tree = jax.jit(set_leaves)(init_tree(20), np.arange(20), values)
    query = np.arange(0.0, 16.0, 0.5, np.float32)
    index, value = jax.jit(find_leaves)(tree, query, np.zeros_like(query))
    expected = np.searchsorted(np.cumsum(values), query, side="right")
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(value, values[expected])


def test_queries_at_and_beyond_the_total_find_the_last_leaf_that_is_not_zero():
    @jax.jit
    def found():
        tree = set_leaves(init_tree(30), jnp.array([4, 9]), jnp.array([1.0, 0.1]))
        total = tree_total(tree)
        return find_leaves(tree, jnp.stack([total, total * 1.001]), jnp.ones(2))

    index, value = found()
    assert (index == 9).all() and (value > 0).all()


def test_fine_digits_reach_leaves_that_float32_queries_cannot_tell_apart():

    @jax.jit
    def found(fine):
        tree = set_leaves(init_tree(256), jnp.arange(64), jnp.full(64, 1 / 64))
        tree = set_leaves(tree, jnp.array([255]), jnp.array([2.0**24]))
        return find_leaves(tree, jnp.zeros(64), fine)

    index, _ = found(np.arange(0.0, 1.0, 1 / 64, np.float32))
    np.testing.assert_array_equal(index, np.arange(64))


@cache
def make(batch_size=16, **settings):
    config = ReplayConfig(
        capacity=HELD, prioritized=True, priority_exponent=ALPHA, priority_epsilon=EPSILON, **settings
    )
    sizes = {"rows": ROWS, "observation_size": 6, "action_size": 2}
    return make_replay(config, **sizes, batch_size=batch_size, episode_limit=100)


@cache
def full(replay):
    """A replay whose rows are all full, and whose transitions are numbered 1 to `HELD`."""
    return play(replay, replay.init(), experience(0, SLOTS, ROWS, alive=1.1))


@cache
def reprioritize(replay):
    return jax.jit(replay.reprioritize)


def leaf(priority):
    return (np.abs(priority) + EPSILON) ** ALPHA


def test_transitions_are_drawn_in_proportion_to_their_priorities():
    replay = make()
    priority = np.linspace(-3.0, 5.0, HELD).astype(np.float32)
    state = reprioritize(replay)(full(replay), np.arange(HELD), priority)
    batch = draws(replay, state, 4000, 0.9)
    probability = leaf(priority.astype(float)) / leaf(priority.astype(float)).sum()
    counts = np.bincount(np.asarray(batch.index).ravel(), minlength=HELD)
    # One draw from each equal part of the total leaves less variance than independent draws would.
    assert stats.chisquare(counts, probability * counts.sum()).pvalue > 0.01
    each = np.stack([np.bincount(np.asarray(row), minlength=HELD) for row in batch.index])
    assert (np.abs(each - 16 * probability) < 2).all()
    first = np.bincount(np.asarray(batch.index)[:, 0], minlength=HELD)
    assert stats.chisquare(first, probability * first.sum()).pvalue > 1e-3


def test_importance_weights_follow_the_formula_and_beta_is_annealed():
    replay = make(importance_exponent=0.4, importance_exponent_end=0.8, importance_samples=4)
    priority = np.linspace(0.0, 5.0, HELD).astype(np.float32)
    state = reprioritize(replay)(full(replay), np.arange(HELD), priority)
    sample = jax.jit(replay.sample)
    probability = leaf(priority) / leaf(priority).sum()
    for call, beta in enumerate([0.4, 0.5, 0.6, 0.7, 0.8, 0.8]):
        state, batch = sample(state, jax.random.key(call), 0.9)
        weight = (HELD * probability[np.asarray(batch.index)]) ** -beta
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-5)
        np.testing.assert_allclose(batch.weight.max(), 1.0, rtol=1e-6)


def test_the_index_names_the_transition_that_was_drawn():
    replay = make()
    state = full(replay)
    _, batch = jax.jit(replay.sample)(state, jax.random.key(0), 0.9)
    slot, row = np.divmod(np.asarray(batch.obs[:, NUMBER], int) - 1, ROWS)
    np.testing.assert_array_equal(batch.index, row * SLOTS + slot)


def test_new_transitions_start_at_the_largest_priority_and_forget_what_they_overwrite():
    replay = make()
    state = full(replay)
    np.testing.assert_allclose(leaves(state.choice.tree, HELD), 1.0)

    @jax.jit
    def thrice(state):
        state = replay.reprioritize(state, jnp.arange(HELD), jnp.full(HELD, 0.25))
        state = replay.reprioritize(state, jnp.array([5, 5, -1]), jnp.array([9.0, 4.0, 100.0]))
        return replay.reprioritize(state, jnp.array([5]), jnp.array([0.5]))

    state = thrice(state)
    expected = np.full(HELD, leaf(0.25))
    expected[5] = leaf(0.5)
    np.testing.assert_allclose(leaves(state.choice.tree, HELD), expected, rtol=1e-6)

    one = experience(1, 2, ROWS, alive=1.1)
    one = one.replace(alive=np.array([[True, False, True], [True, False, False]]))
    state = play(replay, state, one)
    expected[[0, 1, 2 * SLOTS]] = leaf(9.0)
    np.testing.assert_allclose(leaves(state.choice.tree, HELD), expected, rtol=1e-6)


def test_errors_that_are_not_finite_change_no_priority():
    replay = make()
    state = reprioritize(replay)(full(replay), np.arange(HELD), np.full(HELD, 0.25, np.float32))
    priority = np.array([np.nan, np.inf, 0.5] + [0.25] * (HELD - 3), np.float32)
    after = reprioritize(replay)(state, np.arange(HELD), priority)
    expected = np.full(HELD, leaf(0.25))
    expected[2] = leaf(0.5)
    np.testing.assert_allclose(leaves(after.choice.tree, HELD), expected, rtol=1e-6)
    assert after.choice.largest == state.choice.largest


def test_only_what_is_held_is_drawn():
    replay = make()
    state = play(replay, replay.init(), cut(experience(3, 20, ROWS, alive=0.5), 0, 4))
    index = draws(replay, state, 4000, 0.9).index
    count = np.asarray(state.ring.count)
    held = {row * SLOTS + slot for row in range(ROWS) for slot in range(count[row])}
    assert set(index.ravel()) == held
