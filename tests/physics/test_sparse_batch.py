"""Sparse batched work: active entries compacted, computed in chunks, put back."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics.sparse_batch import (
    any_in_batch,
    compute_rows,
    compute_where,
    cond_any,
    first_active,
    fold_active,
    locate_active,
    update_where,
)


def scaled(values, factor, common):
    return {"x": values * factor + common.sum()}


def call(needed, values, factor, common):
    return compute_where(scaled, needed, {"x": values}, values, factor, common, share=0.25)


nested = jax.jit(jax.vmap(jax.vmap(call, (0, 0, None, None)), (0, 0, 0, None)))
single = jax.jit(call)


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 1.0])
def test_compute_where_in_nested_batches(chance):
    rng = np.random.default_rng(0)
    needed = rng.random((3, 10)) < chance
    values = rng.random((3, 10, 4)).astype(np.float32)
    factor, common = np.arange(3, dtype=np.float32), np.ones(5, np.float32)
    expected = np.where(needed[..., None], values * factor[:, None, None] + 5, values)
    np.testing.assert_allclose(nested(needed, values, factor, common)["x"], expected, rtol=1e-6)
    alone = single(needed[0, 0], values[0, 0], factor[0], common)["x"]
    np.testing.assert_allclose(alone, expected[0, 0], rtol=1e-6)


def test_compute_where_shares_what_a_nested_batch_has_in_common():
    shapes = []

    def look_up(place, tables, row, column):
        shapes.append(tables.shape)
        return tables.at[place, row].get() + column

    def look(needed, table, row, column):
        return compute_where(look_up, needed, jnp.zeros(2), row, column, share=0.25, shared=table)

    rng = np.random.default_rng(0)
    needed, row = rng.random((3, 10)) < 0.6, rng.integers(0, 5, (3, 10))
    tables, column = rng.random((3, 5, 2)).astype(np.float32), np.arange(3, dtype=np.float32)
    inner = jax.vmap(look, (0, None, 0, None))
    found = jax.jit(jax.vmap(inner))(needed, tables, row, column)
    wanted = tables[np.arange(3)[:, None], row] + column[:, None, None]
    np.testing.assert_allclose(found, np.where(needed[..., None], wanted, 0.0), rtol=1e-6)
    assert (3, 5, 2) in shapes, "stacked, not gathered for each"
    np.testing.assert_allclose(
        inner(needed[0], tables[0], row[0], 1.0)[needed[0]], tables[0][row[0]][needed[0]] + 1
    )


@jax.jit
@jax.vmap
def doubled_where(needed, state):
    return update_where(lambda s, a: 2 * s + a, needed, state, jnp.ones(2), share=0.2)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_updates_start_from_the_state_of_each_element(chance):
    needed = np.random.default_rng(1).random(10) < chance
    state = np.arange(20, dtype=np.float32).reshape(10, 2)
    wanted = np.where(needed[:, None], 2 * state + 1, state)
    np.testing.assert_allclose(doubled_where(needed, state), wanted)


def test_chunks_have_at_most_room_entries():
    seen = []

    def look(values):
        seen.append(values.shape)
        return values

    batch = jax.vmap(lambda n, v: compute_where(look, n, v, v, share=0.1))
    text = str(jax.make_jaxpr(batch)(jnp.ones(40, bool), jnp.ones((40, 6))))
    assert set(seen) == {(6,)} and "f32[4,6]" in text


@partial(jax.jit, static_argnames="room")
def compacted(masks, room):
    return jax.vmap(lambda mask: first_active(mask, room))(masks)


@pytest.mark.parametrize("size", [5, 128, 129, 1000])
@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("room", [1, 7, 200])
def test_first_active_compacts_short_and_long_masks(size, chance, room):
    mask = np.random.default_rng(size).random((2, size)) < chance
    active = jax.device_get(compacted(mask, room))
    for row in range(2):
        found, true = jax.tree.map(lambda v, row=row: v[row], active), np.flatnonzero(mask[row])
        expected = np.concatenate([true, np.full(room, size)])[:room]
        np.testing.assert_array_equal(found.index, expected)
        np.testing.assert_array_equal(found.place[true], np.arange(true.size))
        np.testing.assert_array_equal(found.live, expected < size)
        assert found.count == true.size


@pytest.mark.parametrize("size", [5, 128, 1000])
def test_locate_active_finds_entries_by_their_ranks(size):
    for chance in (0.03, 0.5, 1.0):
        mask = np.random.default_rng(3).random(size) < chance
        mask[size // 2] = True
        true = np.flatnonzero(mask)
        ranks = np.arange(true.size)[::-1]
        np.testing.assert_array_equal(locate_active(jnp.asarray(mask), ranks), true[ranks])


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("size", [6, 150])
def test_fold_active_visits_each_active_entry_once_in_order(lockstep, size):
    mask = np.random.default_rng(2).random((3, size)) < np.array([[0.0], [0.4], [1.0]])

    def visit(active, carry):
        seen, clock = carry
        now = jnp.where(active.live, clock + jnp.arange(active.index.size), -1)
        return seen.at[active.index].set(now, mode="drop"), clock + active.live.sum()

    def fold(mask):
        return fold_active(mask, visit, (jnp.full(size, -1), jnp.int32(0)), 4, lockstep=lockstep)

    seen, clock = jax.jit(jax.vmap(fold))(jnp.asarray(mask))
    np.testing.assert_array_equal(seen, np.where(mask, np.cumsum(mask, 1) - 1, -1))
    np.testing.assert_array_equal(clock, mask.sum(1))


def test_room_below_one_is_refused():
    mask = jnp.ones(2, bool)
    with pytest.raises(ValueError, match="room=0"):
        fold_active(mask, lambda active, carry: carry, (), 0)
    with pytest.raises(ValueError, match="room=0"):
        compute_rows(mask, lambda rows: rows, mask, mask, 0)


def test_any_in_batch_as_a_loop_condition_adds_no_selects():
    def count(value):
        return jax.lax.while_loop(
            lambda v: any_in_batch(v[0] < 5), lambda v: (jnp.where(v[0] < 5, v[0] + 1, v[0]), v[1]), value
        )

    start = jnp.arange(8), jnp.ones((8, 100))
    assert jax.jit(jax.vmap(count))(start)[0].tolist() == [5, 5, 5, 5, 5, 5, 6, 7]
    body = str(jax.make_jaxpr(jax.vmap(count))(start))
    assert "bool[8,100]" not in body


def test_cond_any_runs_for_all_elements_or_none():
    def batch(flags):
        return jax.vmap(lambda f, v: cond_any(f, lambda v: v + 1, lambda v: v, v))(flags, jnp.zeros(3))

    assert batch(jnp.array([False, True, False])).tolist() == [1, 1, 1]
    assert batch(jnp.zeros(3, bool)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("room", [1, 2, 3, 5, 8])
def test_compute_rows_equals_where_for_every_pattern(room):
    masks = (jnp.arange(32)[:, None] >> jnp.arange(5)) % 2 == 1
    inputs = {"x": jnp.arange(5.0), "y": jnp.arange(10).reshape(5, 2)}
    default = (-jnp.arange(5.0), -jnp.ones((5, 2), jnp.int32))

    def fn(inputs):
        return inputs["x"] ** 2 + 1, inputs["y"] * 3

    got = jax.jit(jax.vmap(lambda mask: compute_rows(mask, fn, inputs, default, room)))(masks)
    new = fn(inputs)
    np.testing.assert_array_equal(got[0], np.where(masks, new[0], default[0]))
    np.testing.assert_array_equal(got[1], np.where(masks[..., None], new[1], default[1]))


@pytest.mark.parametrize(("picked", "calls"), [(0, 0), (1, 1), (4, 1), (5, 2), (12, 3)])
def test_compute_rows_calls_as_often_as_needed(picked, calls):
    count = []

    def fn(rows):
        jax.debug.callback(lambda: count.append(None))
        return rows

    x = jnp.arange(12)
    jax.jit(lambda mask: compute_rows(mask, fn, x, x, 4))(jnp.arange(12) < picked).block_until_ready()
    jax.effects_barrier()
    assert len(count) == calls


@pytest.mark.parametrize("room", [3, 8])
def test_compute_rows_costs_nothing_for_an_empty_mask(room):
    def fn(rows):
        return jax.lax.fori_loop(0, 300, lambda i, x: jnp.tanh(x @ x), rows)

    x = jnp.ones((8, 32, 32))
    apply = jax.jit(lambda mask: compute_rows(mask, fn, x, x, room))

    def seconds(mask):
        began = time.perf_counter()
        apply(mask).block_until_ready()
        return time.perf_counter() - began

    none, everything = (jnp.full(8, value) for value in (False, True))
    seconds(none)
    assert min(seconds(none) for _ in range(5)) < 0.2 * min(seconds(everything) for _ in range(3))
