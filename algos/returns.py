"""Advantages and returns that tell a time limit from an ending."""

import jax
import jax.numpy as jnp


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
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), per agent.

    A step is followed by `bootstrap` where it is a boundary and by the next row's value
    elsewhere; either is dropped, not multiplied, where `discount` is 0, so that garbage after an
    ending stays there. No advantage flows backwards over a boundary or an ending.

    Args:
      reward: `[T, ...]` rewards in the units of the values.
      value: `[T, ...]` values of the observations acted on.
      last_value: `[...]` value of the observation after the last step.
      discount: `[T, ...]` 0 where the step terminated the agent, 1 otherwise.
      boundary: `[T, ...]` bool, the episode ended after this step.
      bootstrap: `[T, ...]` value of the final observation where truncated.
      gamma: discount factor per step.
      lambda_: decay of the eligibility trace.
      alive: `[T, ...]` bool or None. Rows that are not alive get advantage 0 and pass nothing
        on but their value, which only a predecessor that did not end looks at; where that value
        is not finite it counts as 0.

    Returns:
      `(advantage, target)`, both `[T, ...]`; `target = advantage + value` is what the critic
      regresses on.
    """
    if alive is not None:
        value = jnp.where(alive | jnp.isfinite(value), value, 0.0)
    following = jnp.concatenate([value[1:], last_value[None]])
    following = jnp.where(boundary, bootstrap, following)
    following = jnp.where(discount > 0, discount * following, 0.0)
    delta = reward + gamma * following - value
    decay = jnp.where(boundary, 0.0, gamma * lambda_ * discount)
    if alive is not None:
        delta = jnp.where(alive, delta, 0.0)
        decay = jnp.where(alive, decay, 0.0)

    def step(advantage, row):
        row_delta, row_decay = row
        advantage = row_delta + row_decay * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=8)
    return advantage, advantage + value
