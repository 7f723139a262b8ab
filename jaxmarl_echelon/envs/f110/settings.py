"""Reads and checks what a configuration says about the F110 environments."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.f110.ftg_params import FTGOptions, FTGParams, check_ftg
from jaxmarl_echelon.envs.settings import (
    choice,
    choices,
    interval,
    map_weights,
    mapping,
    number,
    numbers,
    switch,
    whole,
)
from physics import single_track
from physics.gridmap import OccupancyMap
from physics.lidar import Lidar
from physics.occupancy import load_map
from physics.single_track import CarParams, ControlGains

__all__ = [
    "CARS", "GAINS", "change_ftg", "choice", "choices", "interval", "map_weights", "mapping", "number",
    "numbers", "read_base_poses", "read_car", "read_finish_lines", "read_ftg", "read_gains", "read_lidar",
    "read_maps", "spawns", "switch", "whole",
]  # fmt: skip

CARS = {"limo": single_track.limo_car, "f1tenth": single_track.f1tenth_car}
GAINS = {"f110": single_track.f110_gains, "gym": single_track.gym_gains}

_GAINS = {field.name for field in dataclasses.fields(FTGParams)}
_OPTIONS = {field.name for field in dataclasses.fields(FTGOptions)}


def spawns(value) -> str | Sequence | Mapping:
    """Returns what `spawns.spawn_weights` can read; raises ValueError for anything else."""
    if not isinstance(value, str | Sequence | Mapping):
        raise ValueError(f"env.spawns={value!r}: must be all, names of spawn points, or {{name: weight}}")
    for name, weight in value.items() if isinstance(value, Mapping) else ():
        number(f"spawns.{name}", weight, 0.0)
    return value


def read_maps(spec: str | Sequence[str], reverse: bool | Sequence[bool] = False) -> tuple[OccupancyMap, ...]:
    """Loads one map or several; see `physics.occupancy.load_map` for what a map is called.

    Tables and figures name maps, so a name that occurred before gets its number: `map`, `map_2`.

    Args:
      spec: a map or a list of maps.
      reverse: whether the maps' lines are driven backwards: all of them, or one switch per map.

    Raises:
      ValueError: no such map, switches that do not fit the maps, or a map without a line to reverse.
    """
    names = [spec] if isinstance(spec, str) else list(spec or ())
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"env.map={spec!r}: must be a map or a list of maps")
    switches = [reverse] * len(names) if isinstance(reverse, bool) else reverse
    fitting = isinstance(switches, Sequence) and len(switches) == len(names)
    if not fitting or not all(isinstance(one, bool) for one in switches):
        raise ValueError(f"env.reverse={reverse!r}: must be true or false, or a list with one for each map")
    try:
        maps = [load_map(name) for name in names]
    except ValueError as error:
        raise ValueError(f"env.{error}") from None
    return tuple(map(_reversed, _apart(maps), switches))


def _reversed(grid: OccupancyMap, backwards: bool) -> OccupancyMap:
    if not backwards:
        return grid
    if grid.centerline is None:
        raise ValueError(f"env.reverse=True: map {grid.name} has no line to drive along, either way")
    return dataclasses.replace(grid, centerline=grid.centerline.backwards())


def _apart(maps: Sequence[OccupancyMap]) -> list[OccupancyMap]:
    """The maps under names of their own."""
    taken = {grid.name for grid in maps}
    result = []
    for grid in maps:
        name, number = grid.name, 1
        while name in {other.name for other in result} or (number > 1 and name in taken):
            number += 1
            name = f"{grid.name}_{number}"
        result.append(grid if name == grid.name else dataclasses.replace(grid, name=name))
    return result


def read_car(settings: str | Mapping) -> CarParams:
    """Builds a car from a model's name, or from `{model: NAME, parameter: value, ...}`.

    Parameters that are None keep the model's value.
    """
    car = _modelled("car", settings, CARS)
    for name in ("m", "I", "lf", "lr", "mu", "width", "length", "a_max", "v_switch", "sv_max"):
        number(f"car.{name}", float(getattr(car, name)), np.finfo(np.float32).tiny)
    for low, high in (("s_min", "s_max"), ("v_min", "v_max"), ("sv_min", "sv_max")):
        if not float(getattr(car, low)) < 0 < float(getattr(car, high)):
            values = f"{float(getattr(car, low)):g}, {float(getattr(car, high)):g}"
            raise ValueError(f"env.car.{low}, env.car.{high} = {values}: must be below and above 0")
    return car


def read_gains(settings: str | Mapping) -> ControlGains:
    """Builds low-level gains from a model's name or `{model: NAME, gain: value, ...}`, like `read_car`."""
    return _modelled("gains", settings, GAINS)


def read_lidar(beams, fov, max_range) -> Lidar:
    """Builds the sensor; angles in rad, ranges in metres."""
    return Lidar(
        beams=whole("lidar_beams", beams, 2, 4096),
        fov=number("lidar_fov", fov, 0.1, 2 * np.pi),
        max_range=number("lidar_max_range", max_range, 0.1),
    )


def read_ftg(settings: Mapping | None, fov: float) -> tuple[FTGParams, FTGOptions]:
    """Splits the follow-the-gap settings into gains and static options.

    A `target_mode` of "farthest" becomes the gain of that name, so that curricula may change it.
    """
    given = dict(mapping("ftg", settings))
    for name in given:
        choice("ftg", name, sorted(_GAINS | _OPTIONS))
    static = {name: value for name, value in given.items() if name in _OPTIONS}
    try:
        options = FTGOptions(**{"fov": fov} | static)
    except ValueError as error:
        raise ValueError(f"env.ftg: {error}") from None
    farthest = options.target_mode == "farthest"
    if farthest:
        options = dataclasses.replace(options, target_mode="center")
    gains = {name: value for name, value in given.items() if name in _GAINS}
    return _gains(FTGParams(farthest=farthest), gains), options


def change_ftg(params: FTGParams, options: FTGOptions, settings: Mapping | None) -> FTGParams:
    """Changes some gains; a `target_mode` of "farthest" or of the static options sets `farthest`.

    Raises:
      ValueError: one line, for an unknown or static setting or a gain that is out of bounds.
    """
    given = dict(mapping("ftg", settings))
    for name in given:
        if name in _OPTIONS - {"target_mode"}:
            raise ValueError(f"env.ftg.{name}={given[name]!r}: is fixed for the whole run")
        choice("ftg", name, sorted(_GAINS | {"target_mode"}))
    if "target_mode" in given:
        allowed = (options.target_mode, "farthest")
        mode = choice("ftg.target_mode", given.pop("target_mode"), allowed)
        given = {"farthest": mode == "farthest"} | given
    return _gains(params, given)


def read_finish_lines(lines: Mapping | None, maps: Sequence[OccupancyMap]) -> np.ndarray:
    """Reads map name to `[[x, y], [x, y]]`; returns finish lines `[M, 2, 2]`, NaN where a map has none."""
    table = np.full((len(maps), 2, 2), np.nan)
    given = mapping("finish_lines", lines)
    for index, grid in enumerate(maps):
        if grid.name in given:
            key, ends = f"finish_lines.{grid.name}", given[grid.name]
            if isinstance(ends, str | Mapping) or not isinstance(ends, Sequence) or len(ends) != 2:
                raise ValueError(f"env.{key}={ends}: needs [[x, y], [x, y]]")
            table[index] = [numbers(key, end, 2) for end in ends]
    return table


def read_base_poses(poses: Mapping | None) -> dict[str, list[tuple[float, ...]]]:
    """Reads map name to base poses `[[x, y, psi], ...]`; raises ValueError in one line for anything else."""
    found = {}
    for name, listed in mapping("base_poses", poses).items():
        if listed is None:
            continue
        if isinstance(listed, str | Mapping) or not isinstance(listed, Sequence) or not listed:
            raise ValueError(f"env.base_poses.{name}={listed}: needs [[x, y, psi], ...]")
        found[name] = [numbers(f"base_poses.{name}", pose, 3) for pose in listed]
    return found


def _gains(params: FTGParams, changes: Mapping) -> FTGParams:
    changed = dataclasses.replace(params, **changes)
    try:
        check_ftg(changed)
    except ValueError as error:
        raise ValueError(f"env.ftg: {error}") from None
    return _as_arrays(changed)


def _as_arrays(params: FTGParams) -> FTGParams:
    kinds = {"farthest": bool, "cutback_hold": np.int32}
    return FTGParams(
        **{
            field.name: jnp.asarray(getattr(params, field.name), kinds.get(field.name, np.float32))
            for field in dataclasses.fields(params)
        }
    )


def _modelled(key: str, settings: str | Mapping, models: Mapping):
    given = {"model": settings} if isinstance(settings, str) else dict(mapping(key, settings))
    made = models[choice(f"{key}.model", given.pop("model", next(iter(models))), tuple(models))]()
    known = [field.name for field in dataclasses.fields(made)]
    changes = {}
    for name, value in given.items():
        choice(key, name, known)
        if value is not None:
            changes[name] = jnp.asarray(number(f"{key}.{name}", value), jnp.float32)
    return made.replace(**changes)
