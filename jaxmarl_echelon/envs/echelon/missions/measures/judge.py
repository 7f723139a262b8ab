"""Whether an episode is over, and what the missions have come to.

The mission is blue's: blue's order ends an episode when nothing of it is left to do, red's only where nobody
of blue is left to go on.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import BLUE, RED, Mechs
from jaxmarl_echelon.envs.echelon.missions import results
from jaxmarl_echelon.envs.echelon.missions.measures import record, squads, success
from jaxmarl_echelon.envs.echelon.missions.measures.facts import AREA
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome
from jaxmarl_echelon.envs.echelon.missions.types import NEVER, Order, TeamFacts
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry

ATTEMPT = 0.2
_GROWTH = 1e-6


class Verdict(NamedTuple):
    """What the missions have come to.

    Attributes:
      by_team: facts, with those of success added.
      outcome: records `[K]`.
      potential: `[K]` progress in [0, 1], of running records.
      success: `[K]` after constraints.
      over: bool.
      ending: int32 index into `results.ENDINGS`, or RUNNING.
    """

    by_team: TeamFacts
    outcome: Outcome
    potential: jax.Array
    success: jax.Array
    over: jax.Array
    ending: jax.Array


def judge(
    registry: Registry,
    evidence: record.Evidence,
    order: Order,
    mechs: Mechs,
    decision: jax.Array,
    limit: jax.Array,
) -> Verdict:
    """Judges both missions as they stand.

    An episode ends when blue's mission is such that nothing is left to do, or red's is and nobody of blue is
    left; when a team has no mech left and the other one's order has nothing more to do without enemies, or
    nobody is left at all; when time is up. Where an order is lost before that, as its squad is gone or blue
    completes its own with the capture of the objective, its shares of time are shares of the whole time.

    Args:
      registry: the verbs.
      evidence: what records are made of, after the decision.
      order: `[K]` what the teams are told now.
      mechs: the mechs.
      decision: decisions taken.
      limit: decisions of the time limit.
    """
    orders, ours = evidence.scenario.orders, evidence.by_team
    here = evidence.scenario.strength > 0
    living = squads.add(mechs.alive, evidence.teams)
    gone = here & (living == 0)
    outcome = record.of_teams(evidence)
    found = success.parts(registry, orders.verb, outcome)
    complete = success.completes(registry, orders.verb, order.went, found) & (living > 0)
    completed = complete[BLUE] | (complete[RED] & gone[BLUE])
    lost = gone | jnp.stack([jnp.bool_(False), complete[BLUE] & ours.captured[BLUE]])
    outcome = record.over_whole_time(outcome, ours, lost, limit - decision)
    found = success.parts(registry, orders.verb, outcome)
    under_way = success.parts(registry, orders.verb, record.running(outcome, ours))
    value, potential = (success.base(registry, orders.verb, order.went, one) for one in (found, under_way))
    done = (value >= success.COMPLETED) & (ours.latched == NEVER) & here
    grown = potential > ours.best + _GROWTH
    ours = ours.replace(
        latched=jnp.where(done, decision, ours.latched),
        best=jnp.maximum(ours.best, potential),
        stalled=jnp.where(grown, 0, ours.stalled + 1),
        attempted=ours.attempted | _attempts(evidence, order, mechs, potential),
    )
    idle = jnp.asarray(registry.flags("ends_with_enemies"))[order.verb]
    ends = jnp.stack([completed, (gone & (idle | (living == 0))[::-1]).any(), decision >= limit])
    over = ends.any()
    return Verdict(
        by_team=ours,
        outcome=outcome,
        potential=potential,
        success=success.of_teams(registry, orders, value, ours.latched, decision, outcome),
        over=over,
        ending=jnp.where(over, jnp.argmax(ends), results.RUNNING).astype(jnp.int32),
    )


def _attempts(evidence: record.Evidence, order: Order, mechs: Mechs, potential: jax.Array) -> jax.Array:
    """`[K]` bool; the potential has grown clearly, or the squad has gone into the area of operations.

    It has gone there if its centre is inside and that of the places where its living mechs started outside:
    who is there from the start has attempted nothing yet.
    """
    teams = evidence.teams

    def near(places: jax.Array) -> jax.Array:
        middle = squads.centre(places, mechs.alive, teams)
        return vectors.length(middle - order.zone[:, :2]) < order.zone[:, 2] + AREA

    gone_there = near(mechs.position) & ~near(evidence.scenario.start) & squads.any_of(mechs.alive, teams)
    return gone_there | (potential >= evidence.by_team.opening + ATTEMPT)
