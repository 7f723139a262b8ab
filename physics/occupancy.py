"""Maps by name: ROS map_server files, the embedded `line2` and generated tracks."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from physics.centerline import centerline_from_points, find_centerline, read_centerline
from physics.gridmap import OccupancyMap, Pose, distance_field, with_widths
from physics.mapbank import MapBank, distance_at, map_bank, world_to_cell
from physics.medial_loop import derive_centerline
from physics.tracks import generate_track

__all__ = [
    "MapBank",
    "OccupancyMap",
    "distance_at",
    "distance_field",
    "line2",
    "load_map",
    "map_bank",
    "read_map",
    "world_to_cell",
]


def load_map(
    spec: str | Path, *, unknown: str = "free", centerline: str | Path | None = None
) -> OccupancyMap:
    """Makes the map called `spec`, with a centreline where there is one.

    A map from a file takes its centreline from `centerline` or else from a file beside it, see
    `find_centerline`; failing these it is derived from the walls if they enclose a loop, and then runs
    counter-clockwise. `unknown` and `centerline` concern files only.

    Args:
      spec: "line2", "track:SEED" (a generated track) or the path of a map_server yaml file.
      unknown: see `read_map`.
      centerline: path of a centreline file.

    Raises:
      ValueError: nothing of that name, or a broken file; one line saying what and what is allowed.
    """
    spec = str(spec)
    if spec == "line2":
        return line2()
    if spec.startswith("track:"):
        seed = spec.removeprefix("track:")
        if not (seed.isascii() and seed.isdigit()):
            raise ValueError(f"map={spec!r}: the seed must be a non-negative integer, as in 'track:7'")
        return generate_track(int(seed))
    grid = read_map(spec, unknown=unknown)
    found = Path(centerline) if centerline is not None else find_centerline(Path(spec).with_suffix(""))
    if found is None:
        return replace(grid, centerline=derive_centerline(grid))
    line = read_centerline(found)
    if np.mean(grid.distance(line.points) > 0) < 0.5:
        raise ValueError(f"centerline={str(found)!r}: most points lie in walls of {spec!r}, not on its track")
    return replace(grid, centerline=with_widths(grid, line))


def line2() -> OccupancyMap:
    """The straight closed box of the gaplock scenarios: 98.8 m by 2.6 m inside.

    The original canvas has 2000 x 2000 cells of 0.05 m with its corner at (-51.224998,
    -51.224998). Only the box and its walls (4 cells along the sides, 5 at the ends) are kept;
    the cells stay aligned with the original's. The centreline is the original's without the
    points that lie in the end wall, and the spawns are those annotated on the original map.
    """
    resolution, corner = 0.05, -51.224998
    first_row, first_col = 980, 7
    occupied = np.ones((60, 1986), bool)
    occupied[4:56, 5:1981] = False
    x = -50.6 + 0.2 * np.arange(494)
    grid = OccupancyMap(
        name="line2",
        occupied=occupied,
        resolution=resolution,
        origin=(corner + first_col * resolution, corner + first_row * resolution, 0.0),
        centerline=replace(
            centerline_from_points(np.stack([x, np.full_like(x, -0.724998)], axis=-1), closed=False),
            source="built in",
        ),
        spawns={
            "spawn_1": (-48.2499, -0.724998, 0.0),
            "spawn_2": (-46.769, 0.0768, 0.0),
            "spawn_3": (-46.7917, -0.5922, 0.0),
            "spawn_4": (-46.803, -1.2725, 0.0),
            "spawn_5": (-45.4991, -1.7033, 0.0),
            "spawn_6": (-45.4765, 0.2695, 0.0),
        },
    )
    return replace(grid, centerline=with_widths(grid, grid.centerline))


def read_map(path: str | Path, *, unknown: str = "free") -> OccupancyMap:
    """Reads a ROS map_server map: a yaml file naming a png or pgm image. No centreline is looked for.

    Occupancy is `(255 - grey) / 255`, or `grey / 255` if `negate` is set, as in ROS; cells above
    `occupied_thresh` (default 0.65) are occupied, those below `free_thresh` (default 0.196) free.
    The F1TENTH simulators drive through everything between, hence the default of `unknown`.
    Colours count by their luminance; transparency is ignored. Spawns come from
    `annotations.spawn_points`, a list of `{name, pose: [x, y, heading]}`.

    Args:
      path: the yaml file; a relative image path is relative to it.
      unknown: "free" or "occupied", the meaning of cells between the thresholds.

    Raises:
      ValueError: the files do not describe such a map.
    """
    if unknown not in ("free", "occupied"):
        raise ValueError(f"unknown={unknown!r}: must be 'free' or 'occupied'")
    path = Path(path)
    data = _read_yaml(path)
    resolution = _number(path, data, "resolution")
    if resolution <= 0:
        raise ValueError(f"map={str(path)!r}: resolution={resolution}; must be > 0 metres per cell")
    free = _number(path, data, "free_thresh", 0.196)
    taken = _number(path, data, "occupied_thresh", 0.65)
    if not 0 <= free <= taken <= 1:
        raise ValueError(
            f"map={str(path)!r}: free_thresh={free}, occupied_thresh={taken}; 0 <= free <= occupied <= 1"
        )
    negate = data.get("negate", 0)
    if negate not in (0, 1):
        raise ValueError(f"map={str(path)!r}: negate={negate!r}; must be 0 or 1")
    grey = _read_grey(path, str(data["image"]))
    occupancy = grey if negate else 1.0 - grey
    occupied = occupancy > taken if unknown == "free" else occupancy >= free
    if occupied.all():
        raise ValueError(f"map={str(path)!r}: every cell of {data['image']!r} is occupied; some must be free")
    return OccupancyMap(
        name=path.stem,
        occupied=np.ascontiguousarray(occupied[::-1]),
        resolution=resolution,
        origin=_pose(path, "origin", data["origin"]),
        spawns=_spawns(path, data.get("annotations")),
    )


def _read_yaml(path: Path) -> Mapping[str, Any]:
    allowed = "allowed: 'line2', 'track:SEED' or the path of a map_server .yaml file"
    if not path.is_file():
        raise ValueError(f"map={str(path)!r}: no such file; {allowed}")
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise ValueError(f"map={str(path)!r}: not readable as yaml; {allowed}") from None
    if not isinstance(data, dict):
        raise ValueError(f"map={str(path)!r}: holds no mapping; keys image, resolution and origin are needed")
    needed = ("image", "resolution", "origin")
    missing = [key for key in needed if data.get(key) is None]
    if missing:
        raise ValueError(f"map={str(path)!r}: lacks {', '.join(missing)}; {', '.join(needed)} are needed")
    return data


def _number(path: Path, data: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = data.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"map={str(path)!r}: {key}={value!r}; must be a finite number")
    return number


def _pose(path: Path, key: str, value: Any) -> Pose:
    try:
        x, y, yaw = (float(number) for number in value)
    except (TypeError, ValueError):
        x = y = yaw = math.nan
    if not all(math.isfinite(number) for number in (x, y, yaw)):
        raise ValueError(f"map={str(path)!r}: {key}={value!r}; must be three finite numbers [x, y, yaw]")
    return x, y, yaw


def _spawns(path: Path, annotations: Any) -> dict[str, Pose]:
    points = annotations.get("spawn_points") if isinstance(annotations, dict) else annotations
    if points is None:
        return {}
    named = isinstance(points, list) and all(
        isinstance(p, dict) and {"name", "pose"} <= p.keys() for p in points
    )
    if not named:
        raise ValueError(f"map={str(path)!r}: annotations.spawn_points must be a list of {{name, pose}}")
    return {str(point["name"]): _pose(path, f"spawn {point['name']!r}", point["pose"]) for point in points}


def _read_grey(path: Path, image: str) -> np.ndarray:
    file = path.parent / image
    if not file.is_file():
        raise ValueError(f"map={str(path)!r}: image={image!r} does not exist; a png or pgm file is needed")
    try:
        with Image.open(file) as picture:
            if picture.mode.startswith("I"):
                return np.asarray(picture, np.float64) / 65535.0
            if picture.mode == "P":
                picture = picture.convert("RGB")
            return np.asarray(picture.convert("L"), np.float64) / 255.0
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ValueError(f"map={str(path)!r}: image={image!r} is not a readable png or pgm file") from None
