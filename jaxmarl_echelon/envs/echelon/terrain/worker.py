"""What a process does that generates maps: one job at a time."""

from collections.abc import Sequence

from jaxmarl_echelon.envs.echelon.terrain.layout import Layout, generate


def generate_layout(seed: int, size: tuple[int, int, int], biomes: Sequence[str], team_size: int) -> Layout:
    """`layout.generate` with arguments by position, and without importing banks."""
    return generate(seed, size, biomes=biomes, team_size=team_size)
