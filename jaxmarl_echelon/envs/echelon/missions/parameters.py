"""Parameters of missions from settings, and what settings are checked against."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams
from jaxmarl_echelon.envs.echelon.battle.unit_tables import MEDIUM
from jaxmarl_echelon.envs.echelon.missions import weights as schedules
from jaxmarl_echelon.envs.echelon.missions.calibration import fade
from jaxmarl_echelon.envs.echelon.missions.scenarios import forces
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import BLOCK, default_target
from jaxmarl_echelon.envs.echelon.missions.scenarios.levers import Levers, of_templates, weights_of
from jaxmarl_echelon.envs.echelon.missions.scenarios.placement import COHESION, FORMATIONS, PLACEMENTS
from jaxmarl_echelon.envs.echelon.missions.settings import MIXED, MissionSettings, Order, Problem, named
from jaxmarl_echelon.envs.echelon.missions.types import PARAMETERS, MissionParams, MissionWeights
from jaxmarl_echelon.envs.echelon.missions.verbs.levels import missions
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import AWARENESS, DISPOSITIONS
from jaxmarl_echelon.envs.echelon.rosters import Roster
from jaxmarl_echelon.envs.echelon.settings import decisions, roster_fields, share_per_team
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import map_weights

_PHASES = 4
_HIGHEST = 5


class Frame(NamedTuple):
    """What settings are checked against; the same for a whole run.

    Attributes:
      registry: the verbs.
      rosters: of blue and of red; each mech is a slot.
      bank: the terrains.
      reward: what is paid.
      limit: decisions that the time limit is at most, or None.
    """

    registry: Registry
    rosters: tuple[Roster, Roster]
    bank: TerrainBank
    reward: Reward
    limit: int | None = None


def parameters(chosen: MissionSettings, frame: Frame) -> MissionParams:
    """The parameters that settings ask for.

    Raises:
      ValueError: one line, for settings that do not fit the run or each other.
    """
    limit = decisions(chosen.rules.time_limit)
    if frame.limit is not None and limit > frame.limit:
        raise ValueError(f"env.time_limit={chosen.rules.time_limit!r}: longer than the run's own")
    measures, per_voxel = chosen.measures, chosen.problem.metres_per_voxel
    target = measures.coverage_target or default_target(frame.bank.size)
    training, evaluation = _maps(chosen, frame)
    return MissionParams(
        echelon=_battle(chosen, frame, limit, training),
        weights=_weights(chosen),
        gates=jnp.asarray(frame.registry.gates),
        levers=jax.tree.map(jnp.asarray, _levers(chosen, frame)),
        sensor_range=jnp.float32(measures.sensor_range / per_voxel),
        cover_target=jnp.float32(target),
        gamma=jnp.float32(measures.gamma),
        evaluation_maps=jnp.asarray(evaluation),
    )


def _maps(chosen: MissionSettings, frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """How often terrains are drawn, `[N]` for training and `[N]` for evaluations.

    Evaluations have terrains of their own, unless none of those is to be drawn.
    """
    ground, number = chosen.ground, frame.bank.zone.shape[0]
    drawn = map_weights(ground.map_weights, number)
    kept = int(ground.held_out * number)
    held = np.arange(number) >= number - kept
    training = np.where(held, 0, drawn)
    if training.sum() <= 0:
        found = f"env.held_out={ground.held_out:g} keeps the last {kept} of {number} for evaluations"
        raise ValueError(f"env.map_weights={ground.map_weights!r}: no terrain to train on; {found}")
    own = np.where(held, drawn, 0)
    return training, own if own.any() else drawn


def _battle(chosen: MissionSettings, frame: Frame, limit: int, maps: np.ndarray) -> EchelonParams:
    rules = chosen.rules
    return EchelonParams(
        **roster_fields(frame.rosters),
        map_weights=jnp.asarray(maps),
        reward=frame.reward.params(),
        fire_probability=share_per_team("fire_probability", chosen.teams.fire_probability),
        assist=jnp.zeros(2),
        full_observation=jnp.bool_(False),
        gravity=jnp.float32(rules.gravity),
        max_decisions=jnp.int32(limit),
        zone_seconds=jnp.float32(1.0),
        spawn_jitter=jnp.float32(rules.spawn_jitter),
        yaw_jitter=jnp.float32(rules.yaw_jitter),
    )


def _weights(chosen: MissionSettings) -> MissionWeights:
    """The weights at a fixed progress, for runs without a curriculum."""
    measures = chosen.measures
    progress = jnp.float32(measures.progress)
    shares = schedules.shares(jnp.int32(schedules.SCHEDULES.index(measures.schedule)), progress)
    low, high = chosen.problem.difficulty
    return MissionWeights(
        components=schedules.component_weights(shares, jnp.asarray(schedules.base_weights())),
        terminal=shares[2],
        credit=jnp.float32(measures.credit),
        calibration=measures.calibration * fade(progress),
        progress=progress,
        phase=jnp.minimum(jnp.floor(_PHASES * progress).astype(jnp.int32) + 1, _PHASES),
        difficulty_low=jnp.float32(low),
        difficulty_high=jnp.float32(high),
        fire_low=jnp.float32(0.2),
        fire_high=jnp.float32(1.0),
    )


def _levers(chosen: MissionSettings, frame: Frame) -> Levers:
    order, problem, registry = chosen.order, chosen.problem, frame.registry
    names = registry.names
    found = of_templates(registry)
    mission = weights_of(names, _mission(order, registry))
    for key in ("opposing", "follow_on"):
        if (given := getattr(order, key)) is not None:
            found[key][:] = weights_of(names, named(key, given, names))
    for key, labels in (("disposition", DISPOSITIONS), ("awareness", AWARENESS)):
        if (given := getattr(problem, key)) is not None:
            found[key][:] = weights_of(labels, given)
    _set_strength(found["strength"], problem, frame)
    _check_forces(mission, problem, frame)
    if _nobody(problem):
        _keep_to_what_needs_nobody(found["follow_on"], mission, registry)
    if problem.engagement_distance is not None:
        distance = np.array(problem.engagement_distance, np.float32) / problem.metres_per_voxel
        away = found["distance"].max(-1) > 0
        found["distance"] = np.where(away[..., None], distance, found["distance"])
    ranges = [order.risk or (0.0, 1.0), *(getattr(order, name) for name in PARAMETERS[1:])]
    fixed = problem.objective is not None
    if fixed:
        _check_objective(problem.objective, frame.bank)
    both = (problem.composition, problem.enemy_composition), (problem.health, problem.enemy_health)
    slots = max(len(roster.classes) for roster in frame.rosters)
    patterns = [np.pad(p, ((0, 0), (0, slots - p.shape[1]))) for p in _patterns(frame)]
    return Levers(
        mission=mission,
        **found,
        graded=np.array([problem.friendly_strength is None, problem.enemy_strength is None]),
        count=np.array([-1 if n is None else n for n in _counts(problem)], np.int32),
        patterns=np.stack(patterns),
        composition=np.stack([weights_of(forces.COMPOSITIONS, one) for one in both[0]]),
        health=np.stack([weights_of(tuple(forces.HEALTH), one) for one in both[1]]),
        parameters=np.broadcast_to(np.array(ranges, np.float32), (2, len(PARAMETERS), 2)),
        believed=np.array([order.risk is None] * 2),
        stealth=np.broadcast_to(np.array(problem.stealth, np.float32), (2, 2)),
        cohesion=weights_of(tuple(COHESION), problem.cohesion),
        formation=weights_of(FORMATIONS, problem.formation),
        approach=np.radians(np.array(problem.approach, np.float32)),
        radius=np.array(problem.objective_radius, np.float32) / problem.metres_per_voxel,
        placement=weights_of(PLACEMENTS, problem.objective_placement),
        objective=np.array(problem.objective if fixed else (0.0, 0.0), np.float32),
        fixed=np.array(fixed),
        go=np.array(order.go, np.float32),
    )


def _mission(order: Order, registry: Registry) -> Mapping[str, float]:
    """Weights of the verbs that the setting `mission` asks for; a platoon's order is one of its squads'."""
    known = {name: squads for name, squads in missions().items() if set(squads) <= set(registry.names)}
    known |= {name: (name,) for name in registry.names}
    if order.mission == MIXED:
        return dict.fromkeys(registry.names, 1.0)
    found: dict[str, float] = {}
    for name, weight in named("mission", order.mission, tuple(known)).items():
        for squad in known[name]:
            found[squad] = found.get(squad, 0.0) + weight / len(known[name])
    return found


def _counts(problem: Problem) -> tuple[int | None, int | None]:
    return problem.friendly_count, problem.enemy_count


def _patterns(frame: Frame) -> list[np.ndarray]:
    return [forces.patterns(roster.classes) for roster in frame.rosters]


def _set_strength(strength: np.ndarray, problem: Problem, frame: Frame) -> None:
    """Puts the strengths that are given in place of the templates' `[V, K, 2]`."""
    compositions = problem.composition, problem.enemy_composition
    given = problem.friendly_strength, problem.enemy_strength
    for side, (key, value) in enumerate(zip(("friendly", "enemy"), given, strict=True)):
        if value is None:
            continue
        rows = zip(forces.COMPOSITIONS, _patterns(frame)[side], strict=True)
        most = max(forces.packs(row) for name, row in rows if compositions[side].get(name, 0) > 0)
        if value[1] > most + 1e-6:
            found = f"the roster's {len(frame.rosters[side].classes)} slots are at most {most:.2f} packs"
            raise ValueError(f"env.{key}_strength={list(value)}: {found}")
        strength[:, side] = value


def _nobody(problem: Problem) -> str | None:
    """The setting by which there are no enemies, if one says so."""
    if problem.enemy_count == 0:
        return "env.enemy_count=0"
    if problem.enemy_strength is not None and problem.enemy_strength[1] == 0:
        return "env.enemy_strength=0"
    return None


def _keep_to_what_needs_nobody(follow_on: np.ndarray, mission: np.ndarray, registry: Registry) -> None:
    """Takes orders that need enemies out of what may follow, `[V, V]`.

    Raises:
      ValueError: one line, where nothing is left to follow on an order that is given.
    """
    before = follow_on.copy()
    follow_on[:, registry.needs_enemies] = 0.0
    for verb, weight, given, left in zip(registry.verbs, mission, before, follow_on, strict=True):
        if weight > 0 and verb.template.follow_on and not left.any():
            names = [name for name, some in zip(registry.names, given, strict=True) if some]
            raise ValueError(
                f"env.follow_on={names}: without enemies none of these can follow on {verb.name}"
            )
    # What no order that is given draws from keeps its weights, as all 0 would draw nothing.
    follow_on[:] = np.where(follow_on.any(1, keepdims=True), follow_on, before)


def _check_forces(mission: np.ndarray, problem: Problem, frame: Frame) -> None:
    teams = ("blue", "red")
    for side, (key, count) in enumerate(zip(("friendly", "enemy"), _counts(problem), strict=True)):
        slots = len(frame.rosters[side].classes)
        if count is not None and count > slots:
            raise ValueError(f"env.{key}_count={count}: env.{teams[side]} has only {slots} mechs")
    nobody = _nobody(problem)
    rows = zip(frame.registry.verbs, frame.registry.needs_enemies, mission, strict=True)
    for verb, needs_enemies, weight in rows:
        if weight > 0 and needs_enemies and nobody:
            raise ValueError(f"{nobody}: {verb.name} needs at least one enemy")
        lacks = MEDIUM not in frame.rosters[0].classes and problem.composition.get(forces.ROSTER, 0) > 0
        if weight > 0 and verb.name == "suppress" and lacks:
            raise ValueError("env.blue: suppress needs a medium mech, the only class with an autocannon")


def _check_objective(objective, bank: TerrainBank) -> None:
    x, y = objective
    width, depth, _ = bank.size
    if not (BLOCK <= x <= width - BLOCK and BLOCK <= y <= depth - BLOCK):
        raise ValueError(f"env.objective={list(objective)}: must lie inside {width} x {depth} voxels")
    column = np.asarray(bank.voxels.solid)[:, int(y), int(x)] & ((1 << _HIGHEST) - 1)
    walls = np.flatnonzero(column)
    if walls.size:
        raise ValueError(f"env.objective={list(objective)}: inside a wall of terrain {walls[0]}")
