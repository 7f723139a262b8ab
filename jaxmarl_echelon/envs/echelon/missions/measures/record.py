"""Outcome records of both teams, and of each team without one of its mechs.

Records without a mech are exact where the facts allow it: detections and coverage (union over the others),
casualties, autocannon shots, samples that only this mech covered, and the mean angle of hits. Damage,
suppression and time in the objective are reduced by the mech's share.
Reference: docs/reference/echelon.md 15.3 and 16.4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxmarl_echelon.envs.echelon.missions.measures import squads, staging
from jaxmarl_echelon.envs.echelon.missions.measures.facts import CAPTURE
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.state import MechFacts, Scenario, TeamFacts
from jaxmarl_echelon.envs.echelon.settings import PERIOD


class RecordInputs(NamedTuple):
    """Data from which outcome records are computed.

    Attributes:
      teams: mechs of blue and of red; static.
      scenario: the drawn scenario.
      alive: `[M]` bool.
      by_mech: facts by mech.
      by_team: facts by team.
      open_cells: `[W]` uint32 bits of the reachable coverage cells of this map.
      cover_target: share of them that counts as full coverage.
    """

    teams: squads.TeamSizes
    scenario: Scenario
    alive: jax.Array
    by_mech: MechFacts
    by_team: TeamFacts
    open_cells: jax.Array
    cover_target: jax.Array


def compute_team_records(evidence: RecordInputs) -> OutcomeRecord:
    """Computes the outcome records `[K]` of the teams at present."""
    scenario, mine, ours = evidence.scenario, evidence.by_mech, evidence.by_team
    teams, add = evidence.teams, squads.sum_by_team
    strength = scenario.strength.astype(jnp.float32)
    lost = strength - add(evidence.alive, teams)
    seen, _ = squads.unite_bits(mine.visited, teams)
    dealt = add(mine.dealt, teams)
    return OutcomeRecord(
        strength=strength,
        casualties=lost,
        enemies=strength[::-1],
        enemies_lost=lost[::-1],
        detected=add(mine.confirmed.any(0), teams)[::-1].astype(jnp.float32),
        covered=_covered(evidence, _count(seen)),
        captured=ours.captured.astype(jnp.float32),
        elapsed=ours.elapsed * PERIOD,
        alone=ours.alone * PERIOD,
        contested=ours.contested * PERIOD,
        watched=clipped_ratio(ours.covered.astype(jnp.float32), ours.elapsed.astype(jnp.float32), 0.0),
        exposure=ours.exposure * PERIOD,
        supported=ours.supported * PERIOD,
        protected=clipped_ratio(strength - lost, strength, 0.0),
        engaged=ours.engaged.astype(jnp.float32),
        enfilade=clipped_ratio(add(mine.rear, teams), dealt, 0.0),
        waited=ours.waited * PERIOD,
        tracked=ours.tracked * PERIOD,
        removed=clipped_ratio(dealt, scenario.hp[::-1], 0.0),
        suppression=add(mine.pinned, teams)[::-1],
        shots=add(mine.shots, teams).astype(jnp.float32),
        hits=add(mine.hits, teams).astype(jnp.float32),
        arrived=ours.arrived,
        ready=ours.ready,
        form=ours.form,
        speed=staging.follow_on_promptness(ours),
    )


def with_running_capture(outcome: OutcomeRecord, by_team: TeamFacts) -> OutcomeRecord:
    """Returns the records with the share of a capture under way, for potentials."""
    under_way = jnp.clip(by_team.capture / CAPTURE, 0.0, 1.0)
    return outcome._replace(captured=jnp.maximum(outcome.captured, under_way))


def with_whole_time_shares(
    outcome: OutcomeRecord, by_team: TeamFacts, lost: jax.Array, left: jax.Array
) -> OutcomeRecord:
    """Returns the records `[K]`; where an order is lost, shares of time refer to the whole time limit.

    In the remaining time nothing is held or watched. Relative to the elapsed time, a squad that holds an
    objective for a second and is then destroyed would count as having held it throughout.

    Args:
      outcome: the records of the time so far.
      by_team: facts.
      lost: `[K]` bool.
      left: decisions until the time limit.
    """
    decisions = by_team.elapsed + jnp.where(lost, left, 0)
    watched = clipped_ratio(by_team.covered.astype(jnp.float32), decisions.astype(jnp.float32), 0.0)
    return outcome._replace(elapsed=decisions * PERIOD, watched=watched)


def compute_records_without(evidence: RecordInputs, outcome: OutcomeRecord) -> OutcomeRecord:
    """Computes the records `[M]` of each mech's team without the mech.

    Args:
      evidence: data of the records.
      outcome: the teams' records `[K]`.
    """
    mine, teams = evidence.by_mech, evidence.teams
    team = squads.team_numbers(teams)
    whole = OutcomeRecord(*(field[team] for field in outcome))
    here = evidence.scenario.present.astype(jnp.float32)
    strength = whole.strength - here
    casualties = whole.casualties - (here - evidence.alive)

    def rest(part: jax.Array) -> jax.Array:
        """Returns the share of the team's sum contributed by the others; 1 where the sum is 0."""
        total = squads.sum_by_team(part, teams)[team]
        return 1.0 - clipped_ratio(part, total, 0.0)

    sole = jnp.sum(mine.confirmed & (mine.confirmed.sum(0) == 1), axis=1)
    seen, once = squads.unite_bits(mine.visited, teams)
    cells = _count(seen)[team] - _count(mine.visited & once[team])
    fire, zone, pins = rest(mine.dealt), rest(mine.held), rest(mine.pinning)
    others = squads.sum_by_team(mine.dealt, teams)[team] - mine.dealt
    samples = jnp.maximum(whole.elapsed / PERIOD, 1.0)
    return whole._replace(
        strength=strength,
        casualties=casualties,
        enemies_lost=whole.enemies_lost * fire,
        detected=whole.detected - sole,
        covered=_covered(evidence, cells),
        captured=whole.captured * jnp.minimum(_raw_capture(evidence)[team] * zone, 1.0),
        alone=whole.alone * zone,
        contested=whole.contested * zone,
        watched=jnp.maximum(whole.watched - mine.lone_cover / samples, 0.0),
        supported=whole.supported * fire,
        protected=clipped_ratio(strength - casualties, strength, 0.0),
        engaged=(others > 0).astype(jnp.float32),
        enfilade=clipped_ratio(squads.sum_by_team(mine.rear, teams)[team] - mine.rear, others, 0.0),
        removed=whole.removed * fire,
        suppression=whole.suppression * pins,
        shots=whole.shots - mine.shots,
        hits=whole.hits - mine.hits,
    )


def _raw_capture(evidence: RecordInputs) -> jax.Array:
    """Returns captures `[K]` in units of a full one; above 1 if held longer, at least 1 once captured."""
    raw = evidence.by_team.capture / CAPTURE
    return jnp.where(evidence.by_team.captured, jnp.maximum(raw, 1.0), raw)


def _covered(evidence: RecordInputs, cells: jax.Array) -> jax.Array:
    """Returns the share of the requested cells, for numbers of entered cells."""
    asked = _count(evidence.open_cells) * evidence.cover_target
    return clipped_ratio(cells.astype(jnp.float32), jnp.broadcast_to(asked, cells.shape), 1.0)


def _count(words: jax.Array) -> jax.Array:
    """Returns the number of bits set in `[..., W]` words."""
    return jnp.sum(lax.population_count(words), axis=-1).astype(jnp.int32)
