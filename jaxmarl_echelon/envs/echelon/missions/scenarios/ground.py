"""Terrain data of scenarios: places for mechs, coverage cells and density of obstacles.

Computed once on the host; drawing a scenario only looks it up. Reference: docs/reference/echelon.md 15.6.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon.missions.measures.facts import AREA
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from physics.host_arrays import put_array
from physics.voxels import LAVA

TERRAINS = {
    "urban": ("urban_residential", "civic_government", "arcology_spire", "command_outpost", "server_farm"),
    "forest": ("forest_park", "dense_jungle", "hydroponic_lab"),
    "industrial": (
        "industrial_refinery", "sunken_canal", "mining_pit", "orbital_relay", "geo_front",
    ),
    "open": ("barrens", "glass_desert", "volcanic_ridge"),
}  # fmt: skip
EMPTY = "barrens"
QUADRANTS = 4
# Places form a lattice of blocks, each large enough for the largest mech.
BLOCK = 4
_HEADROOM, _EYE = 5, 4
_DENSE = 0.35
_WORD = 32
# Maps up to this side length use small coverage cells, most of which can be entered in an episode.
SMALL = 60
SMALL_CELL, LARGE_CELL = 5, 10
SMALL_TARGET, LARGE_TARGET = 0.8, 0.4


class ScenarioGround(struct.PyTreeNode):
    """Terrain data of scenarios, for N terrains.

    Attributes:
      places: `[P, 2]` x and y of the places of a lattice, the same for all terrains.
      free: `[N, P]` bool; any mech can stand there and reach it.
      complexity: `[N, P, R]` density of opaque columns around an objective at a place, from 0 (open field)
        to 1, by the objective's radius in whole voxels from 0.
      open_cells: `[N, W]` uint32 bits of the reachable coverage cells.
      cell: edge of a coverage cell, voxels (static).
      columns: coverage cells along x (static).
    """

    places: jax.Array
    free: jax.Array
    complexity: jax.Array
    open_cells: jax.Array
    cell: int = struct.field(pytree_node=False)
    columns: int = struct.field(pytree_node=False)

    def complexity_of(self, index: jax.Array, place: jax.Array, radius: jax.Array) -> jax.Array:
        """Returns the density around objectives of any radius, interpolated between whole voxels.

        Args:
          index: int32 terrain.
          place: `[...]` int32 places.
          radius: scalar, voxels.
        """
        radius = jnp.clip(radius, 0.0, self.complexity.shape[-1] - 1.0)
        low = jnp.floor(radius).astype(jnp.int32)
        high = jnp.minimum(low + 1, self.complexity.shape[-1] - 1)
        below, above = (self.complexity[index, place, whole] for whole in (low, high))
        return below + (radius - low) * (above - below)

    def cell_of(self, position: jax.Array) -> jax.Array:
        """Returns the index of the coverage cell at positions `[..., 2 or 3]`, int32 `[...]`."""
        x, y = (position[..., axis].astype(jnp.int32) // self.cell for axis in (0, 1))
        return y * self.columns + x


def make_scenario_ground(bank: TerrainBank, cell: int | None = None) -> ScenarioGround:
    """Computes the terrain data of a bank.

    Args:
      bank: terrains.
      cell: edge of a coverage cell, voxels; by default 5, and 10 on maps longer than 60.
    """
    width, depth, _ = bank.size
    cell = cell or (SMALL_CELL if max(width, depth) <= SMALL else LARGE_CELL)
    solid, opaque = np.asarray(bank.voxels.solid), np.asarray(bank.voxels.opaque)
    lava = (np.asarray(bank.voxels.material)[:, :1] == LAVA).any(1)
    reachable = np.asarray(bank.reachable)
    blocked = _blocks((solid & ((1 << _HEADROOM) - 1)).astype(bool) | lava)
    x = np.arange(width // BLOCK) * BLOCK + BLOCK // 2
    y = np.arange(depth // BLOCK) * BLOCK + BLOCK // 2
    near = reachable[:, y][:, :, x] | reachable[:, y - 1][:, :, x - 1]
    places = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2).astype(np.float32)
    return ScenarioGround(
        places=put_array(places),
        free=put_array((near & ~blocked).reshape(len(solid), -1)),
        complexity=put_array(_complexity((opaque & ((1 << _EYE) - 1)).astype(bool))),
        open_cells=put_array(_words(_cells(reachable, cell))),
        cell=cell,
        columns=-(-width // cell),
    )


def default_cover_target(size: Sequence[int]) -> float:
    """Returns the share of reachable cells that counts as full coverage, by map size."""
    return SMALL_TARGET if max(size[:2]) <= SMALL else LARGE_TARGET


def draw_biomes(
    maps: int, seed: int, terrains: Sequence[str], complexity: tuple[float, float]
) -> list[tuple[str, ...]]:
    """Draws the biomes of maps: terrain types alternate, complexity determines the painted quadrants.

    Args:
      maps: number of maps.
      seed: of the first map; the same seeds yield the same biomes.
      terrains: names of `TERRAINS`.
      complexity: range within [0, 1] from which each map draws: 0 paints one quadrant, 1 all four.
    """
    found = []
    for number in range(maps):
        rng = np.random.default_rng((seed + number, len(terrains)))
        names = TERRAINS[terrains[number % len(terrains)]]
        painted = 1 + round((QUADRANTS - 1) * rng.uniform(*complexity))
        chosen = rng.choice(names, painted, replace=painted > len(names))
        found.append((*map(str, chosen), *[EMPTY] * (QUADRANTS - painted)))
    return found


def _blocks(columns: np.ndarray) -> np.ndarray:
    """Returns bool: any column `[N, Y, X]` of the block is set; partial blocks at far edges are dropped."""
    maps, depth, width = columns.shape
    depth, width = depth // BLOCK, width // BLOCK
    whole = columns[:, : depth * BLOCK, : width * BLOCK]
    return whole.reshape(maps, depth, BLOCK, width, BLOCK).any((2, 4))


def _complexity(opaque: np.ndarray) -> np.ndarray:
    """Returns the density `[N, P, R]` of opaque columns `[N, Y, X]` around places.

    See `ScenarioGround.complexity`. It covers the area of operations without the objective, which the
    generator may have cleared. Radii go up to half of the map's longer side.
    """
    radii, area = np.arange(max(opaque.shape[1:]) // 2 + 1), int(AREA)
    blocked, whole = (_within(x, radii[-1] + area) for x in (opaque, np.ones_like(opaque[:1])))
    found, ring = (x[..., radii + area] - x[..., radii] for x in (blocked, whole))
    return np.minimum(found / np.maximum(ring, 1) / _DENSE, 1.0).astype(np.float32)


def _within(columns: np.ndarray, reach: int) -> np.ndarray:
    """Returns numbers `[N, P, reach + 1]` of set columns `[N, Y, X]` within whole distances of each place.

    Computed by rows: the sum over a part of a row is a difference of two cumulative sums.
    """
    maps, depth, width = columns.shape
    padded = np.pad(columns, ((0, 0), (reach, reach), (reach + 1, reach)))
    along = padded.cumsum(2, dtype=np.int32)
    rows, places = depth // BLOCK, width // BLOCK
    found = np.zeros((reach + 1, maps, rows, places), np.int32)

    def at(row: int, column: int) -> np.ndarray:
        """Returns cumulative sums before a column of a row, both relative to each place."""
        y, x = (reach + BLOCK // 2 + offset for offset in (row, column))
        return along[:, y::BLOCK, x::BLOCK][:, :rows, :places]

    for radius in range(1, reach + 1):
        for row in range(-radius, radius):
            # Centres of columns are offset by half a voxel.
            half = int(np.sqrt(radius**2 - (row + 0.5) ** 2) + 0.5)
            found[radius] += at(row, half) - at(row, -half)
    return np.moveaxis(found, 0, -1).reshape(maps, rows * places, -1)


def _cells(reachable: np.ndarray, cell: int) -> np.ndarray:
    """Returns bool `[N, C]`: any column of the coverage cell is reachable."""
    maps, depth, width = reachable.shape
    rows, columns = -(-depth // cell), -(-width // cell)
    padded = np.zeros((maps, rows * cell, columns * cell), bool)
    padded[:, :depth, :width] = reachable
    return padded.reshape(maps, rows, cell, columns, cell).any((2, 4)).reshape(maps, -1)


def _words(flags: np.ndarray) -> np.ndarray:
    """Packs flags `[N, C]` into uint32 words `[N, ceil(C / 32)]`, lowest bit first."""
    maps, count = flags.shape
    words = -(-count // _WORD)
    padded = np.zeros((maps, words * _WORD), bool)
    padded[:, :count] = flags
    packed = np.packbits(padded, axis=1, bitorder="little")
    return packed.view("<u4").astype(np.uint32)
