"""Entry point of worker processes that generate maps."""

from collections.abc import Sequence

from jaxmarl_echelon.envs.echelon.terrain.layout import MapLayout, generate_map


def run_map_job(seed: int, size: tuple[int, int, int], biomes: Sequence[str], team_size: int) -> MapLayout:
    """Calls `layout.generate_map` with positional arguments; avoids importing banks in workers."""
    return generate_map(seed, size, biomes=biomes, team_size=team_size)
