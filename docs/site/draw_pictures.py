"""Draws the pictures of the environments' pages, `docs/pictures/NAME.png`, from episodes of scripts.

    python docs/site/draw_pictures.py [NAME ...]       # a minute each on two cores, mostly compilation

The viewers of the environments draw them, as they do for `python -m jaxmarl_echelon.evaluate`. `f110_spawns`
shows the spawn points of the adversarial task.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.f110.starts.spawns import BUILT_IN
from jaxmarl_echelon.envs.f110.view.viewer import CAR_COLOURS
from jaxmarl_echelon.envs.viewing.canvas import box_corners
from jaxmarl_echelon.training.acting.controllers import find_script, make_script_controller
from jaxmarl_echelon.training.program.evaluation import evaluation_params, play_episodes
from physics.single_track import limo_car

PICTURES = Path(__file__).resolve().parent.parent / "pictures"
# Environment -> script of every role, its settings, and those of the episodes.
EPISODES = {
    "f110": ({"attacker": "gaussian", "defender": "ftg"}, {}, {"spawns": "all"}),
    "f110_race": ({"car": "pure_pursuit"}, {"map": "track:7", "cars": 3, "max_steps": 1500}, {}),
    "echelon": ({"blue": "heuristic", "red": "heuristic"}, {"maps": 4}, {}),
    "echelon_missions_small": ({"blue": "heuristic", "red": "heuristic"}, {"maps": 4}, {}),
    "drive": ({"vehicle": "idm"}, {}, {}),
}
SPAWNS = "f110_spawns"
NUMBER = 6
WIDTH, COLOURS = 1000, 64


def draw_episodes(name: str) -> None:
    """Plays episodes of scripts and draws them."""
    scripts, settings, task = EPISODES[name]
    env = je.make(name, **settings)
    controllers = {role: make_script_controller(find_script(env, role, one)) for role, one in scripts.items()}

    @jax.jit
    def play(params):
        episodes = evaluation_params(env, params, NUMBER)
        return play_episodes(env, controllers, {}, jax.random.key(0), episodes, env.viewer.snapshot)

    path = PICTURES / f"{name}.png"
    env.viewer.picture(path, play(env.task_params(task)))
    shrink(path)


def draw_spawns() -> None:
    """Draws where the attacker starts at every spawn point, relative to the defender, at equal headings."""
    car = limo_car()
    size, defender = np.array([float(car.length), float(car.width)]), np.zeros(3)
    figure = Figure(figsize=(10, 5.2), dpi=100)
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, (name, attacker) in zip(panels.flat, BUILT_IN.items(), strict=True):
        _draw_car(axes, np.array(attacker), size, CAR_COLOURS[0], "attacker", filled=True)
        _draw_car(axes, defender, size, CAR_COLOURS[1], "defender", filled=False)
        axes.set(title=name, xlim=(-0.4, 1.9), ylim=(-0.7, 0.7), aspect="equal")
    figure.supxlabel("ahead of the defender [m]", fontsize="medium")
    figure.supylabel("left [m]", fontsize="medium")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(PICTURES / f"{SPAWNS}.png")
    shrink(PICTURES / f"{SPAWNS}.png")


def _draw_car(
    axes: Axes, pose: np.ndarray, size: np.ndarray, colour: str, role: str, *, filled: bool
) -> None:
    """Draws a car `(x, y, heading)` as the box of its body, with an arrow from its centre ahead."""
    face = colour if filled else "none"
    axes.fill(*box_corners(pose, size).T, facecolor=face, edgecolor=colour, linewidth=1.5, label=role)
    ahead = pose[:2] + 0.35 * np.array([np.cos(pose[2]), np.sin(pose[2])])
    axes.annotate("", ahead, pose[:2], arrowprops={"arrowstyle": "->", "color": "black"})


def shrink(path: Path) -> None:
    """Makes a picture small enough for the repository: `WIDTH` pixels wide, a palette of `COLOURS`."""
    image = Image.open(path).convert("RGB")
    image.thumbnail((WIDTH, 10 * WIDTH), Image.Resampling.LANCZOS)
    image.quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    """Draws the pictures named on the command line, or all."""
    for name in sys.argv[1:] or [*EPISODES, SPAWNS]:
        print(name, flush=True)
        draw_spawns() if name == SPAWNS else draw_episodes(name)


if __name__ == "__main__":
    main()
