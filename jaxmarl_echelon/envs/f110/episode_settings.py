"""Settings of the F110 environments that may change between episodes, as fields of their parameters.

`make` reads them for the whole run and `task_params` for a stage, through the same table and
therefore with the same checks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.f110.gap_parameters import FTGOptions, change_ftg
from jaxmarl_echelon.envs.f110.settings import read_spawns
from jaxmarl_echelon.envs.f110.starts.spawns import SpawnPoint, spawn_weights
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import (
    Readers,
    read_choice,
    read_choices,
    read_fields,
    read_interval,
    read_map_weights,
    read_number,
    read_numbers,
    read_whole,
    refuse_fixed,
)
from physics.host_arrays import put_array
from physics.single_track import CarParams

ROLES = ("attacker", "defender")
TIMEOUTS = ("terminal", "truncation")
CRASHED = ("obstacle", "removed")


class F110Limits(NamedTuple):
    """Bounds of the settings of an environment.

    Attributes:
      speed: lowest and highest speed of a car, m/s.
      length: of a car, m.
      maps: number of maps.
      points: the spawn points, in order.
      max_steps: the longest time limit, physics steps.
      grid: largest distance between neighbours on a starting grid, m; with more the grid would be longer
        than the shortest track.
    """

    speed: tuple[float, float]
    length: float
    maps: int
    points: Sequence[SpawnPoint]
    max_steps: int = 2**31 - 1
    grid: float = math.inf

    @classmethod
    def of(cls, car: CarParams, maps: Sequence, points: Sequence[SpawnPoint] = ()) -> "F110Limits":
        """Returns the limits of an environment that is being built."""
        return cls((float(car.v_min), float(car.v_max)), float(car.length), len(maps), points)


def _number(name: str, low: float) -> tuple[str, Callable]:
    return name, lambda value, _: jnp.float32(read_number(name, value, low))


def _whole(name: str, low: int) -> tuple[str, Callable]:
    return name, lambda value, _: jnp.int32(read_whole(name, value, low))


def _speeds(name: str) -> tuple[str, Callable]:
    return "speed_range", lambda value, limits: put_array(
        read_interval(name, value, *limits.speed), np.float32
    )


def _locked(value, _: F110Limits) -> jax.Array:
    chosen = read_choices("locked", value, ROLES)
    return put_array([role in chosen for role in ROLES])


def _map_weights(value, limits: F110Limits) -> jax.Array:
    return put_array(read_map_weights(value, limits.maps))


def _jitter(name: str) -> tuple[str, Callable]:
    """Returns the reader of three numbers, or 0 for none."""

    def read(value, _: F110Limits) -> jax.Array:
        none = value == 0 and not isinstance(value, bool)
        return put_array([0.0] * 3 if none else read_numbers(name, value, 3, 0.0), np.float32)

    return name, read


def _max_steps(value, limits: F110Limits) -> jax.Array:
    return jnp.int32(read_whole("max_steps", value, 1, limits.max_steps))


_SHARED: Readers = {
    "map_weights": ("map_weights", _map_weights),
    "lidar_noise": _number("lidar_noise", 0.0),
    "max_steps": ("max_steps", _max_steps),
}
# Setting -> (field of F110Params, reader), and the same for RaceParams.
GAPLOCK: Readers = _SHARED | {
    "spawns": (
        "spawn_weights",
        lambda value, limits: put_array(spawn_weights(read_spawns(value), limits.points)),
    ),
    "spawn_jitter": (
        "spawn_jitter",
        lambda value, _: put_array(read_numbers("spawn_jitter", value, 3, 0.0), np.float32),
    ),
    "pose_jitter": _jitter("pose_jitter"),
    "evaluation_jitter": _jitter("evaluation_jitter"),
    "spawn_speed": _speeds("spawn_speed"),
    "lock_steps": _whole("lock_steps", 0),
    "locked": ("locked", _locked),
    "timeout": (
        "timeout_terminal",
        lambda value, _: put_array(read_choice("timeout", value, TIMEOUTS) == "terminal"),
    ),
    "idle_speed": _number("idle_speed", 0.0),
    "idle_decisions": _whole("idle_decisions", 0),
}
RACE: Readers = _SHARED | {
    "start_speed": _speeds("start_speed"),
    "grid_gap": (
        "grid_gap",
        lambda value, limits: jnp.float32(read_number("grid_gap", value, limits.length, limits.grid)),
    ),
    "grid_offset": _number("grid_offset", 0.0),
    "target_laps": _whole("target_laps", 0),
    "crashed": (
        "obstacles",
        lambda value, _: put_array(read_choice("crashed", value, CRASHED) == "obstacle"),
    ),
}


def change_f110_params(
    readers: Readers,
    params,
    given: Mapping[str, Any],
    limits: F110Limits,
    reward: Reward,
    options: FTGOptions,
):
    """Returns an environment's parameters with some settings changed, on the host.

    Args:
      readers: GAPLOCK or RACE.
      params: the environment's default parameters, whose time limit is the longest one allowed.
      given: settings as in the environment's configuration: those in `readers`, `ftg` (gains, and a
        `target_mode`), `reward` (`{component: {weight name: value}}`).
      limits: bounds of the values.
      reward: the reward that `params.reward` belongs to.
      options: the static part of the follow-the-gap driver.

    Returns:
      The changed parameters, with the same shapes and dtypes.

    Raises:
      ValueError: one line, for a setting that is unknown or needs another program, or for a value that
        `make` would refuse.
    """
    plain = dict(given)
    gains = plain.pop("ftg", None)
    weights = plain.pop("reward", None)
    refuse_fixed(plain, (*readers, "ftg", "reward"))
    limits = limits._replace(max_steps=int(params.max_steps))
    return params.replace(
        **read_fields(readers, plain, limits),
        ftg=change_ftg(params.ftg, options, gains),
        reward=reward.change(params.reward, weights),
    )
