"""Optimiser steps over all small arrays as one array, because each array has a fixed cost per step."""

from collections.abc import Callable
from typing import ClassVar, Self

import jax
from flax import struct

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


class PackedArrays(struct.PyTreeNode):
    """A tree of arrays in the form of `pack_small_arrays`.

    Attributes:
      arrays: the arrays.
      layout: structure, and shapes and types of its leaves.
    """

    arrays: list[jax.Array]
    layout: tuple = struct.field(pytree_node=False)

    @classmethod
    def pack(cls, tree: PyTree) -> "PackedArrays":
        """Packs a tree; a packed one stays as it is."""
        if isinstance(tree, PackedArrays):
            return tree
        leaves, structure = jax.tree.flatten(tree)
        shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
        return cls(pack_small_arrays(tree), (structure, shapes))

    def unpack(self) -> PyTree:
        """Returns the tree."""
        structure, shapes = self.layout
        return unpack_small_arrays(self.arrays, structure.unflatten(shapes))


class MomentState(struct.PyTreeNode):
    """State of an optimiser with fields that are shaped like the parameters, which `SHAPED` names."""

    SHAPED: ClassVar[tuple[str, ...]] = ()

    def change(self, change: Callable) -> Self:
        """Applies a function to each of these fields."""
        return self.replace(**{name: change(getattr(self, name)) for name in self.SHAPED})


def pack_moments(state: PyTree) -> PyTree:
    """Packs the moments in the state of an optimiser, which saves to do it in every step of a loop."""
    return _change_moments(state, PackedArrays.pack)


def unpack_moments(state: PyTree) -> PyTree:
    """Inverse of `pack_moments`."""
    return _change_moments(state, PackedArrays.unpack)


def _change_moments(state: PyTree, change: Callable) -> PyTree:
    def is_moments(part):
        return isinstance(part, MomentState)

    return jax.tree.map(lambda x: x.change(change) if is_moments(x) else x, state, is_leaf=is_moments)


def pack_step(step: Callable) -> Callable:
    """Wraps the step of an optimiser to work on packed arrays; inputs and outputs keep their shapes.

    Args:
      step: as `Optimizer.step`, with a `MomentState`; the step of every number must depend on that number
        alone. Packed moments stay packed.
    """

    def packed(grads, state, params, hyper, scale=1.0, apply=True):
        moments = pack_moments(state)
        inner, parts = moments.change(lambda x: x.arrays), pack_small_arrays(params)
        after, inner = step(pack_small_arrays(grads), inner, parts, hyper, scale, apply)
        layouts = {name: getattr(moments, name) for name in moments.SHAPED}
        arrays = {name: x.replace(arrays=getattr(inner, name)) for name, x in layouts.items()}
        inner = inner.replace(**arrays)
        stays = any(isinstance(getattr(state, name), PackedArrays) for name in state.SHAPED)
        return unpack_small_arrays(after, params), inner if stays else unpack_moments(inner)

    return packed
