"""Settings of missions; conf/env/echelon_missions.yaml explains each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.calibration import WEIGHT
from jaxmarl_echelon.envs.echelon.missions.scenarios.forces import COMPOSITIONS, HEALTH
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import TERRAINS
from jaxmarl_echelon.envs.echelon.missions.scenarios.placement import COHESION, FORMATIONS, PLACEMENTS
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import AWARENESS, DISPOSITIONS
from jaxmarl_echelon.envs.echelon.settings import PERIOD, Ground
from jaxmarl_echelon.envs.settings import (
    Settings,
    choice,
    interval,
    number,
    numbers,
    setting,
    switch,
    whole,
)

Names = str | Sequence[str] | Mapping[str, float]
MIXED = "mixed"


def span(name: str, value, low: float, high: float) -> tuple[float, float]:
    """Reads one number or an ordered pair within [low, high], as a pair."""
    ends = interval(name, value)
    return tuple(number(name, end, low, high) for end in ends)


def optional(read):
    """Wraps a reader so that None is read as None."""
    return lambda name, value, *bounds: None if value is None else read(name, value, *bounds)


def named(name: str, value, allowed: Sequence[str]) -> dict[str, float]:
    """Reads a name, a list of names, `mixed` (all names) or relative weights, as weights by name."""
    if value == MIXED:
        return dict.fromkeys(allowed, 1.0)
    if isinstance(value, Mapping):
        given = {choice(name, key, allowed): number(f"{name}.{key}", w, 0.0) for key, w in value.items()}
    elif isinstance(value, str) or not isinstance(value, Sequence):
        given = {choice(name, value, (*allowed, MIXED)): 1.0}
    else:
        given = {choice(name, key, allowed): 1.0 for key in value}
    if not sum(given.values()) > 0:
        raise ValueError(f"env.{name}={value!r}: must name at least one of {', '.join(allowed)}")
    return given


def _fractions(name: str, value) -> tuple[float, float]:
    return span(name, value, 0.0, 1.0)


@dataclass(frozen=True)
class Teams(Settings):
    """Slots of the teams, and fire probability of their scripts."""

    blue: str | Sequence | Mapping = "pack10"
    red: str | Sequence | Mapping = field(default_factory=lambda: ["pack10", "pack10"])
    fire_probability: float | Sequence[float] = 1.0


@dataclass(frozen=True)
class MissionGround(Ground):
    """Terrains, held-out share and coverage cells."""

    terrain: Names = setting(MIXED, named, tuple(TERRAINS))
    held_out: float = setting(0.25, number, 0.0, 0.9)
    los_complexity: float | Sequence[float] = setting((0.0, 1.0), _fractions)
    coverage_cell: int | None = setting(None, optional(whole), 2, 64)


@dataclass(frozen=True)
class Rules(Settings):
    """Physics, time limit and observations."""

    time_limit: float = setting(60.0, number, PERIOD)
    gravity: float = setting(9.81, number, 0.0, 100.0)
    spawn_jitter: float = setting(0.25, number, 0.0, 0.25)
    yaw_jitter: float = setting(0.15, number, 0.0, math.pi)
    telemetry: bool = setting(True, switch)


@dataclass(frozen=True)
class Order(Settings):
    """Orders of both teams."""

    mission: Names = MIXED
    verbs: Sequence | None = None
    opposing: Names | None = None
    follow_on: Names | None = None
    risk: float | Sequence[float] | None = setting(None, optional(_fractions))
    loss_appetite: float | Sequence[float] = setting((0.0, 1.0), _fractions)
    time_pressure: float | Sequence[float] = setting((0.0, 1.0), _fractions)
    grouping: float | Sequence[float] = setting((0.0, 1.0), _fractions)
    go: float | Sequence[float] = setting((0.3, 0.5), _fractions)


@dataclass(frozen=True)
class Problem(Settings):
    """The scenario: forces, geometry, enemies. Distances are metres."""

    scenario: str | None = None
    friendly_strength: float | Sequence[float] | None = setting(None, optional(span), 0.0, 10.0)
    enemy_strength: float | Sequence[float] | None = setting(None, optional(span), 0.0, 10.0)
    friendly_count: int | None = setting(None, optional(whole), 1)
    enemy_count: int | None = setting(None, optional(whole), 0)
    composition: Names = setting("roster", named, COMPOSITIONS)
    enemy_composition: Names = setting("balanced", named, COMPOSITIONS)
    health: Names = setting("full", named, tuple(HEALTH))
    enemy_health: Names = setting("full", named, tuple(HEALTH))
    cohesion: Names = setting(MIXED, named, tuple(COHESION))
    formation: Names = setting(MIXED, named, FORMATIONS)
    awareness: Names | None = setting(None, optional(named), AWARENESS)
    disposition: Names | None = setting(None, optional(named), DISPOSITIONS)
    stealth: float | Sequence[float] = setting((0.0, 0.5), _fractions)
    approach: float | Sequence[float] = setting((0.0, 180.0), span, 0.0, 180.0)
    engagement_distance: float | Sequence[float] | None = setting(None, optional(span), 0.0, 2000.0)
    metres_per_voxel: float = setting(5.0, number, 0.1, 100.0)
    objective: Sequence[float] | None = setting(None, optional(numbers), 2, 0.0)
    objective_radius: float | Sequence[float] = setting((18.75, 56.25), span, 5.0, 500.0)
    objective_placement: Names = setting("distributed", named, PLACEMENTS)
    difficulty: float | Sequence[float] = setting((0.0, 1.0), _fractions)


@dataclass(frozen=True)
class Measures(Settings):
    """Measurement of facts, and reward weights for runs without a curriculum."""

    sensor_range: float = setting(150.0, number, 5.0, 5000.0)
    coverage_target: float | None = setting(None, optional(number), 0.01, 1.0)
    gamma: float = setting(0.99, number, 0.0, 1.0)
    progress: float = setting(0.625, number, 0.0, 1.0)
    schedule: str = setting("continuous", choice, weights.SCHEDULES)
    credit: float = setting(1.0, number, 0.0)
    calibration: float = setting(WEIGHT, number, 0.0)


@dataclass(frozen=True)
class MissionSettings:
    """All settings of missions."""

    teams: Teams = field(default_factory=Teams)
    ground: MissionGround = field(default_factory=MissionGround)
    rules: Rules = field(default_factory=Rules)
    order: Order = field(default_factory=Order)
    problem: Problem = field(default_factory=Problem)
    measures: Measures = field(default_factory=Measures)


# Settings that are part of the compiled program, or of its terrains.
FIXED = (
    "blue", "red", "size", "maps", "map_seed", "biomes", "cache", "pages", "damaged", "terrain",
    "los_complexity", "coverage_cell", "telemetry", "verbs", "scenario",
)  # fmt: skip
