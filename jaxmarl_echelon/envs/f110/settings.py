"""Settings of the F110 environments, one dataclass per concern; conf/env/*.yaml explain each setting."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from algos.defaults import FROM_FILE
from jaxmarl_echelon.envs.f110.cars.simulation import WALL_CONTACTS, CarSimulation
from jaxmarl_echelon.envs.settings import (
    Settings,
    read_choice,
    read_mapping,
    read_number,
    read_numbers,
    read_switch,
    read_whole,
    setting_field,
)
from physics import single_track
from physics.boxes import boundary_intervals
from physics.gridmap import OccupancyMap
from physics.lidar import Lidar
from physics.line_picture import save_refused_line
from physics.map_server import UNKNOWN_STATES
from physics.mapbank import map_bank
from physics.occupancy import load_map
from physics.single_track import INTEGRATORS, CarParams, ControlGains

CARS = {"limo": single_track.limo_car, "f1tenth": single_track.f1tenth_car}
GAINS = {"f110": single_track.f110_gains, "gym": single_track.gym_gains}


@dataclass(frozen=True)
class Maps(Settings):
    """Settings of the maps: files, relative frequencies, and driving directions."""

    map: str | Sequence[str] = FROM_FILE
    map_weights: Sequence[float] | None = FROM_FILE
    reverse: bool | Sequence[bool] = FROM_FILE
    centerline: str | Sequence[str | None] | None = FROM_FILE
    unknown: str = setting_field(read_choice, UNKNOWN_STATES)

    def load(self) -> tuple[OccupancyMap, ...]:
        """Loads the maps; see `read_maps`."""
        return read_maps(self.map, self.reverse, centerline=self.centerline, unknown=self.unknown)

    def files(self, maps: Sequence[OccupancyMap]) -> dict[str, tuple[Path, ...]]:
        """Returns the source files of the loaded maps by name in the settings."""
        names = read_names(self.map)
        lines = read_lines(self.centerline, len(names))
        given = {line: (Path(line),) for line in lines if line is not None}
        apart = {path for paths in given.values() for path in paths}
        found: dict[str, tuple[Path, ...]] = {}
        for name, grid in zip(names, maps, strict=True):
            own = (path for path in grid.files if path not in apart)
            found[name] = tuple(dict.fromkeys([*found.get(name, ()), *own]))
        return {name: paths for name, paths in found.items() if paths} | given


@dataclass(frozen=True)
class Sensing(Settings):
    """Settings of the lidar and of the observation's scales; lengths in m, angles in rad, speeds in m/s."""

    lidar_beams: int = FROM_FILE
    lidar_fov: float = FROM_FILE
    lidar_max_range: float = FROM_FILE
    lidar_noise: float = FROM_FILE
    lidar_range: float = setting_field(read_number, 1e-3)
    speed_scale: float = setting_field(read_number, 1e-3)
    position_scale: float = setting_field(read_number, 1e-3)

    @property
    def lidar(self) -> Lidar:
        """Sensor without its noise, which is a parameter of the episode."""
        return read_lidar(self.lidar_beams, self.lidar_fov, self.lidar_max_range)


@dataclass(frozen=True)
class GaplockSensing(Sensing):
    """Settings of the sensors and of optional features in the adversarial task."""

    observe_target: bool = setting_field(read_switch)
    observe_time: bool = setting_field(read_switch)
    observe_task: bool = setting_field(read_switch)


@dataclass(frozen=True)
class RaceSensing(Sensing):
    """Settings of the sensors, of the centreline points ahead (m) and of the nearest cars in races."""

    lookahead: Sequence[float] = FROM_FILE
    neighbours: int = setting_field(read_whole, 0, 64)


@dataclass(frozen=True)
class CarDriving(Settings):
    """Settings of the car, its low-level control, and the integration of its motion."""

    car: str | Mapping = FROM_FILE
    gains: str | Mapping = FROM_FILE
    dt: float = setting_field(read_number, 1e-4, 0.1)
    action_repeat: int = setting_field(read_whole, 1, 1000)
    integrator: str = setting_field(read_choice, tuple(INTEGRATORS))
    steering_delay: int = setting_field(read_whole, 0, 100)
    wall_contact: str = setting_field(read_choice, WALL_CONTACTS)

    def simulation(
        self, maps: Sequence[OccupancyMap], lidar: Lidar, cars: int, *, shared_fate: bool
    ) -> CarSimulation:
        """Builds the simulation of `cars` cars on the maps; see `CarSimulation` for the arguments."""
        vehicle = read_car(self.car)
        return CarSimulation(
            bank=map_bank(maps),
            lidar=lidar,
            cars=cars,
            dt=self.dt,
            repeat=self.action_repeat,
            integrator=self.integrator,
            delay=self.steering_delay,
            wall_contact=self.wall_contact,
            shared_fate=shared_fate,
            outline=boundary_intervals(
                float(vehicle.length), float(vehicle.width), min(grid.resolution for grid in maps)
            ),
        )


@dataclass(frozen=True)
class GaplockDriving(CarDriving):
    """Driving settings of the adversarial task; `attacker_speed` limits the attacker's commands, m/s."""

    attacker_speed: Sequence[float] | None = FROM_FILE


@dataclass(frozen=True)
class RaceDriving(CarDriving):
    """Driving settings of races; `action_speed` limits the commands, m/s."""

    action_speed: Sequence[float] | None = FROM_FILE


@dataclass(frozen=True)
class Starts(Settings):
    """Start poses and speeds of adversarial episodes."""

    spawns: str | Sequence[str] | Mapping[str, float] = FROM_FILE
    spawn_points: Mapping | None = FROM_FILE
    spawn_jitter: Sequence[float] = FROM_FILE
    pose_jitter: float | Sequence[float] = FROM_FILE
    evaluation_jitter: float | Sequence[float] = FROM_FILE
    spawn_speed: float | Sequence[float] = FROM_FILE
    base_poses: Mapping[str, Sequence] | None = FROM_FILE
    lock_steps: int = FROM_FILE
    locked: str | Sequence[str] = FROM_FILE


@dataclass(frozen=True)
class Endings(Settings):
    """Conditions other than contact that end adversarial episodes."""

    finish_lines: Mapping[str, Sequence] | None = FROM_FILE
    max_steps: int = FROM_FILE
    timeout: str = FROM_FILE
    idle_speed: float = FROM_FILE
    idle_decisions: int = FROM_FILE


@dataclass(frozen=True)
class Players(Settings):
    """Settings of the defender's driver, and of the attacker's goals."""

    ftg: Mapping | None = FROM_FILE
    goal: Mapping | None = FROM_FILE


@dataclass(frozen=True)
class RaceRules(Settings):
    """Settings of the cars, the starting grid, and the end of a race."""

    cars: int = setting_field(read_whole, 1, 64)
    start_speed: float | Sequence[float] = FROM_FILE
    grid_gap: float = FROM_FILE
    grid_offset: float = FROM_FILE
    crashed: str = FROM_FILE
    target_laps: int = FROM_FILE
    max_steps: int = FROM_FILE
    ftg: Mapping | None = FROM_FILE


@dataclass(frozen=True)
class GaplockSettings:
    """All settings of the adversarial task."""

    FILE: ClassVar[str] = "env/f110"

    maps: Maps
    sensing: GaplockSensing
    driving: GaplockDriving
    starts: Starts
    endings: Endings
    players: Players


@dataclass(frozen=True)
class RaceSettings:
    """All settings of races."""

    FILE: ClassVar[str] = "env/f110_race"

    maps: Maps
    sensing: RaceSensing
    driving: RaceDriving
    rules: RaceRules


def read_spawns(value) -> str | Sequence | Mapping:
    """Returns `value` if `spawns.spawn_weights` can read it; raises ValueError for anything else."""
    if not isinstance(value, str | Sequence | Mapping):
        raise ValueError(f"env.spawns={value}: must be all, names of spawn points, or {{name: weight}}")
    for name, weight in value.items() if isinstance(value, Mapping) else ():
        read_number(f"spawns.{name}", weight, 0.0)
    return value


def read_maps(
    spec: str | Sequence[str],
    reverse: bool | Sequence[bool] = False,
    *,
    centerline: str | Sequence[str | None] | None = None,
    unknown: str = "free",
) -> tuple[OccupancyMap, ...]:
    """Loads one map or several; see `physics.occupancy.load_map` for the names of maps.

    Repeated names get a number (`map`, `map_2`), because tables and figures identify maps by name.

    Args:
      spec: a map or a list of maps.
      reverse: whether the maps' lines are driven backwards: all of them, or one switch per map.
      centerline: the file of the line that is driven, one per map; None to search for one.
      unknown: the state of cells that no scan has seen, "free" or "occupied".

    Raises:
      ValueError: an unknown map, switches that do not fit the maps, or a map without a line to reverse.
    """
    names = read_names(spec)
    switches = [reverse] * len(names) if isinstance(reverse, bool) else reverse
    fitting = isinstance(switches, Sequence) and len(switches) == len(names)
    if not fitting or not all(isinstance(one, bool) for one in switches):
        raise ValueError(f"env.reverse={reverse}: must be true or false, or a list with one for each map")
    lines = read_lines(centerline, len(names))
    try:
        maps = [
            load_map(name, unknown=unknown, centerline=line) for name, line in zip(names, lines, strict=True)
        ]
    except ValueError as error:
        raise ValueError(f"env.{error}") from None
    return tuple(map(_reversed, _apart(maps), switches))


def read_names(spec: str | Sequence[str]) -> list[str]:
    """Reads the names of one map or several; raises ValueError for anything else."""
    names = [spec] if isinstance(spec, str) else list(spec or ())
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"env.map={spec}: must be a map or a list of maps")
    return names


def read_lines(centerline: str | Sequence[str | None] | None, maps: int) -> list[str | None]:
    """Reads the centreline files of a number of maps; raises ValueError unless there is one for each."""
    one = centerline is None or (isinstance(centerline, str) and maps == 1)
    lines = [centerline] * maps if one else centerline
    fitting = isinstance(lines, Sequence) and not isinstance(lines, str) and len(lines) == maps
    if not fitting or not all(line is None or isinstance(line, str) for line in lines):
        allowed = "must be a file, or a list with a file or null for each map"
        raise ValueError(f"env.centerline={centerline}: {allowed}")
    return list(lines)


def require_lines(maps: Sequence[OccupancyMap], needs: str, *, closed: bool = False) -> None:
    """Requires a centreline on every map; saves a picture of a derived line that was refused.

    Raises:
      ValueError: one line with the reason, the picture's path, and the settings that help.
    """
    for grid in maps:
        if grid.centerline is not None and (grid.centerline.closed or not closed):
            continue
        needed = f"env.map={grid.name}: {needs} a map with a {'closed ' if closed else ''}centreline"
        if not grid.files:
            raise ValueError(needed)
        if grid.refused_line is None:
            raise ValueError(f"{needed}; set it with env.centerline=FILE")
        picture = save_refused_line(grid)
        ways = "set it with env.centerline=FILE, or close unseen cells with env.unknown=occupied"
        raise ValueError(f"{needed}; {grid.refused_line.reason}, see {picture}; {ways}")


def require_reversed_starts(
    maps: Sequence[OccupancyMap],
    reverse: bool | Sequence[bool],
    poses: Mapping[str, Sequence[Sequence[float]]],
) -> None:
    """Checks that cars do not start against the lines of maps that are driven backwards.

    Args:
      maps: as loaded.
      reverse: the setting that loaded them.
      poses: map name to base poses.

    Raises:
      ValueError: one line, for poses of the other direction.
    """
    switches = [reverse] * len(maps) if isinstance(reverse, bool) else reverse
    for grid, backwards in zip(maps, switches, strict=True):
        line = grid.centerline
        for x, y, heading in poses.get(grid.name, ()) if backwards else ():
            nearest = np.argmin(np.hypot(line.x - x, line.y - y))
            if np.cos(heading - line.heading[nearest]) < 0:
                where = f"env.reverse={reverse}: env.base_poses.{grid.name}"
                ways = "set it (null: anywhere along the line) and env.finish_lines"
                raise ValueError(f"{where} starts cars the other way; {ways}")


def _reversed(grid: OccupancyMap, backwards: bool) -> OccupancyMap:
    if not backwards:
        return grid
    require_lines([grid], "env.reverse=true needs")
    return dataclasses.replace(grid, centerline=grid.centerline.backwards())


def _apart(maps: Sequence[OccupancyMap]) -> list[OccupancyMap]:
    """Returns the maps with distinct names."""
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
        read_number(f"car.{name}", float(getattr(car, name)), np.finfo(np.float32).tiny)
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
        beams=read_whole("lidar_beams", beams, 2, 4096),
        fov=read_number("lidar_fov", fov, 0.1, 2 * np.pi),
        max_range=read_number("lidar_max_range", max_range, 0.1),
    )


def read_finish_lines(lines: Mapping | None, maps: Sequence[OccupancyMap]) -> np.ndarray:
    """Reads map name to `[[x, y], [x, y]]`; returns finish lines `[M, 2, 2]`, NaN where a map has none."""
    table = np.full((len(maps), 2, 2), np.nan)
    given = read_mapping("finish_lines", lines)
    for index, grid in enumerate(maps):
        if grid.name in given:
            key, ends = f"finish_lines.{grid.name}", given[grid.name]
            if isinstance(ends, str | Mapping) or not isinstance(ends, Sequence) or len(ends) != 2:
                raise ValueError(f"env.{key}={ends}: needs [[x, y], [x, y]]")
            table[index] = [read_numbers(key, end, 2) for end in ends]
    return table


def read_base_poses(poses: Mapping | None) -> dict[str, list[tuple[float, ...]]]:
    """Reads map name to base poses `[[x, y, psi], ...]`; raises ValueError in one line for anything else."""
    found = {}
    for name, listed in read_mapping("base_poses", poses).items():
        if listed is None:
            continue
        if isinstance(listed, str | Mapping) or not isinstance(listed, Sequence) or not listed:
            raise ValueError(f"env.base_poses.{name}={listed}: needs [[x, y, psi], ...]")
        found[name] = [read_numbers(f"base_poses.{name}", pose, 3) for pose in listed]
    return found


def _modelled(key: str, settings: str | Mapping, models: Mapping):
    given = {"model": settings} if isinstance(settings, str) else dict(read_mapping(key, settings))
    made = models[read_choice(f"{key}.model", given.pop("model", next(iter(models))), tuple(models))]()
    known = [field.name for field in dataclasses.fields(made)]
    changes = {}
    for name, value in given.items():
        read_choice(key, name, known)
        if value is not None:
            changes[name] = jnp.asarray(read_number(f"{key}.{name}", value), jnp.float32)
    return made.replace(**changes)
