"""Products, lengths and sums of short vectors.

Written out by component: XLA on a CPU turns sums over an axis, however short, into a library call
that is many times slower and prevents fusion with neighbouring operations.
"""

import jax
import jax.numpy as jnp


def dot(first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns scalar products along the last axis."""
    size = max(first.shape[-1], second.shape[-1])
    return sum(first[..., i] * second[..., i] for i in range(size))


def squared_length(vectors: jax.Array) -> jax.Array:
    """Returns squared lengths along the last axis."""
    return dot(vectors, vectors)


def vector_length(vectors: jax.Array) -> jax.Array:
    """Returns lengths along the last axis."""
    return jnp.sqrt(squared_length(vectors))


def unit_vectors(vectors: jax.Array) -> jax.Array:
    """Returns vectors scaled to length 1; zero vectors stay zero."""
    return vectors / jnp.maximum(vector_length(vectors), 1e-6)[..., None]


def argmin_and_min(values: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns the first index of the smallest value along an axis, int32, and that value."""
    least = values.min(axis, keepdims=True)
    numbers = jax.lax.broadcasted_iota(jnp.int32, values.shape, axis % values.ndim)
    index = jnp.where(values <= least, numbers, values.shape[axis] - 1).min(axis)
    return index, jnp.squeeze(least, axis)


def sum_pairwise(values: jax.Array, axis: int) -> jax.Array:
    """Returns sums along a short axis, added pairwise."""
    parts = [jnp.take(values, i, axis) for i in range(values.shape[axis])]
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]
