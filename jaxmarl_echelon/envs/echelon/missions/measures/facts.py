"""Facts about squads, measured by changes of the world so that policies cannot fake them.

A cell is covered if a mech entered it, not if it was seen. An enemy is detected if it was tracked for
two seconds without interruption. Suppression counts the stability that a mech lacks while it is under
autocannon fire or fallen. All facts are updated once per decision; times are stored in whole decisions.
Reference: docs/reference/echelon.md 15.3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon import zone as zone_lib
from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, Mechs, Tally
from jaxmarl_echelon.envs.echelon.battle.unit_tables import AUTOCANNON, MAX_STABILITY, ChassisTable
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.state import CONFIRMATION, NEVER, MechFacts, Order, TeamFacts
from jaxmarl_echelon.envs.echelon.settings import PERIOD

# Area of operations around an objective, voxels beyond its radius.
AREA = 12.0
# Decisions alone in the objective that capture it, 10 s; decisions for which a hit counts as recent, 2 s.
CAPTURE, RECENT = 40, 8
# Relative sensor range by class, in the order of `unit_tables.CLASSES` (the original's sensor suites).
CLASS_REACH = np.array([1.5, 1.2, 1.0, 0.8], np.float32)
STEALTH = 0.5
_WORD = 32


class FactInputs(NamedTuple):
    """Data from which facts are updated, after a decision.

    Attributes:
      teams: mechs of blue and of red; static.
      mechs: the mechs after the decision.
      tally: its combat statistics, with a log.
      chassis: rows per mech.
      classes: `[M]`.
      order: `[K]` orders of the teams at the start of the decision.
      sight: `[M, M]` bool; neither terrain nor smoke in between.
      quality: `[M]` sensor quality.
      sensor_range: sensor range of an undisturbed medium mech, voxels.
      stealth: `[K]` tier of each team.
      cell: `[M]` int32 present coverage cell of each mech.
      open_cells: `[W]` uint32 bits of the reachable coverage cells of this map.
      watching: `[M]` bool; sees the present sample of its team's objective.
    """

    teams: squads.TeamSizes
    mechs: Mechs
    tally: Tally
    chassis: ChassisTable
    classes: jax.Array
    order: Order
    sight: jax.Array
    quality: jax.Array
    sensor_range: jax.Array
    stealth: jax.Array
    cell: jax.Array
    open_cells: jax.Array
    watching: jax.Array

    @property
    def team(self) -> np.ndarray:
        """`[M]` int32; static."""
        return squads.team_numbers(self.teams)


class FactChanges(NamedTuple):
    """Changes of the facts by one decision, for shaping rewards.

    Attributes:
      found: `[M]` number of enemies of which the mech had the first confirmed track of its team; divided
        among mechs that obtained it in the same decision.
      pinning: `[M]` credited weighted seconds of suppression.
      tracked: `[M]` bool; an enemy has a confirmed track of the mech.
      inside: `[M]` bool; alive and in its team's objective.
      tick: `[K]` share of a full hold of the objective.
      entered: `[M]` coverage cells that the mech entered as the first of its team; shared by those that
        enter one in the same decision.
    """

    found: jax.Array
    pinning: jax.Array
    tracked: jax.Array
    inside: jax.Array
    tick: jax.Array
    entered: jax.Array


def initial_mech_facts(mechs: int, words: int, cell: jax.Array, gap: jax.Array) -> MechFacts:
    """Returns initial facts of `mechs` mechs, with their coverage cells and distances to the objective."""
    zeros, whole = jnp.zeros(mechs), jnp.zeros(mechs, jnp.int32)
    return MechFacts(
        timer=jnp.zeros((mechs, mechs), jnp.int8),
        confirmed=jnp.zeros((mechs, mechs), bool),
        visited=jnp.zeros((mechs, words), jnp.uint32),
        cell=cell,
        dealt=zeros,
        rear=zeros,
        pinned=zeros,
        pinning=zeros,
        hitter=jnp.full(mechs, NO_MECH, jnp.int32),
        hurt=whole,
        held=zeros,
        shots=whole,
        hits=whole,
        seen_cover=whole,
        lone_cover=whole,
        gap=gap,
    )


def initial_team_facts() -> TeamFacts:
    """Returns initial facts of both teams."""
    whole, never, zeros = jnp.zeros(2, jnp.int32), jnp.zeros(2, bool), jnp.zeros(2)
    flags = dict.fromkeys(("captured", "engaged", "met", "entered", "attempted"), never)
    shares = dict.fromkeys(("arrived", "ready", "form", "reference", "best", "opening"), zeros)
    names = ("elapsed", "capture", "alone", "contested", "covered", "exposure", "supported", "waited")
    counts = dict.fromkeys((*names, "tracked", "stalled"), whole)
    late = dict.fromkeys(("transit", "latched"), jnp.full(2, NEVER, jnp.int32))
    return TeamFacts(**flags, **shares, **counts, **late)


def update_tracks(now: FactInputs, timer: jax.Array) -> jax.Array:
    """Returns int8 `[M, M]`: consecutive decisions with the target in sight and range of the viewer."""
    mechs, team = now.mechs, now.team
    works = mechs.alive & ~is_shut_down(mechs, now.chassis)
    reach = (now.sensor_range * now.quality * jnp.asarray(CLASS_REACH)[now.classes])[:, None]
    reach = reach * (1.0 - STEALTH * now.stealth)[team]
    near = vectors.squared_length(mechs.position - mechs.position[:, None]) <= reach * reach
    seen = now.sight & near & (team[:, None] != team) & works[:, None] & mechs.alive
    return jnp.where(seen, jnp.minimum(timer + 1, CONFIRMATION), 0).astype(jnp.int8)


def _mark_entered_cells(
    visited: jax.Array, cell: jax.Array, enters: jax.Array, open_cells: jax.Array
) -> jax.Array:
    """Adds the bits of the cells `[M]` that mechs enter `[M]` now to `visited`, if they are reachable."""
    words = np.arange(visited.shape[-1], dtype=np.int32)
    bit = jnp.uint32(1) << (cell % _WORD).astype(jnp.uint32)
    mark = jnp.where(enters[:, None] & (cell[:, None] // _WORD == words), bit[:, None], 0)
    return visited | (mark.astype(jnp.uint32) & open_cells)


def _first_entries(
    after: jax.Array, before: jax.Array, cell: jax.Array, teams: squads.TeamSizes
) -> jax.Array:
    """Returns shares `[M]` of the cells that teams entered for the first time, from the bits `[M, W]`."""
    team = squads.team_numbers(teams)
    known, _ = squads.unite_bits(before, teams)
    new = ((after & ~known[team]) != 0).any(-1)
    same = new & new[:, None] & (team == team[:, None]) & (cell == cell[:, None])
    return jnp.where(new, 1.0 / jnp.maximum(jnp.sum(same, axis=1), 1), 0.0)


def suppression_seconds(mechs: Mechs) -> jax.Array:
    """Returns seconds `[M]` of suppression or lying in this decision, weighted by the missing stability."""
    down = mechs.alive & ((mechs.suppressed > 0) | (mechs.fallen > 0))
    return jnp.where(down, (1.0 - mechs.stability / MAX_STABILITY) * PERIOD, 0.0)


def update_facts(
    now: FactInputs, facts: MechFacts, teams: TeamFacts
) -> tuple[MechFacts, TeamFacts, FactChanges]:
    """Updates the facts by one decision; returns them and their changes."""
    mechs, log, team = now.mechs, now.tally.log, now.team
    timer = update_tracks(now, facts.timer)
    tracked = timer >= CONFIRMATION
    fresh = tracked & ~squads.any_by_team(facts.confirmed.T, now.teams).T[team]
    found = jnp.where(fresh, 1.0 / jnp.maximum(squads.sum_by_team(fresh.T, now.teams).T[team], 1), 0.0).sum(1)
    enters = mechs.alive & (now.cell != facts.cell)
    visited = _mark_entered_cells(facts.visited, now.cell, enters, now.open_cells)
    entered = _first_entries(visited, facts.visited, now.cell, now.teams)
    hitter = jnp.where(log.suppressor != NO_MECH, log.suppressor, facts.hitter)
    pinned = suppression_seconds(mechs)
    pinning = jnp.where(hitter == np.arange(hitter.size)[:, None], pinned, 0.0).sum(1)
    hurt = jnp.where(log.struck, RECENT, jnp.maximum(facts.hurt - 1, 0))

    inside, tons = _presence(now)
    own, enemy = inside[team, np.arange(team.size)], tons[:, ::-1].diagonal()
    mine = tons.diagonal()
    alone, contested = (mine > 0) & (enemy == 0), (mine > 0) & (enemy > 0)
    worth = (alone + 0.5 * contested)[team] * now.chassis.tonnage * PERIOD
    lone = now.watching & (squads.sum_by_team(now.watching, now.teams)[team] == 1)
    after = facts.replace(
        timer=timer,
        confirmed=facts.confirmed | tracked,
        visited=visited,
        cell=jnp.where(mechs.alive, now.cell, facts.cell),
        dealt=facts.dealt + now.tally.dealt,
        rear=facts.rear + log.rear,
        pinned=facts.pinned + pinned,
        pinning=facts.pinning + pinning,
        hitter=hitter,
        hurt=hurt,
        held=facts.held + jnp.where(own, worth, 0.0),
        shots=facts.shots + now.tally.shots[:, AUTOCANNON],
        hits=facts.hits + now.tally.hits[:, AUTOCANNON],
        seen_cover=facts.seen_cover + now.watching,
        lone_cover=facts.lone_cover + lone,
    )
    seen = tracked.any(0)
    teams = _team_facts(now, teams, alone, contested, enemy > 0, hurt, seen)
    met = squads.any_by_team(tracked.any(1) | (now.tally.dealt > 0), now.teams)
    new_cell = (visited != facts.visited).any(-1) & inside_operation_area(now)
    teams = teams.replace(
        met=teams.met | met, entered=teams.entered | squads.any_by_team(new_cell, now.teams)
    )
    lead = jnp.maximum(mine - enemy, 0.0) / jnp.maximum(mine + enemy, 1e-6)
    floor = zone_lib.CONTESTED_FLOOR
    tick = jnp.where(contested, floor + (1.0 - floor) * lead, alone.astype(jnp.float32))
    return after, teams, FactChanges(found, pinning, seen, own, tick, entered)


def _own_objectives(now: FactInputs) -> jax.Array:
    """Returns x, y and radius `[M, 3]` of each mech's own objective."""
    return now.order.zone[now.team]


def inside_operation_area(now: FactInputs) -> jax.Array:
    """Returns bool `[M]`: alive and in the area of operations around the mech's own objective."""
    zone = _own_objectives(now)
    near = zone_lib.distance_to_zone(now.mechs.position, zone) < zone[:, 2] + AREA
    return now.mechs.alive & near


def _presence(now: FactInputs) -> tuple[jax.Array, jax.Array]:
    """Returns bool `[K, M]`, mechs in each team's objective, and `[K, K]`, tons of each team in each one."""
    zone = now.order.zone[:, None]
    inside = now.mechs.alive & zone_lib.inside_zone(now.mechs.position, zone)
    return inside, squads.sum_by_team(jnp.where(inside, now.chassis.tonnage, 0.0), now.teams)


def _team_facts(now: FactInputs, teams: TeamFacts, alone, contested, enemy_inside, hurt, seen) -> TeamFacts:
    mechs = now.mechs
    lost = enemy_inside & ~alone & ~contested
    capture = jnp.maximum(teams.capture + alone - lost, 0)
    zone = now.order.zone[:, None]
    near = zone_lib.distance_to_zone(mechs.position, zone) < zone[..., 2] + AREA
    exposed = near & mechs.alive & (now.team != np.arange(2)[:, None])
    dealt_with = exposed & ((mechs.suppressed > 0) | (mechs.fallen > 0) | (hurt > 0))
    engaged = teams.engaged | (squads.sum_by_team(now.tally.dealt, now.teams) > 0)
    return teams.replace(
        elapsed=teams.elapsed + 1,
        capture=capture,
        captured=teams.captured | (capture >= CAPTURE),
        alone=teams.alone + alone,
        contested=teams.contested + contested,
        covered=teams.covered + squads.any_by_team(now.watching, now.teams),
        exposure=teams.exposure + exposed.sum(1, dtype=jnp.int32),
        supported=teams.supported + dealt_with.sum(1, dtype=jnp.int32),
        engaged=engaged,
        waited=teams.waited + ~engaged,
        tracked=teams.tracked + (~engaged & squads.any_by_team(seen & mechs.alive, now.teams)),
    )
