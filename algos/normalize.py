"""Running normalisation of observations and rewards, as explicit state."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Moments:
    """Mean and variance of everything seen so far.

    Attributes:
      mean: `[...]` running mean.
      var: `[...]` running population variance.
      count: scalar, samples merged so far.
    """

    mean: jax.Array
    var: jax.Array
    count: jax.Array


def init_moments(shape: tuple[int, ...] = ()) -> Moments:
    """Moments of no samples: mean 0 and variance 1, so that normalising changes nothing."""
    return Moments(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))


def merge_moments(moments: Moments, batch: jax.Array, alive: jax.Array) -> Moments:
    """Merges the alive samples of a batch (parallel variance, Chan, Golub and LeVeque 1979).

    Args:
      moments: the moments so far, of shape `[...]`.
      batch: `[*lead, ...]` samples; those not alive may hold anything.
      alive: `[*lead]` bool.
    """
    axes = tuple(range(alive.ndim))
    keep = alive.reshape(alive.shape + (1,) * (batch.ndim - alive.ndim))
    count = alive.sum(dtype=jnp.float32)
    safe = jnp.maximum(count, 1.0)
    mean = jnp.where(keep, batch, 0.0).sum(axes) / safe
    squares = jnp.where(keep, jnp.square(batch - mean), 0.0).sum(axes)
    total = moments.count + count
    shift = mean - moments.mean
    weight = count / jnp.maximum(total, 1.0)
    spread = moments.var * moments.count + squares + jnp.square(shift) * moments.count * weight
    merged = Moments(moments.mean + shift * weight, spread / jnp.maximum(total, 1.0), total)
    return jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), merged, moments)


def normalize(moments: Moments, x: jax.Array, *, clip: float = 10.0, epsilon: float = 1e-8) -> jax.Array:
    """Centres and scales `x` `[*lead, ...]` by the moments and clips it to `[-clip, clip]`."""
    return jnp.clip((x - moments.mean) * jax.lax.rsqrt(moments.var + epsilon), -clip, clip)


@struct.dataclass
class RewardScale:
    """Scale of the rewards: the spread of their running discounted sums.

    Attributes:
      moments: scalar moments of the discounted sums.
      sums: `[E, A]` discounted sum of the episode so far, carried from rollout to rollout.
    """

    moments: Moments
    sums: jax.Array


def init_reward_scale(batch_shape: tuple[int, ...]) -> RewardScale:
    """A scale of 1, with running sums for `batch_shape` (`[E, A]`) agents."""
    return RewardScale(init_moments(), jnp.zeros(batch_shape))


def update_reward_scale(
    scale: RewardScale, reward: jax.Array, boundary: jax.Array, alive: jax.Array, gamma: jax.Array | float
) -> RewardScale:
    """Merges a rollout's discounted reward sums into the scale.

    Args:
      scale: the scale so far.
      reward: `[T, E, A]` raw rewards.
      boundary: `[T, E, A]` bool, the episode ended after this step: the next sum starts at 0.
      alive: `[T, E, A]` bool; other rows add nothing and are not counted.
      gamma: discount factor per step.
    """

    def step(sums, row):
        row_reward, row_boundary, row_alive = row
        sums = jnp.where(row_alive, gamma * sums + row_reward, sums)
        return jnp.where(row_boundary, 0.0, sums), sums

    sums, history = jax.lax.scan(step, scale.sums, (reward, boundary, alive))
    return RewardScale(merge_moments(scale.moments, history, alive), sums)


def scale_reward(scale: RewardScale, reward: jax.Array, *, epsilon: float = 1e-8) -> jax.Array:
    """Divides rewards by the running standard deviation; their sign and zero stay."""
    return reward * jax.lax.rsqrt(scale.moments.var + epsilon)
