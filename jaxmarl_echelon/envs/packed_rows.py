"""Rows: the small leaves of a tree packed into one array per dtype.

Parameters and state of an environment are about a hundred arrays of one to eight numbers. Packed, a
select, gather or scatter of whole environments is one kernel per dtype instead of one per leaf.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

PyTree = Any

NARROW = 16


class Layout(NamedTuple):
    """Static layout of `Rows`: the tree's structure, and shape and dtype of each leaf of one row."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]


@struct.dataclass
class Rows:
    """A tree of arrays, possibly batched, with leaves of at most `NARROW` elements concatenated.

    Attributes:
      wide: the other leaves, `[..., *shape]`, and random keys.
      narrow: dtype to `[..., F]`, all narrow leaves of that dtype.
      layout: the tree's structure and leaf shapes.
    """

    wide: tuple[jax.Array, ...]
    narrow: dict[str, jax.Array]
    layout: Layout = struct.field(pytree_node=False)

    @property
    def tree(self) -> PyTree:
        """The unpacked tree."""
        return _unpacked(self.layout, self.wide, self.narrow)


# Jitted, as are other small functions with many callers: a program has one trace for all of them.
@partial(jax.jit, static_argnums=0)
def _unpacked(layout: Layout, wide: tuple[jax.Array, ...], narrow: dict[str, jax.Array]) -> PyTree:
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


def row(tree: PyTree) -> Rows:
    """Packs one unbatched tree; under `vmap`, leaves that are not batched are packed once."""
    leaves, structure = jax.tree.flatten(tree)
    layout = Layout(structure, tuple((jnp.shape(leaf), leaf.dtype) for leaf in leaves))
    wide, parts = [], {}
    for leaf, (shape, dtype) in zip(leaves, layout.leaves, strict=True):
        if _is_narrow(shape, dtype):
            parts.setdefault(str(dtype), []).append(jnp.ravel(leaf))
        else:
            wide.append(leaf)
    return Rows(tuple(wide), {name: jnp.concatenate(part) for name, part in parts.items()}, layout)


def rows(tree: PyTree) -> Rows:
    """Packs a tree of arrays `[E, ...]` into E rows."""
    return jax.vmap(row)(tree)


def _is_narrow(shape: tuple[int, ...], dtype: Any) -> bool:
    return math.prod(shape) <= NARROW and not jnp.issubdtype(dtype, jax.dtypes.extended)
