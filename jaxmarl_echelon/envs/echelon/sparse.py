"""Work that few need, done for those only, also in batches.

Under `jax.vmap` both branches of a `lax.cond` run for everybody, and a `lax.while_loop` rewrites
what it carries for those that are done. What is here looks at a whole batch instead.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

PyTree = Any


@custom_vmap
def anywhere(flag: jax.Array) -> jax.Array:
    """Whether a flag is set in any environment of the batch: one answer for all of them.

    As the condition of a loop it keeps a batched loop from selecting what it carries: the body
    must then do nothing to an environment that is done.
    """
    return jnp.any(flag)


@anywhere.def_vmap
def _anywhere(axis_size, batched, flag):
    return anywhere(flag), False


def when_anywhere(
    flag: jax.Array, function: Callable[..., PyTree], otherwise: Callable[..., PyTree], *operands: PyTree
) -> PyTree:
    """Returns `function(*operands)` if a flag is set in any environment of the batch.

    Neither function may change anything for environments without the flag. What goes in is computed
    once: XLA on a CPU would else compute it anew in every part of the function that uses it.
    """
    return lax.cond(anywhere(flag), function, otherwise, *operands)


def first(mask: jax.Array, room: int) -> jax.Array:
    """Indices `[room]` of the first true entries of `mask` `[N]`, and N for what is left of the room."""
    size = mask.shape[0]
    before = jnp.matmul(mask.astype(jnp.float32), np.triu(np.ones((size, size), np.float32), 1))
    chosen = mask & (before == np.arange(room, dtype=np.float32)[:, None])
    return jnp.where(chosen, np.arange(size, dtype=np.int32) - size, 0).sum(-1) + size


def where_needed(
    function: Callable[..., PyTree],
    needed: jax.Array,
    otherwise: PyTree,
    *operands: PyTree,
    share: float,
) -> PyTree:
    """Returns `function(*operands)` if `needed`, else `otherwise`; see `updated_where_needed`."""

    def replace(_, *operands):
        return function(*operands)

    return updated_where_needed(replace, needed, otherwise, *operands, share=share)


def updated_where_needed(
    function: Callable[..., PyTree],
    needed: jax.Array,
    state: PyTree,
    *operands: PyTree,
    share: float,
) -> PyTree:
    """Returns `function(state, *operands)` if `needed`, else `state`.

    In a batch, the environments that need it are gathered into smaller batches, as many as it
    takes. Nested batches are taken as one.

    Args:
      function: returns a tree like `state`; closes over no traced arrays.
      needed: bool.
      state: tree of arrays, changed in place where XLA can.
      operands: trees of arrays.
      share: of a batch's environments that are worked on at a time.
    """
    leaves, structure = jax.tree.flatten(operands)

    def run(state, own, common):
        merged = [b if a is None else a for a, b in zip(own, common, strict=True)]
        return function(state, *jax.tree.unflatten(structure, merged))

    @custom_vmap
    def many(needed, state, own, common):
        room = max(1, ceil(needed.shape[0] * share))

        def step(carry):
            todo, result = carry
            index = jnp.nonzero(todo, size=room, fill_value=todo.shape[0])[0]
            picked = jax.tree.map(lambda v: v.at[index].get(mode="clip"), (result, own))
            found = jax.vmap(run, (0, 0, None))(*picked, common)
            result = jax.tree.map(lambda old, new: old.at[index].set(new, mode="drop"), result, found)
            return todo.at[index].set(False, mode="drop"), result

        return lax.while_loop(lambda carry: carry[0].any(), step, (needed, state))[1]

    @many.def_vmap
    def _(axis_size, batched, needed, state, own, common):
        inner = needed.shape[-1]
        outer = [
            None if v is None else jnp.repeat(v, inner, axis=0) for v in _where(batched[3], common, True)
        ]
        needed, state, own = _spread(batched[:3], (needed, state, own), axis_size)
        needed, state, own = jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), (needed, state, own))
        own = [b if a is None else a for a, b in zip(own, outer, strict=True)]
        result = many(needed, state, own, _where(batched[3], common, False))
        result = jax.tree.map(lambda v: v.reshape(axis_size, inner, *v.shape[1:]), result)
        return result, jax.tree.map(lambda _: True, result)

    @custom_vmap
    def one(needed, state, leaves):
        return lax.cond(needed, lambda: run(state, leaves, [None] * len(leaves)), lambda: state)

    @one.def_vmap
    def _(axis_size, batched, needed, state, leaves):
        needed, state = _spread(batched[:2], (needed, state), axis_size)
        own, common = (_where(batched[2], leaves, wanted) for wanted in (True, False))
        return many(needed, state, own, common), jax.tree.map(lambda _: True, state)

    return one(needed, state, leaves)


def _where(batched: list, values: list, wanted: bool) -> list:
    """The values that are batched, or those that are not, with None in place of the others."""
    return [None if v is None or b != wanted else v for b, v in zip(batched, values, strict=True)]


def _spread(batched: PyTree, values: PyTree, size: int) -> PyTree:
    """Gives every value the leading axis that some have."""
    flags = jax.tree.leaves(batched)
    leaves, structure = jax.tree.flatten(values)
    leaves = [
        v if b else jnp.broadcast_to(v, (size, *jnp.shape(v))) for b, v in zip(flags, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)
