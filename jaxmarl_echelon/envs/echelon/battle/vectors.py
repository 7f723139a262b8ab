"""Products, lengths and sums of short vectors.

Written out by component: XLA on a CPU hands sums over an axis, however short, to a library call
that takes many times as long and keeps what surrounds it from being fused.
"""

import jax
import jax.numpy as jnp


def dot(first: jax.Array, second: jax.Array) -> jax.Array:
    """Scalar products along the last axis."""
    size = max(first.shape[-1], second.shape[-1])
    return sum(first[..., i] * second[..., i] for i in range(size))


def square(vectors: jax.Array) -> jax.Array:
    """Squares of lengths along the last axis."""
    return dot(vectors, vectors)


def length(vectors: jax.Array) -> jax.Array:
    """Lengths along the last axis."""
    return jnp.sqrt(square(vectors))


def unit(vectors: jax.Array) -> jax.Array:
    """Vectors of length 1; of length 0 where there is no direction."""
    return vectors / jnp.maximum(length(vectors), 1e-6)[..., None]


def lowest(values: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """The first index of the smallest value along an axis, int32, and that value."""
    least = values.min(axis, keepdims=True)
    numbers = jax.lax.broadcasted_iota(jnp.int32, values.shape, axis % values.ndim)
    index = jnp.where(values <= least, numbers, values.shape[axis] - 1).min(axis)
    return index, jnp.squeeze(least, axis)


def total(values: jax.Array, axis: int) -> jax.Array:
    """Sums along an axis of few entries."""
    parts = [jnp.take(values, i, axis) for i in range(values.shape[axis])]
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]
