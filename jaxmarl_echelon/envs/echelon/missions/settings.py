"""Settings of missions; conf/env/echelon_missions.yaml explains each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from algos.defaults import FROM_FILE
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.measures.credit import KINDS
from jaxmarl_echelon.envs.echelon.missions.scenarios.forces import BY_VERB, COMPOSITIONS, HEALTH
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import TERRAINS
from jaxmarl_echelon.envs.echelon.missions.scenarios.placement import COHESION, FORMATIONS, PLACEMENTS
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import AWARENESS, DISPOSITIONS
from jaxmarl_echelon.envs.echelon.observing.layout import FRAMES
from jaxmarl_echelon.envs.echelon.observing.true_state import read_critic
from jaxmarl_echelon.envs.echelon.settings import PERIOD, TerrainSettings
from jaxmarl_echelon.envs.settings import (
    Settings,
    read_choice,
    read_interval,
    read_number,
    read_numbers,
    read_switch,
    read_whole,
    setting_field,
)

# Difficulties between which red's fire, red's strength and blue's weakness grow: together, or in turn.
RAMPS = {
    "together": ((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
    "in_turn": ((0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)),
}
Names = str | Sequence[str] | Mapping[str, float]
MIXED = "mixed"


def read_span(name: str, value, low: float, high: float) -> tuple[float, float]:
    """Reads one number or an ordered pair within [low, high], as a pair."""
    ends = read_interval(name, value)
    return tuple(read_number(name, end, low, high) for end in ends)


def optional_reader(read):
    """Wraps a reader so that None is read as None."""
    return lambda name, value, *bounds: None if value is None else read(name, value, *bounds)


def read_named_weights(name: str, value, allowed: Sequence[str]) -> dict[str, float]:
    """Reads a name, a list of names, `mixed` (all names) or relative weights, as weights by name."""
    if value == MIXED:
        return dict.fromkeys(allowed, 1.0)
    if isinstance(value, Mapping):
        given = {
            read_choice(name, key, allowed): read_number(f"{name}.{key}", w, 0.0) for key, w in value.items()
        }
    elif isinstance(value, str) or not isinstance(value, Sequence):
        given = {read_choice(name, value, (*allowed, MIXED)): 1.0}
    else:
        given = {read_choice(name, key, allowed): 1.0 for key in value}
    if not sum(given.values()) > 0:
        raise ValueError(f"env.{name}={value}: must name at least one of {', '.join(allowed)}")
    return given


def _fractions(name: str, value) -> tuple[float, float]:
    return read_span(name, value, 0.0, 1.0)


@dataclass(frozen=True)
class TeamSettings(Settings):
    """Slots of the teams, and fire probability of their scripts."""

    blue: str | Sequence | Mapping = FROM_FILE
    red: str | Sequence | Mapping = FROM_FILE
    fire_probability: float | Sequence[float] = FROM_FILE


@dataclass(frozen=True)
class MissionGround(TerrainSettings):
    """Terrains, held-out share and coverage cells."""

    terrain: Names = setting_field(read_named_weights, tuple(TERRAINS))
    held_out: float = setting_field(read_number, 0.0, 0.9)
    los_complexity: float | Sequence[float] = setting_field(_fractions)
    coverage_cell: int | None = setting_field(optional_reader(read_whole), 2, 64)


@dataclass(frozen=True)
class MissionRules(Settings):
    """Physics, time limit and observations."""

    time_limit: float = setting_field(read_number, PERIOD)
    gravity: float = setting_field(read_number, 0.0, 100.0)
    spawn_jitter: float = setting_field(read_number, 0.0, 0.25)
    yaw_jitter: float = setting_field(read_number, 0.0, math.pi)
    telemetry: bool = setting_field(read_switch)
    frame: str = setting_field(read_choice, FRAMES)
    navigation: bool = setting_field(read_switch)
    critic: str = setting_field(read_critic)


@dataclass(frozen=True)
class OrderSettings(Settings):
    """Orders of both teams."""

    mission: Names = FROM_FILE
    verbs: Sequence | None = FROM_FILE
    opposing: Names | None = FROM_FILE
    follow_on: Names | None = FROM_FILE
    risk: float | Sequence[float] | None = setting_field(optional_reader(_fractions))
    loss_appetite: float | Sequence[float] = setting_field(_fractions)
    time_pressure: float | Sequence[float] = setting_field(_fractions)
    grouping: float | Sequence[float] = setting_field(_fractions)
    go: float | Sequence[float] = setting_field(_fractions)


@dataclass(frozen=True)
class ScenarioSettings(Settings):
    """The scenario: forces, geometry, enemies. Distances are metres."""

    scenario: str | None = FROM_FILE
    friendly_strength: float | Sequence[float] | None = setting_field(optional_reader(read_span), 0.0, 10.0)
    enemy_strength: float | Sequence[float] | None = setting_field(optional_reader(read_span), 0.0, 10.0)
    friendly_count: int | None = setting_field(optional_reader(read_whole), 1)
    enemy_count: int | None = setting_field(optional_reader(read_whole), 0)
    composition: Names = setting_field(read_named_weights, (*COMPOSITIONS, BY_VERB))
    enemy_composition: Names = setting_field(read_named_weights, COMPOSITIONS)
    health: Names = setting_field(read_named_weights, tuple(HEALTH))
    enemy_health: Names = setting_field(read_named_weights, tuple(HEALTH))
    cohesion: Names = setting_field(read_named_weights, tuple(COHESION))
    formation: Names = setting_field(read_named_weights, FORMATIONS)
    awareness: Names | None = setting_field(optional_reader(read_named_weights), AWARENESS)
    disposition: Names | None = setting_field(optional_reader(read_named_weights), DISPOSITIONS)
    stealth: float | Sequence[float] = setting_field(_fractions)
    approach: float | Sequence[float] = setting_field(read_span, 0.0, 180.0)
    engagement_distance: float | Sequence[float] | None = setting_field(
        optional_reader(read_span), 0.0, 2000.0
    )
    metres_per_voxel: float = setting_field(read_number, 0.1, 100.0)
    objective: Sequence[float] | None = setting_field(optional_reader(read_numbers), 2, 0.0)
    objective_radius: float | Sequence[float] = setting_field(read_span, 5.0, 500.0)
    objective_placement: Names = setting_field(read_named_weights, PLACEMENTS)
    difficulty: float | Sequence[float] = setting_field(_fractions)
    odds: float | Sequence[float] | None = setting_field(optional_reader(read_span), 0.0, 10.0)
    ramp: str = setting_field(read_choice, tuple(RAMPS))


@dataclass(frozen=True)
class MeasureSettings(Settings):
    """Measurement of facts, and reward weights for runs without a curriculum."""

    sensor_range: float = setting_field(read_number, 5.0, 5000.0)
    coverage_target: float | None = setting_field(optional_reader(read_number), 0.01, 1.0)
    gamma: float = setting_field(read_number, 0.0, 1.0)
    progress: float = setting_field(read_number, 0.0, 1.0)
    schedule: str = setting_field(read_choice, weights.SCHEDULES)
    early: float = setting_field(read_number, 0.0)
    credit: float = setting_field(read_number, 0.0)
    credit_kind: str = setting_field(read_choice, KINDS)
    credit_samples: int = setting_field(read_whole, 1, 256)
    calibration: float = setting_field(read_number, 0.0)


@dataclass(frozen=True)
class MissionSettings:
    """All settings of missions."""

    FILE: ClassVar[str] = "env/echelon_missions"

    teams: TeamSettings
    ground: MissionGround
    rules: MissionRules
    order: OrderSettings
    problem: ScenarioSettings
    measures: MeasureSettings


# Settings that are part of the compiled program, or of its terrains.
FIXED = (
    "blue", "red", "size", "maps", "map_seed", "biomes", "cache", "pages", "damaged", "terrain",
    "los_complexity", "coverage_cell", "telemetry", "frame", "navigation", "critic", "verbs", "scenario",
    "credit_kind", "credit_samples",
)  # fmt: skip
