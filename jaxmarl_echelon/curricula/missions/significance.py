"""Statistical tests for phase transitions: Student's t intervals of means, and Cohen's d.

Reference: docs/reference/echelon.md 17.2.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy import special


class MeanEstimate(struct.PyTreeNode):
    """Mean with its confidence interval; all fields `[...]` float32, NaN where there are too few values.

    Attributes:
      count: number of values.
      mean: their mean.
      std: their standard deviation, with n - 1 in the denominator.
      low, high: ends of the interval of the mean; infinite with fewer than two values.
    """

    count: jax.Array
    mean: jax.Array
    std: jax.Array
    low: jax.Array
    high: jax.Array


def t_quantiles(window: int, confidence: float = 0.95) -> np.ndarray:
    """Returns two-sided quantiles of Student's t for means of 0, 1, ... `window` values, on the host.

    Returns:
      `[window + 1]` float32; infinite for fewer than two values, otherwise with n - 1 degrees of freedom.
    """
    freedom = np.arange(1, window, dtype=np.float64)
    quantiles = special.stdtrit(freedom, 0.5 + confidence / 2.0)
    return np.concatenate([[np.inf, np.inf], quantiles]).astype(np.float32)


def estimate_mean(count: jax.Array, mean: jax.Array, square: jax.Array, quantiles: jax.Array) -> MeanEstimate:
    """Computes an estimate from moments.

    Args:
      count: `[...]` number of values, at most the table's window.
      mean: `[...]` their mean; ignored without values.
      square: `[...]` the mean of their squares.
      quantiles: from `t_quantiles`.
    """
    number = jnp.round(count).astype(jnp.int32)
    free = jnp.maximum(number - 1, 1)
    variance = jnp.maximum(square - jnp.square(mean), 0.0) * number / free
    std = jnp.sqrt(variance)
    margin = jnp.asarray(quantiles)[number] * std / jnp.sqrt(jnp.maximum(number, 1).astype(jnp.float32))
    # One value gives no interval, two equal values do: inf * 0 must not become 0.
    margin = jnp.where(number > 1, margin, jnp.inf)
    known = jnp.where(number > 0, mean, jnp.nan)
    return MeanEstimate(
        count=number.astype(jnp.float32),
        mean=known,
        std=jnp.where(number > 1, std, jnp.nan),
        low=jnp.where(number > 0, mean - margin, -jnp.inf),
        high=jnp.where(number > 0, mean + margin, jnp.inf),
    )


def effect_size(found: MeanEstimate, target: jax.Array) -> jax.Array:
    """Returns Cohen's d of the mean against `target [...]`: their difference in standard deviations.

    If all values are equal, it is infinite with the sign of the difference, or 0 for a difference of 0.
    """
    difference = found.mean - target
    certain = jnp.where(difference == 0.0, 0.0, jnp.sign(difference) * jnp.inf)
    return jnp.where(found.std > 0.0, difference / jnp.where(found.std > 0.0, found.std, 1.0), certain)


def significantly_above(found: MeanEstimate, target: jax.Array, effect: jax.Array) -> jax.Array:
    """Returns bool `[...]`: the interval lies above `target`, and the effect size is at least `effect`."""
    return (found.low > target) & (effect_size(found, target) >= effect)


def significantly_below(found: MeanEstimate, target: jax.Array) -> jax.Array:
    """Returns bool `[...]`: the interval lies below `target`."""
    return found.high < target
