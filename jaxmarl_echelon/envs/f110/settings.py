"""Reads and checks what a configuration says about the F110 environments."""

import dataclasses
from collections.abc import Mapping, Sequence
from numbers import Real

import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.f110.ftg_params import FTGOptions, FTGParams, check_ftg
from physics import single_track
from physics.gridmap import OccupancyMap
from physics.lidar import Lidar
from physics.occupancy import load_map
from physics.single_track import CarParams, ControlGains

CARS = {"limo": single_track.limo_car, "f1tenth": single_track.f1tenth_car}
GAINS = {"f110": single_track.f110_gains, "gym": single_track.gym_gains}

_GAINS = {field.name for field in dataclasses.fields(FTGParams)}
_OPTIONS = {field.name for field in dataclasses.fields(FTGOptions)}


def number(name: str, value, low: float = -np.inf, high: float = np.inf) -> float:
    """Returns `value` as a float; raises ValueError unless it is finite and within [low, high]."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not np.isfinite(value) or not low <= value <= high:
        bounds = f"a number in [{low:g}, {high:g}]" if np.isfinite([low, high]).any() else "a finite number"
        raise ValueError(f"env.{name}={value!r}: must be {bounds}")
    return float(value)


def whole(name: str, value, low: int, high: int = 2**31 - 1) -> int:
    """Returns `value` as an int; raises ValueError unless it is a whole number within [low, high]."""
    if number(name, value, low, high) != int(value):
        raise ValueError(f"env.{name}={value!r}: must be a whole number")
    return int(value)


def choice(name: str, value, allowed: Sequence[str]) -> str:
    """Returns `value`; raises ValueError unless it is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"env.{name}={value!r}: unknown; allowed: {', '.join(allowed)}")
    return value


def choices(name: str, value: str | Sequence[str] | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """Returns one name or several as a tuple; raises ValueError unless each is one of `allowed`."""
    given = (value,) if isinstance(value, str) else value or ()
    if not isinstance(given, Sequence):
        raise ValueError(f"env.{name}={value!r}: unknown; allowed: {', '.join(allowed)}")
    return tuple(choice(name, one, allowed) for one in given)


def switch(name: str, value) -> bool:
    """Returns `value`; raises ValueError unless it is a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"env.{name}={value!r}: must be true or false")
    return value


def mapping(name: str, value) -> Mapping:
    """Returns a mapping, empty for None; raises ValueError for anything else."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"env.{name}={value!r}: must be a mapping")
    return value or {}


def numbers(name: str, value, count: int, low: float = -np.inf) -> tuple[float, ...]:
    """Reads `count` numbers of at least `low`; raises ValueError for anything else."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence) or len(value) != count:
        raise ValueError(f"env.{name}={value!r}: must be {count} numbers")
    return tuple(number(name, one, low) for one in value)


def spawns(value) -> str | Sequence | Mapping:
    """Returns what `spawns.spawn_weights` can read; raises ValueError for anything else."""
    if not isinstance(value, str | Sequence | Mapping):
        raise ValueError(f"env.spawns={value!r}: must be all, names of spawn points, or {{name: weight}}")
    for name, weight in value.items() if isinstance(value, Mapping) else ():
        number(f"spawns.{name}", weight, 0.0)
    return value


def interval(name: str, value, low: float = -np.inf, high: float = np.inf) -> tuple[float, float]:
    """Reads one number, or two in order, as a closed interval within [low, high]."""
    ends = [value, value] if isinstance(value, Real) else value
    if isinstance(ends, str | Mapping) or not isinstance(ends, Sequence) or len(ends) != 2:
        raise ValueError(f"env.{name}={value!r}: must be one number or [low, high]")
    first, second = (number(name, end, low, high) for end in ends)
    if first > second:
        raise ValueError(f"env.{name}={value!r}: the first number must not exceed the second")
    return first, second


def read_maps(spec: str | Sequence[str]) -> tuple[OccupancyMap, ...]:
    """Loads one map or several; see `physics.occupancy.load_map` for what a map is called."""
    names = [spec] if isinstance(spec, str) else list(spec or ())
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"env.map={spec!r}: must be a map or a list of maps")
    try:
        return tuple(load_map(name) for name in names)
    except ValueError as error:
        raise ValueError(f"env.{error}") from None


def map_weights(weights: Sequence[float] | None, maps: int) -> np.ndarray:
    """Returns how often each map is drawn, float32 `[M]`; equal by default."""
    if weights is not None and (isinstance(weights, str) or not isinstance(weights, Sequence)):
        raise ValueError(f"env.map_weights={weights!r}: must be {maps} weights, one of them positive")
    values = [number("map_weights", weight, 0.0) for weight in (weights or [1.0] * maps)]
    if len(values) != maps or sum(values) <= 0:
        raise ValueError(f"env.map_weights={weights!r}: must be {maps} weights, one of them positive")
    return np.array(values, np.float32)


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
    for index, grid in enumerate(maps):
        if lines and grid.name in lines:
            ends = np.asarray(lines[grid.name], np.float64)
            if ends.shape != (2, 2) or not np.isfinite(ends).all():
                raise ValueError(f"env.finish_lines.{grid.name}={lines[grid.name]}: needs [[x, y], [x, y]]")
            table[index] = ends
    return table


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
    given = {"model": settings} if isinstance(settings, str) else dict(settings)
    made = models[choice(f"{key}.model", given.pop("model", next(iter(models))), tuple(models))]()
    known = [field.name for field in dataclasses.fields(made)]
    changes = {}
    for name, value in given.items():
        choice(key, name, known)
        if value is not None:
            changes[name] = jnp.asarray(number(f"{key}.{name}", value), jnp.float32)
    return made.replace(**changes)
