"""Mission success: evaluators, constraints of the order, the follow-on's half, the difference of one mech.

Both teams succeed or fail by their own orders. Source: spec sections 7.5 and 7.8; the design's sections
4.1 to 4.3 and 8.5.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.missions.measures import record, squads
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome, share
from jaxmarl_echelon.envs.echelon.missions.types import NEVER, PARAMETERS, Orders
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.settings import PERIOD

COSTLY, LATE = 0.5, 0.8
# Success that counts as a mission completed.
COMPLETED = 0.5
_ROUNDING = np.float32(1e-5)
_LOSSES = PARAMETERS.index("loss_appetite")


Parts = tuple[jax.Array, jax.Array]


def parts(registry: Registry, verb: jax.Array, outcome: Outcome) -> Parts:
    """Success `[N]` in [0, 1] of an outcome under an order and under its follow-on, `verb` `[N, 2]`."""
    values = registry.evaluate(outcome)
    first, second = (jnp.take_along_axis(values, verb[:, i : i + 1], axis=1)[:, 0] for i in (0, 1))
    return first, second


def base(registry: Registry, verb: jax.Array, went: jax.Array, found: Parts) -> jax.Array:
    """Success `[N]` in [0, 1] before constraints.

    An order with a follow-on is half of its success and half of the follow-on's, which is 0 before GO.

    Args:
      registry: the verbs.
      verb: `[N, 2]` int32 of the order and of its follow-on.
      went: `[N]` bool; the follow-on has begun.
      found: `parts` of the outcomes.
    """
    first, second = found
    staged = jnp.asarray(registry.staged)[verb[:, 0]]
    return jnp.where(staged, 0.5 * first + 0.5 * jnp.where(went, second, 0.0), first)


def constrained(
    registry: Registry,
    value: jax.Array,
    verb: jax.Array,
    loss_appetite: jax.Array,
    budget: jax.Array,
    taken: jax.Array,
    outcome: Outcome,
) -> jax.Array:
    """Success `[N]` after constraints: half for too many casualties, four fifths for taking too long.

    Args:
      registry: the verbs.
      value: `[N]` success before.
      verb: `[N]` int32 of the order.
      loss_appetite: `[N]` share of casualties that is accepted.
      budget: `[N]` seconds.
      taken: `[N]` seconds until the mission first counted as done.
      outcome: `[N]`.
    """
    costly = share(outcome.casualties, outcome.strength, 0.0) > loss_appetite
    late = jnp.asarray(registry.flags("timed"))[verb] & (taken > budget)
    return value * jnp.where(costly, COSTLY, 1.0) * jnp.where(late, LATE, 1.0)


def terminal(success: jax.Array) -> jax.Array:
    """The terminal reward, symmetric around 0: from -1 to 1."""
    return 2.0 * success - 1.0


def time_taken(registry: Registry, verb: jax.Array, latched: jax.Array, decision: jax.Array) -> jax.Array:
    """Seconds `[K]` that missions took: until they first counted as done, or until now.

    Orders that last to the end are not done before it, whatever they have come to on the way.

    Args:
      registry: the verbs.
      verb: `[K]` int32 of the order.
      latched: `[K]` int32 decision at which the mission first counted as done, or NEVER.
      decision: decisions taken.
    """
    done = jnp.asarray(registry.flags("timed"))[verb] & (latched != NEVER)
    return jnp.where(done, latched, decision) * PERIOD


def differences(
    registry: Registry,
    orders: Orders,
    went: jax.Array,
    evidence: record.Evidence,
    outcome: Outcome,
    success: jax.Array,
    decision: jax.Array,
) -> jax.Array:
    """Difference rewards `[M]`: a team's success less its success without each mech; 0 for empty slots.

    Args:
      registry: the verbs.
      orders: of the episode.
      went: `[K]` bool.
      evidence: what records are made of.
      outcome: the teams' records `[K]`.
      success: `[K]` after constraints.
      decision: decisions taken.
    """
    team = squads.team_of(evidence.teams)
    alone = record.without(evidence, outcome)
    verb = orders.verb[team]
    taken = time_taken(registry, orders.verb[:, 0], evidence.by_team.latched, decision)[team]
    value = base(registry, verb, went[team], parts(registry, verb, alone))
    losses, budget = orders.parameters[team, _LOSSES], orders.budget[team]
    rest = constrained(registry, value, verb[:, 0], losses, budget, taken, alone)
    return jnp.where(evidence.scenario.present, success[team] - rest, 0.0)


def of_teams(
    registry: Registry,
    orders: Orders,
    value: jax.Array,
    latched: jax.Array,
    decision: jax.Array,
    outcome: Outcome,
) -> jax.Array:
    """Success `[K]` after constraints of both teams, of success `value` before."""
    taken = time_taken(registry, orders.verb[:, 0], latched, decision)
    losses = orders.parameters[:, _LOSSES]
    return constrained(registry, value, orders.verb[:, 0], losses, orders.budget, taken, outcome)


def completes(registry: Registry, verb: jax.Array, went: jax.Array, found: Parts) -> jax.Array:
    """`[N]` bool; nothing is left to do: of an order with a follow-on, in the follow-on.

    Args:
      registry: the verbs.
      verb: `[N, 2]` int32 of the order and of its follow-on.
      went: `[N]` bool; the follow-on has begun.
      found: `parts` of the outcomes.
    """
    first, second = found
    limit = jnp.asarray(registry.complete - _ROUNDING)[verb]
    staged = jnp.asarray(registry.staged)[verb[:, 0]]
    return jnp.where(staged, went & (second >= limit[:, 1]), first >= limit[:, 0])
