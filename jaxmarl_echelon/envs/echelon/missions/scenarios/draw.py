"""Random scenarios: orders of both teams, forces and places. Reference: docs/reference/echelon.md 15.6."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CHASSIS
from jaxmarl_echelon.envs.echelon.missions.measures import staging
from jaxmarl_echelon.envs.echelon.missions.measures.squads import TeamSizes, sum_by_team, team_numbers
from jaxmarl_echelon.envs.echelon.missions.scenarios import forces, placement
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import ScenarioGround
from jaxmarl_echelon.envs.echelon.missions.scenarios.levers import Levers
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, PARAMETERS, MissionWeights, Orders, Scenario
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.settings import PERIOD

NOISE = 0.1
BELIEF = 0.2
FOLLOW_ON_DISTANCE = (12.0, 25.0)
ROUTE_REACH = 10.0
_KEYS = 24


# Rows of `Levers.ramp`.
FIRE, ENEMY_STRENGTH, OWN_STRENGTH = range(3)


def ramp_levels(ramp: jax.Array, difficulty: jax.Array) -> jax.Array:
    """Returns levels `[3]` in [0, 1] of red's fire, red's strength and blue's weakness at a difficulty."""
    return jnp.clip((difficulty - ramp[:, 0]) / (ramp[:, 1] - ramp[:, 0]), 0.0, 1.0)


class DrawnScenario(NamedTuple):
    """Drawn scenario, with headings and health of the mechs at the start.

    Attributes:
      scenario: the scenario.
      yaw: `[M]` rad.
      health: `[M]` share of the full hit points.
    """

    scenario: Scenario
    yaw: jax.Array
    health: jax.Array


class ScenarioLimits(NamedTuple):
    """Properties of the environment that scenarios depend on.

    Attributes:
      teams: slots of blue and of red; static.
      size: voxels along x, y and z; static.
      decisions: int32 time limit.
      fire: `[K]` probability per decision that a scripted mech may fire, before the curriculum's factor.
    """

    teams: TeamSizes
    size: tuple[int, int, int]
    decisions: jax.Array
    fire: jax.Array


def draw_scenario(
    key: jax.Array,
    registry: Registry,
    ground: ScenarioGround,
    index: jax.Array,
    levers: Levers,
    weights: MissionWeights,
    limits: ScenarioLimits,
) -> DrawnScenario:
    """Draws a scenario on terrain `index`.

    Random numbers that concern only the enemies have keys of their own and do not affect the team's orders.
    """
    keys = iter(jax.random.split(key, _KEYS))
    difficulty = _uniform(next(keys), jnp.stack([weights.difficulty_low, weights.difficulty_high]))
    verbs = _verbs(next(keys), levers)
    mission = verbs[0, 0]
    blue, red = _forces(next(keys), registry, levers, verbs, difficulty, limits.teams)
    places = _places(next(keys), ground, index, levers, mission, limits.size)
    orders = _orders(next(keys), registry, levers, verbs, places, (blue.packs, red.packs), limits)

    teams, team = limits.teams, team_numbers(limits.teams)
    classes = jnp.concatenate([blue.classes, red.classes])
    number = np.concatenate([np.arange(count) for count in teams])
    present = number < jnp.stack([blue.count, red.count])[team]
    wanted, yaw = _formations(next(keys), levers, orders, places, (blue, red), teams)
    start = placement.assign_places(ground.places, ground.free[index], wanted, present)
    health = _health(next(keys), levers, teams)
    hp = jnp.where(present, jnp.asarray(CHASSIS.hp)[classes] * health, 0.0)
    route = _route(next(keys), places.objective, limits.size)
    level = ramp_levels(levers.ramp, difficulty)[FIRE]
    fire = weights.fire_low + (weights.fire_high - weights.fire_low) * level
    scenario = Scenario(
        orders=orders,
        classes=classes,
        present=present,
        strength=sum_by_team(present, teams),
        hp=sum_by_team(hp, teams),
        start=start,
        disposition=_both(_pick(next(keys), levers.disposition[mission])),
        awareness=_both(_pick(next(keys), levers.awareness[mission])),
        stealth=_uniform(next(keys), levers.stealth),
        fire=limits.fire * jnp.stack([jnp.ones(()), fire]),
        route=route,
        difficulty=difficulty,
    )
    return DrawnScenario(scenario, yaw, health)


class _Places(NamedTuple):
    """Objective `[2]` and that of the follow-on `[2]`, their complexities `[2]`, teams' anchors `[K, 2]`."""

    objective: jax.Array
    radius: jax.Array
    next_objective: jax.Array
    complexity: jax.Array
    anchors: jax.Array


def _uniform(key: jax.Array, ends: jax.Array) -> jax.Array:
    """Draws uniformly from the ranges `[..., 2]`."""
    share = jax.random.uniform(key, ends.shape[:-1])
    return ends[..., 0] + share * (ends[..., 1] - ends[..., 0])


def _pick(key: jax.Array, weights: jax.Array) -> jax.Array:
    """Draws an int32 index by relative weights `[..., N]`."""
    return jax.random.categorical(key, jnp.log(weights)).astype(jnp.int32)


def _both(value: jax.Array) -> jax.Array:
    return jnp.broadcast_to(value, (2,))


def _verbs(key: jax.Array, levers: Levers) -> jax.Array:
    """Draws orders and follow-ons of both teams, `[K, 2]`."""
    first, second, third = jax.random.split(key, 3)
    mission = _pick(first, levers.mission)
    verb = jnp.stack([mission, _pick(second, levers.opposing[mission])])
    return jnp.stack([verb, _pick(third, levers.follow_on[verb])], axis=1)


def _forces(
    key, registry: Registry, levers: Levers, verbs, difficulty, teams: TeamSizes
) -> tuple[forces.Force, forces.Force]:
    """Draws both teams' mechs, with classes that their orders need and enemies if blue's order needs them."""
    share, noise, kinds = jax.random.split(key, 3)
    staged = jnp.asarray(registry.staged)[verbs[:, 0]]
    needed = jnp.asarray(registry.needs_enemies)[verbs[0]]
    least = jnp.int32(1), (needed[0] | (staged[0] & needed[1])).astype(jnp.int32)
    first = jnp.asarray(registry.first)[verbs]
    ends = levers.strength[verbs[0, 0]]
    drawn = jax.random.uniform(share, (2,))
    level = ramp_levels(levers.ramp, difficulty)
    hard = jnp.stack([1.0 - level[OWN_STRENGTH], level[ENEMY_STRENGTH]])
    at = jnp.where(levers.graded, hard, drawn)
    wobble = jax.random.uniform(noise, (2,), minval=1.0 - NOISE, maxval=1.0 + NOISE)
    wobble = jnp.where(levers.graded, wobble, 1.0)
    strength = (ends[:, 0] + at * (ends[:, 1] - ends[:, 0])) * wobble
    kind = _pick(kinds, levers.composition[verbs[0, 0]])

    def force(k, wanted):
        classes = forces.move_class_first(
            levers.patterns[k, kind[k], : teams[k]], jnp.where(staged[k], first[k, 1], -1)
        )
        classes = forces.move_class_first(classes, first[k, 0])
        return forces.muster_force(classes, wanted, levers.count[k], least[k])

    blue = force(0, strength[0])
    # Of the mechs that blue has: with a fixed number, or few slots, these are not what was asked for.
    against = blue.packs * (levers.odds[0] + at[1] * (levers.odds[1] - levers.odds[0])) * wobble[1]
    return blue, force(1, jnp.where(jnp.isnan(against), strength[1], against))


def _places(key, ground: ScenarioGround, index, levers: Levers, mission, size) -> _Places:
    keys = jax.random.split(key, 7)
    places, free = ground.places, ground.free[index]
    drawn = placement.draw_objective(keys[0], places, free, size, _pick(keys[1], levers.placement))
    given, _ = vectors.argmin_and_min(vectors.squared_length(places - levers.objective), 0)
    chosen = jnp.where(levers.fixed, given, drawn)
    objective = jnp.where(levers.fixed, levers.objective, places[drawn])
    distance = _uniform(keys[2], levers.distance[mission])
    enemy = placement.draw_at_distance(keys[3], places, free, objective, distance[1], objective - 1e3)
    own = placement.draw_at_distance(keys[4], places, free, objective, distance[0], places[enemy])
    further = _uniform(keys[5], jnp.asarray(FOLLOW_ON_DISTANCE, jnp.float32))
    after = placement.draw_at_distance(keys[6], places, free, objective, further, objective - 1e3)
    radius = _uniform(jax.random.fold_in(keys[0], 1), levers.radius)
    return _Places(
        objective=objective,
        radius=radius,
        next_objective=places[after],
        complexity=ground.complexity_of(index, jnp.stack([chosen, after]), radius),
        anchors=jnp.stack([places[own], places[enemy]]),
    )


def _orders(key, registry: Registry, levers: Levers, verbs, places: _Places, packs, limits) -> Orders:
    noise, parameters, go = jax.random.split(key, 3)
    staged = jnp.asarray(registry.staged)[verbs[:, 0]]
    both = jnp.stack([places.objective, places.next_objective])
    following = jnp.where(staged[:, None, None], both, both[:1])
    complexity = jnp.where(staged[:, None], places.complexity, places.complexity[:1])
    drawn = _uniform(parameters, levers.parameters)
    strength = jnp.stack(packs)
    balance = strength[::-1] / (2.0 * jnp.maximum(strength, 1e-3))
    belief = balance + jax.random.uniform(noise, (2,), minval=-BELIEF, maxval=BELIEF)
    risk = PARAMETERS.index("risk")
    values = drawn.at[:, risk].set(jnp.where(levers.believed, jnp.clip(belief, 0.0, 1.0), drawn[:, risk]))
    hurry = values[:, PARAMETERS.index("time_pressure")]
    at = _uniform(go, jnp.broadcast_to(levers.go, (2, 2))) * limits.decisions
    return Orders(
        verb=verbs,
        parameters=values,
        objective=following,
        radius=jnp.broadcast_to(places.radius, (2, 2)),
        complexity=complexity,
        go=jnp.where(staged, at.astype(jnp.int32), NEVER),
        budget=limits.decisions * PERIOD * (1.0 - 0.5 * hurry),
    )


def _formations(key, levers: Levers, orders: Orders, places: _Places, both, teams: TeamSizes):
    """Returns desired start positions `[M, 2]` and headings `[M]`."""
    shape, loose, turn, side, idle = jax.random.split(key, 5)
    wide = jnp.asarray(list(placement.COHESION.values()))[_pick(loose, levers.cohesion)]
    spacing = jnp.stack([staging.desired_spacing(orders.parameters)[0], wide])
    kinds = jnp.stack([_pick(shape, levers.formation), placement.FORMATIONS.index("scattered")])
    offset = places.objective - places.anchors
    gap = vectors.vector_length(offset)
    ahead = jnp.arctan2(offset[:, 1], offset[:, 0])
    anywhere = jax.random.uniform(idle, minval=-jnp.pi, maxval=jnp.pi)
    own = jnp.where(gap[0] > places.radius, ahead[0], anywhere)
    towards = places.anchors[0] - places.anchors[1]
    sign = jnp.where(jax.random.bernoulli(side), 1.0, -1.0)
    facing = jnp.arctan2(towards[1], towards[0]) + sign * _uniform(turn, levers.approach)
    yaw = jnp.stack([own, facing])
    wanted = [
        placement.place_formation(
            places.anchors[k],
            placement.formation_offsets(kinds[k], both[k].count, teams[k]),
            spacing[k],
            yaw[k],
        )
        for k in (0, 1)
    ]
    wrapped = yaw - 2 * jnp.pi * jnp.round(yaw / (2 * jnp.pi))
    return jnp.concatenate(wanted), wrapped[team_numbers(teams)]


def _health(key, levers: Levers, teams: TeamSizes) -> jax.Array:
    """Draws the share `[M]` of the full hit points at the start."""
    kind, share = jax.random.split(key)
    ends = jnp.asarray(list(forces.HEALTH.values()))[_pick(kind, levers.health)][team_numbers(teams)]
    return ends[:, 0] + jax.random.uniform(share, ends.shape[:1]) * (ends[:, 1] - ends[:, 0])


def _route(key, objective: jax.Array, size) -> jax.Array:
    """Draws four points of a patrol `[K, 4, 2]` around the objective, within the map."""
    turn = jax.random.uniform(key, (2, 1), maxval=2 * jnp.pi) + np.arange(4) * (np.pi / 2)
    points = objective + ROUTE_REACH * jnp.stack([jnp.cos(turn), jnp.sin(turn)], -1)
    return jnp.clip(points, placement.MARGIN, np.array(size[:2], np.float32) - placement.MARGIN)
