"""Advantages and value targets; truncated episodes bootstrap, terminated ones do not.

See docs/reference/trainer.md 2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_given
from algos.types import Rollout


def accumulate_by_scan(delta: jax.Array, decay: jax.Array) -> jax.Array:
    """Solves `A_t = delta_t + decay_t * A_{t+1}`, with 0 after the last row, in one reverse pass.

    Args:
      delta: `[T, ...]`.
      decay: `[T, ...]`.

    Returns:
      `[T, ...]`.
    """

    def step(advantage, row):
        row_delta, row_decay = row
        advantage = row_delta + row_decay * advantage
        return advantage, advantage

    start = jnp.zeros(delta.shape[1:], delta.dtype)
    return jax.lax.scan(step, start, (delta, decay), reverse=True, unroll=8)[1]


def vtrace_gae(
    reward: jax.Array,
    value: jax.Array,
    last_value: jax.Array,
    discount: jax.Array,
    boundary: jax.Array,
    bootstrap: jax.Array,
    ratio: jax.Array | float,
    gamma: jax.Array | float,
    lambda_: jax.Array | float,
    rho_clip: jax.Array | float,
    c_clip: jax.Array | float,
    alive: jax.Array | None = None,
    bootstrap_last: bool = True,
    *,
    skip: jax.Array | None = None,
    last_skip: jax.Array | None = None,
    out: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimates with V-trace's off-policy correction, per agent.

    The temporal differences and the trace of Schulman et al. (2016, eq. 16) are weighted by the
    truncated importance ratios of V-trace (Espeholt et al. 2018, section 4.1), both taken at step t:

        A_t = min(ratio_t, rho_clip) * (r_t + gamma * next_t - v_t)
              + gamma * lambda * min(ratio_t, c_clip) * A_{t+1}

    `next_t` is `bootstrap` where the step is a boundary and the next row's value elsewhere, and 0 where
    `discount` is 0 (by selection, not multiplication, so that non-finite values after a termination have no
    effect). No advantage flows backwards over a boundary or a termination. Gradients flow through every
    input; stop them where an advantage enters a loss.

    Args:
      reward: `[T, ...]` rewards that followed the actions, in the units of the values.
      value: `[T, ...]` values of the observations acted on.
      last_value: `[...]` value of the observation after the last step.
      discount: `[T, ...]` 0 where the step terminated the agent, 1 otherwise.
      boundary: `[T, ...]` bool, the episode ended after this step.
      bootstrap: `[T, ...]` value of the final observation where truncated.
      ratio: `[T, ...]`, or 1: probability of the action now divided by that when it was sampled.
      gamma: discount factor per step.
      lambda_: decay of the eligibility trace.
      rho_clip: bound on the ratio of the temporal difference.
      c_clip: bound on the ratio of the trace.
      alive: `[T, ...]` bool or None. Rows that are not alive get advantage 0 and pass on only their
        value, which the previous row uses if it is not a boundary; a value that is not finite counts
        as 0.
      bootstrap_last: False gives the last row advantage 0 and uses its value only for the previous row, so
        that `last_value` is unused.
      skip: `[T, ...]` bool or None. Rows in which the agent waits for its turn. They get advantage 0; their
        rewards are credited to the last decision, whose next value is that of the next decision. Discounts
        count decisions, not these rows.
      last_skip: `[...]` bool or None; the agent waits for its turn after the last step. The rewards of its
        last decision are then incomplete: this decision gets advantage 0, and only its value is used.
      out: `[T, ...]` bool or None. Rows in which the agent is out of the game but may receive delayed
        rewards. They get advantage 0; their rewards are credited to the last decision, discounted by gamma
        per row, up to the agent's next decision, or up to the value of its observation at the end of the
        rollout. The trace does not decay over these rows, which contain no decisions. Their targets are for
        critics, which need values wherever a rollout may end.

    Returns:
      `(advantage, target)`, both `[T, ...]`. The critic's target is `advantage + value`, and in rows that are
      `out` the discounted sum of the rewards and the value that follow.
    """
    if alive is not None:
        value = jnp.where(alive | jnp.isfinite(value), value, 0.0)
    rho, c = jnp.minimum(ratio, rho_clip), jnp.minimum(ratio, c_clip)
    if skip is not None or out is not None:
        skip, out = (jnp.zeros(reward.shape, bool) if x is None else x for x in (skip, out))
        last = jnp.zeros(last_value.shape, bool) if last_skip is None else last_skip
        last = last if bootstrap_last else jnp.ones_like(last)
        spans = _spans(reward, value, last_value, discount, boundary, bootstrap, skip, out, last, gamma)
        acts = ~(skip | out | spans.unknown)
        acts = acts if alive is None else acts & alive
        delta = jnp.where(acts, rho * (spans.paid + spans.following - value), 0.0)
        passes = jnp.where(boundary | (discount == 0), 0.0, 1.0)
        decay = jnp.where(acts, spans.reach * lambda_ * c, jnp.where(skip | out, passes, 0.0))
        trace = accumulate_by_scan(delta, decay)
        advantage = jnp.where(acts, trace, 0.0)
        worth = spans.paid + spans.following + spans.reach * lambda_ * trace
        return advantage, jnp.where(out, worth, advantage + value)
    following = jnp.concatenate([value[1:], last_value[None]])
    following = jnp.where(boundary, bootstrap, following)
    following = jnp.where(discount > 0, discount * following, 0.0)
    delta = rho * (reward + gamma * following - value)
    decay = jnp.where(boundary, 0.0, gamma * lambda_ * c * discount)
    if alive is not None:
        delta = jnp.where(alive, delta, 0.0)
        decay = jnp.where(alive, decay, 0.0)
    if not bootstrap_last:
        delta, decay = delta.at[-1].set(0.0), decay.at[-1].set(0.0)
    advantage = accumulate_by_scan(delta, decay)
    return advantage, advantage + value


class _Spans(NamedTuple):
    """Sums from each row to the agent's next decision, `[T, ...]` each, discounted to the row.

    Attributes:
      paid: sum of rewards, including the row's own.
      following: value of the next decision, or of the observation at which the trajectory is truncated.
      reach: discount of the next decision's advantage; 0 where the trajectory ends before it.
      unknown: bool; some of the rewards arrive after the rollout.
    """

    paid: jax.Array
    following: jax.Array
    reach: jax.Array
    unknown: jax.Array


def _spans(reward, value, last_value, discount, boundary, bootstrap, skip, out, last_skip, gamma) -> _Spans:
    """Sums from each row to the next decision; arguments as for `vtrace_gae`, without None."""

    def step(after, row):
        pending, following, reach, unknown = after
        reward, value, discount, ends, bootstrap, skip, out = row
        over = ends | (discount == 0)
        following = jnp.where(ends, gamma * bootstrap, following)
        following = jnp.where(discount > 0, discount * following, 0.0)
        reach = jnp.where(over, 0.0, discount * reach)
        unknown = unknown & ~over
        paid = reward + jnp.where(over, 0.0, discount * pending)
        # The value of an agent that is out replaces its unknown further rewards.
        stands = out & unknown
        paid = jnp.where(stands, value, paid)
        following, reach = (jnp.where(stands, 0.0, x) for x in (following, reach))
        row = _Spans(paid, following, reach, unknown & ~stands)
        elapsed = jnp.where(out, gamma, 1.0)
        before = (
            jnp.where(skip | out, elapsed * paid, 0.0),
            jnp.where(skip | out, elapsed * following, gamma * value),
            jnp.where(skip | out, elapsed * reach, gamma),
            skip & row.unknown,
        )
        return before, row

    start = jnp.zeros_like(last_value), gamma * last_value, gamma * jnp.ones_like(last_value), last_skip
    rows = reward, value, discount, boundary, bootstrap, skip, out
    return jax.lax.scan(step, start, rows, reverse=True)[1]


def gae_of_rollout(
    rollout: Rollout, reward: jax.Array, gamma: jax.Array | float, lambda_: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Returns `(advantage, target)` of a rollout of a learner with a critic, both `[T, E, A]`; see `gae`.

    Args:
      rollout: the rollout, with the values in its extras.
      reward: `[T, E, A]` its rewards, in the units of the values.
      gamma, lambda_: as for `gae`.
    """
    return gae(
        reward,
        rollout.extras["value"],
        require_given("last_value", rollout.last_value),
        rollout.discount,
        rollout.boundary,
        require_given("bootstrap", rollout.bootstrap),
        gamma,
        lambda_,
        alive=rollout.alive,
        skip=rollout.skip,
        last_skip=rollout.last_skip,
        out=rollout.out,
    )


def gae(
    reward: jax.Array,
    value: jax.Array,
    last_value: jax.Array,
    discount: jax.Array,
    boundary: jax.Array,
    bootstrap: jax.Array,
    gamma: jax.Array | float,
    lambda_: jax.Array | float,
    *,
    alive: jax.Array | None = None,
    skip: jax.Array | None = None,
    last_skip: jax.Array | None = None,
    out: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), per agent.

    Equals `vtrace_gae` with ratios of 1; arguments and results as there.
    """
    return vtrace_gae(
        reward,
        value,
        last_value,
        discount,
        boundary,
        bootstrap,
        1.0,
        gamma,
        lambda_,
        1.0,
        1.0,
        alive,
        skip=skip,
        last_skip=last_skip,
        out=out,
    )
