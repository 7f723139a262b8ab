"""Masked statistics, and running normalisation of observations and rewards as explicit state."""

import jax
import jax.numpy as jnp
from flax import struct

from algos import collectives
from algos.masks import expand_mask


class Moments(struct.PyTreeNode):
    """Running mean and variance.

    Each number is an unevaluated sum of two float32 numbers: after many samples a batch changes the mean by
    less than its rounding error, and a single number would lose the change, which biases the estimates of
    skewed distributions. See docs/reference/trainer.md 7.1.

    Attributes:
      mean: `[...]` running mean.
      var: `[...]` running population variance.
      count: scalar, samples merged so far.
      mean_rest, var_rest, count_rest: rounding error of each, of the same shape.
    """

    mean: jax.Array
    var: jax.Array
    count: jax.Array
    mean_rest: jax.Array
    var_rest: jax.Array
    count_rest: jax.Array


def init_moments(shape: tuple[int, ...] = ()) -> Moments:
    """Returns the moments before the first sample: mean 0 and variance 1, which leave inputs unchanged."""
    return exact_moments(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))


def exact_moments(mean: jax.Array, var: jax.Array, count: jax.Array) -> Moments:
    """Builds moments from exact numbers, with rounding errors of 0."""
    return Moments(mean, var, count, *map(jnp.zeros_like, (mean, var, count)))


def add_exactly(x: jax.Array, rest: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Adds `step` to `x + rest`; returns the rounded sum and its rounding error (2Sum, Knuth 1969)."""
    step = step + rest
    total = x + step
    added = total - x
    return total, (x - (total - added)) + (step - added)


def merge_moments(moments: Moments, batch: jax.Array, alive: jax.Array) -> Moments:
    """Merges the alive samples of a batch into the moments (Chan, Golub and LeVeque 1979).

    The update is incremental, which keeps it accurate after any number of batches of any size.

    Args:
      moments: the moments so far, of shape `[...]`.
      batch: `[*lead, ...]` samples of this shard; samples that are not alive may hold any values.
      alive: `[*lead]` bool.
    """
    axes = tuple(range(alive.ndim))
    keep = expand_mask(alive, batch.ndim)
    count = alive.sum(dtype=jnp.float32)
    safe = jnp.maximum(count, 1.0)
    mean = jnp.where(keep, batch, 0.0).sum(axes) / safe
    var = jnp.where(keep, jnp.square(batch - mean), 0.0).sum(axes) / safe
    count, mean, var = combine_shard_moments(count, mean, var)
    total, total_rest = add_exactly(moments.count, moments.count_rest, count)
    weight = count / jnp.maximum(total, 1.0)
    shift = mean - moments.mean
    # The first batch replaces the initial variance 1, in which a small variance would be lost to rounding.
    before = jnp.where(moments.count > 0, moments.var, var)
    change = weight * (var - before + jnp.square(shift) * (1.0 - weight))
    centre, centre_rest = add_exactly(moments.mean, moments.mean_rest, weight * shift)
    spread, spread_rest = add_exactly(before, moments.var_rest, change)
    merged = Moments(centre, spread, total, centre_rest, spread_rest, total_rest)
    return jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), merged, moments)


def combine_shard_moments(
    count: jax.Array, mean: jax.Array, var: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Combines counts, means and population variances of the samples of all shards; one collective."""
    if collectives.num_shards() == 1:
        return count, mean, var
    counts, means, variances = collectives.stack_shards((count, mean, var))
    total = counts.sum(0)
    share = expand_mask(counts / jnp.maximum(total, 1.0), 1 + mean.ndim)
    centre = (share * means).sum(0)
    return total, centre, (share * (variances + jnp.square(means - centre))).sum(0)


def normalize_by_moments(
    moments: Moments, x: jax.Array, *, clip: float = 10.0, epsilon: float = 1e-8
) -> jax.Array:
    """Centres and scales `x` `[*lead, ...]` by the moments and clips it to `[-clip, clip]`."""
    return jnp.clip((x - moments.mean) * jax.lax.rsqrt(moments.var + epsilon), -clip, clip)


class RewardScale(struct.PyTreeNode):
    """Running scale of rewards: the standard deviation of their discounted sums.

    Attributes:
      moments: scalar moments of the discounted sums.
      sums: `[N]` discounted reward sums of the running episodes of N = E * A agents, carried from rollout
        to rollout.
    """

    moments: Moments
    sums: jax.Array


def init_reward_scale(agents: int) -> RewardScale:
    """Returns a scale of 1 with running sums for this many agents (E * A)."""
    return RewardScale(init_moments(), jnp.zeros((agents,)))


def update_reward_scale(
    scale: RewardScale,
    reward: jax.Array,
    boundary: jax.Array,
    alive: jax.Array,
    gamma: jax.Array | float,
    *,
    skip: jax.Array | None = None,
    last_skip: jax.Array | None = None,
) -> RewardScale:
    """Merges a rollout's discounted reward sums into the scale.

    A decision after which the agent waits for its turn is counted once, with all rewards until the agent
    acts again.

    Args:
      scale: the scale so far.
      reward: `[T, E, A]` raw rewards.
      boundary: `[T, E, A]` bool, the episode ended after this step: the next sum starts at 0.
      alive: `[T, E, A]` bool; rows that are neither alive nor skipped are ignored.
      gamma: discount factor per step.
      skip: `[T, E, A]` bool or None; rows of waiting for a turn, whose rewards belong to the last decision.
      last_skip: `[E, A]` bool or None; the agent keeps waiting after the last step.
    """

    def step(sums, row):
        row_reward, row_boundary, row_alive, row_skip = row
        after = jnp.where(row_alive, gamma * sums + row_reward, sums)
        if row_skip is not None:
            after = jnp.where(row_skip, sums + row_reward, after)
        return jnp.where(row_boundary, 0.0, after), after

    sums = scale.sums.reshape(reward.shape[1:])
    sums, history = jax.lax.scan(step, sums, (reward, boundary, alive, skip))
    if skip is not None:
        goes_on = jnp.zeros_like(skip[0]) if last_skip is None else last_skip
        alive = (alive | skip) & (boundary | ~jnp.concatenate([skip[1:], goes_on[None]]))
    return RewardScale(merge_moments(scale.moments, history, alive), sums.reshape(-1))


def scale_reward(scale: RewardScale, reward: jax.Array, *, epsilon: float = 1e-8) -> jax.Array:
    """Divides rewards by the running standard deviation of their discounted sums; does not centre them."""
    return reward * jax.lax.rsqrt(scale.moments.var + epsilon)


def centre_rewards(
    centre: jax.Array,
    reward: jax.Array,
    alive: jax.Array,
    rate: jax.Array | float,
    skip: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Subtracts from every reward the running mean of its agent's earlier rewards.

    The mean is subtracted once per decision, and updated with all rewards until the agent acts again.

    Args:
      centre: `[N]` running means of N = E * A agents, initially 0.
      reward: `[T, E, A]` raw rewards.
      alive: `[T, E, A]` bool; rows that are neither alive nor skipped do not update the means.
      rate: weight of each new reward in the mean.
      skip: `[T, E, A]` bool or None; rows of waiting for a turn, whose rewards belong to the last decision.

    Returns:
      `(centre, reward)`: the means after the rollout, and the centred rewards.
    """

    def step(mean, row):
        row_reward, row_alive, row_skip = row
        charged = mean if row_skip is None else jnp.where(row_skip, 0.0, mean)
        counts = row_alive if row_skip is None else row_alive | row_skip
        after = mean + rate * (row_reward - charged)
        return jnp.where(counts, after, mean), row_reward - charged

    after, centred = jax.lax.scan(step, centre.reshape(reward.shape[1:]), (reward, alive, skip))
    return after.reshape(-1), centred


@jax.jit
def masked_mean_or_zero(x: jax.Array, keep: jax.Array) -> jax.Array:
    """Mean of `x` where `keep`; 0 without kept samples."""
    return jnp.where(keep, x, 0.0).sum() / jnp.maximum(keep.sum(), 1)


def mean_and_variance(x: jax.Array, keep: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and population variance over the kept samples of all shards; 0 without kept samples."""
    mean = masked_mean_or_zero(x, keep)
    var = masked_mean_or_zero(jnp.square(x - mean), keep)
    return combine_shard_moments(keep.sum(dtype=jnp.float32), mean, var)[1:]


def standardize(
    x: jax.Array, keep: jax.Array, moments: tuple[jax.Array, jax.Array] | None = None
) -> jax.Array:
    """Shifts and scales `x` to mean 0 and standard deviation 1 over the kept samples of all shards.

    `moments` are the result of `mean_and_variance` if it is already known.
    """
    mean, var = mean_and_variance(x, keep) if moments is None else moments
    return (x - mean) / (jnp.sqrt(var) + 1e-8)


def explained_variance(value: jax.Array, target: jax.Array, keep: jax.Array) -> jax.Array:
    """Fraction of the targets' variance explained by the values, over all shards; 0 without variance."""
    residual, total = mean_and_variance(target - value, keep)[1], mean_and_variance(target, keep)[1]
    return jnp.where(total > 0, 1.0 - residual / jnp.where(total > 0, total, 1.0), 0.0)
