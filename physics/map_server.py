"""Reader of ROS map_server maps: a yaml file with an image's name and the thresholds of its grey values.

The rules are those of the two map servers, for ROS 1 and ROS 2:
https://wiki.ros.org/map_server and
https://github.com/ros-navigation/navigation2/tree/main/nav2_map_server. See docs/reference/f110.md 3.1, 3.2.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from physics.gridmap import OccupancyMap, Pose

MODES = ("trinary", "scale", "raw")
UNKNOWN_STATES = ("free", "occupied")
_NEEDED = ("image", "resolution", "origin")
_KEYS = (*_NEEDED, "negate", "occupied_thresh", "free_thresh", "mode", "annotations")
# Probability of the grey that map savers write for unknown cells, whatever thresholds they write.
_SAVED_UNKNOWN = 50 / 255
# A floor has a probability lower by _CONTRAST than unseen cells; _FLOOR is its least share of cells.
_CONTRAST = 8 / 255
_FLOOR = 0.01


def read_map(path: str | Path, *, unknown: str = "free") -> OccupancyMap:
    """Reads a ROS map_server map, a yaml file naming a png or pgm image, without a centreline.

    A cell's probability is `(255 - grey) / 255`, or `grey / 255` if `negate` is set. The rest depends on
    `mode`, as in map_server:

    - `trinary` (the default): above `occupied_thresh` (0.65) a cell is occupied, else below `free_thresh`
      (0.196) free, else unknown.
    - `scale`: above `occupied_thresh` a cell is occupied; all others are known and free.
    - `raw`: the grey itself (255 less it with `negate`) is the probability in percent, above 100 unknown. Of
      the thresholds only `occupied_thresh` is read, as a share of 100.

    Colours are converted to luminance; a cell that is not opaque is unknown, except in `raw`. The F1TENTH
    simulators treat unknown cells as free, hence the default of `unknown`. Spawns come from
    `annotations.spawn_points`, a list of `{name, pose: [x, y, heading]}`. Other keys are ignored and listed
    in the map's notes.

    Unseen cells (not in `OccupancyMap.seen`) are unknown cells, and free cells of grey 205 or of the grey of
    most of the image's border, if there is a brighter floor: map savers write thresholds that free them.

    Args:
      path: the yaml file; a relative image path is relative to it.
      unknown: "free" or "occupied", the state of unseen cells.

    Raises:
      ValueError: the files do not describe such a map.
    """
    if unknown not in UNKNOWN_STATES:
        raise ValueError(f"unknown={unknown}: must be 'free' or 'occupied'")
    path = Path(path)
    data = _read_yaml(path)
    resolution = _number(path, data, "resolution")
    if resolution <= 0:
        raise ValueError(f"map={str(path)!r}: resolution={resolution}; must be > 0 metres per cell")
    occupied, seen = _cells(path, data)
    if unknown == "occupied":
        occupied, seen = occupied | ~seen, np.ones_like(seen)
    if occupied.all():
        raise ValueError(f"map={str(path)!r}: every cell of {data['image']!r} is occupied; some must be free")
    strange = [str(key) for key in data if key not in _KEYS]
    return OccupancyMap(
        name=path.stem,
        occupied=np.ascontiguousarray(occupied[::-1]),
        resolution=resolution,
        origin=_pose(path, "origin", data["origin"]),
        spawns=_spawns(path, data.get("annotations")),
        seen=np.ascontiguousarray(seen[::-1]),
        notes=(f"ignores {', '.join(strange)} of its yaml file",) if strange else (),
        files=(path, path.parent / str(data["image"])),
    )


def _cells(path: Path, data: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns masks `[H, W]` of the occupied and of the seen cells of an image, the top row first."""
    mode, negate = data.get("mode", MODES[0]), data.get("negate", 0)
    if mode not in MODES:
        raise ValueError(f"map={str(path)!r}: mode={mode}; must be {', '.join(MODES)}")
    if negate not in (0, 1):
        raise ValueError(f"map={str(path)!r}: negate={negate}; must be 0 or 1")
    taken = _share(path, data, "occupied_thresh", 0.65)
    grey, opaque = _read_grey(path, str(data["image"]))
    if mode == "raw":
        percent = np.rint(255 * (1.0 - grey if negate else grey))
        known = percent <= 100
        return known & (percent > 100 * taken), known
    chance = grey if negate else 1.0 - grey
    occupied = (chance > taken) & opaque
    if mode == "scale":
        return occupied, opaque
    free = (chance < _share(path, data, "free_thresh", 0.196)) & ~occupied & opaque
    return occupied, (occupied | free) & ~_never_seen(chance, free)


def _never_seen(chance: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Returns the free cells `[H, W]` that have the grey of unseen cells."""
    border = np.concatenate([chance[0], chance[-1], chance[1:-1, 0], chance[1:-1, -1]])
    levels = [_SAVED_UNKNOWN, np.median(border)]
    found = np.zeros_like(free)
    for level, share in zip(levels, (1.0, np.mean(np.abs(border - levels[1]) < 1e-3)), strict=True):
        floor = free & (chance <= level - _CONTRAST)
        if share > 0.5 and floor.mean() >= _FLOOR:
            found |= free & (np.abs(chance - level) < 0.5 / 255)
    return found


def _share(path: Path, data: Mapping[str, Any], key: str, default: float) -> float:
    value = _number(path, data, key, default)
    if not 0 <= value <= 1:
        raise ValueError(f"map={str(path)!r}: {key}={value}; must lie in [0, 1]")
    return value


def _read_yaml(path: Path) -> Mapping[str, Any]:
    allowed = "allowed: 'line2', 'track:SEED' or the path of a map_server .yaml file"
    if not path.is_file():
        raise ValueError(f"map={str(path)!r}: no such file; {allowed}")
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise ValueError(f"map={str(path)!r}: not readable as yaml; {allowed}") from None
    if not isinstance(data, dict):
        raise ValueError(f"map={str(path)!r}: not a mapping; keys image, resolution and origin are needed")
    missing = [key for key in _NEEDED if data.get(key) is None]
    if missing:
        raise ValueError(f"map={str(path)!r}: lacks {', '.join(missing)}; {', '.join(_NEEDED)} are needed")
    return data


def _number(path: Path, data: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = data.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"map={str(path)!r}: {key}={value}; must be a finite number")
    return number


def _pose(path: Path, key: str, value: Any) -> Pose:
    try:
        x, y, yaw = (float(number) for number in value)
    except (TypeError, ValueError):
        x = y = yaw = math.nan
    if not all(math.isfinite(number) for number in (x, y, yaw)):
        raise ValueError(f"map={str(path)!r}: {key}={value}; must be three finite numbers [x, y, yaw]")
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


def _read_grey(path: Path, image: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns luminances in [0, 1] and a mask of opaque pixels, `[H, W]` each, the top row first."""
    file = path.parent / image
    if not file.is_file():
        raise ValueError(f"map={str(path)!r}: image={image} does not exist; a png or pgm file is needed")
    try:
        with Image.open(file) as picture:
            if picture.mode.startswith("I"):
                grey = np.asarray(picture, np.float64) / 65535.0
                return grey, np.ones(grey.shape, bool)
            clear = picture.has_transparency_data
            if clear or picture.mode == "P":
                picture = picture.convert("RGBA" if clear else "RGB")
            grey = np.asarray(picture.convert("L"), np.float64) / 255.0
            opaque = np.asarray(picture.getchannel("A")) == 255 if clear else np.ones(grey.shape, bool)
            return grey, opaque
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ValueError(f"map={str(path)!r}: image={image} is not a readable png or pgm file") from None
