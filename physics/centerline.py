"""Centrelines of tracks on the host: F1TENTH file formats, arc length, headings, equidistant resampling.

See docs/reference/f110.md 4.1 and 4.2.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

_SUFFIXES = ("_centerline.csv", "_waypoints.csv", "_raceline.csv", "_wp.csv")
_UNNAMED = ("centerline.csv", "global_waypoints.json", "waypoints.csv", "raceline.csv", "traj_race_cl.csv")
_WAYPOINTS = ("centerline_waypoints", "global_traj_wpnts_iqp", "global_traj_wpnts_sp")
_WAYPOINT = ("x_m", "y_m", "d_right", "d_left")
_MAP = "_map"
_REPEATED = 0.05
_COLUMNS = {
    "x": "x", "x_m": "x",
    "y": "y", "y_m": "y",
    "x_ref_m": "x", "y_ref_m": "y",
    "w_tr_right_m": "right", "w_tr_left_m": "left",
    "width_right_m": "right", "width_left_m": "left",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Centerline:
    """A polyline along a track, in driving direction.

    Attributes:
      x, y: `[N]` metres.
      heading: `[N]` tangent angle in radians, mean direction of the adjoining segments.
      s: `[N]` arc length from the first point in metres.
      left, right: `[N]` distance to the wall on either side in metres, or None where not known.
      length: total arc length in metres, including the closing segment of a closed line.
      closed: whether the last point connects to the first.
      source: origin of the line as text: a file's path, or how it was made.
    """

    x: np.ndarray
    y: np.ndarray
    heading: np.ndarray
    s: np.ndarray
    left: np.ndarray | None
    right: np.ndarray | None
    length: float
    closed: bool
    source: str = ""

    @property
    def points(self) -> np.ndarray:
        """Points `[N, 2]`, m."""
        return np.stack([self.x, self.y], axis=-1)

    @property
    def area(self) -> float:
        """Signed area in m^2 inside the closed polygon of the points, positive counter-clockwise."""
        # Relative to one of the points: far from the world's origin the products lose precision.
        x, y = self.x - self.x[0], self.y - self.y[0]
        return float(0.5 * np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)))

    @property
    def course(self) -> str:
        """Direction of the line as text: the turning sense of a closed line, the ends of an open one."""
        if self.closed:
            return "counter-clockwise" if self.area > 0 else "clockwise"
        ends = (f"({x:.1f}, {y:.1f})" for x, y in self.points[[0, -1]])
        return "open, " + " to ".join(ends)

    def backwards(self) -> "Centerline":
        """Returns the reversed line; it starts at the same point, or at the end of an open line."""
        order = np.arange(len(self.x))[::-1]
        order = np.roll(order, 1) if self.closed else order
        sides = {"left": self.right, "right": self.left}
        made = centerline_from_points(
            self.points[order],
            closed=self.closed,
            **{name: None if side is None else side[order] for name, side in sides.items()},
        )
        return replace(made, source=f"{self.source}, reversed")


def centerline_from_points(
    points: np.ndarray,
    closed: bool | None = None,
    left: np.ndarray | None = None,
    right: np.ndarray | None = None,
) -> Centerline:
    """Builds a centreline from `[N, 2]` points in metres.

    Points within a twentieth of the median spacing of the previous point are dropped, and so is a
    last point that near to the first, which closes the line unless `closed` is False. With
    `closed=None` the line also counts as closed if the gap between its ends is at most 2.5 times
    the median spacing.

    Raises:
      ValueError: fewer than two distinct points (three on a closed line), or a non-finite one.
    """
    points = np.asarray(points, np.float64)
    if not np.isfinite(points).all():
        raise ValueError("centerline: non-finite point; all coordinates must be finite numbers")
    keep, same = _distinct(points)
    if closed is not False and keep.sum() > 2 and np.linalg.norm(points[0] - points[keep][-1]) <= same:
        keep[np.flatnonzero(keep)[-1]] = False
        closed = True
    points = points[keep]
    if closed is None:
        closed = _ends_meet(points)
    if len(points) < (3 if closed else 2):
        raise ValueError(
            f"centerline: {len(points)} distinct points; at least {3 if closed else 2} are needed"
        )
    chords = np.linalg.norm(_segments(points, closed), axis=1)
    s = np.concatenate([[0.0], np.cumsum(chords)])
    return Centerline(
        x=points[:, 0],
        y=points[:, 1],
        heading=_headings(points, closed),
        s=s[: len(points)],
        left=None if left is None else np.asarray(left, np.float64)[keep],
        right=None if right is None else np.asarray(right, np.float64)[keep],
        length=float(s[-1]),
        closed=closed,
    )


def _distinct(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns a mask of the points `[N, 2]` that do not repeat the last kept one, and the tolerance.

    A rounded repetition leaves a segment that is too short to have a meaningful direction.
    """
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    moving = steps[steps > 1e-9]
    same = max(1e-9, _REPEATED * float(np.median(moving))) if moving.size else 1e-9
    keep, last = np.ones(len(points), bool), 0
    if (steps > same).all():
        return keep, same
    # Distances from the last kept point, so that many small steps add up to a movement.
    for index in range(1, len(points)):
        keep[index] = np.linalg.norm(points[index] - points[last]) > same
        last = index if keep[index] else last
    return keep, same


def _ends_meet(points: np.ndarray) -> bool:
    if len(points) < 4:
        return False
    spacing = np.median(np.linalg.norm(np.diff(points, axis=0), axis=1))
    return bool(np.linalg.norm(points[0] - points[-1]) <= 2.5 * spacing)


def _segments(points: np.ndarray, closed: bool) -> np.ndarray:
    return np.diff(points, axis=0, append=points[:1]) if closed else np.diff(points, axis=0)


def _headings(points: np.ndarray, closed: bool) -> np.ndarray:
    chords = _segments(points, closed)
    units = chords / np.linalg.norm(chords, axis=1, keepdims=True)
    before = np.roll(units, 1, axis=0) if closed else np.concatenate([units[:1], units])
    after = units if closed else np.concatenate([units, units[-1:]])
    tangent = before + after
    # At a spike that folds back on itself the mean direction vanishes; the outgoing one is used.
    tangent = np.where(np.linalg.norm(tangent, axis=1, keepdims=True) > 1e-9, tangent, after)
    return np.arctan2(tangent[:, 1], tangent[:, 0])


def resample_centerline(line: Centerline, count: int) -> Centerline:
    """Resamples a centreline to `count` points joined by chords of equal length.

    The new points lie on the old polyline; the ends of an open line are kept. Chords that cut
    a corner are shorter than the arc, so positions are adjusted until all chords agree; the new
    arc length is that of the new polyline. Widths are interpolated.
    """
    old_s = np.append(line.s, line.length) if line.closed else line.s
    segments = count if line.closed else count - 1

    def at(position: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.interp(position, old_s, np.append(values, values[:1]) if line.closed else values)

    position = np.linspace(0.0, line.length, segments + 1)
    for _ in range(100):
        points = np.stack([at(position, line.x), at(position, line.y)], axis=-1)
        arc = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
        target = np.linspace(0.0, arc[-1], segments + 1)
        if np.max(np.abs(arc - target)) < 1e-9 * arc[-1]:
            break
        position = np.interp(target, arc, position)
    points = np.stack([at(position[:count], line.x), at(position[:count], line.y)], axis=-1)
    made = centerline_from_points(points, closed=line.closed)
    widths = [None if side is None else at(position[:count], side) for side in (line.left, line.right)]
    return replace(made, left=widths[0], right=widths[1], source=line.source)


def find_centerline(stem: Path) -> Path | None:
    """Finds the centreline file of the map file `STEM.yaml`: the first of these that exists.

    `STEM_centerline.csv`, `STEM_waypoints.csv`, `STEM_raceline.csv`, `STEM_wp.csv`; then the same with the
    suffix `_map` removed from STEM, or added if it is missing: f1tenth_racetracks has
    `Monza_centerline.csv` next to `Monza_map.yaml`.
    """
    name = stem.name
    other = name.removesuffix(_MAP) if name.endswith(_MAP) else name + _MAP
    for base in (name, other):
        for suffix in _SUFFIXES if base else ():
            path = stem.with_name(base + suffix)
            if path.is_file():
                return path
    return None


def unnamed_centerlines(folder: Path) -> list[Path]:
    """Lists a folder's centreline files whose names do not contain a map's name, the likeliest first.

    `centerline.csv`; `global_waypoints.json`, which the race stack of ForzaETH keeps in the folder of each
    map; `waypoints.csv`, `raceline.csv`; and `traj_race_cl.csv` of TUM's global_racetrajectory_optimization.
    """
    return [path for path in map(folder.joinpath, _UNNAMED) if path.is_file()]


def read_centerline(path: str | Path) -> Centerline:
    """Reads a centreline file.

    Three text layouts of F1TENTH projects are read: `x,y,theta,velocity` under a header row;
    comma-separated `# x_m, y_m, w_tr_right_m, w_tr_left_m`; and the semicolon-separated raceline
    `# s_m; x_m; y_m; psi_rad; kappa_radpm; vx_mps; ax_mps2`. Columns are found by name; without
    names a line of seven or more fields is a raceline with any separator, and otherwise the
    first two fields are x and y. Headings in the file are ignored; rows without finite x and y
    are skipped; widths are kept only if the whole column is finite and positive.

    A `.json` file is the `global_waypoints.json` of https://github.com/ForzaETH/race_stack: the waypoints of
    its centreline, or else of its racing line, with their distances to the walls.

    Raises:
      ValueError: the file is missing, is not text, or does not hold such rows.
    """
    path = Path(path)
    try:
        # Spreadsheets put a byte order mark before the first name.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        needed = "a .csv or .json file is needed"
        raise ValueError(f"centerline={str(path)!r}: not a readable text file; {needed}") from None
    rows = _waypoints(path, text) if path.suffix == ".json" else _text_rows(path, text)
    table = np.array([row for row in rows if np.isfinite(row[:2]).all()]).reshape(-1, 4)
    if len(table) < 2:
        raise ValueError(f"centerline={str(path)!r}: {len(table)} rows with finite x and y; 2 are needed")
    right, left = (side if (np.isfinite(side) & (side > 0)).all() else None for side in table[:, 2:].T)
    return replace(centerline_from_points(table[:, :2], left=left, right=right), source=str(path))


def _waypoints(path: Path, text: str) -> list[list[float]]:
    """Returns rows x, y, right, left of a `global_waypoints.json`."""
    try:
        held = json.loads(text)
        points = next(held[name]["wpnts"] for name in _WAYPOINTS if held.get(name, {}).get("wpnts"))
        return [[float(point.get(name, "nan")) for name in _WAYPOINT] for point in points]
    except (ValueError, TypeError, AttributeError, KeyError, StopIteration):
        names = ", ".join(_WAYPOINTS)
        raise ValueError(f"centerline={str(path)!r}: has no waypoints under {names}") from None


def _text_rows(path: Path, text: str) -> list[list[float]]:
    """Returns rows x, y, right, left of separated text."""
    names, rows = None, []
    for number, line in enumerate(text.splitlines(), 1):
        fields = [field.strip() for field in line.lstrip("# \t").split(";" if ";" in line else ",")]
        known = {_COLUMNS[field]: i for i, field in enumerate(fields) if field in _COLUMNS}
        if "x" in known and "y" in known:
            names = known
        elif line.strip() and not line.lstrip().startswith("#"):
            rows.append(_row(path, number, fields, names or _guess_columns(fields)))
    return rows


def _guess_columns(fields: list[str]) -> dict[str, int]:
    return {"x": 1, "y": 2} if len(fields) >= 7 else {"x": 0, "y": 1}


def _row(path: Path, number: int, fields: list[str], columns: dict[str, int]) -> list[float]:
    try:
        texts = {name: fields[i] for name, i in columns.items()}
        return [float(texts.get(name) or "nan") for name in ("x", "y", "right", "left")]
    except (IndexError, ValueError):
        raise ValueError(
            f"centerline={str(path)!r}: line {number} {','.join(fields)!r} lacks numbers for x and y"
        ) from None
