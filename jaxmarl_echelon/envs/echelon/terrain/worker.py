"""Entry point of worker processes that generate maps."""

from collections.abc import Sequence

from jaxmarl_echelon.envs.echelon.terrain.layout import Layout, generate


def generate_layout(seed: int, size: tuple[int, int, int], biomes: Sequence[str], team_size: int) -> Layout:
    """Calls `layout.generate` with positional arguments; avoids importing banks in workers."""
    return generate(seed, size, biomes=biomes, team_size=team_size)
