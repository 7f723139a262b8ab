"""Packed rows: the small leaves of a tree concatenated into one array per dtype.

Parameters and state of an environment are about a hundred arrays of one to eight numbers. Packed, a
select, gather or scatter of whole environments is one kernel per dtype instead of one per leaf.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.types import PyTree

NARROW = 16


class RowLayout(NamedTuple):
    """Static layout of `PackedRows`: the tree's structure, and shape and dtype of each leaf of one row."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]


class PackedRows(struct.PyTreeNode):
    """Tree of arrays, possibly batched, with its leaves of at most `NARROW` elements concatenated.

    Attributes:
      wide: all other leaves, `[..., *shape]`, and random keys.
      narrow: dtype to `[..., F]`, all small leaves of that dtype.
      layout: the tree's structure and leaf shapes.
    """

    wide: tuple[jax.Array, ...]
    narrow: dict[str, jax.Array]
    layout: RowLayout = struct.field(pytree_node=False)

    @property
    def tree(self) -> PyTree:
        """Tree with all leaves unpacked."""
        return _unpacked(self.layout, self.wide, self.narrow)


# Jitted, like other small functions with many callers, so that a program traces it only once.
@partial(jax.jit, static_argnums=0)
def _unpacked(layout: RowLayout, wide: tuple[jax.Array, ...], narrow: dict[str, jax.Array]) -> PyTree:
    widths: dict[str, list[int]] = {}
    for shape, dtype in layout.leaves:
        if _is_narrow(shape, dtype):
            widths.setdefault(str(dtype), []).append(math.prod(shape))
    parts = {name: iter(jax.lax.split(narrow[name], width, axis=-1)) for name, width in widths.items()}
    others, leaves = iter(wide), []
    for shape, dtype in layout.leaves:
        if _is_narrow(shape, dtype):
            part = next(parts[str(dtype)])
            leaves.append(part.reshape(*part.shape[:-1], *shape))
        else:
            leaves.append(next(others))
    return layout.structure.unflatten(leaves)


def pack_one(tree: PyTree) -> PackedRows:
    """Packs one unbatched tree; under `vmap`, leaves that are not batched are packed once."""
    leaves, structure = jax.tree.flatten(tree)
    return pack_as(tree, RowLayout(structure, tuple((jnp.shape(leaf), leaf.dtype) for leaf in leaves)))


def pack_batch(tree: PyTree) -> PackedRows:
    """Packs a tree of arrays `[E, ...]` into E rows."""
    return jax.vmap(pack_one)(tree)


def pack_as(tree: PyTree, layout: RowLayout) -> PackedRows:
    """Packs a tree of arrays `[..., *shape]` with any leading axes, as `PackedRows.tree` returns it."""
    wide, parts = [], {}
    for leaf, (shape, dtype) in zip(jax.tree.leaves(tree), layout.leaves, strict=True):
        if _is_narrow(shape, dtype):
            leading = leaf.shape[: leaf.ndim - len(shape)]
            parts.setdefault(str(dtype), []).append(leaf.reshape(*leading, math.prod(shape)))
        else:
            wide.append(leaf)
    narrow = {name: jnp.concatenate(part, axis=-1) for name, part in parts.items()}
    return PackedRows(tuple(wide), narrow, layout)


def _is_narrow(shape: tuple[int, ...], dtype: Any) -> bool:
    return math.prod(shape) <= NARROW and not jnp.issubdtype(dtype, jax.dtypes.extended)
