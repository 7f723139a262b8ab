"""Draws tokens from logits over the allowed ones: temperature, then top-p, then one Gumbel draw per row."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SamplingSettings(NamedTuple):
    """Change of a distribution before a token is drawn, in acting and in learning.

    Attributes:
      temperature: divisor of the logits.
      top_p: keep the most probable options while the mass before one is below it (Holtzman et al. 2020).
    """

    temperature: float = 1.0
    top_p: float = 1.0


class TokenChoice(NamedTuple):
    """A drawn token per row.

    Attributes:
      place: int32 `[R]`, place of the token among the options.
      log_prob: float32 `[R]`; 0 where nothing was chosen.
      chosen: bool `[R]`; more than one option was allowed.
    """

    place: jax.Array
    log_prob: jax.Array
    chosen: jax.Array


def option_log_probs(
    logits: jax.Array, allowed: jax.Array, how: SamplingSettings, said: jax.Array | None = None
) -> jax.Array:
    """Computes log-probabilities `[..., C]` of the allowed options; those of the others are -inf.

    Args:
      logits: float32 `[..., C]`.
      allowed: bool `[..., C]`; rows without any are treated as if all were.
      how: change of the distribution.
      said: bool `[..., C]`, the options that are kept whatever top-p does: in learning those that were
        drawn, because other parameters than those of the draw may give them a probability outside of it.
    """
    allowed = allowed | ~allowed.any(-1, keepdims=True)
    logits = jnp.where(allowed, logits / how.temperature, -jnp.inf)
    if how.top_p < 1.0:
        kept = _in_nucleus(jax.nn.softmax(logits), how.top_p)
        logits = jnp.where(kept if said is None else kept | said, logits, -jnp.inf)
    return jax.nn.log_softmax(logits)


def _in_nucleus(probabilities: jax.Array, top_p: float) -> jax.Array:
    """Whether the mass of more probable options is below `top_p`; of equal ones the first come first."""
    order = jnp.argsort(-probabilities, axis=-1, stable=True)
    ordered = jnp.take_along_axis(probabilities, order, axis=-1)
    kept = jnp.cumsum(ordered, axis=-1) - ordered < top_p
    return jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=-1)


def draw_option(
    key: jax.Array | None, logits: jax.Array, allowed: jax.Array, how: SamplingSettings
) -> TokenChoice:
    """Draws one allowed option per row, or with `key=None` takes the most probable one.

    The draw of a row does not depend on the number of rows. Arguments are as for `option_log_probs`,
    `[R, C]`.
    """
    log_probs = option_log_probs(logits, allowed, how)
    noisy = log_probs if key is None else log_probs + jax.random.gumbel(key, log_probs.shape)
    index = jnp.argmax(noisy, axis=-1).astype(jnp.int32)
    chosen = allowed.sum(-1) > 1
    log_prob = jnp.take_along_axis(log_probs, index[:, None], axis=-1)[:, 0]
    return TokenChoice(index, jnp.where(chosen, log_prob, 0.0), chosen)


def option_entropy(log_probs: jax.Array) -> jax.Array:
    """Entropy `[...]` in nats of log-probabilities `[..., C]`, -inf included, with a finite gradient."""
    finite = jnp.isfinite(log_probs)
    safe = jnp.where(finite, log_probs, 0.0)
    return -jnp.sum(jnp.where(finite, jnp.exp(safe) * safe, 0.0), axis=-1)
