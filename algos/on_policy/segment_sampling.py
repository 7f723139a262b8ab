"""Sampling of minibatches of whole segments: sequential, uniform or by priority.

See docs/reference/trainer.md 4.
"""

import jax
import jax.numpy as jnp

from algos import collectives
from algos.checks import require_choice

MODES = ("sequential", "uniform", "prioritized", "prioritized_replacement")

# Added to priorities, so that segments of priority 0 have a positive probability.
EPSILON = 1e-6


def partition_rows(key: jax.Array, rows: int, minibatches: int, idle: jax.Array | None = None) -> jax.Array:
    """Splits all rows in random order into minibatches: int32 `[n, m]` with n * m = rows.

    Args:
      key: random key of the order.
      rows: number of rows.
      minibatches: n.
      idle: `[rows]` bool, rows of agents that never act, which come last; None if all act.

    Raises:
      ValueError: if the rows do not split evenly.
    """
    if rows % minibatches:
        raise ValueError(f"minibatches={minibatches}: must divide the {rows} segments of a rollout")
    order = jax.random.permutation(key, rows)
    if idle is not None:
        order = order[jnp.argsort(idle[order], stable=True)]
    return order.reshape(minibatches, rows // minibatches)


def log_shares(advantage: jax.Array, alive: jax.Array, alpha: jax.Array | float) -> jax.Array:
    """Logarithm of each segment's probability relative to the uniform probability.

    A segment's priority is `(sum_t |A_t|)^alpha` over its alive steps, 0 if not finite; its probability p
    is proportional to `priority + 1e-6` among the R rows with an alive step. Logarithms avoid overflow. At
    alpha 0 the result is exactly 0.

    Args:
      advantage: `[T, S]`; steps that are not alive may hold any values.
      alive: `[T, S]` bool.
      alpha: 0 for uniform, 1 for proportional to the priority.

    Returns:
      `[S]` log(R * p); -inf for rows without an alive step.
    """
    size = jnp.where(alive, jnp.abs(advantage), 0.0).sum(0)
    priority = jnp.where(jnp.isfinite(size), size, 0.0) ** alpha
    live = alive.any(0)
    weight = jnp.log(jnp.where(jnp.isfinite(priority), priority, 0.0) + EPSILON)
    weight = jnp.where(live, weight, -jnp.inf)
    above = weight - jnp.max(weight, where=live, initial=jnp.finfo(weight.dtype).min)
    mean = jnp.exp(above).sum() / jnp.maximum(live.sum(), 1)
    return jnp.where(live, above - jnp.log(mean), -jnp.inf)


def shard_offset(alive: jax.Array) -> jax.Array:
    """Logarithm of R / (S * r) of a shard with r of all R rows with an alive step; added to `log_shares`.

    Every shard draws the same number of rows, so that rows of a shard with fewer of them have higher
    probabilities.
    """
    mine = jnp.maximum(alive.any(0).sum(dtype=jnp.float32), 1.0)
    return jnp.log(collectives.mean_over_shards(mine) / mine)


def importance_exponent(
    start: jax.Array | float, progress: jax.Array | float, factor: jax.Array | float = 1.0
) -> jax.Array:
    """Exponent beta of the importance weights, annealed from `start` to 1.

    Args:
      start: beta before the first update.
      progress: fraction of the training done, clipped to [0, 1].
      factor: slope of the annealing; PufferLib uses alpha, with which beta does not reach 1.
    """
    return start + (1.0 - start) * factor * jnp.clip(progress, 0.0, 1.0)


def choose_rows(
    key: jax.Array,
    mode: str,
    part: jax.Array,
    advantage: jax.Array,
    alive: jax.Array,
    *,
    alpha: jax.Array | float,
    beta: jax.Array | float,
    offset: jax.Array | float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Draws the segments of one minibatch and the importance weights of their advantages.

    For a scan over the keys and the parts of one `partition_rows` per epoch; only "sequential" uses the
    parts. The other modes draw each minibatch independently: "uniform" and "prioritized" without replacement
    within the minibatch (the m largest of log p + Gumbel noise are distributed like successive draws; Vieira
    2014). Rows without an alive step are not drawn, unless fewer than m others exist in modes without
    replacement.

    Args:
      key: random key of this minibatch; unused when sequential.
      mode: one of `MODES`.
      part: int32 `[m]`, this minibatch's part of the partition.
      advantage: `[T, S]`; steps that are not alive may hold any values.
      alive: `[T, S]` bool.
      alpha: exponent of the priorities; unused without priorities.
      beta: exponent of the importance weights, from `importance_exponent`.
      offset: added to the log-probabilities, from `shard_offset`; unused without priorities.

    Returns:
      `(rows, weight)`: int32 `[m]`, and `[m]` `(R * p)^-beta` for R rows with an alive step, exactly
      1 without priorities or at alpha 0, and 0 for a row without an alive step.

    Raises:
      ValueError: for an unknown mode.
    """
    require_choice("mode", mode, MODES)
    number, rows = part.shape[0], advantage.shape[1]
    if mode == "sequential":
        return part, jnp.ones(number)
    even = jnp.where(alive.any(0), 0.0, -jnp.inf)
    share = even if mode == "uniform" else log_shares(advantage, alive, alpha)
    if mode == "prioritized_replacement":
        chosen = find_rows(share, jax.random.uniform(key, (number,)))
    else:
        noise = jax.random.gumbel(key, (rows,), mode="high")
        chosen = jax.lax.top_k(share + noise, number)[1]
    chances = share[chosen] if mode == "uniform" or collectives.num_shards() == 1 else share[chosen] + offset
    weight = jnp.exp(-beta * chances)
    return chosen, jnp.where(share[chosen] > -jnp.inf, weight, 0.0)


def find_rows(share: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draws rows independently with probability proportional to `exp(share)`.

    The least likely rows come first in the running sums: rows of share -inf then sum to exactly 0 and are
    never drawn. Later in the order, parallel summation may increase the sums at rows of probability 0.

    Args:
      share: `[S]`.
      uniform: `[m]` random numbers in [0, 1).

    Returns:
      int32 `[m]`.
    """
    order = jnp.argsort(share)
    sums = jnp.cumsum(jnp.exp(share[order]))
    rank = jnp.searchsorted(sums, uniform * sums[-1], side="right")
    return order[jnp.minimum(rank, share.size - 1)]
