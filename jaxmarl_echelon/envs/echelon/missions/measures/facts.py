"""Hardened facts: what a squad did, measured by changes of the world that are hard to fake.

Covered is what was entered, not seen. Detected is what was tracked for two seconds without a break.
Suppressed is who lost stability under fire. All are counted once per decision; sums of seconds are
kept in whole decisions. Source: spec sections 7.5, 7.6 and 8.12 to 8.15; the design's section 4.4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon import zone as zone_lib
from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.state import NOBODY, Mechs, Tally
from jaxmarl_echelon.envs.echelon.battle.unit_tables import AUTOCANNON, MAX_STABILITY, ChassisTable
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.types import CONFIRMATION, NEVER, MechFacts, Order, TeamFacts
from jaxmarl_echelon.envs.echelon.settings import PERIOD

# Around an objective: its area of operations, voxels beyond its radius.
AREA = 12.0
# Decisions alone in the objective that capture it, 10 s; decisions for which a hit counts as recent, 2 s.
CAPTURE, RECENT = 40, 8
# Reach of the sensors by class, in the order of `tables.CLASSES` (the original's suites).
CLASS_REACH = np.array([1.5, 1.2, 1.0, 0.8], np.float32)
STEALTH = 0.5
_WORD = 32


class Moment(NamedTuple):
    """The world after a decision.

    Attributes:
      teams: mechs of blue and of red; static.
      mechs: after it.
      tally: of it, with a log.
      chassis: rows per mech.
      classes: `[M]`.
      order: `[K]` what the teams were told as it began.
      sight: `[M, M]` bool; neither terrain nor smoke in between.
      quality: `[M]` of the sensors.
      sensor_range: voxels, of an undisturbed medium mech.
      stealth: `[K]` tier of each team.
      cell: `[M]` int32 coverage cell in which each mech stands.
      open_cells: `[W]` uint32 cells that can be reached on this map.
      watching: `[M]` bool; sees the present sample of its team's objective.
    """

    teams: squads.Teams
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
        return squads.team_of(self.teams)


class News(NamedTuple):
    """What a decision added to the facts, for shaping.

    Attributes:
      found: `[M]` enemies of which the mech had the first confirmed track of its team; shared among those
        who had it in the same decision.
      pinning: `[M]` weighted seconds of suppression credited.
      tracked: `[M]` bool; an enemy has a confirmed track of the mech.
      inside: `[M]` bool; alive and in its team's objective.
      tick: `[K]` share of a full hold of the objective.
    """

    found: jax.Array
    pinning: jax.Array
    tracked: jax.Array
    inside: jax.Array
    tick: jax.Array


def no_facts(mechs: int, words: int, cell: jax.Array, gap: jax.Array) -> MechFacts:
    """Facts of `mechs` mechs of whom nothing is known but where they stand."""
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
        hitter=jnp.full(mechs, NOBODY, jnp.int32),
        hurt=whole,
        held=zeros,
        shots=whole,
        hits=whole,
        lone_cover=whole,
        gap=gap,
    )


def no_team_facts() -> TeamFacts:
    """Facts of two teams that have done nothing."""
    whole, never, zeros = jnp.zeros(2, jnp.int32), jnp.zeros(2, bool), jnp.zeros(2)
    flags = dict.fromkeys(("captured", "engaged", "met", "entered", "attempted"), never)
    shares = dict.fromkeys(("arrived", "ready", "form", "reference", "best", "opening"), zeros)
    names = ("elapsed", "capture", "alone", "contested", "covered", "exposure", "supported", "waited")
    counts = dict.fromkeys((*names, "tracked", "stalled"), whole)
    late = dict.fromkeys(("transit", "latched"), jnp.full(2, NEVER, jnp.int32))
    return TeamFacts(**flags, **shares, **counts, **late)


def tracks(now: Moment, timer: jax.Array) -> jax.Array:
    """`[M, M]` int8 decisions for which each viewer has had each target in sight and in reach."""
    mechs, team = now.mechs, now.team
    works = mechs.alive & ~is_shut_down(mechs, now.chassis)
    reach = (now.sensor_range * now.quality * jnp.asarray(CLASS_REACH)[now.classes])[:, None]
    reach = reach * (1.0 - STEALTH * now.stealth)[team]
    near = vectors.square(mechs.position - mechs.position[:, None]) <= reach * reach
    seen = now.sight & near & (team[:, None] != team) & works[:, None] & mechs.alive
    return jnp.where(seen, jnp.minimum(timer + 1, CONFIRMATION), 0).astype(jnp.int8)


def cells_entered(visited: jax.Array, cell: jax.Array, enters: jax.Array, open_cells: jax.Array) -> jax.Array:
    """Bits `[M, W]` with the cells `[M]` that mechs enter `[M]` now, if they can be reached at all."""
    words = np.arange(visited.shape[-1], dtype=np.int32)
    bit = jnp.uint32(1) << (cell % _WORD).astype(jnp.uint32)
    mark = jnp.where(enters[:, None] & (cell[:, None] // _WORD == words), bit[:, None], 0)
    return visited | (mark.astype(jnp.uint32) & open_cells)


def suppression(mechs: Mechs) -> jax.Array:
    """`[M]` seconds of this decision for which a mech was kept down, weighted by the stability it lacks."""
    down = mechs.alive & ((mechs.suppressed > 0) | (mechs.fallen > 0))
    return jnp.where(down, (1.0 - mechs.stability / MAX_STABILITY) * PERIOD, 0.0)


def advance(now: Moment, facts: MechFacts, teams: TeamFacts) -> tuple[MechFacts, TeamFacts, News]:
    """The facts after one more decision, and what is new."""
    mechs, log, team = now.mechs, now.tally.log, now.team
    timer = tracks(now, facts.timer)
    tracked = timer >= CONFIRMATION
    fresh = tracked & ~squads.any_of(facts.confirmed.T, now.teams).T[team]
    found = jnp.where(fresh, 1.0 / jnp.maximum(squads.add(fresh.T, now.teams).T[team], 1), 0.0).sum(1)
    enters = mechs.alive & (now.cell != facts.cell)
    visited = cells_entered(facts.visited, now.cell, enters, now.open_cells)
    hitter = jnp.where(log.suppressor != NOBODY, log.suppressor, facts.hitter)
    pinned = suppression(mechs)
    pinning = jnp.where(hitter == np.arange(hitter.size)[:, None], pinned, 0.0).sum(1)
    hurt = jnp.where(log.struck, RECENT, jnp.maximum(facts.hurt - 1, 0))

    inside, tons = _presence(now)
    own, enemy = inside[team, np.arange(team.size)], tons[:, ::-1].diagonal()
    mine = tons.diagonal()
    alone, contested = (mine > 0) & (enemy == 0), (mine > 0) & (enemy > 0)
    worth = (alone + 0.5 * contested)[team] * now.chassis.tonnage * PERIOD
    lone = now.watching & (squads.add(now.watching, now.teams)[team] == 1)
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
        lone_cover=facts.lone_cover + lone,
    )
    seen = tracked.any(0)
    teams = _team_facts(now, teams, alone, contested, enemy > 0, hurt, seen)
    met = squads.any_of(tracked.any(1) | (now.tally.dealt > 0), now.teams)
    new_cell = (visited != facts.visited).any(-1) & within_area(now)
    teams = teams.replace(met=teams.met | met, entered=teams.entered | squads.any_of(new_cell, now.teams))
    lead = jnp.maximum(mine - enemy, 0.0) / jnp.maximum(mine + enemy, 1e-6)
    floor = zone_lib.CONTESTED_FLOOR
    tick = jnp.where(contested, floor + (1.0 - floor) * lead, alone.astype(jnp.float32))
    return after, teams, News(found, pinning, seen, own, tick)


def own_zone(now: Moment) -> jax.Array:
    """`[M, 3]` x, y and radius of each mech's own objective."""
    return now.order.zone[now.team]


def within_area(now: Moment) -> jax.Array:
    """`[M]` bool; alive and in the area of operations around its own objective."""
    zone = own_zone(now)
    near = zone_lib.distance(now.mechs.position, zone) < zone[:, 2] + AREA
    return now.mechs.alive & near


def _presence(now: Moment) -> tuple[jax.Array, jax.Array]:
    """Who is in whose objective, bool `[K, M]`, and the tons of each team in each objective, `[K, K]`."""
    zone = now.order.zone[:, None]
    inside = now.mechs.alive & zone_lib.within(now.mechs.position, zone)
    return inside, squads.add(jnp.where(inside, now.chassis.tonnage, 0.0), now.teams)


def _team_facts(now: Moment, teams: TeamFacts, alone, contested, enemy_inside, hurt, seen) -> TeamFacts:
    mechs = now.mechs
    lost = enemy_inside & ~alone & ~contested
    capture = jnp.maximum(teams.capture + alone - lost, 0)
    zone = now.order.zone[:, None]
    near = zone_lib.distance(mechs.position, zone) < zone[..., 2] + AREA
    exposed = near & mechs.alive & (now.team != np.arange(2)[:, None])
    dealt_with = exposed & ((mechs.suppressed > 0) | (mechs.fallen > 0) | (hurt > 0))
    engaged = teams.engaged | (squads.add(now.tally.dealt, now.teams) > 0)
    return teams.replace(
        elapsed=teams.elapsed + 1,
        capture=capture,
        captured=teams.captured | (capture >= CAPTURE),
        alone=teams.alone + alone,
        contested=teams.contested + contested,
        covered=teams.covered + squads.any_of(now.watching, now.teams),
        exposure=teams.exposure + exposed.sum(1, dtype=jnp.int32),
        supported=teams.supported + dealt_with.sum(1, dtype=jnp.int32),
        engaged=engaged,
        waited=teams.waited + ~engaged,
        tracked=teams.tracked + (~engaged & squads.any_of(seen & mechs.alive, now.teams)),
    )
