"""Terrain banks: stacked arrays of many maps, with generation, caching and loading."""

import hashlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon.terrain.biomes import biomes_per_map
from jaxmarl_echelon.envs.echelon.terrain.layout import VERSION, MapLayout, check_size
from jaxmarl_echelon.envs.echelon.terrain.navigation import CLEARANCE, build_nav_graph, path_codes
from jaxmarl_echelon.envs.echelon.terrain.worker import run_map_job
from jaxmarl_echelon.envs.workers import run_jobs
from physics.host_arrays import put_array
from physics.voxels import SOLID, SOLID_DEBRIS, VoxelBank, voxel_bank

TELEMETRY_BLOCKS = 16
_PER_WORKER = 128  # a process takes as long to start as it takes to generate this many maps
_STORED = ("voxels", "zone", "corners", "reachable")
_BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


class TerrainBank(struct.PyTreeNode):
    """N maps of one size X x Y x Z, in voxels.

    Attributes:
      voxels: materials and their columns.
      zone: `[N, 3]` float32 centre x, y and radius.
      corners: `[N, 2]` int32 of blue and red; 0 bottom left, 1 bottom right, 2 top left, 3 top right, where
        bottom is low y and left is low x.
      occupancy: `[N, Y, X]` bool, columns with solid rock or solid debris among the lowest four voxels.
      telemetry: `[N, 16, 16]` float32, 1 where any column of a block holds solid rock or solid debris.
      reachable: `[N, Y, X]` bool, columns with a navigation node reachable from one of the two corners.
      seeds: seeds of the maps, -1 for maps made by hand (static).
      biomes: of each map, in the order of its corners; empty for maps made by hand (static).
      ways: `[N, Y, X, Z]` int8 path codes of `navigation.path_codes` to the zone; None unless added.
    """

    voxels: VoxelBank
    zone: jax.Array
    corners: jax.Array
    occupancy: jax.Array
    telemetry: jax.Array
    reachable: jax.Array
    seeds: tuple[int, ...] = struct.field(pytree_node=False)
    biomes: tuple[tuple[str, ...], ...] = struct.field(pytree_node=False, default=())
    ways: jax.Array | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """Voxels along x, y and z."""
        return self.voxels.material.shape[:-4:-1]


def stack_maps(layouts: Sequence[MapLayout]) -> TerrainBank:
    """Stacks maps of one size into a bank.

    Raises:
      ValueError: no maps, or maps of different sizes.
    """
    grids = voxel_bank([layout.voxels for layout in layouts])
    rock = np.stack([np.isin(layout.voxels, (SOLID, SOLID_DEBRIS)) for layout in layouts])
    return TerrainBank(
        voxels=grids,
        zone=put_array([layout.zone for layout in layouts], np.float32),
        corners=put_array([layout.corners for layout in layouts], np.int32),
        occupancy=put_array(rock[:, :CLEARANCE].any(1)),
        telemetry=put_array(_blocks(rock.any(1)), np.float32),
        reachable=put_array(np.stack([layout.reachable for layout in layouts])),
        seeds=tuple(layout.seed for layout in layouts),
        biomes=tuple(layout.biomes for layout in layouts),
    )


def add_path_codes(bank: TerrainBank) -> TerrainBank:
    """Returns the bank with path codes to the zones, computed on the host in under a second per map."""
    found = []
    for voxels, zone in zip(np.asarray(bank.voxels.material), np.asarray(bank.zone), strict=True):
        graph = build_nav_graph(voxels)
        found.append(path_codes(graph, graph.nearest((*zone[:2], 0.0))))
    return bank.replace(ways=put_array(np.stack(found)))


def terrain_bank(
    seeds: Sequence[int],
    size: Sequence[int],
    *,
    biomes: Sequence[str] | Sequence[Sequence[str]] | None = None,
    team_size: int = 10,
    cache: str | Path | None = "auto",
    workers: int | None = None,
    progress: bool = True,
) -> TerrainBank:
    """Generates one map per seed, or loads them from the cache.

    The maps do not depend on the number of workers.

    Args:
      seeds: of the maps, not negative.
      size: voxels along x, y and z.
      biomes: names to draw from; all sixteen if None; or one such list for each map.
      team_size: mechs of a team.
      cache: folder of the cache; "auto" is `cache_folder()`, None disables caching.
      workers: processes; None chooses by the numbers of processors and maps.
      progress: whether to show a progress bar on a terminal, for more than a few maps.

    Raises:
      ValueError: no seeds or a negative one, an impossible size, an unknown biome, too few workers.
    """
    size = check_size(size, team_size)
    seeds = tuple(int(seed) for seed in seeds)
    choices = biomes_per_map(biomes, len(seeds))
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds={list(seeds[:4])}: must name at least one seed, none negative")
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}: must be at least 1")
    jobs = [(seed, size, names, team_size) for seed, names in zip(seeds, choices, strict=True)]
    if cache is None:
        return stack_maps(_generate_all(jobs, workers, progress))
    folder = cache_folder() if cache == "auto" else Path(cache).expanduser()
    return stack_maps(_kept(folder / f"{_name(jobs)}.npz", jobs, workers, progress))


def generate_terrain(ground, biomes, team_size: int) -> TerrainBank:
    """Generates the terrains of an environment's settings, or loads them from the cache.

    Args:
      ground: settings with `map_seed`, `maps`, `size` and `cache`.
      biomes: see `terrain_bank`.
      team_size: mechs of the larger team.

    Raises:
      ValueError: one line, for a setting with a value that is not allowed.
    """
    seeds = range(ground.map_seed, ground.map_seed + ground.maps)
    try:
        return terrain_bank(seeds, ground.size, biomes=biomes, team_size=team_size, cache=ground.cache)
    except ValueError as error:
        raise ValueError(f"env.{str(error).removeprefix('env.')}") from None


def cache_folder() -> Path:
    """Returns the cache folder: `$XDG_CACHE_HOME/jaxmarl_echelon/terrain`, by default in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "jaxmarl_echelon" / "terrain"


def _blocks(columns: np.ndarray) -> np.ndarray:
    """Returns bool `[N, 16, 16]`: any column `[N, Y, X]` of the block is set."""
    for axis in (1, 2):
        starts = np.arange(TELEMETRY_BLOCKS) * columns.shape[axis] // TELEMETRY_BLOCKS
        columns = np.logical_or.reduceat(columns, starts, axis)
    return columns


def _name(jobs: list[tuple]) -> str:
    return hashlib.sha256(json.dumps([VERSION, jobs]).encode()).hexdigest()[:32]


def _kept(path: Path, jobs: list[tuple], workers: int | None, progress: bool) -> list[MapLayout]:
    """Returns maps from the cache file; if it is missing or damaged, generates them and writes it."""
    with suppress(*_BROKEN):
        return _load(path, jobs)
    layouts = _generate_all(jobs, workers, progress)
    try:
        _save(path, layouts)
    except OSError as error:
        warnings.warn(f"terrain is not cached in {path.parent}: {error}", stacklevel=3)
    return layouts


def _save(path: Path, layouts: list[MapLayout]) -> None:
    """Writes the cache file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.stack([getattr(layout, name) for layout in layouts]) for name in _STORED}
    about = json.dumps([[layout.biomes, layout.transform, layout.repairs] for layout in layouts])
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez_compressed(file, about=np.array(about), **arrays)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _load(path: Path, jobs: list[tuple]) -> list[MapLayout]:
    with np.load(path, allow_pickle=False) as stored:
        voxels, zone, corners, reachable = (stored[name] for name in _STORED)
        about = json.loads(str(stored["about"]))
    return [
        MapLayout(v, tuple(z), tuple(c), r, tuple(biomes), transform, repairs, job[0])
        for v, z, c, r, (biomes, transform, repairs), job in zip(
            voxels, zone.tolist(), corners.tolist(), reachable, about, jobs, strict=True
        )
    ]


def _generate_all(jobs: list[tuple], workers: int | None, progress: bool) -> list[MapLayout]:
    how = {"label": "terrain", "per_worker": _PER_WORKER, "workers": workers, "progress": progress}
    return run_jobs(run_map_job, jobs, **how)
