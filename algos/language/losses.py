"""Policy-gradient terms of tokens: docs/reference/selfplay.md 9.2 and 9.3.

Axes are R answers and w places of tokens. Terms are objectives (to be raised); places that were not chosen
among several tokens count 0, whatever their probabilities are.
"""

import jax
import jax.numpy as jnp

# Largest importance weight of a token that was sampled by another precision or an older policy.
MAX_WEIGHT = 2.0


def reinforce_terms(log_prob: jax.Array, advantage: jax.Array, chosen: jax.Array) -> jax.Array:
    """Computes the terms of REINFORCE `[R, w]` (Williams 1992).

    Args:
      log_prob: `[R, w]` of the tokens under the policy that learns.
      advantage: `[R]` of whole answers.
      chosen: bool `[R, w]`, places where several tokens were possible.
    """
    return advantage[:, None] * jnp.where(chosen, log_prob, 0.0)


def clipped_ratio_terms(
    log_prob: jax.Array,
    old: jax.Array,
    advantage: jax.Array,
    chosen: jax.Array,
    clip: jax.Array | float,
    clip_high: jax.Array | float,
) -> jax.Array:
    """Computes PPO's clipped terms `[R, w]` with one ratio per token (Schulman et al. 2017, equation 7).

    Args:
      log_prob, old: `[R, w]` of the tokens, now and before the first gradient step.
      advantage, chosen: as for `reinforce_terms`.
      clip, clip_high: ratios are clipped to [1 - clip, 1 + clip_high].
    """
    ratio = jnp.exp(jnp.where(chosen, log_prob - old, 0.0))
    return jnp.where(chosen, _clipped(ratio, advantage[:, None], clip, clip_high), 0.0)


def sequence_ratio_terms(
    log_prob: jax.Array,
    old: jax.Array,
    advantage: jax.Array,
    chosen: jax.Array,
    clip: jax.Array | float,
    clip_high: jax.Array | float,
) -> jax.Array:
    """Computes the terms `[R]` of GSPO: one ratio per answer (Zheng et al. 2025, equation 7).

    Arguments are as for `clipped_ratio_terms`. The ratio is the exponential of the mean difference of
    log-probabilities over the chosen tokens; answers without any count 0.
    """
    ratio = jnp.exp(_mean_difference(log_prob, old, chosen))
    return jnp.where(chosen.any(axis=1), _clipped(ratio, advantage, clip, clip_high), 0.0)


def _mean_difference(new: jax.Array, old: jax.Array, chosen: jax.Array) -> jax.Array:
    """Mean difference `[R]` of log-probabilities `[R, w]` over the chosen places; 0 without any."""
    number = jnp.sum(chosen, axis=1)
    return jnp.sum(jnp.where(chosen, new - old, 0.0), axis=1) / jnp.maximum(number, 1)


def _clipped(ratio: jax.Array, advantage: jax.Array, clip, clip_high) -> jax.Array:
    """The smaller of the terms with and without clipping."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip_high) * advantage)


def correction_weights(old: jax.Array, sampled: jax.Array, chosen: jax.Array) -> jax.Array:
    """Computes truncated importance weights `[R, w]` of tokens that another forward pass sampled.

    Args:
      old: log-probabilities before the first gradient step, by the function that learns.
      sampled: log-probabilities with which they were sampled.
      chosen: as for `reinforce_terms`; the weights of other places are 1.
    """
    weight = jnp.minimum(jnp.exp(jnp.where(chosen, old - sampled, 0.0)), MAX_WEIGHT)
    return jax.lax.stop_gradient(weight)


def sequence_correction_weights(old: jax.Array, sampled: jax.Array, chosen: jax.Array) -> jax.Array:
    """Computes truncated importance weights `[R]` of answers, for `sequence_ratio_terms`.

    Arguments are as for `correction_weights`. Like the ratio, a weight is the exponential of the mean
    difference over the chosen tokens; answers without any have 1.
    """
    weight = jnp.minimum(jnp.exp(_mean_difference(old, sampled, chosen)), MAX_WEIGHT)
    return jax.lax.stop_gradient(weight)


def divergence_terms(log_prob: jax.Array, reference: jax.Array, chosen: jax.Array) -> jax.Array:
    """Estimates KL(policy || reference) per token, never negative: e^d - 1 - d `[R, w]`.

    d is the reference's log-probability minus the policy's (Schulman 2020, "Approximating KL divergence",
    estimator k3).
    """
    difference = jnp.where(chosen, reference - log_prob, 0.0)
    return jnp.expm1(difference) - difference


def sampler_gap(
    log_prob: jax.Array, sampled: jax.Array, chosen: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compares log-probabilities of learning and acting with the same weights.

    Returns:
      the sum of e^d - 1 - d over chosen tokens, the number of these tokens, and the largest |d|, where d is
      `log_prob - sampled`.
    """
    difference = jnp.where(chosen, log_prob - sampled, 0.0)
    total = jnp.sum(jnp.expm1(difference) - difference)
    return total, jnp.sum(chosen), jnp.max(jnp.abs(difference), initial=0.0)
