"""The sixteen biomes of map quadrants, by name. Reference: docs/reference/echelon.md 11.2."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxmarl_echelon.envs.echelon.terrain import biomes_built, biomes_wild
from jaxmarl_echelon.envs.echelon.terrain.patch import Patch

BRUSHES: dict[str, Callable[[Patch], None]] = {
    brush.__name__: brush
    for brush in (
        biomes_built.urban_residential,
        biomes_built.industrial_refinery,
        biomes_built.civic_government,
        biomes_wild.forest_park,
        biomes_wild.barrens,
        biomes_built.arcology_spire,
        biomes_wild.sunken_canal,
        biomes_wild.geo_front,
        biomes_wild.glass_desert,
        biomes_built.command_outpost,
        biomes_wild.dense_jungle,
        biomes_wild.mining_pit,
        biomes_wild.volcanic_ridge,
        biomes_built.hydroponic_lab,
        biomes_built.server_farm,
        biomes_built.orbital_relay,
    )
}

BIOMES = tuple(BRUSHES)


def check_biomes(names: Sequence[str]) -> None:
    """Raises a one-line ValueError for an unknown biome or an empty list."""
    unknown = sorted(set(names) - set(BIOMES))
    if unknown or not names:
        given = f"{unknown[0]}: unknown" if unknown else "[]: must name a biome"
        raise ValueError(f"env.biomes={given}; allowed: {', '.join(BIOMES)}")


def biomes_per_map(names, maps: int) -> list[tuple[str, ...]]:
    """Returns the biomes to draw from, for each of `maps` maps.

    Args:
      names: one list for all maps, or a list of lists, one per map; all biomes if None.
      maps: number of maps.

    Raises:
      ValueError: one line, for an unknown biome, a list without any, or too few or many lists.
    """
    single = names is None or all(isinstance(name, str) for name in names)
    groups = [tuple(BIOMES if names is None else names)] * maps if single else [tuple(g) for g in names]
    if len(groups) != maps:
        raise ValueError(f"env.biomes: must be one list, or one for each of {maps} maps; has {len(groups)}")
    for group in set(groups):
        check_biomes(group)
    return groups


def paint_biome(biome: str, voxels: np.ndarray, rng: np.random.Generator) -> None:
    """Paints a biome on an empty window `[Z, Y, X]` of a map, in place."""
    BRUSHES[biome](Patch(voxels, rng))
