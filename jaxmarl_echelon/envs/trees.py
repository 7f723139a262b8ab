"""Pytrees with a leading environment axis: select, masked mean, finiteness, layout comparison."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from algos.types import PyTree
from physics.sparse_batch import on_accelerator

SLICE, WIDE_SLICE = 8, 4096
WIDE = 64  # numbers of a last axis from which on a product is the faster test for finite numbers


def map_in_chunks(fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
    """Maps a batched function over slices of rows: on a CPU few, which compile faster than one batch."""
    number = jax.tree.leaves(inputs)[0].shape[0]
    size = math.gcd(number, WIDE_SLICE if on_accelerator() else SLICE)
    sliced = jax.tree.map(lambda x: x.reshape(number // size, size, *x.shape[1:]), inputs)
    return jax.tree.map(lambda x: x.reshape(number, *x.shape[2:]), lax.map(fn, sliced))


@jax.jit
def mean_where(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean over the last axis of `values` where `mask` (same shape) is set; NaN if empty."""
    number = jnp.sum(mask, axis=-1)
    total = jnp.sum(jnp.where(mask, values, 0), axis=-1)
    return jnp.where(number > 0, total / jnp.maximum(number, 1), jnp.nan)


def layout_difference(expected: PyTree, got: PyTree) -> str | None:
    """Names the first leaf in which two pytrees of arrays differ in path, shape or dtype.

    Returns:
      One line with the leaf and what was expected, or None if there is no difference.
    """
    leaves, others = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (expected, got)
    )
    for path in [*leaves, *others]:
        if path not in others:
            return f"{path} is missing"
        if path not in leaves:
            return f"{path} is unexpected"
        wanted, found = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (leaves[path], others[path]))
        if wanted != found:
            return f"{path} is {found}, expected {wanted}"
    if jax.tree.structure(expected) != jax.tree.structure(got):
        return f"the containers are {jax.tree.structure(got)}, expected {jax.tree.structure(expected)}"
    return None


def _is_float(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def rows_are_finite(tree: PyTree) -> jax.Array:
    """Tells whether all floats of each row are finite, bool `[E]`; keys and integers are ignored."""
    return jnp.stack([_finite_rows(leaf) for leaf in jax.tree.leaves(tree) if _is_float(leaf)]).all(0)


def _finite_rows(leaf: jax.Array) -> jax.Array:
    """Tells whether all numbers of each row are finite; wide leaves are multiplied by very small numbers.

    A sum of such products is finite if and only if all factors are. A CPU multiplies in one pass; otherwise
    it would write a mask of the leaf's size and reduce it, which takes five times as long.
    """
    if leaf.ndim > 2 and leaf.shape[-1] >= WIDE:
        small = jnp.full(leaf.shape[-1], jnp.finfo(leaf.dtype).tiny, leaf.dtype)
        leaf = jnp.matmul(leaf, small, precision=lax.Precision.HIGHEST)
    return jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(1)


def zero_nonfinite(tree: PyTree) -> PyTree:
    """Returns the tree with non-finite values replaced by 0."""
    return jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0) if _is_float(x) else x, tree)


def strip_weak_types(tree: PyTree) -> PyTree:
    """Strips weak types, which would cause retraces of functions with the tree as an argument."""

    def one(x):
        x = jnp.asarray(x)
        return x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else lax.convert_element_type(x, x.dtype)

    return jax.tree.map(one, tree)
