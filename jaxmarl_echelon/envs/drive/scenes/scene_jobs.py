"""Jobs of `envs.workers`: one scene at a time, from a seed or a file to the arrays of a bank."""

import hashlib
from pathlib import Path

from jaxmarl_echelon.envs.drive.scenes.arrays import Arrays, arrays_of
from jaxmarl_echelon.envs.drive.scenes.files import reading
from jaxmarl_echelon.envs.drive.scenes.generated.generate import generate
from jaxmarl_echelon.envs.drive.scenes.learners import Casting
from jaxmarl_echelon.envs.drive.scenes.raw_scene import HostScene

Built = tuple[Arrays, dict]


def build(scene: HostScene, casting: Casting, max_segments: int) -> Built:
    """Arrays of a scene, and what people want to know of it.

    Raises:
      ValueError: one line, for more segments than allowed.
    """
    arrays, who = arrays_of(scene, casting, max_segments)
    notes = dict(scene.notes)
    notes |= {f"{what} beyond env.bodies": count for what, count in who.dropped.items() if count}
    return arrays, {
        "name": scene.name,
        "kind": scene.kind,
        "offset": scene.middle.tolist(),
        "learners": len(who.learners),
        "bodies": len(who.learners) + len(who.scripted),
        "segments": len(arrays["segment"]),
        "notes": notes,
    }


def build_generated(
    seed: int, index: int, kind: str, casting: Casting, goal_sample: tuple[int, int], max_segments: int
) -> Built:
    """Generates a scene and builds it; raises ValueError as `generate` and `build`."""
    return build(generate(seed, index, kind, casting.bodies, goal_sample), casting, max_segments)


def build_file(path: str, casting: Casting, max_segments: int) -> Built | ValueError:
    """Reads a file and builds it; a fault comes back as a value, so that others may be looked at first."""
    try:
        scene = reading.read(Path(path))
        try:
            return build(scene, casting, max_segments)
        except ValueError as error:
            raise ValueError(f"env.scenes: {Path(path).name}: {error}") from None
    except ValueError as error:
        return error


def digest(path: str) -> str:
    """SHA-256 of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
