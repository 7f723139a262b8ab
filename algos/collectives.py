"""Collectives over the logical shards of a run; identities where a program runs on one shard.

The environments of a run are divided into S shards. State of environments belongs to one shard; parameters
and statistics are the same on all shards. A program is traced once, for one shard, under axes that JAX has
bound by name: `DEVICES` by `jax.shard_map` over a mesh, `HERE` by `jax.vmap` over the shards that a device
holds. The shard's index counts devices first. The functions ask JAX which of the two axes are bound at the
call, so that the same function is right under both axes, under one, and under none. On CPU devices they
make the collectives of a program depend on each other, in the order of the calls (`_in_order`). See
docs/reference/trainer.md 16.1.

Do not take gradients through these functions, and do not call them under a condition that can differ
between shards.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import get_opaque_trace_state

from algos.types import PyTree

DEVICES, HERE = "env", "shard"
# The trace in which the last collective was called, and an element of its result.
_last: list = [None, None]


def num_shards() -> int:
    """Number of shards S; 1 where no axis is bound."""
    return math.prod(lax.axis_size(name) for name in _bound())


def num_devices() -> int:
    """Number of devices that the shards lie on; 1 where that axis is not bound."""
    return _places(DEVICES)


def shard_index() -> jax.Array | int:
    """This shard's index, int32 from 0 to S - 1; the Python number 0 with one shard."""
    number = 0
    for name in _bound():
        number = number * lax.axis_size(name) + lax.axis_index(name)
    return number


def fold_shard_into_key(key: jax.Array) -> jax.Array:
    """Folds this shard's index into a key; returns the key itself with one shard."""
    return jax.random.fold_in(key, shard_index()) if num_shards() > 1 else key


def global_indices(count: int) -> jax.Array:
    """Global indices `[count]`, over the rows of all shards, of this shard's `count` rows."""
    return shard_index() * count + jnp.arange(count)


def local_rows(rows: jax.Array) -> jax.Array:
    """Returns this shard's part `[N / S, ...]` of the rows `[N, ...]` of all shards."""
    if num_shards() == 1:
        return rows
    count = rows.shape[0] // num_shards()
    return lax.dynamic_slice_in_dim(rows, shard_index() * count, count)


def split_key_over_shards(key: jax.Array, count: int) -> jax.Array:
    """Keys of this shard's `count` rows: its part of one split for the rows of all shards."""
    return local_rows(jax.random.split(key, count * num_shards()))


def sum_over_shards(tree: PyTree) -> PyTree:
    """Sums every leaf over all shards; one collective per dtype."""
    return _packed(lambda x: lax.psum(x, _bound()), tree)


def mean_over_shards(tree: PyTree) -> PyTree:
    """Averages every leaf over all shards with equal weights; one collective."""
    return jax.tree.map(lambda x: x / num_shards(), sum_over_shards(tree)) if num_shards() > 1 else tree


def max_over_shards(tree: PyTree) -> PyTree:
    """Maxima over all shards; one collective per dtype."""
    return _packed(lambda x: lax.pmax(x, _bound()), tree)


def min_over_shards(tree: PyTree) -> PyTree:
    """Minima over all shards; one collective per dtype."""
    return _packed(lambda x: lax.pmin(x, _bound()), tree)


def any_over_shards(flag: jax.Array) -> jax.Array:
    """Whether a bool scalar is set on any shard."""
    return max_over_shards(flag.astype(jnp.int32)) > 0 if num_shards() > 1 else flag


@custom_vmap
def any_over_vmaps(flag: jax.Array) -> jax.Array:
    """Tells whether a flag is set in any element of the batch; `jax.vmap` does not batch the result.

    As the condition of a loop it keeps a batched loop from selecting its whole carry in every step: the body
    must then not change elements that are done. Devices are not asked: each takes its own number of steps.
    """
    return jnp.any(flag)


@any_over_vmaps.def_vmap
def _any_over_vmaps(_axis_size, _batched, flag):
    return any_over_vmaps(flag), False


def stack_shards(tree: PyTree) -> PyTree:
    """Stacks the leaves of all shards, in order, to `[S, ...]`; one collective per dtype."""

    def everywhere(x):
        for name in reversed(_bound()):
            x = lax.all_gather(x, name)
        return x.reshape(num_shards(), -1)

    return _packed(everywhere, tree) if num_shards() > 1 else jax.tree.map(lambda x: x[None], tree)


def gather_shards(tree: PyTree, axis: int = 0) -> PyTree:
    """Concatenates the leaves of all shards along `axis`, in order; one collective per dtype."""

    def joined(x):
        x = jnp.moveaxis(x, 0, axis)
        return x.reshape(x.shape[:axis] + (-1,) + x.shape[axis + 2 :])

    return jax.tree.map(joined, stack_shards(tree)) if num_shards() > 1 else tree


def average_gradients(grads: PyTree, sums: PyTree, count: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
    """Averages the gradients of all shards' parts of a minibatch by their samples; one collective.

    Args:
      grads: of this shard's loss, a mean over its samples.
      sums: sums over its samples.
      count: float32, its samples.

    Returns:
      the gradient of the mean over all samples, and their sums and count.
    """
    if num_shards() == 1:
        return grads, sums, count
    weighted = jax.tree.map(lambda g: g * count, grads)
    total, sums, count = sum_over_shards((weighted, sums, count))
    return jax.tree.map(lambda g: g / jnp.maximum(count, 1.0), total), sums, count


def run_in_order(function: Callable, *arguments: PyTree) -> PyTree:
    """Returns `function(*arguments)`, for loops and conditions whose bodies contain collectives.

    On CPU devices they wait for the collectives called before, and those called later wait for them
    (`_in_order`). The result must contain a floating array that the loop computes.
    """
    if not _needs_order():
        return function(*arguments)
    here = get_opaque_trace_state(convention="nnx")
    if _last[0] == here:
        leaves, structure = jax.tree.flatten(arguments)
        place = _floating(leaves)[0]
        leaves[place] = _depend(leaves[place], _last[1])
        arguments = structure.unflatten(leaves)
    result = function(*arguments)
    leaves = jax.tree.leaves(result)
    # Of a scan the last ones are outputs, which it can't pass through unchanged.
    _last[:] = here, _element(leaves[_floating(leaves)[-1]])
    return result


def _floating(leaves: list) -> list[int]:
    """Returns places of the floating arrays that are not empty."""
    arrays = enumerate(map(jnp.asarray, leaves))
    return [place for place, x in arrays if jnp.issubdtype(x.dtype, jnp.floating) and x.size]


def _needs_order() -> bool:
    """Whether the shards lie on several CPU devices."""
    return num_devices() > 1 and jax.default_backend() == "cpu"


def _in_order(collective: Callable, x: jax.Array) -> jax.Array:
    """Applies a collective that waits for the previous one of the same trace, on CPU devices.

    XLA runs independent collectives of a program at the same time on CPUs, and JAX gives all of them the
    same number, by which devices find each other: they then mix or wait for ever.
    """
    if not (_needs_order() and x.size):
        return collective(x)
    here = get_opaque_trace_state(convention="nnx")
    if _last[0] == here:
        x = _depend(x, _last[1])
    y = collective(x)
    _last[:] = here, _element(y)
    return y


def _element(x: jax.Array) -> jax.Array:
    """Returns an element, or its maximum over the shards of this device: state of all shards stays one."""
    return lax.pmax(x.ravel()[0], HERE) if _places(HERE) > 1 else x.ravel()[0]


def _depend(x: jax.Array, on: jax.Array) -> jax.Array:
    """Returns `x`, in a way that makes XLA compute the scalar `on` before; XLA can't know that it is `x`."""
    # 0, or 2 for NaN, but never 1.
    number = on.astype(jnp.float32)
    never = 2 * (number != number).astype(jnp.int32) == 1
    return jnp.where(never, jnp.zeros_like(x), x)


def _bound() -> tuple[str, ...]:
    """Names of the bound axes of size above 1, the slowest first."""
    return tuple(name for name in (DEVICES, HERE) if _places(name) > 1)


def _places(name: str) -> int:
    """Size of an axis; 1 where it is not bound."""
    try:
        return lax.axis_size(name)
    except NameError:
        return 1


def _packed(collective: Callable, tree: PyTree) -> PyTree:
    """Applies a collective to all leaves of one dtype as one array `[n]`; the collective may prepend axes."""
    if num_shards() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(x) for x in leaves]
    done = list(leaves)
    for dtype in dict.fromkeys(x.dtype for x in leaves):
        mine = [i for i, x in enumerate(leaves) if x.dtype == dtype]
        joined = _in_order(collective, jnp.concatenate([leaves[i].ravel() for i in mine]))
        place = 0
        for i in mine:
            part = lax.slice_in_dim(joined, place, place + leaves[i].size, axis=-1)
            done[i] = part.reshape(joined.shape[:-1] + leaves[i].shape)
            place += leaves[i].size
    return structure.unflatten(done)
