"""`python -m jaxmarl_echelon.envs.drive.scenes`: draws scenes and says what is in them."""

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
from jaxmarl_echelon.envs.drive.scenes.generated.generate import generate
from jaxmarl_echelon.envs.drive.scenes.library import Scenes, interleaved, scenes
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings
from jaxmarl_echelon.envs.drive.view.road_drawing import draw_recording, extent

_INCHES = 10.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxmarl_echelon.envs.drive.scenes",
        description="Draws scenes, one PNG each, and says what is in them.",
    )
    parser.add_argument(
        "scenes", nargs="?", default="generated", help="generated, a folder, sanity, or sanity:NAME"
    )
    parser.add_argument("--out", help="folder for pictures; none are drawn without it")
    parser.add_argument("--export", help="folder for generated scenes as JSON files")
    parser.add_argument("--maps", type=int, default=7, help="generated scenes")
    parser.add_argument("--seed", type=int, default=0, help="of the generator")
    parser.add_argument("--kind", action="append", help="of generated scenes; may be repeated")
    parser.add_argument("--agents", type=int, default=16, help="most learners of a scene")
    parser.add_argument("--bodies", type=int, help="most bodies of a scene")
    parser.add_argument("--control", default="vehicles", help="who may learn")
    parser.add_argument("--skip-bad", action="store_true", help="leave out faulty files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Does what the command line says; raises a ValueError in one line for what is wrong."""
    given = parse(sys.argv[1:] if arguments is None else arguments)
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
    found = scenes(chosen)
    print(*found.lines, sep="\n")
    for index, name in enumerate(found.names):
        scene = scene_at(found.bank, index)
        print(f"{name}: {described(scene)}")
        if given.out:
            picture(scene, Path(given.out) / f"{Path(name).name}.png", f"{name}: {described(scene)}")
    if given.export:
        export_generated(chosen, found, Path(given.export))


def described(scene: SceneBank) -> str:
    """One line on what is in a scene."""
    kinds = Counter(scene.segment_kind.tolist())
    types = scene.type[scene.recorded.any(0)]
    low, high = extent(scene)
    bodies = ", ".join(f"{(types == code).sum()} {name}s" for code, name in enumerate(codes.TYPES))
    return (
        f"{scene.learner.sum()} learners; {bodies}; "
        f"{(scene.lane_length > 0).sum()} lanes; segments: {kinds[codes.LANE]} of lanes, "
        f"{kinds[codes.EDGE]} of edges, {kinds[codes.LINE]} of lines; {high[0] - low[0]:.0f} x "
        f"{high[1] - low[1]:.0f} m"
    )


def picture(scene: SceneBank, path: Path, title: str) -> None:
    """Draws one scene into a PNG file."""
    low, high = extent(scene)
    wide, tall = (high - low) / (high - low).max() * _INCHES
    figure = Figure((max(wide, 4.0), max(tall, 3.0)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_recording(axes, scene)
    axes.set_title(title, fontsize=7, wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def export_generated(chosen: SceneSettings, found: Scenes, folder: Path) -> None:
    """Writes generated scenes as JSON files.

    Raises:
      ValueError: the scenes are not generated.
    """
    if chosen.scenes != "generated":
        raise ValueError(f"--export: only generated scenes are exported, not {chosen.scenes}")
    folder.mkdir(parents=True, exist_ok=True)
    kinds = interleaved(chosen.kinds, chosen.maps)
    for index, name in enumerate(found.names):
        scene = generate(chosen.map_seed, index, kinds[index], chosen.slots, chosen.goal_sample)
        export.write(scene, folder / f"{name}.json")


def script() -> None:
    """The command line: what is wrong gets one line, and exit status 2."""
    try:
        main()
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    script()
