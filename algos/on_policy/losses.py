"""Losses per sample, and their mean over the samples that are learnt from; arrays of any one shape.

See docs/reference/trainer.md 3.
"""

from typing import Any

import jax
import jax.numpy as jnp

from algos import collectives
from algos.nets.normalize import masked_mean_or_zero
from algos.types import Hyper, Metrics


def total_loss(
    policy_loss: jax.Array,
    value_loss: jax.Array,
    distribution: Any,
    alive: jax.Array,
    hyper: Hyper,
    acting: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """Averages policy loss, weighted value loss and entropy bonus over the samples that are learnt from.

    Args:
      policy_loss, value_loss: `[...]`.
      distribution: action distributions, `[...]`.
      alive: `[...]` bool; the sample is learnt from.
      hyper: `value_coefficient`, `entropy_coefficient`.
      acting: `[...]` weights of the decisions among the samples, see `acting_weights`; None if all samples
        are decisions.

    Returns:
      the loss and unreduced `[...]` quantities for metrics.
    """
    samples = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": distribution.entropy()}
    if (std := distribution.std) is not None:
        samples["action_std"] = jnp.broadcast_to(std.mean(-1), policy_loss.shape)
    samples = {
        name: x if name == "value_loss" else weight_decisions(x, acting) for name, x in samples.items()
    }
    total = samples["policy_loss"] + hyper["value_coefficient"] * value_loss
    return masked_mean_or_zero(total - hyper["entropy_coefficient"] * samples["entropy"], alive), samples


def acting_weights(alive: jax.Array, valued: jax.Array) -> jax.Array:
    """Weights of the decisions among all samples; 0 for samples from which only the critic learns.

    A mean of weighted quantities over all `valued` samples is their mean over the decisions: exactly in the
    whole batch on all shards, in expectation in each minibatch.

    Args:
      alive: bool; the sample is a decision.
      valued: bool; the sample is a decision, or the critic learns from it.
    """
    counts = collectives.sum_over_shards(
        jnp.stack([valued.sum(dtype=jnp.float32), alive.sum(dtype=jnp.float32)])
    )
    return jnp.where(alive, counts[0] / jnp.maximum(counts[1], 1.0), 0.0)


def weight_decisions(x: jax.Array, acting: jax.Array | None) -> jax.Array:
    """Weights quantities of decisions, and sets those of other samples to 0."""
    return x if acting is None else jnp.where(acting > 0, acting * x, 0.0)


def clipped_loss(
    distribution: Any,
    value: jax.Array,
    log_ratio: jax.Array,
    *,
    advantage: jax.Array,
    old_value: jax.Array,
    target: jax.Array,
    alive: jax.Array,
    hyper: Hyper,
    acting: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """PPO's loss: clipped surrogate, clipped value loss and entropy bonus (Schulman et al. 2017, eq. 9).

    Args:
      distribution: action distributions under the current parameters.
      value: values under the current parameters.
      log_ratio: log-probability of the action now, minus that when it was sampled.
      advantage: advantages, already normalised.
      old_value: centre of the interval to which the value is clipped.
      target: regression target of the critic.
      alive: bool; the sample is learnt from.
      hyper: `clip`, `value_clip`, `value_coefficient`, `entropy_coefficient`.
      acting: weights of the decisions among the samples, as for `total_loss`.

    Returns:
      the loss and unreduced quantities for metrics.
    """
    ratio = jnp.exp(log_ratio)
    loss, samples = total_loss(
        surrogate_loss(ratio, advantage, hyper["clip"]),
        value_loss(value, old_value, target, hyper["value_clip"]),
        distribution,
        alive,
        hyper,
        acting,
    )
    # Not `ratio - 1`: its rounding errors exceed the divergence of policies that have hardly changed.
    samples["approx_kl"] = weight_decisions(jnp.expm1(log_ratio) - log_ratio, acting)
    clipped = (jnp.abs(ratio - 1.0) > hyper["clip"]).astype(jnp.float32)
    samples["clip_fraction"] = weight_decisions(clipped, acting)
    return loss, samples


def surrogate_loss(ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """Negated clipped objective of PPO per sample (Schulman et al. 2017, eq. 7)."""
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def value_loss(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip: jax.Array | float
) -> jax.Array:
    """Half the squared error per sample: the larger of the errors of the value and of the clipped value."""
    clipped = old_value + jnp.clip(value - old_value, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target))
