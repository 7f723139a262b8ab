"""Masks over the leading axes of arrays."""

import jax
import jax.numpy as jnp

from algos.types import PyTree


def expand_mask(mask: jax.Array, dimensions: int) -> jax.Array:
    """Appends axes of length 1 to an array `[...]`, so that it has this many dimensions."""
    return mask.reshape(mask.shape + (1,) * (dimensions - mask.ndim))


def select_rows(mask: jax.Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Selects rows: leaves of `chosen` where `mask` is set, of `other` elsewhere.

    Args:
      mask: bool `[...]`, over the leading axes of all leaves.
      chosen, other: trees of one structure.
    """
    return jax.tree.map(lambda a, b: jnp.where(expand_mask(mask, b.ndim), a, b), chosen, other)
