"""Packed rows: trees of small arrays concatenated by dtype."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.packed_rows import NARROW, pack_batch, pack_one


def trees(number: int):
    """A tree `[number, ...]` of leaves of all kinds."""
    rng = np.random.default_rng(0)

    def some(*shape, dtype=np.float32):
        return jnp.asarray(rng.integers(0, 2**15, (number, *shape)).astype(dtype))

    return {
        "scalar": some(),
        "flags": some(3, dtype=bool),
        "grid": (some(2, 2), some(2, dtype=np.int32)),
        "widest": some(NARROW),
        "wide": some(NARROW + 1),
        "half": some(2, dtype=jnp.bfloat16),
        "key": jax.random.split(jax.random.key(0), number),
        "none": None,
    }


@pytest.mark.parametrize("number", [1, 5])
def test_packing_and_unpacking_returns_the_same_tree(number):
    tree = trees(number)
    back = pack_batch(tree).tree
    chex.assert_trees_all_equal_structs(tree, back)
    raw = [jax.tree.map(_raw, t) for t in (tree, back)]
    chex.assert_trees_all_equal(*raw)
    chex.assert_trees_all_equal_dtypes(*raw)


def test_narrow_leaves_share_one_array_per_dtype():
    laid = pack_batch(trees(4))
    assert {name: array.shape for name, array in laid.narrow.items()} == {
        "float32": (4, 1 + 4 + NARROW),
        "bool": (4, 3),
        "int32": (4, 2),
        "bfloat16": (4, 2),
    }
    assert sorted(array.shape for array in laid.wide) == [(4,), (4, NARROW + 1)]


def test_rows_are_those_of_the_single_trees_also_in_a_batch_of_batches():
    tree = trees(6)
    single = jax.jit(jax.vmap(pack_one))(tree)
    chex.assert_trees_all_equal(jax.tree.map(_raw, single), jax.tree.map(_raw, pack_batch(tree)))
    nested = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), pack_batch(tree))
    back = jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), nested.tree)
    chex.assert_trees_all_equal(jax.tree.map(_raw, tree), jax.tree.map(_raw, back))


def test_unbatched_leaves_are_packed_once():
    constant = {"gain": jnp.float32(2.0), "limit": jnp.arange(3.0)}
    laid = jax.jit(jax.vmap(lambda _: pack_one(constant), out_axes=None, axis_size=7))(jnp.arange(7))
    assert laid.narrow["float32"].tolist() == [2.0, 0.0, 1.0, 2.0]


def _raw(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else leaf
