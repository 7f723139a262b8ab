"""Progress and success of missions, and the end of an episode.

The mission is blue's: an episode ends when blue's order is complete; a complete order of red ends it only if
no mech of blue is alive. Reference: docs/reference/echelon.md 15.5.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import BLUE, RED, Mechs
from jaxmarl_echelon.envs.echelon.missions import results
from jaxmarl_echelon.envs.echelon.missions.measures import record, squads, success
from jaxmarl_echelon.envs.echelon.missions.measures.facts import AREA
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, Order, TeamFacts
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry

ATTEMPT = 0.2
_GROWTH = 1e-6


class Verdict(NamedTuple):
    """Assessment of both missions.

    Attributes:
      by_team: facts, with those about success updated.
      outcome: outcome records `[K]`.
      potential: `[K]` progress in [0, 1], from running records.
      success: `[K]` after constraints.
      over: bool.
      ending: int32 index into `results.ENDINGS`, or RUNNING.
    """

    by_team: TeamFacts
    outcome: OutcomeRecord
    potential: jax.Array
    success: jax.Array
    over: jax.Array
    ending: jax.Array


def assess_missions(
    registry: Registry,
    evidence: record.RecordInputs,
    order: Order,
    mechs: Mechs,
    decision: jax.Array,
    limit: jax.Array,
) -> Verdict:
    """Assesses both missions after a decision.

    An episode ends when blue's mission is complete, or red's is and blue is eliminated; when a team is
    eliminated and the other's order, unless it is a follow-on, ends with its enemies, or both teams are; and
    at the time limit. If an order is lost earlier (its squad is eliminated, or blue completes its own by
    capturing the objective), its shares of time refer to the whole time limit.

    Args:
      registry: the verbs.
      evidence: data of the records, after the decision.
      order: `[K]` present orders of the teams.
      mechs: the mechs.
      decision: decisions taken.
      limit: time limit in decisions.
    """
    orders, ours = evidence.scenario.orders, evidence.by_team
    here = evidence.scenario.strength > 0
    living = squads.sum_by_team(mechs.alive, evidence.teams)
    gone = here & (living == 0)
    outcome = record.compute_team_records(evidence)
    found = success.success_parts(registry, orders.verb, outcome)
    complete = success.is_complete(registry, orders.verb, order.went, found) & (living > 0)
    completed = complete[BLUE] | (complete[RED] & gone[BLUE])
    # Scouts may have captured the objective on their way: that does not complete their order.
    elsewhere = outcome._replace(captured=jnp.zeros_like(outcome.captured))
    parts = success.success_parts(registry, orders.verb, elsewhere)
    captures = complete & ~success.is_complete(registry, orders.verb, order.went, parts)
    lost = gone | jnp.stack([jnp.bool_(False), captures[BLUE]])
    outcome = record.with_whole_time_shares(outcome, ours, lost, limit - decision)
    found = success.success_parts(registry, orders.verb, outcome)
    under_way = success.success_parts(registry, orders.verb, record.with_running_capture(outcome, ours))
    value, potential = (
        success.base_success(registry, orders.verb, order.went, one, outcome) for one in (found, under_way)
    )
    done = (value >= success.COMPLETED) & (ours.latched == NEVER) & here
    grown = potential > ours.best + _GROWTH
    ours = ours.replace(
        latched=jnp.where(done, decision, ours.latched),
        best=jnp.maximum(ours.best, potential),
        stalled=jnp.where(grown, 0, ours.stalled + 1),
        attempted=ours.attempted | _attempts(evidence, order, mechs, potential),
    )
    # A follow-on is judged by its own time: ended in its first decisions it would be worth nothing.
    idle = jnp.asarray(registry.flags("ends_with_enemies"))[order.verb] & ~order.went
    ends = jnp.stack([completed, (gone & (idle | (living == 0))[::-1]).any(), decision >= limit])
    over = ends.any()
    return Verdict(
        by_team=ours,
        outcome=outcome,
        potential=potential,
        success=success.constrain_team_success(registry, orders, value, ours.latched, decision, outcome),
        over=over,
        ending=jnp.where(over, jnp.argmax(ends), results.RUNNING).astype(jnp.int32),
    )


def _attempts(evidence: record.RecordInputs, order: Order, mechs: Mechs, potential: jax.Array) -> jax.Array:
    """Returns bool `[K]`: the potential has grown by `ATTEMPT`, or the squad is in its area of operations.

    The squad has entered if its centre is inside and the centre of its living mechs' start positions is not:
    squads that start inside do not count.
    """
    teams = evidence.teams

    def near(places: jax.Array) -> jax.Array:
        middle = squads.squad_centres(places, mechs.alive, teams)
        return vectors.vector_length(middle - order.zone[:, :2]) < order.zone[:, 2] + AREA

    gone_there = (
        near(mechs.position) & ~near(evidence.scenario.start) & squads.any_by_team(mechs.alive, teams)
    )
    return gone_there | (potential >= evidence.by_team.opening + ATTEMPT)
