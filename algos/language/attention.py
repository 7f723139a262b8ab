"""Rotary positions, and attention of whole rows or of one place to a cache.

Axes are R rows, S places, H query heads, K key heads of size h; query head i reads key head i // (H / K).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class RopeScaling(NamedTuple):
    """Llama 3's change of the rotary frequencies for long contexts.

    Attributes:
      factor: divisor of low frequencies.
      low, high: `original / low` and `original / high` are the wavelengths, in positions, between which the
        change fades out.
      original: positions of the first training.
    """

    factor: float
    low: float
    high: float
    original: float


class Rotation(NamedTuple):
    """Cosines and sines of positions, `[R or 1, S, 1, h / 2]`, float32."""

    cos: jax.Array
    sin: jax.Array


def rotary_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """Returns the angles `[h / 2]` by which a position turns each pair of a head, float64."""
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return frequencies
    wavelength = 2.0 * np.pi / frequencies
    kept = (scaling.original / wavelength - scaling.low) / (scaling.high - scaling.low)
    kept = np.clip(kept, 0.0, 1.0)
    return (1.0 - kept) * frequencies / scaling.factor + kept * frequencies


def make_rotation(positions: jax.Array, frequencies: np.ndarray) -> Rotation:
    """Returns the rotation of positions `[R or 1, S]` by frequencies `[h / 2]`."""
    angles = positions[:, :, None, None] * jnp.asarray(frequencies, jnp.float32)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: jax.Array, rotation: Rotation) -> jax.Array:
    """Turns the pairs (j, j + h / 2) of heads `[R, S, H, h]`, in float32 (Su et al. 2021, equation 34)."""
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (low * rotation.cos - high * rotation.sin, high * rotation.cos + low * rotation.sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def causal_mask(size: int, seen: jax.Array | None) -> jax.Array:
    """Returns which keys a place sees, `[R or 1, 1, S, S]`: its own and earlier ones that are tokens.

    Args:
      size: S.
      seen: bool `[R, S]`, which places are tokens; None for all.
    """
    mask = jnp.tril(jnp.ones((size, size), bool))[None, None]
    return mask if seen is None else mask & seen[:, None, None]


def window_mask(positions: jax.Array, own: jax.Array, window: int) -> jax.Array:
    """Returns which keys at `positions [R or 1, S]` are within a window of queries, `[R or 1, 1, Q, S]`.

    Args:
      own: positions of the queries, `[R or 1, Q]`.
      window: positions in the window, the query's included.
    """
    return (own[:, :, None] - positions[:, None, :] < window)[:, None]


def attend_causally(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None, scale: float
) -> jax.Array:
    """Computes causal attention over whole rows.

    Args:
      q, k, v: `[R, S, H, h]`, `[R, S, K, h]`, `[R, S, K, h]`, rotated.
      mask: bool `[R or 1, 1, S, S]`; None where a place sees its own and all earlier ones.
      scale: factor of the scores.

    Returns:
      `[R, S, H, h]`.
    """
    # The flag, and not a mask of the same meaning, lets kernels skip what is not seen.
    return jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale, is_causal=mask is None)


def attend_to_cache(
    q: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array, scale: float
) -> jax.Array:
    """Computes the attention of one place to a cache, with scores in float32.

    Args:
      q: `[R, 1, H, h]`, rotated.
      keys, values: `[R, S, K, h]`; queries are grouped by key head, keys are not repeated.
      mask: bool `[R or 1, 1, 1, S]`.
      scale: factor of the scores.

    Returns:
      `[R, 1, H, h]`.
    """
    grouped = q.reshape(q.shape[0], keys.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("rkgh,rskh->rkgs", grouped, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores * scale, jnp.finfo(jnp.float32).min)
    shares = jax.nn.softmax(scores).astype(values.dtype)
    return jnp.einsum("rkgs,rskh->rkgh", shares, values).reshape(q.shape)
