"""Jobs of `envs.workers`: builds one scene at a time, from a seed or a file to the arrays of a bank."""

import hashlib
from pathlib import Path

from jaxmarl_echelon.envs.drive.scenes.arrays import Arrays, build_scene_arrays
from jaxmarl_echelon.envs.drive.scenes.files import reading
from jaxmarl_echelon.envs.drive.scenes.generated.generate import generate_scene
from jaxmarl_echelon.envs.drive.scenes.learners import SlotSettings
from jaxmarl_echelon.envs.drive.scenes.raw_scene import RawScene

Built = tuple[Arrays, dict]


def build_scene(scene: RawScene, casting: SlotSettings, max_segments: int) -> Built:
    """Builds the arrays of a scene and a summary of it.

    Raises:
      ValueError: one line, for more segments than allowed.
    """
    arrays, who = build_scene_arrays(scene, casting, max_segments)
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


def build_generated_scene(
    seed: int, index: int, kind: str, casting: SlotSettings, goal_sample: tuple[int, int], max_segments: int
) -> Built:
    """Generates a scene and builds it; raises ValueError as `generate_scene` and `build_scene`."""
    return build_scene(generate_scene(seed, index, kind, casting.bodies, goal_sample), casting, max_segments)


def build_scene_from_file(path: str, casting: SlotSettings, max_segments: int) -> Built | ValueError:
    """Reads a file and builds its scene. Returns a fault as a value, so that other files are still read."""
    try:
        scene = reading.read_scene_file(Path(path))
        try:
            return build_scene(scene, casting, max_segments)
        except ValueError as error:
            raise ValueError(f"env.scenes: {Path(path).name}: {error}") from None
    except ValueError as error:
        return error


def digest_file(path: str) -> str:
    """SHA-256 of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
