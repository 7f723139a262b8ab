"""Converts settings of missions to parameters, with checks."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams
from jaxmarl_echelon.envs.echelon.battle.unit_tables import MEDIUM
from jaxmarl_echelon.envs.echelon.missions import weights as schedules
from jaxmarl_echelon.envs.echelon.missions.calibration import calibration_fade
from jaxmarl_echelon.envs.echelon.missions.scenarios import forces
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import BLOCK, default_cover_target
from jaxmarl_echelon.envs.echelon.missions.scenarios.levers import Levers, relative_weights, template_levers
from jaxmarl_echelon.envs.echelon.missions.scenarios.placement import COHESION, FORMATIONS, PLACEMENTS
from jaxmarl_echelon.envs.echelon.missions.settings import (
    MIXED,
    RAMPS,
    MissionSettings,
    OrderSettings,
    ScenarioSettings,
    read_named_weights,
)
from jaxmarl_echelon.envs.echelon.missions.state import PARAMETERS, MissionParams, MissionWeights
from jaxmarl_echelon.envs.echelon.missions.verbs.levels import list_squad_orders
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import AWARENESS, DISPOSITIONS
from jaxmarl_echelon.envs.echelon.rosters import Roster
from jaxmarl_echelon.envs.echelon.settings import count_decisions, read_share_per_team, roster_fields
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import read_map_weights
from physics.host_arrays import put_array

_PHASES = 4
_HIGHEST = 5


class MissionLimits(NamedTuple):
    """Static data that settings are checked against; constant during a run.

    Attributes:
      registry: the verbs.
      rosters: of blue and of red; each mech is a slot.
      bank: the terrains.
      reward: the reward function.
      limit: largest time limit in decisions, or None for any.
    """

    registry: Registry
    rosters: tuple[Roster, Roster]
    bank: TerrainBank
    reward: Reward
    limit: int | None = None


def build_mission_params(chosen: MissionSettings, frame: MissionLimits) -> MissionParams:
    """Returns the parameters of the given settings.

    Raises:
      ValueError: one line, for settings that do not fit the run or each other.
    """
    limit = count_decisions(chosen.rules.time_limit)
    if frame.limit is not None and limit > frame.limit:
        raise ValueError(
            f"env.time_limit={chosen.rules.time_limit}: must not exceed the run's own time limit"
        )
    measures, per_voxel = chosen.measures, chosen.problem.metres_per_voxel
    target = measures.coverage_target or default_cover_target(frame.bank.size)
    training, evaluation = _maps(chosen, frame)
    return MissionParams(
        echelon=_battle(chosen, frame, limit, training),
        weights=_weights(chosen),
        gates=put_array(frame.registry.gates),
        levers=jax.device_put(_levers(chosen, frame)),
        sensor_range=jnp.float32(measures.sensor_range / per_voxel),
        cover_target=jnp.float32(target),
        gamma=jnp.float32(measures.gamma),
        evaluation_maps=put_array(evaluation),
    )


def _maps(chosen: MissionSettings, frame: MissionLimits) -> tuple[np.ndarray, np.ndarray]:
    """Returns relative probabilities of terrains, `[N]` for training and `[N]` for evaluations.

    Evaluations use the held-out terrains, unless all of these have a weight of 0.
    """
    ground, number = chosen.ground, frame.bank.zone.shape[0]
    drawn = read_map_weights(ground.map_weights, number)
    kept = int(ground.held_out * number)
    held = np.arange(number) >= number - kept
    training = np.where(held, 0, drawn)
    if training.sum() <= 0:
        found = f"env.held_out={ground.held_out:g} keeps the last {kept} of {number} for evaluations"
        raise ValueError(f"env.map_weights={ground.map_weights}: leaves no terrain for training; {found}")
    own = np.where(held, drawn, 0)
    return training, own if own.any() else drawn


def _battle(chosen: MissionSettings, frame: MissionLimits, limit: int, maps: np.ndarray) -> EchelonParams:
    rules = chosen.rules
    return EchelonParams(
        **roster_fields(frame.rosters),
        map_weights=put_array(maps),
        reward=frame.reward.params(),
        fire_probability=read_share_per_team("fire_probability", chosen.teams.fire_probability),
        assist=put_array([0.0, 0.0]),
        full_observation=put_array(False),
        gravity=jnp.float32(rules.gravity),
        max_decisions=jnp.int32(limit),
        zone_seconds=jnp.float32(1.0),
        spawn_jitter=jnp.float32(rules.spawn_jitter),
        yaw_jitter=jnp.float32(rules.yaw_jitter),
    )


def _weights(chosen: MissionSettings) -> MissionWeights:
    """Returns the weights at a fixed progress, for runs without a curriculum."""
    measures = chosen.measures
    progress = jnp.float32(measures.progress)
    schedule = jnp.int32(schedules.SCHEDULES.index(measures.schedule))
    shares = schedules.family_shares(schedule, progress)
    low, high = chosen.problem.difficulty
    return MissionWeights(
        components=schedules.component_weights(shares, put_array(schedules.base_weights())),
        terminal=shares[2],
        early=schedules.early_share(schedule, jnp.float32(measures.early)),
        credit=jnp.float32(measures.credit),
        calibration=measures.calibration * calibration_fade(progress),
        progress=progress,
        phase=jnp.minimum(jnp.floor(_PHASES * progress).astype(jnp.int32) + 1, _PHASES),
        difficulty_low=jnp.float32(low),
        difficulty_high=jnp.float32(high),
        fire_low=jnp.float32(0.2),
        fire_high=jnp.float32(1.0),
    )


def _levers(chosen: MissionSettings, frame: MissionLimits) -> Levers:
    order, problem, registry = chosen.order, chosen.problem, frame.registry
    names = registry.names
    found = template_levers(registry)
    mission = relative_weights(names, _mission(order, registry))
    for key in ("opposing", "follow_on"):
        if (given := getattr(order, key)) is not None:
            found[key][:] = relative_weights(names, read_named_weights(key, given, names))
    for key, labels in (("disposition", DISPOSITIONS), ("awareness", AWARENESS)):
        if (given := getattr(problem, key)) is not None:
            found[key][:] = relative_weights(labels, given)
    _set_strength(found["strength"], problem, frame)
    _check_forces(mission, problem, frame)
    _keep_to_last_orders(found["follow_on"], registry)
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
    both = problem.health, problem.enemy_health
    slots = max(len(roster.classes) for roster in frame.rosters)
    patterns = [np.pad(p, ((0, 0), (0, slots - p.shape[1]))) for p in _patterns(frame)]
    return Levers(
        mission=mission,
        **found,
        odds=np.array((np.nan, np.nan) if problem.odds is None else problem.odds, np.float32),
        ramp=np.array(RAMPS[problem.ramp], np.float32),
        graded=np.array([problem.friendly_strength is None, problem.enemy_strength is None]),
        count=np.array([-1 if n is None else n for n in _counts(problem)], np.int32),
        patterns=np.stack(patterns),
        composition=_compositions(problem, registry),
        health=np.stack([relative_weights(tuple(forces.HEALTH), one) for one in both]),
        parameters=np.broadcast_to(np.array(ranges, np.float32), (2, len(PARAMETERS), 2)),
        believed=np.array([order.risk is None] * 2),
        stealth=np.broadcast_to(np.array(problem.stealth, np.float32), (2, 2)),
        cohesion=relative_weights(tuple(COHESION), problem.cohesion),
        formation=relative_weights(FORMATIONS, problem.formation),
        approach=np.radians(np.array(problem.approach, np.float32)),
        radius=np.array(problem.objective_radius, np.float32) / problem.metres_per_voxel,
        placement=relative_weights(PLACEMENTS, problem.objective_placement),
        objective=np.array(problem.objective if fixed else (0.0, 0.0), np.float32),
        fixed=np.array(fixed),
        go=np.array(order.go, np.float32),
    )


def _mission(order: OrderSettings, registry: Registry) -> Mapping[str, float]:
    """Returns verb weights for the setting `mission`; orders of platoons and companies are split by squad."""
    known = {
        name: squads for name, squads in list_squad_orders().items() if set(squads) <= set(registry.names)
    }
    known |= {name: (name,) for name in registry.names}
    if order.mission == MIXED:
        return dict.fromkeys(registry.names, 1.0)
    found: dict[str, float] = {}
    for name, weight in read_named_weights("mission", order.mission, tuple(known)).items():
        for squad in known[name]:
            found[squad] = found.get(squad, 0.0) + weight / len(known[name])
    return found


def _compositions(problem: ScenarioSettings, registry: Registry) -> np.ndarray:
    """Returns weights of compositions, float32 `[V, K, compositions]`; `verb` stands for the verb's own."""
    found = np.zeros((len(registry.verbs), 2, len(forces.COMPOSITIONS)), np.float32)
    given = dict(problem.composition)
    own = given.pop(forces.BY_VERB, 0.0)
    found[:, 0] = relative_weights(forces.COMPOSITIONS, given)
    for row, verb in zip(found, registry.verbs, strict=True):
        row[0, forces.COMPOSITIONS.index(verb.template.composition)] += own
    found[:, 1] = relative_weights(forces.COMPOSITIONS, problem.enemy_composition)
    return found


def _chosen(given: Mapping[str, float], registry: Registry) -> set[str]:
    """Returns the compositions that can be drawn."""
    by_verb = given.get(forces.BY_VERB, 0) > 0
    own = {verb.template.composition for verb in registry.verbs} if by_verb else set()
    return {name for name, weight in given.items() if weight > 0 and name != forces.BY_VERB} | own


def _counts(problem: ScenarioSettings) -> tuple[int | None, int | None]:
    return problem.friendly_count, problem.enemy_count


def _patterns(frame: MissionLimits) -> list[np.ndarray]:
    return [forces.class_patterns(roster.classes) for roster in frame.rosters]


def _set_strength(strength: np.ndarray, problem: ScenarioSettings, frame: MissionLimits) -> None:
    """Replaces the templates' strengths `[V, K, 2]` by the given ones, in place."""
    compositions = problem.composition, problem.enemy_composition
    given = problem.friendly_strength, problem.enemy_strength
    for side, (key, value) in enumerate(zip(("friendly", "enemy"), given, strict=True)):
        if value is None:
            continue
        rows = zip(forces.COMPOSITIONS, _patterns(frame)[side], strict=True)
        drawn = _chosen(compositions[side], frame.registry)
        most = max(forces.strength_in_packs(row) for name, row in rows if name in drawn)
        if value[1] > most + 1e-6:
            found = f"the roster's {len(frame.rosters[side].classes)} slots are at most {most:.2f} packs"
            raise ValueError(f"env.{key}_strength={list(value)}: {found}")
        strength[:, side] = value


def _nobody(problem: ScenarioSettings) -> str | None:
    """Returns the setting that removes all enemies, or None."""
    if problem.enemy_count == 0:
        return "env.enemy_count=0"
    if problem.enemy_strength is not None and problem.enemy_strength[1] == 0:
        return "env.enemy_strength=0"
    return None


def _keep_to_last_orders(follow_on: np.ndarray, registry: Registry) -> None:
    """Removes orders that are followed by another from those that follow one `[V, V]`, in place.

    GO comes once: the facts of a stage would count for the stage after it, too.

    Raises:
      ValueError: one line, if no follow-on remains.
    """
    for index in np.flatnonzero(registry.staged):
        names = [name for name, weight in zip(registry.names, follow_on[index], strict=True) if weight > 0]
        follow_on[index, registry.staged] = 0.0
        if not follow_on[index].any():
            raise ValueError(f"env.follow_on={names}: none of these can follow on {registry.names[index]}")


def _keep_to_what_needs_nobody(follow_on: np.ndarray, mission: np.ndarray, registry: Registry) -> None:
    """Removes orders that need enemies from the follow-on weights `[V, V]`, in place.

    Raises:
      ValueError: one line, if no follow-on remains for an order in use.
    """
    before = follow_on.copy()
    follow_on[:, registry.needs_enemies] = 0.0
    for verb, weight, given, left in zip(registry.verbs, mission, before, follow_on, strict=True):
        if weight > 0 and verb.template.follow_on and not left.any():
            names = [name for name, some in zip(registry.names, given, strict=True) if some]
            raise ValueError(
                f"env.follow_on={names}: without enemies none of these can follow on {verb.name}"
            )
    # Rows of orders that are not in use keep their weights, because rows of zeros cannot be sampled.
    follow_on[:] = np.where(follow_on.any(1, keepdims=True), follow_on, before)


def _check_forces(mission: np.ndarray, problem: ScenarioSettings, frame: MissionLimits) -> None:
    teams = ("blue", "red")
    # A named scenario has counts of its own, whatever a run's odds are.
    free = problem.scenario is None and problem.odds is not None
    for key in ("enemy_strength", "enemy_count"):
        if free and (given := getattr(problem, key)) is not None:
            found = f"env.{key}={given} sets the enemies' strength, too; one of both must be null"
            raise ValueError(f"env.odds={list(problem.odds)}: {found}")
    for side, (key, count) in enumerate(zip(("friendly", "enemy"), _counts(problem), strict=True)):
        slots = len(frame.rosters[side].classes)
        if count is not None and count > slots:
            raise ValueError(f"env.{key}_count={count}: env.{teams[side]} has only {slots} mechs")
    nobody = _nobody(problem)
    rows = zip(frame.registry.verbs, frame.registry.needs_enemies, mission, strict=True)
    for verb, needs_enemies, weight in rows:
        if weight > 0 and needs_enemies and nobody:
            raise ValueError(f"{nobody}: {verb.name} needs at least one enemy")
        from_roster = forces.ROSTER in _chosen(problem.composition, frame.registry)
        lacks = MEDIUM not in frame.rosters[0].classes and from_roster
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
