"""Map generation: four biomes, two teams' corners, a zone, and connections between them.

Follows the original's generator in distribution, with other random streams.
Reference: docs/reference/echelon.md 11.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
from scipy import ndimage, sparse
from scipy.sparse import csgraph

from jaxmarl_echelon.envs.echelon.terrain import zones
from jaxmarl_echelon.envs.echelon.terrain.biomes import BIOMES, check_biomes, paint_biome
from jaxmarl_echelon.envs.echelon.terrain.navigation import CLEARANCE, NavGraph, build_nav_graph, trace_path
from physics.voxels import AIR, COLLIDES, DIRT, MATERIALS, MAX_HEIGHT

VERSION = 3  # incremented whenever the same seed and size yield a different map
TRANSFORMS = ("identity", "flip_x", "flip_y", "flip_xy")
_LOWEST = 6
_REPAIRS, _REPAIR_WIDTH, _WALL_COST = 3, 5, 80.0
_SAMPLES = 1.5


@dataclass(frozen=True, eq=False)
class MapLayout:
    """One map. Lengths are voxels; x, y, z with z up.

    Attributes:
      voxels: `[Z, Y, X]` uint8 materials.
      zone: centre x, y and radius.
      corners: of blue and red; 0 bottom left, 1 bottom right, 2 top left, 3 top right, where bottom is
        low y and left is low x.
      reachable: `[Y, X]` bool, columns with a navigation node reachable from one of the two corners.
      biomes: of the quadrants in the order of the corners; empty for maps made by hand.
      transform: mirroring of the painted map, one of `TRANSFORMS`.
      repairs: number of lanes cut because a team could not reach the zone.
      seed: of the generator, -1 for maps made by hand.
    """

    voxels: np.ndarray
    zone: tuple[float, float, float]
    corners: tuple[int, int]
    reachable: np.ndarray
    biomes: tuple[str, ...] = ()
    transform: str = "identity"
    repairs: int = 0
    seed: int = -1

    @property
    def size(self) -> tuple[int, int, int]:
        """Voxels along x, y and z."""
        return self.voxels.shape[::-1]


def check_size(size: Sequence[int], team_size: int = 10) -> tuple[int, int, int]:
    """Validates a size (x, y, z) and returns it as integers.

    Raises:
      ValueError: not three whole numbers, too low or too high, or no room for both teams and a zone.
    """
    whole = len(size) == 3 and all(isinstance(n, Real) and float(n).is_integer() for n in size)
    if not whole:
        raise ValueError(f"env.size={list(size)}: must be three whole numbers, voxels along x, y and z")
    width, depth, height = size = tuple(int(n) for n in size)
    if not _LOWEST <= height <= MAX_HEIGHT:
        raise ValueError(
            f"env.size={list(size)}: must have between {_LOWEST} and {MAX_HEIGHT} voxels along z"
        )
    wide, deep = zones.formation_extent(team_size)
    apart = 2 * wide <= width or 2 * deep <= depth
    if wide > width or deep > depth or not apart or min(width, depth) < zones.LEAST_SIDE:
        shortest = max(zones.LEAST_SIDE, -int(-2 * deep // 1))
        raise ValueError(
            f"env.size={list(size)}: no room for a zone and two teams of {team_size} mechs; "
            f"at least {-int(-wide // 1)} along x and {shortest} along y"
        )
    return size


def generate_map(
    seed: int, size: Sequence[int], *, biomes: Sequence[str] | None = None, team_size: int = 10
) -> MapLayout:
    """Generates a map; deterministic in its arguments.

    Args:
      seed: not negative.
      size: voxels along x, y and z.
      biomes: names to draw from; all sixteen if None. With four names or more they are drawn without
        replacement, so that quadrants differ if all names do.
      team_size: mechs of a team, determines the cleared corners.

    Raises:
      ValueError: an impossible size or an unknown biome.
      RuntimeError: a team cannot reach the zone even after repairs.
    """
    size = check_size(size, team_size)
    biomes = BIOMES if biomes is None else tuple(biomes)
    check_biomes(biomes)
    world, variants = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    voxels, painted = _paint_quadrants(world, size, biomes)
    voxels, painted, corners, transform = _turn(variants, voxels, painted)
    side = zones.spawn_side(size, team_size)
    squares = [zones.spawn_square(corner, size, side) for corner in corners]
    for x, y in squares:
        voxels[:, y : y + side, x : x + side] = AIR
    zone = zones.draw_zone(world, voxels, squares, side)
    zones.clear_zone(voxels, zone)
    anchors = [zones.spawn_anchor(corner, size, side) for corner in corners]
    voxels[: CLEARANCE + 1, _corridors(world, voxels.shape[1:], zone, anchors)] = AIR
    reachable, repairs = _connect(voxels, anchors, zone)
    _fill_ground(voxels)
    return MapLayout(voxels, zone, corners, reachable, painted, transform, repairs, seed)


def make_map(
    voxels: np.ndarray,
    zone: tuple[float, float, float],
    corners: tuple[int, int] = (0, 3),
    team_size: int = 10,
) -> MapLayout:
    """Builds a map from given voxels, unchanged.

    Args:
      voxels: `[Z, Y, X]` materials.
      zone: centre x, y and radius.
      corners: of blue and red, as in `MapLayout`.
      team_size: mechs of a team.

    Raises:
      ValueError: an impossible size, an unknown material, or a zone or corners outside the map.
    """
    voxels = np.array(voxels)
    if voxels.ndim != 3:
        raise ValueError(f"voxels: shape {voxels.shape}; must be [Z, Y, X]")
    size = check_size(voxels.shape[::-1], team_size)
    unknown = np.setdiff1d(voxels, np.arange(len(MATERIALS)))
    if unknown.size:
        allowed = f"0 to {len(MATERIALS) - 1} ({', '.join(MATERIALS)})"
        raise ValueError(f"voxels: unknown material {unknown[0]}; allowed: {allowed}")
    x, y, radius = zone = tuple(float(v) for v in zone)
    if not (radius > 0 and radius <= x <= size[0] - radius and radius <= y <= size[1] - radius):
        raise ValueError(
            f"zone={zone}: must be centre x, y and a positive radius, inside {size[0]} x {size[1]} voxels"
        )
    if len(set(corners)) != 2 or not set(corners) <= set(range(4)):
        raise ValueError(f"corners={tuple(corners)}: must be two different corners, each 0, 1, 2 or 3")
    voxels = voxels.astype(np.uint8)
    side = zones.spawn_side(size, team_size)
    anchors = [zones.spawn_anchor(corner, size, side) for corner in corners]
    return MapLayout(voxels, zone, tuple(corners), _reachable(build_nav_graph(voxels), anchors))


def make_flat_map(
    size: Sequence[int],
    zone: tuple[float, float, float] | None = None,
    corners: tuple[int, int] = (0, 3),
    team_size: int = 10,
) -> MapLayout:
    """Builds an empty map with a floor of dirt; by default the zone is central, with a radius up to 7.5."""
    width, depth, height = check_size(size, team_size)
    voxels = np.zeros((height, depth, width), np.uint8)
    _fill_ground(voxels)
    radius = min(zones.MEAN_RADIUS, min(width, depth) / 2 - zones.EDGE)
    return make_map(voxels, zone or (width / 2, depth / 2, radius), corners, team_size)


def _fill_ground(voxels: np.ndarray) -> None:
    voxels[0][voxels[0] == AIR] = DIRT


def _paint_quadrants(
    rng: np.random.Generator, size: tuple[int, int, int], biomes: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns a map before mirroring, and the biomes of its quadrants."""
    width, depth, height = size
    voxels = np.zeros((height, depth, width), np.uint8)
    jitter = [int(0.1 * span) for span in (width, depth)]
    x, y = (span // 2 + int(rng.integers(-j, j + 1)) for span, j in zip((width, depth), jitter, strict=True))
    chosen = tuple(str(b) for b in rng.choice(biomes, 4, replace=len(biomes) < 4))
    for quadrant, biome in enumerate(chosen):
        rows = slice(y, None) if quadrant // 2 else slice(y)
        columns = slice(x, None) if quadrant % 2 else slice(x)
        paint_biome(biome, voxels[:, rows, columns], rng)
    return voxels, chosen


def _turn(
    rng: np.random.Generator, voxels: np.ndarray, painted: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...], tuple[int, int], str]:
    """Draws opposite corners for the teams, and mirrors the map together with biomes and corners."""
    blue, transform = int(rng.integers(4)), int(rng.integers(4))
    # The bits of a transform are those of a corner: 1 swaps left and right, 2 bottom and top.
    mirrored = voxels[:, :: -1 if transform & 2 else 1, :: -1 if transform & 1 else 1]
    corners = blue ^ transform, 3 ^ blue ^ transform
    painted = tuple(painted[corner ^ transform] for corner in range(4))
    return np.ascontiguousarray(mirrored), painted, corners, TRANSFORMS[transform]


def _corridors(
    rng: np.random.Generator,
    shape: tuple[int, int],
    zone: tuple[float, float, float],
    anchors: list[tuple[float, float]],
) -> np.ndarray:
    """Returns bool `[Y, X]`, columns of the lanes: one around the zone, and two from each team to it."""
    side = min(shape)
    width = min(int(np.clip(round(0.06 * side), 4, 8)), max(2, side // 4))
    centre, radius = np.array(zone[:2]), zone[2]
    ring = max(3, min(round(radius + 1.25 * width), int(0.35 * side)))
    square = [centre + ring * np.array(d) for d in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    lanes = list(zip(square, square[1:] + square[:1], strict=True))
    for anchor in np.array(anchors, float):
        lanes.append((anchor, centre))
        ahead = (centre - anchor) / max(np.hypot(*(centre - anchor)), 1e-6)
        offset = rng.uniform(1.5, 2.5) * width * rng.choice([-1, 1]) * np.array([-ahead[1], ahead[0]])
        lanes.append((anchor + offset, centre + offset))
    return _along(lanes, shape, width)


def _along(lanes: list[tuple[np.ndarray, np.ndarray]], shape: tuple[int, int], width: int) -> np.ndarray:
    """Returns bool `[Y, X]`, columns of straight lanes of one width."""
    middle = np.zeros(shape, bool)
    for start, end in lanes:
        samples = np.linspace(start, end, 2 + int(_SAMPLES * np.hypot(*(end - start))))
        x, y = np.floor(samples).astype(int).T
        inside = (x >= 0) & (x < shape[1]) & (y >= 0) & (y < shape[0])
        middle[y[inside], x[inside]] = True
    return ndimage.maximum_filter(middle, width, mode="constant", cval=False)


def _connect(
    voxels: np.ndarray, anchors: list[tuple[float, float]], zone: tuple[float, float, float]
) -> tuple[np.ndarray, int]:
    """Cuts lanes, in place, until both teams can reach the zone; returns reachable columns and lane count."""
    for repairs in range(2 * _REPAIRS + 1):
        graph = build_nav_graph(voxels)
        goal = graph.nearest((*zone[:2], 0.0))
        reached = [graph.reachable(graph.nearest((*anchor, 0.0))) for anchor in anchors]
        cut_off = [goal < 0 or not r[goal] for r in reached]
        if not any(cut_off):
            return _reachable(graph, anchors), repairs
        _cut(voxels, anchors[cut_off.index(True)], zone[:2])
    raise RuntimeError(f"no path to the zone at {zone[:2]} after {2 * _REPAIRS} attempts to cut one")


def _reachable(graph: NavGraph, anchors: list[tuple[float, float]]) -> np.ndarray:
    found = np.zeros(graph.node_lookup.shape[1:], bool)
    for anchor in anchors:
        x, y, _ = graph.feet[graph.reachable(graph.nearest((*anchor, 0.0)))].T
        found[y, x] = True
    return found


def _cut(voxels: np.ndarray, start: tuple[float, float], goal: tuple[float, float]) -> None:
    """Clears a lane at ground level along the cheapest path, where walls cost 81 and free columns 1."""
    blocked = COLLIDES[voxels[:CLEARANCE]].any(0)
    depth, width = blocked.shape
    cost = np.where(blocked, 1 + _WALL_COST, 1.0)
    index = np.arange(blocked.size).reshape(blocked.shape)
    inner = np.zeros_like(blocked)
    inner[1:-1, 1:-1] = True
    rows, columns = [], []
    for source, target in ((np.s_[:, :-1], np.s_[:, 1:]), (np.s_[:-1], np.s_[1:])):
        both = inner[source] & inner[target]
        rows += [index[source][both], index[target][both]]
        columns += [index[target][both], index[source][both]]
    rows, columns = np.concatenate(rows), np.concatenate(columns)
    grid = sparse.csr_array((cost.ravel()[columns], (rows, columns)), shape=(blocked.size, blocked.size))
    ends = [
        int(np.clip(int(y), 1, depth - 2) * width + np.clip(int(x), 1, width - 2)) for x, y in (start, goal)
    ]
    _, before = csgraph.dijkstra(grid, indices=ends[0], return_predecessors=True)
    lane = np.zeros(blocked.size, bool)
    lane[trace_path(before, *ends)] = True
    wide = ndimage.maximum_filter(lane.reshape(blocked.shape), _REPAIR_WIDTH, mode="constant", cval=False)
    voxels[:CLEARANCE, wide] = AIR
