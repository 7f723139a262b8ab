"""Steps of an optimiser over all small arrays at once: in short steps, each array costs a share of them."""

from typing import Any

import jax

from algos.optim.optimizers import Optimizer, global_norm

PyTree = Any

# Arrays of at most so many numbers are laid end to end.
SMALL = 4096


def pack(tree: PyTree) -> list[jax.Array]:
    """The large arrays of a tree, then one `[N]` of all small ones end to end, if there are any.

    Raises:
      TypeError: for small arrays of several types.
    """
    leaves = jax.tree.leaves(tree)
    small = [x.ravel() for x in leaves if x.size <= SMALL]
    end = [jax.lax.concatenate(small, 0)] if small else []
    return [x for x in leaves if x.size > SMALL] + end


def unpack(parts: list[jax.Array], like: PyTree) -> PyTree:
    """The tree that `pack` made `parts` of; `like` is one of the same structure and shapes."""
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


def packed(optimizer: Optimizer) -> Optimizer:
    """The optimiser with its norm and its steps taken over packed arrays; itself where that changes a step.

    Parameters, gradients and states keep their shapes outside. Numbers differ by rounding.
    """
    if not optimizer.elementwise:
        return optimizer

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        parts = pack(params)
        inner = _replace(state, params, pack)
        after, inner = optimizer.step(pack(grads), inner, parts, hyper, scale, apply)
        return unpack(after, params), _replace(inner, parts, lambda part: unpack(part, params))

    return optimizer._replace(step=step, norm=lambda grads: global_norm(pack(grads)))


def _replace(state: PyTree, like: PyTree, change) -> PyTree:
    """The state with `change` applied to every part that is built like the parameters."""
    structure, shapes = jax.tree.structure(like), [x.shape for x in jax.tree.leaves(like)]

    def matches(part):
        return jax.tree.structure(part) == structure and [x.shape for x in jax.tree.leaves(part)] == shapes

    return jax.tree.map(lambda part: change(part) if matches(part) else part, state, is_leaf=matches)
