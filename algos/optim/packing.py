"""Optimiser steps over all small arrays as one array, because each array has a fixed cost per step."""

from collections.abc import Callable

import jax

from algos.types import PyTree

# Arrays of at most this many elements are concatenated.
SMALL = 4096


def pack_small_arrays(tree: PyTree) -> list[jax.Array]:
    """Returns the large arrays of a tree, followed by one array `[N]` of all small ones per type."""
    leaves = jax.tree.leaves(tree)
    small: dict = {}
    for x in leaves:
        if x.size <= SMALL:
            small.setdefault(x.dtype, []).append(x.ravel())
    return [x for x in leaves if x.size > SMALL] + [jax.lax.concatenate(x, 0) for x in small.values()]


def unpack_small_arrays(parts: list[jax.Array], like: PyTree) -> PyTree:
    """Inverse of `pack_small_arrays`; `like` is a tree of the original structure, shapes and types."""
    leaves, structure = jax.tree.flatten(like)
    large = iter(parts)
    unpacked = [next(large) if x.size > SMALL else x for x in leaves]
    for dtype, joined in zip(dict.fromkeys(x.dtype for x in leaves if x.size <= SMALL), large, strict=True):
        end = 0
        for i, x in enumerate(leaves):
            if x.size <= SMALL and x.dtype == dtype:
                unpacked[i] = joined[end : end + x.size].reshape(x.shape)
                end += x.size
    return structure.unflatten(unpacked)


def pack_step(step: Callable, moments: tuple[str, ...]) -> Callable:
    """Wraps the step of an optimiser to work on packed arrays; inputs and outputs keep their shapes.

    Args:
      step: as `Optimizer.step`; the step of every number must depend on that number alone.
      moments: fields of the state that are shaped like the parameters.
    """

    def packed(grads, state, params, hyper, scale=1.0, apply=True):
        inner = state.replace(**{name: pack_small_arrays(getattr(state, name)) for name in moments})
        parts = pack_small_arrays(params)
        after, inner = step(pack_small_arrays(grads), inner, parts, hyper, scale, apply)
        back = {name: unpack_small_arrays(getattr(inner, name), params) for name in moments}
        return unpack_small_arrays(after, params), inner.replace(**back)

    return packed
