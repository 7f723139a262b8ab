"""Sparse batched work: computations on the active entries of a batch only.

XLA has static shapes, and under `jax.vmap` both branches of a `lax.cond` run for every element. Here the
active entries of a batch are compacted into as many chunks of a fixed size as needed. `fold_active`
loops over chunks; `compute_rows` gathers, computes and scatters rows of arrays; `compute_where` and
`update_where` act like `lax.cond` and do the same under `jax.vmap`. See docs/reference/f110.md 16.1.
"""

from collections.abc import Callable
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.custom_batching import custom_vmap

from physics.integrate import PyTree

_ROW = 128  # entries that are counted together when single ones are looked up
_COMPARED = 512  # rows up to which all are compared with each rank
_SHORT = 128  # masks of at most so many entries are compacted by comparisons, longer ones by a scatter;
# and entries that a triangular product sums
_DENSE_SHARE = 1 / 8  # expected share of active rows from which on an accelerator computes all of them


def on_accelerator() -> bool:
    """Returns whether programs run on a GPU or TPU, where few large kernels cost less than many small."""
    return jax.default_backend() != "cpu"


class ActiveEntries(struct.PyTreeNode):
    """The first active entries of a mask `[N]`.

    Attributes:
      index: `[room]` int32, in ascending order; N in unused places.
      place: `[N]` int32, rank of each active entry among the active ones; undefined for the others.
      count: int32, active entries of the whole mask.
    """

    index: jax.Array
    place: jax.Array
    count: jax.Array

    @property
    def live(self) -> jax.Array:
        """Mask `[room]` of the places that hold an active entry's index."""
        return self.index < self.place.shape[0]


def first_active(mask: jax.Array, room: int) -> ActiveEntries:
    """Compacts the first `room` active entries of a bool mask `[N]`."""
    size = mask.shape[0]
    width = size if size <= _SHORT else 32
    within = _sums_upto(jnp.pad(mask, (0, -size % width)).reshape(-1, width))
    if size <= _SHORT:
        place = within[0] - 1
        chosen = mask & (place == np.arange(room, dtype=np.int32)[:, None])
        index = jnp.where(chosen, np.arange(size, dtype=np.int32) - size, 0).sum(-1) + size
        return ActiveEntries(index, place, within[0, -1])
    before = _sums_upto(within[:, -1]) - within[:, -1]
    place = (within + before[:, None]).ravel()[:size] - 1
    target = jnp.where(mask, place, room)
    index = jnp.full(room, size, jnp.int32).at[target].set(np.arange(size, dtype=np.int32), mode="drop")
    return ActiveEntries(index, place, before[-1] + within[-1, -1])


def locate_active(mask: jax.Array, ranks: jax.Array) -> jax.Array:
    """Returns the indices `[K]` int32 of the active entries of given ranks; undefined for other ranks.

    Reads the mask once, to count, and then one short row per rank: for a few entries of a long mask several
    times faster than a compaction, which writes a place for every entry.

    Args:
      mask: `[N]` bool.
      ranks: `[K]` int32, from 0 to the number of active entries - 1.
    """
    rows = jnp.pad(mask, (0, -mask.shape[0] % _ROW)).reshape(-1, _ROW)
    counts = jnp.sum(rows, axis=1, dtype=jnp.int32)
    upto = _sums_upto(counts)
    # A comparison with all is one operation, where a search is a loop of many.
    method = "compare_all" if rows.shape[0] <= _COMPARED else "scan"
    row = jnp.minimum(jnp.searchsorted(upto, ranks, side="right", method=method), rows.shape[0] - 1)
    within = ranks - (upto[row] - counts[row])
    place = jnp.sum(_sums_upto(rows[row]) <= within[:, None], axis=1, dtype=jnp.int32)
    return jnp.minimum(row * _ROW + place, mask.shape[0] - 1).astype(jnp.int32)


def _sums_upto(rows: jax.Array) -> jax.Array:
    """Cumulative sums, int32, along the last axis of bools or of whole numbers up to 128.

    Short ones by a triangular product, which is exact here in any precision: several times faster on a CPU
    than a cumsum, of which XLA makes a tree of operations, and it compiles faster.
    """
    width = rows.shape[-1]
    if width > _SHORT:
        return jnp.cumsum(rows, axis=-1, dtype=jnp.int32)
    triangle = np.triu(np.ones((width, width), np.float32))
    return jnp.matmul(rows.astype(jnp.float32), triangle).astype(jnp.int32)


def fold_active(
    mask: jax.Array,
    step: Callable[[ActiveEntries, PyTree], PyTree],
    carry: PyTree,
    room: int,
    *,
    lockstep: bool = False,
) -> PyTree:
    """Loops over the active entries of a mask, `room` at a time: ceil(active / room) steps.

    The mask is compacted in every step, so that an empty mask costs nothing.

    Args:
      mask: `[N]` bool.
      step: `(active, carry) -> carry`.
      carry: the carry of the first step.
      room: entries per step; more than N counts as N.
      lockstep: under `jax.vmap` all elements take as many steps as the one that needs most, and their
        carries are not selected: `step` must not change elements without a live entry.

    Raises:
      ValueError: if `room` is below 1.
    """
    room = _checked(mask, room)

    def advance(loop):
        mask, _, carry = loop
        active = first_active(mask, room)
        return mask & (active.place >= room), active.count > room, step(active, carry)

    def unfinished(loop):
        return any_in_batch(loop[1]) if lockstep else loop[1]

    return lax.while_loop(unfinished, advance, (mask, mask.any(), carry))[2]


def take_rows(tree: PyTree, index: jax.Array) -> PyTree:
    """Gathers rows `[room, ...]` of arrays `[N, ...]`; indices beyond the end give the last row."""
    return jax.tree.map(lambda v: v.at[index].get(mode="clip", wrap_negative_indices=False), tree)


def put_rows(tree: PyTree, index: jax.Array, rows: PyTree) -> PyTree:
    """Replaces rows of arrays `[N, ...]`; indices beyond the end are dropped, others must be distinct."""

    def put(old, new):
        return old.at[index].set(new, mode="drop", unique_indices=True, wrap_negative_indices=False)

    return jax.tree.map(put, tree, rows)


def compute_rows(
    mask: jax.Array, fn: Callable[[PyTree], PyTree], inputs: PyTree, default: PyTree, room: int
) -> PyTree:
    """Returns rows of `fn(inputs)` where `mask` is set, and rows of `default` elsewhere.

    The mask is compacted once, before the loop. `fn` is called ceil(active / room) times, so never for an
    empty mask. If `fn` treats rows independently, the result does not depend on `room`.

    Args:
      mask: `[N]` bool.
      fn: maps a pytree of `[room, ...]` arrays to one of `[room, ...]` arrays.
      inputs: pytree of `[N, ...]` arrays.
      default: pytree of `[N, ...]` arrays, with the structure and dtypes of the results of `fn`.
      room: rows per call; more than N counts as N.

    Raises:
      ValueError: if `room` is below 1.
    """
    size, room = mask.shape[0], _checked(mask, room)
    # One chunk more than needed: a slice that covers everything would be loop-invariant, and XLA would
    # move `fn` out of the loop, where it runs even for an empty mask.
    active = first_active(mask, (-(-size // room) + 1) * room)

    def step(carry):
        first, result = carry
        index = lax.dynamic_slice(active.index, (first,), (room,))
        return first + room, put_rows(result, index, fn(take_rows(inputs, index)))

    return lax.while_loop(lambda carry: carry[0] < active.count, step, (jnp.int32(0), default))[1]


@custom_vmap
def any_in_batch(flag: jax.Array) -> jax.Array:
    """Tells whether a flag is set in any element of the batch; `jax.vmap` does not batch the result.

    As the condition of a loop it keeps a batched loop from selecting its carry: the body must then not
    change elements that are done.
    """
    return jnp.any(flag)


@any_in_batch.def_vmap
def _any_in_batch(_axis_size, _batched, flag):
    return any_in_batch(flag), False


def cond_any(flag: jax.Array, true_fn: Callable, false_fn: Callable, *operands: PyTree) -> PyTree:
    """Calls `true_fn` if the flag is set in any element of the batch, else `false_fn`, by `lax.cond`.

    Neither function may change elements without the flag: an accelerator, on which a condition waits for the
    host, calls `true_fn` without looking. Operands are computed once; otherwise XLA on a CPU would recompute
    them in every part of a function that uses them.
    """
    if on_accelerator():
        return true_fn(*operands)
    return lax.cond(any_in_batch(flag), true_fn, false_fn, *operands)


def compute_first(flag: jax.Array, fn: Callable, *operands: PyTree) -> PyTree:
    """Returns `fn(*operands)` as an array in memory; zeros if no flag of the batch is set.

    XLA on a CPU fuses `fn` into its consumers and then computes it once per consumer. It does not look into
    the branch of a `lax.cond`. On an accelerator this is a plain call.

    Args:
      flag: bool, true wherever the result matters; not a constant.
      fn: returns a tree of arrays.
      operands: trees of arrays.
    """
    if on_accelerator():
        return fn(*operands)
    shapes = jax.eval_shape(fn, *operands)

    def nothing(*_):
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    return cond_any(flag, fn, nothing, *operands)


def compute_where(
    fn: Callable[..., PyTree],
    active: jax.Array,
    default: PyTree,
    *operands: PyTree,
    share: float,
    shared: PyTree = None,
) -> PyTree:
    """Returns `fn(*operands)` if `active`, else `default`; see `update_where`.

    With `shared`, a tree of arrays that a nested batch has in common, it is `fn(place, shared, *operands)`:
    `fn` gets these arrays with an additional first axis, stacked over the outer batch and neither copied nor
    gathered for its elements, and `place`, the int32 index of its own there.
    """
    if shared is None:
        return _where(lambda _, __, ___, *values: fn(*values), active, default, operands, share)
    return _where(
        lambda _, place, stacked, *values: fn(place, stacked, *values),
        active,
        default,
        operands,
        share,
        shared,
    )


def update_where(
    fn: Callable[..., PyTree], active: jax.Array, state: PyTree, *operands: PyTree, share: float
) -> PyTree:
    """Returns `fn(state, *operands)` if `active`, else `state`: a `lax.cond` that is sparse under `jax.vmap`.

    Nested batches are merged into one. Values without a batch axis are neither copied nor gathered.

    Args:
      fn: returns a tree like `state`; closes over no traced arrays.
      active: bool scalar.
      state: tree of arrays, updated in place where XLA can.
      operands: trees of arrays.
      share: share of a batch that is computed at a time.
    """

    def update(state, _, __, *values):
        return fn(state, *values)

    return _where(update, active, state, operands, share, reads_state=True)


def broadcast_unbatched(batched: PyTree, values: PyTree, size: int) -> PyTree:
    """Adds a leading axis of `size` to values that have none according to `batched`, for `custom_vmap`."""
    flags = jax.tree.leaves(batched)
    leaves, structure = jax.tree.flatten(values)
    leaves = [
        v if b else jnp.broadcast_to(v, (size, *jnp.shape(v))) for b, v in zip(flags, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def _checked(mask: jax.Array, room: int) -> int:
    """Returns the entries per chunk, at most all; raises ValueError below 1."""
    if room < 1:
        raise ValueError(f"room={room} must be at least 1")
    return min(room, mask.shape[0])


def _where(fn, active, state, operands, share: float, shared: PyTree = None, *, reads_state: bool = False):
    """Applies the batching rules: a `lax.cond`, one batch of it, and nested batches merged into one.

    Leaves of the operands are passed as two lists, those with a batch axis (`own`) and those without
    (`common`); each holds None where the other holds the leaf. Arrays of `shared` have an
    axis of their own, which `place` indexes.
    """
    leaves, structure = jax.tree.flatten(operands)

    def call(state, place, own, common, shared):
        merged = [b if a is None else a for a, b in zip(own, common, strict=True)]
        return fn(state, place, shared, *jax.tree.unflatten(structure, merged))

    @custom_vmap
    def batch(active, state, place, own, common, shared):
        def rows(state, place, own):
            return jax.vmap(call, (0, 0, 0, None, None))(state, place, own, common, shared)

        def step(chunk, state):
            return put_rows(state, chunk.index, rows(*take_rows((state, place, own), chunk.index)))

        if not reads_state and share >= _DENSE_SHARE and on_accelerator():
            return jax.tree.map(
                lambda new, old: jnp.where(active.reshape(-1, *(1,) * (old.ndim - 1)), new, old),
                rows(None, place, own),
                state,
            )
        room = max(1, ceil(active.shape[0] * share))
        if not reads_state:
            return compute_rows(active, lambda given: rows(None, *given), (place, own), state, room)
        return fold_active(active, step, state, room)

    @batch.def_vmap
    def _(axis_size, batched, active, state, place, own, common, shared):
        inner = active.shape[-1]
        outer = [None if v is None else jnp.repeat(v, inner, axis=0) for v in _only(True, batched[4], common)]
        active, state, place, own = broadcast_unbatched(batched[:4], (active, state, place, own), axis_size)
        place, shared = _stacked(batched[5], place, shared, axis_size)
        active, state, place, own = jax.tree.map(lambda v: lax.collapse(v, 0, 2), (active, state, place, own))
        own = [b if a is None else a for a, b in zip(own, outer, strict=True)]
        result = batch(active, state, place, own, _only(False, batched[4], common), shared)
        result = jax.tree.map(lambda v: v.reshape(axis_size, inner, *v.shape[1:]), result)
        return result, jax.tree.map(lambda _: True, result)

    @custom_vmap
    def single(active, state, place, leaves, shared):
        return lax.cond(
            active, lambda: call(state, place, leaves, [None] * len(leaves), shared), lambda: state
        )

    @single.def_vmap
    def _(axis_size, batched, active, state, place, leaves, shared):
        active, state, place = broadcast_unbatched(batched[:3], (active, state, place), axis_size)
        place, shared = _stacked(batched[4], place, shared, axis_size)
        own, common = (_only(wanted, batched[3], leaves) for wanted in (True, False))
        return batch(active, state, place, own, common, shared), jax.tree.map(lambda _: True, state)

    return single(active, state, jnp.int32(0), leaves, jax.tree.map(lambda v: v[None], shared))


def _stacked(batched: PyTree, place: jax.Array, shared: PyTree, size: int) -> tuple[jax.Array, PyTree]:
    """Merges a batch axis into that of what is shared, and moves the places `[size, ...]` accordingly."""
    if not any(jax.tree.leaves(batched)):
        return place, shared
    shared = broadcast_unbatched(batched, shared, size)
    each = jax.tree.leaves(shared)[0].shape[1]
    first = each * jnp.arange(size, dtype=jnp.int32)
    place = place + first.reshape(size, *(1,) * (place.ndim - 1))
    return place, jax.tree.map(lambda v: lax.collapse(v, 0, 2), shared)


def _only(wanted: bool, batched: list, values: list) -> list:
    """Returns the values whose flag is `wanted`, with None in place of the others."""
    return [v if v is not None and b == wanted else None for b, v in zip(batched, values, strict=True)]
