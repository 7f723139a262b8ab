"""Generated scenes that several tests look at, made once."""

from functools import cache

from jaxmarl_echelon.envs.drive.scenes.generated.generate import KINDS, generate_scene
from jaxmarl_echelon.envs.drive.scenes.raw_scene import RawScene

EACH = 3


@cache
def scenes(kind: str) -> tuple[RawScene, ...]:
    """Scenes of a kind."""
    return tuple(generate_scene(7, index, kind) for index in range(EACH))


def all_scenes() -> list[RawScene]:
    """Scenes of all kinds."""
    return [scene for kind in KINDS for scene in scenes(kind)]
