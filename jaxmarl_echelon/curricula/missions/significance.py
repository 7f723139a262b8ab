"""Statistical tests for leaving a phase: intervals of means by Student's t, and Cohen's d.

Source: sections 8.2 and 8.4 of the mission curriculum's design; spec/echelon.md section 7.10.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special


class Estimate(NamedTuple):
    """A mean with its interval; all fields `[...]` float32, NaN where there are too few values.

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
    """Two-sided quantiles of Student's t for means of 0, 1, ... `window` values, on the host.

    Returns:
      `[window + 1]` float32; infinite for fewer than two values, otherwise with n - 1 degrees of freedom.
    """
    freedom = np.arange(1, window, dtype=np.float64)
    quantiles = special.stdtrit(freedom, 0.5 + confidence / 2.0)
    return np.concatenate([[np.inf, np.inf], quantiles]).astype(np.float32)


def estimate(count: jax.Array, mean: jax.Array, square: jax.Array, quantiles: jax.Array) -> Estimate:
    """The estimate from moments.

    Args:
      count: `[...]` number of values, at most the table's window.
      mean: `[...]` their mean; anything where there are none.
      square: `[...]` the mean of their squares.
      quantiles: from `t_quantiles`.
    """
    number = jnp.round(count).astype(jnp.int32)
    free = jnp.maximum(number - 1, 1)
    variance = jnp.maximum(square - jnp.square(mean), 0.0) * number / free
    std = jnp.sqrt(variance)
    margin = jnp.asarray(quantiles)[number] * std / jnp.sqrt(jnp.maximum(number, 1).astype(jnp.float32))
    # Two values that agree say something, one value does not: inf * 0 is not 0 here.
    margin = jnp.where(number > 1, margin, jnp.inf)
    known = jnp.where(number > 0, mean, jnp.nan)
    return Estimate(
        count=number.astype(jnp.float32),
        mean=known,
        std=jnp.where(number > 1, std, jnp.nan),
        low=jnp.where(number > 0, mean - margin, -jnp.inf),
        high=jnp.where(number > 0, mean + margin, jnp.inf),
    )


def estimate_of(values: jax.Array, mask: jax.Array, quantiles: jax.Array) -> Estimate:
    """The estimate of `values [..., W]` where `mask [..., W]` is set."""
    weights = mask.astype(jnp.float32)
    count = jnp.sum(weights, axis=-1)
    some = jnp.maximum(count, 1.0)
    values = jnp.where(mask, values, 0.0).astype(jnp.float32)
    mean, square = jnp.sum(values, axis=-1) / some, jnp.sum(jnp.square(values), axis=-1) / some
    return estimate(count, mean, square, quantiles)


def effect_size(found: Estimate, target: jax.Array) -> jax.Array:
    """Cohen's d of the mean against `target [...]`: their difference in standard deviations.

    Infinite, with the sign of the difference, for values that are all equal; 0 for a difference of 0.
    """
    difference = found.mean - target
    certain = jnp.where(difference == 0.0, 0.0, jnp.sign(difference) * jnp.inf)
    return jnp.where(found.std > 0.0, difference / jnp.where(found.std > 0.0, found.std, 1.0), certain)


def significantly_above(found: Estimate, target: jax.Array, effect: jax.Array) -> jax.Array:
    """Bool `[...]`: the whole interval lies above `target`, and the effect size is at least `effect`."""
    return (found.low > target) & (effect_size(found, target) >= effect)


def significantly_below(found: Estimate, target: jax.Array) -> jax.Array:
    """Bool `[...]`: the whole interval lies below `target`."""
    return found.high < target
