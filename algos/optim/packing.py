"""Optimiser steps over all small arrays as one array, because each array has a fixed cost per step."""

import jax

from algos.optim.optimizers import Optimizer, global_norm
from algos.types import PyTree

# Arrays of at most this many elements are concatenated.
SMALL = 4096


def pack_small_arrays(tree: PyTree) -> list[jax.Array]:
    """Returns the large arrays of a tree, followed by the concatenation `[N]` of all small ones, if any.

    Raises:
      TypeError: for small arrays of different types.
    """
    leaves = jax.tree.leaves(tree)
    small = [x.ravel() for x in leaves if x.size <= SMALL]
    end = [jax.lax.concatenate(small, 0)] if small else []
    return [x for x in leaves if x.size > SMALL] + end


def unpack_small_arrays(parts: list[jax.Array], like: PyTree) -> PyTree:
    """Inverse of `pack_small_arrays`; `like` is a tree of the original structure and shapes."""
    leaves, structure = jax.tree.flatten(like)
    large, end = iter(parts), parts[-1]
    unpacked, place = [], 0
    for leaf in leaves:
        if leaf.size > SMALL:
            unpacked.append(next(large))
        else:
            unpacked.append(end[place : place + leaf.size].reshape(leaf.shape))
            place += leaf.size
    return structure.unflatten(unpacked)


def pack_optimizer(optimizer: Optimizer) -> Optimizer:
    """Wraps an optimiser to work on packed arrays; returns it unchanged if it is not elementwise.

    Inputs and outputs keep their shapes. Results differ by rounding.
    """
    if not optimizer.elementwise:
        return optimizer

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        parts = pack_small_arrays(params)
        inner = _replace(state, params, pack_small_arrays)
        after, inner = optimizer.step(pack_small_arrays(grads), inner, parts, hyper, scale, apply)
        return unpack_small_arrays(after, params), _replace(
            inner, parts, lambda part: unpack_small_arrays(part, params)
        )

    return optimizer._replace(step=step, norm=lambda grads: global_norm(pack_small_arrays(grads)))


def _replace(state: PyTree, like: PyTree, change) -> PyTree:
    """Applies `change` to every part of a state that has the structure and shapes of the parameters."""
    structure, shapes = jax.tree.structure(like), [x.shape for x in jax.tree.leaves(like)]

    def matches(part):
        return jax.tree.structure(part) == structure and [x.shape for x in jax.tree.leaves(part)] == shapes

    return jax.tree.map(lambda part: change(part) if matches(part) else part, state, is_leaf=matches)
