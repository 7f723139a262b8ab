"""Losses per sample, and their mean over the samples that are alive; arrays of any one shape."""

from typing import Any

import jax
import jax.numpy as jnp

from algos.nets.normalize import masked_mean
from algos.types import Hyper, Metrics


def total_loss(
    policy_loss: jax.Array, value_loss: jax.Array, distribution: Any, alive: jax.Array, hyper: Hyper
) -> tuple[jax.Array, Metrics]:
    """Policy loss, weighted value loss and entropy bonus, averaged over the alive samples.

    Args:
      policy_loss, value_loss: `[...]`.
      distribution: of the actions, `[...]`.
      alive: `[...]` bool.
      hyper: `value_coefficient`, `entropy_coefficient`.

    Returns:
      the loss and unreduced `[...]` quantities for metrics.
    """
    samples = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": distribution.entropy()}
    if (std := distribution.std) is not None:
        samples["action_std"] = jnp.broadcast_to(std.mean(-1), policy_loss.shape)
    total = policy_loss + hyper["value_coefficient"] * value_loss
    return masked_mean(total - hyper["entropy_coefficient"] * samples["entropy"], alive), samples


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
) -> tuple[jax.Array, Metrics]:
    """PPO's loss: clipped surrogate, clipped value loss and entropy bonus, over the alive samples.

    Args:
      distribution: of the actions, under the current parameters.
      value: the critic's estimate, under the current parameters.
      log_ratio: log-probability of the action now, less that when it was sampled.
      advantage: as it enters the loss.
      old_value: centre of the interval that the value is clipped to.
      target: what the critic regresses on.
      alive: bool.
      hyper: `clip`, `value_clip`, `value_coefficient`, `entropy_coefficient`.

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
    )
    # Not `ratio - 1`, whose rounding errors exceed the divergence of policies that have hardly moved.
    samples["approx_kl"] = jnp.expm1(log_ratio) - log_ratio
    samples["clip_fraction"] = (jnp.abs(ratio - 1.0) > hyper["clip"]).astype(jnp.float32)
    return loss, samples


def surrogate_loss(ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """PPO's clipped objective per sample, negated (Schulman et al. 2017, eq. 7)."""
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def value_loss(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip: jax.Array | float
) -> jax.Array:
    """Half the squared error per sample, the larger of those of the value and of the clipped value."""
    clipped = old_value + jnp.clip(value - old_value, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target))
