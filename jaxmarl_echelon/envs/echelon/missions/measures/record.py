"""Outcome records of both teams, and of any coalition of a team's mechs.

Records of coalitions are exact where the facts allow it: detections and coverage (union over the members),
casualties, autocannon shots, samples of the objective, and the mean angle of hits. Damage, suppression and
time in the objective are reduced to the members' share.
Reference: docs/reference/echelon.md 15.3 and 16.4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
    team = squads.team_numbers(evidence.teams)
    return compute_coalition_records(evidence, outcome, team, ~np.eye(team.size, dtype=bool))


def compute_coalition_records(
    evidence: RecordInputs, outcome: OutcomeRecord, team: np.ndarray, members: jax.Array | np.ndarray
) -> OutcomeRecord:
    """Computes the records `[C]` of teams restricted to coalitions of their mechs.

    The whole team has its own record. A team without mechs has no strength, and retains what none of its
    mechs contributed to: enemies lost without its fire, the waiting before an engagement, the arrival.

    Args:
      evidence: data of the records.
      outcome: the teams' records `[K]`.
      team: `[C]` int32 team of each coalition; static.
      members: `[C, M]` bool; mechs of other teams and empty slots do not count.
    """
    mine, teams = evidence.by_mech, evidence.teams
    own = team[:, None] == squads.team_numbers(teams)
    there = members & own & evidence.scenario.present
    gone = own & ~there
    whole = OutcomeRecord(*(field[team] for field in outcome))

    def part(values: jax.Array, mechs: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(mechs, values, jnp.zeros_like(values)), axis=-1)

    def total(values: jax.Array) -> jax.Array:
        return squads.sum_by_team(values, teams)[team]

    def rest(values: jax.Array) -> jax.Array:
        """Returns the share of the team's sum contributed by the members; 1 where the sum is 0."""
        return 1.0 - clipped_ratio(part(values, gone), total(values), 0.0)

    strength = jnp.sum(there, axis=-1).astype(jnp.float32)
    casualties = strength - jnp.sum(there & evidence.alive, axis=-1)
    # Tracks as bits: a union of flags would take M times as many operations for each coalition.
    found = jnp.concatenate([mine.visited, squads.pack_bits(mine.confirmed)], axis=1)
    united = lax.reduce(jnp.where(there[:, :, None], found, 0), np.uint32(0), lax.bitwise_or, (1,))
    cells, detected = (_count(words) for words in jnp.split(united, [mine.visited.shape[1]], axis=1))
    fire, zone, pins = rest(mine.dealt), rest(mine.held), rest(mine.pinning)
    # Differences of sums leave rounding errors, which must not count as damage of those who did none.
    fought = (there & (mine.dealt > 0)).any(-1)
    dealt = jnp.where(fought, total(mine.dealt) - part(mine.dealt, gone), 0.0)
    rear = total(mine.rear) - part(mine.rear, gone)
    samples = jnp.maximum(whole.elapsed / PERIOD, 1.0)
    return whole._replace(
        strength=strength,
        casualties=casualties,
        enemies_lost=whole.enemies_lost * fire,
        detected=detected.astype(jnp.float32),
        covered=_covered(evidence, cells),
        captured=whole.captured * jnp.minimum(_raw_capture(evidence)[team] * zone, 1.0),
        alone=whole.alone * zone,
        contested=whole.contested * zone,
        watched=jnp.maximum(whole.watched - _unseen(evidence, team, there, gone) / samples, 0.0),
        supported=whole.supported * fire,
        protected=clipped_ratio(strength - casualties, strength, 0.0),
        engaged=(dealt > 0).astype(jnp.float32),
        enfilade=clipped_ratio(rear, dealt, 0.0),
        removed=whole.removed * fire,
        suppression=whole.suppression * pins,
        shots=part(mine.shots, there).astype(jnp.float32),
        hits=part(mine.hits, there).astype(jnp.float32),
    )


def _unseen(evidence: RecordInputs, team: np.ndarray, there: jax.Array, gone: jax.Array) -> jax.Array:
    """Returns how many of the team's samples of the objective no member of the coalitions `[C]` saw.

    Exact for one member and for all but one: a sample that several mechs saw is then seen by the member, or
    by one of the others. In between, the members' counts of such samples are added up to their number, as if
    the members had seen different ones.
    """
    mine, teams = evidence.by_mech, evidence.teams
    several = jnp.maximum(mine.seen_cover - mine.lone_cover, 0)
    shared = jnp.maximum(evidence.by_team.covered - squads.sum_by_team(mine.lone_cover, teams), 0)[team]
    alone = jnp.sum(jnp.where(gone, mine.lone_cover, 0), axis=-1)
    return alone + jnp.maximum(shared - jnp.sum(jnp.where(there, several, 0), axis=-1), 0)


def _raw_capture(evidence: RecordInputs) -> jax.Array:
    """Returns captures `[K]` in units of a full one; above 1 if held longer, at least 1 once captured."""
    raw = evidence.by_team.capture / CAPTURE
    return jnp.where(evidence.by_team.captured, jnp.maximum(raw, 1.0), raw)


def requested_cells(open_cells: jax.Array, cover_target: jax.Array) -> jax.Array:
    """Returns the number of coverage cells, float32, that count as full coverage of the bits `[W]`."""
    return _count(open_cells) * cover_target


def _covered(evidence: RecordInputs, cells: jax.Array) -> jax.Array:
    """Returns the share of the requested cells, for numbers of entered cells."""
    asked = requested_cells(evidence.open_cells, evidence.cover_target)
    return clipped_ratio(cells.astype(jnp.float32), jnp.broadcast_to(asked, cells.shape), 1.0)


def _count(words: jax.Array) -> jax.Array:
    """Returns the number of bits set in `[..., W]` words."""
    return jnp.sum(lax.population_count(words), axis=-1).astype(jnp.int32)
