"""Loading of maps by name: ROS map_server files, the embedded `line2` and generated tracks."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from physics.centerline import (
    Centerline,
    centerline_from_points,
    find_centerline,
    read_centerline,
    unnamed_centerlines,
)
from physics.derived_line import add_derived_centerline
from physics.gridmap import OccupancyMap, distance_field, fill_widths
from physics.map_server import read_map
from physics.mapbank import MapBank, distance_at, map_bank, world_to_cell
from physics.tracks import generate_track

__all__ = [
    "MapBank",
    "OccupancyMap",
    "distance_at",
    "distance_field",
    "is_built_in",
    "line2",
    "load_map",
    "map_bank",
    "read_map",
    "world_to_cell",
]

LINE2 = "line2"
TRACK = "track:"
_FITS = 0.95


def load_map(
    spec: str | Path, *, unknown: str = "free", centerline: str | Path | None = None
) -> OccupancyMap:
    """Loads the map called `spec`, with its centreline if it has one.

    A map from a file takes its centreline from `centerline`, or else from a file in the map's folder, see
    `find_centerline` and `unnamed_centerlines`. Without a file the line is derived from the walls if they
    enclose a loop, and then runs counter-clockwise. A derived line that does not lie between two walls that
    were seen is refused: the map then has no line, and `refused_line` holds the reason. `unknown` and
    `centerline` apply to files only.

    Args:
      spec: "line2", "track:SEED" (a generated track) or the path of a map_server yaml file.
      unknown: see `physics.map_server.read_map`.
      centerline: path of a centreline file.

    Raises:
      ValueError: an unknown name, or a broken file; one line with the value and what is allowed.
    """
    spec = str(spec)
    if is_built_in(spec):
        if centerline is not None:
            raise ValueError(f"centerline={str(centerline)!r}: {spec} has its own; must be null")
        return line2() if spec == LINE2 else generate_track(_seed(spec))
    grid = read_map(spec, unknown=unknown)
    if centerline is not None:
        return _with_line(grid, read_centerline(centerline), Path(centerline))
    stem = Path(spec).with_suffix("")
    found = find_centerline(stem)
    if found is not None:
        return _with_line(grid, read_centerline(found), found)
    notes = []
    for path in unnamed_centerlines(stem.parent):
        # The file's name does not name a map: it belongs to this map only if its line fits.
        line = read_centerline(path)
        if np.mean(grid.distance(line.points) > 0) >= _FITS:
            return _with_line(grid, line, path)
        notes.append(f"ignores {path.name} in its folder, which does not fit its walls")
    return add_derived_centerline(replace(grid, notes=(*grid.notes, *notes)))


def is_built_in(spec: str) -> bool:
    """Tells whether a map is built in (`line2`) or generated (`track:SEED`) instead of read from a file."""
    return spec == LINE2 or spec.startswith(TRACK)


def _seed(spec: str) -> int:
    seed = spec.removeprefix(TRACK)
    if not (seed.isascii() and seed.isdigit()):
        raise ValueError(f"map={spec}: the seed must be a non-negative integer, as in 'track:7'")
    return int(seed)


def _with_line(grid: OccupancyMap, line: Centerline, file: Path) -> OccupancyMap:
    if np.mean(grid.distance(line.points) > 0) < 0.5:
        where = str(grid.files[0])
        raise ValueError(f"centerline={str(file)!r}: most points lie in walls of {where!r}, not on its track")
    return replace(grid, centerline=fill_widths(grid, line), files=(*grid.files, file))


def line2() -> OccupancyMap:
    """Returns the straight closed box of the gaplock scenarios: 98.8 m by 2.6 m inside.

    The original canvas has 2000 x 2000 cells of 0.05 m with its corner at (-51.224998,
    -51.224998). Only the box and its walls (4 cells along the sides, 5 at the ends) are kept;
    the cells stay aligned with the original's. The centreline is the original's without the
    points in the end wall, and the spawns are those annotated on the original map. See
    docs/reference/f110.md 3.4.
    """
    resolution, corner = 0.05, -51.224998
    first_row, first_col = 980, 7
    occupied = np.ones((60, 1986), bool)
    occupied[4:56, 5:1981] = False
    x = -50.6 + 0.2 * np.arange(494)
    grid = OccupancyMap(
        name=LINE2,
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
    return replace(grid, centerline=fill_widths(grid, grid.centerline))
