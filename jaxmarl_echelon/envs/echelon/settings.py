"""Settings of the mech battles: fixed for a run, or adjustable between episodes without recompiling."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.defaults import FROM_FILE
from jaxmarl_echelon.envs.echelon.battle.state import TEAMS, EchelonParams
from jaxmarl_echelon.envs.echelon.battle.unit_tables import SUBSTEP
from jaxmarl_echelon.envs.echelon.observing.layout import FRAMES
from jaxmarl_echelon.envs.echelon.observing.true_state import read_critic
from jaxmarl_echelon.envs.echelon.rosters import Roster, read_roster
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import (
    Settings,
    read_choice,
    read_fields,
    read_map_weights,
    read_number,
    read_numbers,
    read_switch,
    read_whole,
    refuse_fixed,
    setting_field,
)
from physics.host_arrays import put_array

OBSERVATIONS = ("full", "partial")
NEVER = "never"
SUBSTEPS = 5
PERIOD = SUBSTEP * SUBSTEPS


def _size(name: str, value) -> tuple[int, ...]:
    """Reads a map size: voxels along x, y and z, each at least 1."""
    return tuple(read_whole(name, side, 1) for side in read_numbers(name, value, 3))


def _folder(name: str, value) -> str | None:
    """Reads the folder of the terrain cache: a path, "auto", or None to disable caching."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"env.{name}={value}: must be a folder, auto or null")
    return value


@dataclass(frozen=True)
class ForceSettings(Settings):
    """Teams, fire probability of their scripts and navigation assistance; see conf/env/echelon.yaml."""

    blue: str | Sequence | Mapping = FROM_FILE
    red: str | Sequence | Mapping = FROM_FILE
    fire_probability: float | Sequence[float] = FROM_FILE
    assist: float | Sequence[float] = FROM_FILE


@dataclass(frozen=True)
class TerrainSettings(Settings):
    """Terrains, and the capacity for terrain changes during a battle."""

    size: Sequence[int] = setting_field(_size)
    maps: int = setting_field(read_whole, 1, 2**16)
    map_seed: int = setting_field(read_whole, 0)
    map_weights: Sequence[float] | None = FROM_FILE
    biomes: Sequence[str] | None = FROM_FILE
    cache: str | None = setting_field(_folder)
    pages: int = setting_field(read_whole, 0, 4096)
    damaged: int = setting_field(read_whole, 0, 4096)


@dataclass(frozen=True)
class BattleRules(Settings):
    """Start positions, physics and end of a battle; seconds, voxels, rad."""

    time_limit: float = FROM_FILE
    zone_seconds: float | str | None = FROM_FILE
    gravity: float = FROM_FILE
    spawn_jitter: float = FROM_FILE
    yaw_jitter: float = FROM_FILE
    original: bool = setting_field(read_switch)


@dataclass(frozen=True)
class VisibilitySettings(Settings):
    """Content of the observations."""

    observation: str = FROM_FILE
    frame: str = setting_field(read_choice, FRAMES)
    critic: str = setting_field(read_critic)
    telemetry: bool = setting_field(read_switch)


@dataclass(frozen=True)
class EchelonSettings:
    """All settings of the mech battles."""

    FILE: ClassVar[str] = "env/echelon"

    forces: ForceSettings
    ground: TerrainSettings
    rules: BattleRules
    observing: VisibilitySettings


class SettingLimits(NamedTuple):
    """Bounds that settings are checked against.

    Attributes:
      maps: number of terrains.
      teams: mechs of blue and of red.
      pack: largest allowed pack size.
      seconds: longest allowed time limit.
      ways: whether the terrains store paths to their zones, which navigation assistance needs.
      zone_by_time: whether `zone_seconds` is half the time limit, also of tasks that change it.
    """

    maps: int
    teams: tuple[int, int]
    pack: int
    seconds: float = math.inf
    ways: bool = True
    zone_by_time: bool = False


Reader = tuple[str, Callable[[Any, SettingLimits], jax.Array]]


def _number(name: str, low: float, high: float = math.inf) -> Reader:
    return name, lambda value, _: jnp.float32(read_number(name, value, low, high))


def count_decisions(seconds: float) -> int:
    """Returns the number of decisions in a time limit of `seconds`, rounded up."""
    return math.ceil(round(seconds / PERIOD, 6))


def read_time_limit(value, limits: SettingLimits) -> jax.Array:
    """Reads a time limit in seconds as a number of decisions."""
    return jnp.int32(count_decisions(read_number("time_limit", value, PERIOD, limits.seconds)))


def halve_time_limit(time_limit) -> float:
    """Returns half of a time limit in seconds: the score that wins if `zone_seconds` is null."""
    return read_number("time_limit", time_limit, PERIOD) / 2


def read_zone_seconds(value, _limits: SettingLimits) -> jax.Array:
    """Reads the score (seconds of holding the zone) that wins; `never` means infinity."""
    if value == NEVER:
        return jnp.float32(math.inf)
    if isinstance(value, str):
        raise ValueError(f"env.zone_seconds={value}: must be a number of at least {PERIOD}, null or {NEVER}")
    return jnp.float32(read_number("zone_seconds", value, PERIOD))


def read_share_per_team(name: str, value) -> jax.Array:
    """Reads one share in [0, 1] for both teams, or one for each."""
    both = [value, value] if not isinstance(value, list | tuple) else value
    shares = read_numbers(name, both, len(TEAMS), 0.0)
    return put_array([read_number(name, one, 0.0, 1.0) for one in shares], np.float32)


def read_assist(value, limits: SettingLimits) -> jax.Array:
    """Reads the share of navigation assistance of both teams, or of each; must be 0 without stored paths."""
    shares = read_share_per_team("assist", value)
    if not limits.ways and np.asarray(shares).any():
        raise ValueError(f"env.assist={value}: must be 0 in a run that began with 0")
    return shares


READERS: dict[str, Reader] = {
    "map_weights": (
        "map_weights",
        lambda value, limits: put_array(read_map_weights(value, limits.maps)),
    ),
    "observation": (
        "full_observation",
        lambda value, _: put_array(read_choice("observation", value, OBSERVATIONS) == "full"),
    ),
    "time_limit": ("max_decisions", read_time_limit),
    "zone_seconds": ("zone_seconds", read_zone_seconds),
    "gravity": _number("gravity", 0.0, 100.0),
    "spawn_jitter": _number("spawn_jitter", 0.0, 1.0),
    "yaw_jitter": _number("yaw_jitter", 0.0, math.pi),
    "fire_probability": (
        "fire_probability",
        lambda value, _: read_share_per_team("fire_probability", value),
    ),
    "assist": ("assist", read_assist),
}


def roster_fields(rosters: tuple[Roster, Roster]) -> dict[str, jax.Array]:
    """Returns the parameters `classes` and `pack` of two teams."""
    columns = {"classes": "classes", "pack": "packs"}
    return {
        field: put_array(np.concatenate([getattr(roster, column) for roster in rosters]), np.int32)
        for field, column in columns.items()
    }


def change_battle_params(
    params: EchelonParams, given: Mapping[str, Any], limits: SettingLimits, reward: Reward
) -> EchelonParams:
    """Returns parameters with some settings changed; runs on the host.

    Args:
      params: default parameters of the environment; their time limit is the longest one allowed.
      given: settings as in the environment's configuration: those of `READERS`, `blue` and `red`
        (rosters of unchanged size), `reward` (`{component: {weight name: value}}`).
      limits: bounds of the values.
      reward: the reward that `params.reward` belongs to.

    Returns:
      the changed parameters, with the same shapes and dtypes.

    Raises:
      ValueError: one line, for a setting that is unknown, that would require recompiling, or that
        has a value which `make` would refuse.
    """
    plain = dict(given)
    weights = plain.pop("reward", None)
    fields = {}
    for side, team in enumerate(TEAMS):
        if team in plain:
            roster = _same_size(team, plain.pop(team), side, limits)
            here = slice(limits.teams[0] * side, limits.teams[0] * side + limits.teams[side])
            before = {name: fields.get(name, getattr(params, name)) for name in ("classes", "pack")}
            fields["classes"] = before["classes"].at[here].set(jnp.asarray(roster.classes, jnp.int32))
            fields["pack"] = before["pack"].at[here].set(jnp.asarray(roster.packs, jnp.int32))
    refuse_fixed(plain, (*READERS, *TEAMS, "reward"))
    if limits.zone_by_time and "time_limit" in plain:
        plain.setdefault("zone_seconds", None)
    if "zone_seconds" in plain and plain["zone_seconds"] is None:
        plain["zone_seconds"] = halve_time_limit(plain.get("time_limit", int(params.max_decisions) * PERIOD))
    limits = limits._replace(seconds=int(params.max_decisions) * PERIOD)
    return params.replace(
        **read_fields(READERS, plain, limits), **fields, reward=reward.change(params.reward, weights)
    )


def _same_size(team: str, value, side: int, limits: SettingLimits) -> Roster:
    roster = read_roster(team, value)
    size = limits.teams[side]
    if len(roster.classes) != size:
        found = f"has {len(roster.classes)} mechs"
        raise ValueError(f"env.{team}={value}: {found}; this run's team has {size}")
    if roster.largest_pack > limits.pack:
        found = f"has a pack of {roster.largest_pack}"
        raise ValueError(f"env.{team}={value}: {found}; this run's packs have at most {limits.pack}")
    return roster
