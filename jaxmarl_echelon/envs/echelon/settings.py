"""Settings of the mech battles: those of a run, and those that may change between episodes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import TEAMS, EchelonParams
from jaxmarl_echelon.envs.echelon.battle.unit_tables import SUBSTEP
from jaxmarl_echelon.envs.echelon.rosters import Roster, read_roster
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import (
    Settings,
    choice,
    map_weights,
    number,
    numbers,
    read_fields,
    refuse_fixed,
    setting,
    switch,
    whole,
)

OBSERVATIONS = ("full", "partial")
NEVER = "never"
SUBSTEPS = 5
PERIOD = SUBSTEP * SUBSTEPS


def _size(name: str, value) -> tuple[int, ...]:
    """Reads voxels along x, y and z."""
    return tuple(whole(name, side, 1) for side in numbers(name, value, 3))


def _folder(name: str, value) -> str | None:
    """Reads the folder that keeps terrains; None for none."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"env.{name}={value!r}: must be a folder, auto or null")
    return value


@dataclass(frozen=True)
class Forces(Settings):
    """The teams and their script's chance to fire; conf/env/echelon.yaml explains each setting here."""

    blue: str | Sequence | Mapping = "pack5"
    red: str | Sequence | Mapping = "pack5"
    fire_probability: float | Sequence[float] = 0.5
    assist: float | Sequence[float] = 0.0


@dataclass(frozen=True)
class Ground(Settings):
    """The terrains, and how much of them a battle may change."""

    size: Sequence[int] = setting((40, 40, 20), _size)
    maps: int = setting(64, whole, 1, 2**16)
    map_seed: int = setting(0, whole, 0)
    map_weights: Sequence[float] | None = None
    biomes: Sequence[str] | None = None
    cache: str | None = setting("auto", _folder)
    pages: int = setting(64, whole, 0, 4096)
    damaged: int = setting(96, whole, 0, 4096)


@dataclass(frozen=True)
class Rules(Settings):
    """Starts, physics and the end of a battle; seconds, voxels, rad."""

    time_limit: float = 60.0
    zone_seconds: float | str | None = None
    gravity: float = 9.81
    spawn_jitter: float = 0.25
    yaw_jitter: float = 0.15
    original: bool = setting(False, switch)


@dataclass(frozen=True)
class Observing(Settings):
    """What mechs are shown."""

    observation: str = "full"
    telemetry: bool = setting(True, switch)


@dataclass(frozen=True)
class EchelonSettings:
    """All settings of the mech battles."""

    forces: Forces = field(default_factory=Forces)
    ground: Ground = field(default_factory=Ground)
    rules: Rules = field(default_factory=Rules)
    observing: Observing = field(default_factory=Observing)


class Limits(NamedTuple):
    """What settings are checked against.

    Attributes:
      maps: number of terrains.
      teams: mechs of blue and of red.
      pack: members that a pack may have.
      seconds: the longest time limit.
      ways: whether the terrains know the ways to their zones.
    """

    maps: int
    teams: tuple[int, int]
    pack: int
    seconds: float = math.inf
    ways: bool = True


Reader = tuple[str, Callable[[Any, Limits], jax.Array]]


def _number(name: str, low: float, high: float = math.inf) -> Reader:
    return name, lambda value, _: jnp.float32(number(name, value, low, high))


def decisions(seconds: float) -> int:
    """Returns how many decisions a time limit of `seconds` allows, rounded up."""
    return math.ceil(round(seconds / PERIOD, 6))


def time_limit(value, limits: Limits) -> jax.Array:
    """Reads a time limit in seconds as a number of decisions."""
    return jnp.int32(decisions(number("time_limit", value, PERIOD, limits.seconds)))


def zone_seconds(value, limits: Limits) -> jax.Array:
    """Reads the seconds of holding the zone that win; `never` is infinite."""
    if value == NEVER:
        return jnp.float32(math.inf)
    if isinstance(value, str):
        raise ValueError(f"env.zone_seconds={value!r}: must be a number of at least 0, null or {NEVER}")
    return jnp.float32(number("zone_seconds", value, PERIOD))


def share_per_team(name: str, value) -> jax.Array:
    """Reads one share in [0, 1] for both teams, or one for each."""
    both = [value, value] if not isinstance(value, list | tuple) else value
    shares = numbers(name, both, len(TEAMS), 0.0)
    return jnp.asarray([number(name, one, 0.0, 1.0) for one in shares], jnp.float32)


def assist(value, limits: Limits) -> jax.Array:
    """Reads how far both teams, or each, are helped to find the way; only 0 where no way is known."""
    shares = share_per_team("assist", value)
    if not limits.ways and shares.max() > 0:
        raise ValueError(f"env.assist={value!r}: must be 0 in a run that began with 0")
    return shares


READERS: dict[str, Reader] = {
    "map_weights": (
        "map_weights",
        lambda value, limits: jnp.asarray(map_weights(value, limits.maps)),
    ),
    "observation": (
        "full_observation",
        lambda value, _: jnp.bool_(choice("observation", value, OBSERVATIONS) == "full"),
    ),
    "time_limit": ("max_decisions", time_limit),
    "zone_seconds": ("zone_seconds", zone_seconds),
    "gravity": _number("gravity", 0.0, 100.0),
    "spawn_jitter": _number("spawn_jitter", 0.0, 1.0),
    "yaw_jitter": _number("yaw_jitter", 0.0, math.pi),
    "fire_probability": (
        "fire_probability",
        lambda value, _: share_per_team("fire_probability", value),
    ),
    "assist": ("assist", assist),
}


def roster_fields(rosters: tuple[Roster, Roster]) -> dict[str, jax.Array]:
    """Returns the parameters `classes` and `pack` of two teams."""
    columns = {"classes": "classes", "pack": "packs"}
    return {
        field: jnp.asarray(np.concatenate([getattr(roster, column) for roster in rosters]), jnp.int32)
        for field, column in columns.items()
    }


def change(params: EchelonParams, given: Mapping[str, Any], limits: Limits, reward: Reward) -> EchelonParams:
    """Changes some settings of the parameters, on the host.

    Args:
      params: the environment's default parameters, whose time limit is the longest one allowed.
      given: settings as in the environment's configuration: those of `READERS`, `blue` and `red`
        (rosters of as many mechs as before), `reward` (`{component: {weight name: value}}`).
      limits: what values are checked against.
      reward: the reward that `params.reward` belongs to.

    Returns:
      the changed parameters, with the same shapes and dtypes.

    Raises:
      ValueError: one line, for a setting that is unknown, that would need another program, or
        that has a value which `make` would refuse.
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
    limits = limits._replace(seconds=int(params.max_decisions) * PERIOD)
    return params.replace(
        **read_fields(READERS, plain, limits), **fields, reward=reward.change(params.reward, weights)
    )


def _same_size(team: str, value, side: int, limits: Limits) -> Roster:
    roster = read_roster(team, value)
    size = limits.teams[side]
    if len(roster.classes) != size:
        found = f"has {len(roster.classes)} mechs"
        raise ValueError(f"env.{team}={value!r}: {found}; this run's team has {size}")
    if roster.largest_pack > limits.pack:
        found = f"has a pack of {roster.largest_pack}"
        raise ValueError(f"env.{team}={value!r}: {found}; this run's packs have at most {limits.pack}")
    return roster
