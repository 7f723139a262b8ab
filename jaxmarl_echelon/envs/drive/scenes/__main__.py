"""`python -m jaxmarl_echelon.envs.drive.scenes`: draws scenes and prints a summary of each."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxmarl_echelon.envs.drive import codes
from jaxmarl_echelon.envs.drive.bank import SceneBank, scene_at
from jaxmarl_echelon.envs.drive.scenes.files import export
from jaxmarl_echelon.envs.drive.scenes.generated.generate import generate_scene
from jaxmarl_echelon.envs.drive.scenes.library import Scenes, interleave_kinds, load_scenes
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings
from jaxmarl_echelon.envs.drive.view.road_drawing import draw_recording, scene_extent

_INCHES = 10.0


def parse_scene_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxmarl_echelon.envs.drive.scenes",
        description="Draws scenes, one PNG each, and prints a summary of each.",
    )
    parser.add_argument(
        "scenes", nargs="?", default="generated", help="generated, a folder, sanity, or sanity:NAME"
    )
    parser.add_argument("--out", help="folder for pictures; draws none if not given")
    parser.add_argument("--export", help="folder for generated scenes as JSON files")
    parser.add_argument("--maps", type=int, default=7, help="number of generated scenes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator")
    parser.add_argument("--kind", action="append", help="kind of generated scenes; may be repeated")
    parser.add_argument("--agents", type=int, default=16, help="largest number of learners in a scene")
    parser.add_argument("--bodies", type=int, help="largest number of bodies in a scene")
    parser.add_argument("--control", default="vehicles", help="learners: vehicles, agents, sdc or all")
    parser.add_argument("--skip-bad", action="store_true", help="skip faulty files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; raises a one-line ValueError for invalid arguments or scenes."""
    given = parse_scene_arguments(sys.argv[1:] if arguments is None else arguments)
    chosen = SceneSettings(
        scenes=given.scenes,
        maps=given.maps,
        map_seed=given.seed,
        kinds=dict.fromkeys(given.kind, 1.0) if given.kind else None,
        eval_maps=0,
        skip_bad=given.skip_bad,
        agents=given.agents,
        bodies=given.bodies,
        control=given.control,
        cache=None,
    )
    found = load_scenes(chosen)
    print(*found.lines, sep="\n")
    for index, name in enumerate(found.names):
        scene = scene_at(found.bank, index)
        print(f"{name}: {_describe_scene(scene)}")
        if given.out:
            _draw_scene(
                scene, Path(given.out) / f"{Path(name).name}.png", f"{name}: {_describe_scene(scene)}"
            )
    if given.export:
        _export_generated_scenes(chosen, found, Path(given.export))


def _describe_scene(scene: SceneBank) -> str:
    """Returns a one-line summary of a scene."""
    kinds = Counter(scene.segment_kind.tolist())
    types = scene.type[scene.recorded.any(0)]
    low, high = scene_extent(scene)
    bodies = ", ".join(f"{(types == code).sum()} {name}s" for code, name in enumerate(codes.TYPES))
    return (
        f"{scene.learner.sum()} learners; {bodies}; "
        f"{(scene.lane_length > 0).sum()} lanes; segments: {kinds[codes.LANE]} of lanes, "
        f"{kinds[codes.EDGE]} of edges, {kinds[codes.LINE]} of lines; {high[0] - low[0]:.0f} x "
        f"{high[1] - low[1]:.0f} m"
    )


def _draw_scene(scene: SceneBank, path: Path, title: str) -> None:
    """Draws one scene into a PNG file."""
    low, high = scene_extent(scene)
    wide, tall = (high - low) / (high - low).max() * _INCHES
    figure = Figure((max(wide, 4.0), max(tall, 3.0)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_recording(axes, scene)
    axes.set_title(title, fontsize=7, wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _export_generated_scenes(chosen: SceneSettings, found: Scenes, folder: Path) -> None:
    """Writes generated scenes as JSON files.

    Raises:
      ValueError: the scenes are not generated.
    """
    if chosen.scenes != "generated":
        raise ValueError(f"--export: scenes={chosen.scenes} cannot be exported; allowed: generated")
    folder.mkdir(parents=True, exist_ok=True)
    kinds = interleave_kinds(chosen.kinds, chosen.maps)
    for index, name in enumerate(found.names):
        scene = generate_scene(chosen.map_seed, index, kinds[index], chosen.slots, chosen.goal_sample)
        export.write_scene(scene, folder / f"{name}.json")


def script() -> None:
    """Runs the command line; prints errors as one line and exits with status 2."""
    try:
        main()
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    script()
