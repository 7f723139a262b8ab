"""Mission success: success functions, constraints and follow-ons.

Both teams are assessed by their own orders. Reference: docs/reference/echelon.md 15.4.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, PARAMETERS, Orders
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.settings import PERIOD

COSTLY, LATE = 0.5, 0.8
# Success that counts as a mission completed.
COMPLETED = 0.5
_ROUNDING = np.float32(1e-5)
_LOSSES = PARAMETERS.index("loss_appetite")


SuccessParts = tuple[jax.Array, jax.Array]


def success_parts(registry: Registry, verb: jax.Array, outcome: OutcomeRecord) -> SuccessParts:
    """Returns success `[N]` in [0, 1] of outcomes under order and follow-on, `verb` `[N, 2]`."""
    values = registry.evaluate(outcome)
    first, second = (jnp.take_along_axis(values, verb[:, i : i + 1], axis=1)[:, 0] for i in (0, 1))
    return first, second


def base_success(
    registry: Registry, verb: jax.Array, went: jax.Array, found: SuccessParts, outcome: OutcomeRecord
) -> jax.Array:
    """Returns success `[N]` in [0, 1] before constraints.

    For an order with a follow-on it is the mean of both successes; the follow-on's is 0 before GO. With a
    void follow-on it is the first order's alone.

    Args:
      registry: the verbs.
      verb: `[N, 2]` int32 of the order and of its follow-on.
      went: `[N]` bool; the follow-on has begun.
      found: `success_parts` of the outcomes.
      outcome: `[N]`.
    """
    first, second = found
    staged = jnp.asarray(registry.staged)[verb[:, 0]]
    later = jnp.where(went, jnp.where(is_void(registry, verb[:, 1], outcome), first, second), 0.0)
    return jnp.where(staged, 0.5 * first + 0.5 * later, first)


def is_void(registry: Registry, verb: jax.Array, outcome: OutcomeRecord) -> jax.Array:
    """Returns bool `[N]`: follow-on orders with `verb` `[N]` need enemies, and none was left to engage."""
    none_left = (outcome.enemies_lost >= outcome.enemies) & (outcome.engaged == 0)
    return jnp.asarray(registry.flags("void_without_enemies"))[verb] & none_left


def apply_constraints(
    registry: Registry,
    value: jax.Array,
    verb: jax.Array,
    loss_appetite: jax.Array,
    budget: jax.Array,
    taken: jax.Array,
    outcome: OutcomeRecord,
) -> jax.Array:
    """Applies constraints to success: times 0.5 for too many casualties, times 0.8 for exceeding the budget.

    Args:
      registry: the verbs.
      value: `[N]` success before constraints.
      verb: `[N]` int32 of the order.
      loss_appetite: `[N]` accepted share of casualties.
      budget: `[N]` seconds.
      taken: `[N]` seconds until the mission first counted as done.
      outcome: `[N]`.
    """
    costly = clipped_ratio(outcome.casualties, outcome.strength, 0.0) > loss_appetite
    late = jnp.asarray(registry.flags("timed"))[verb] & (taken > budget)
    return value * jnp.where(costly, COSTLY, 1.0) * jnp.where(late, LATE, 1.0)


def terminal_reward(success: jax.Array) -> jax.Array:
    """Returns the terminal reward `2 S - 1` in [-1, 1]."""
    return 2.0 * success - 1.0


def time_taken(registry: Registry, verb: jax.Array, latched: jax.Array, decision: jax.Array) -> jax.Array:
    """Returns the duration of missions in seconds `[K]`: until they first counted as done, or until now.

    Orders that are not `timed` last to the end of the episode.

    Args:
      registry: the verbs.
      verb: `[K]` int32 of the order.
      latched: `[K]` int32 decision at which the mission first counted as done, or NEVER.
      decision: decisions taken.
    """
    done = jnp.asarray(registry.flags("timed"))[verb] & (latched != NEVER)
    return jnp.where(done, latched, decision) * PERIOD


def constrain_team_success(
    registry: Registry,
    orders: Orders,
    value: jax.Array,
    latched: jax.Array,
    decision: jax.Array,
    outcome: OutcomeRecord,
) -> jax.Array:
    """Applies the constraints of both teams' orders to their success `value` `[K]`."""
    taken = time_taken(registry, orders.verb[:, 0], latched, decision)
    losses = orders.parameters[:, _LOSSES]
    return apply_constraints(registry, value, orders.verb[:, 0], losses, orders.budget, taken, outcome)


def is_complete(registry: Registry, verb: jax.Array, went: jax.Array, found: SuccessParts) -> jax.Array:
    """Returns bool `[N]`: the order is complete; with a follow-on: the follow-on has begun and is complete.

    Args:
      registry: the verbs.
      verb: `[N, 2]` int32 of the order and of its follow-on.
      went: `[N]` bool; the follow-on has begun.
      found: `success_parts` of the outcomes.
    """
    first, second = found
    limit = jnp.asarray(registry.complete - _ROUNDING)[verb]
    staged = jnp.asarray(registry.staged)[verb[:, 0]]
    return jnp.where(staged, went & (second >= limit[:, 1]), first >= limit[:, 0])
