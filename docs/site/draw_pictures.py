"""Draws the pictures of the environments' pages, `docs/pictures/NAME.png`, from episodes of scripts.

    python docs/site/draw_pictures.py [NAME ...]       # minutes each on two cores, mostly compilation

The viewers of the environments draw them, as they do for `python -m jaxmarl_echelon.evaluate`. The viewer of
games writes text: one game is drawn, position by position. `f110_spawns` shows the spawn points of the
adversarial task.
"""

import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import jaxmarl_echelon as je
from algos import compiler
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.f110.starts.spawns import BUILT_IN
from jaxmarl_echelon.palette import ATTACKER, DEFENDER
from jaxmarl_echelon.training.acting.controllers import find_script, make_script_controller
from jaxmarl_echelon.training.program.evaluation import Evaluation, evaluation_params, play_episodes
from physics.boxes import box_corners
from physics.single_track import limo_car

ROOT = Path(__file__).resolve().parent.parent.parent
PICTURES = ROOT / "docs" / "pictures"
# Environment -> script of every role, its settings, and those of the episodes.
EPISODES = {
    "f110": ({"attacker": "blocking", "defender": "ftg"}, {}, {"spawns": "all"}),
    "f110_race": ({"car": "pure_pursuit"}, {"map": "track:7", "cars": 3, "max_steps": 5000}, {}),
    "echelon": ({"blue": "heuristic", "red": "heuristic"}, {"maps": 4}, {}),
    "echelon_missions_small": ({"blue": "heuristic", "red": "heuristic"}, {"maps": 4}, {}),
    "drive": ({"vehicle": "idm"}, {}, {}),
}
GAMES = [f"textgames/{path.stem}" for path in sorted((ROOT / "conf" / "env" / "textgames").glob("*.yaml"))]
SPAWNS = "f110_spawns"
NUMBER = 6
# Characters in a line and rows of tiles in the picture of a game; a line that begins a move.
CHARACTERS, MOST_ROWS = 136, 5
MOVE = re.compile(r"\d+\. ")
WIDTH, MOST_BYTES = 1000, 250_000


def draw_episodes(name: str) -> None:
    """Plays episodes of scripts and draws them."""
    scripts, settings, task = EPISODES[name]
    env = je.make(name, **settings)
    path = PICTURES / f"{name}.png"
    env.viewer.picture(path, play_scripts(env, scripts, task, NUMBER))
    shrink(path)


def play_scripts(env: Environment, scripts: Mapping[str, str], task: Mapping, number: int) -> Evaluation:
    """Plays episodes with a script of each role, and records them for the viewer."""
    controllers = {role: make_script_controller(find_script(env, role, one)) for role, one in scripts.items()}

    def play(params):
        episodes = evaluation_params(env, params, number)
        return play_episodes(env, controllers, {}, jax.random.key(1), episodes, env.viewer.snapshot)

    params = env.task_params(task)
    compiled = jax.jit(play).lower(params).compile(compiler_options=compiler.quick_compile_options())
    return jax.device_get(compiled(params))


def draw_game(name: str) -> None:
    """Draws positions and moves of one game between scripts, as the viewer writes them."""
    env = je.make(name)
    (role,) = (one.name for one in env.spec.roles)
    best = next((script for script in ("perfect", "equilibrium") if script in env.scripts), "random")
    recorded = play_scripts(env, {role: best}, {}, 1)
    lines = lay_out_tiles(env.viewer.text(recorded, 0).splitlines())
    figure = Figure(figsize=(WIDTH / 100, 0.155 * len(lines) + 0.3), dpi=100)
    figure.text(
        0.01, 1 - 0.1 / figure.get_figheight(), "\n".join(lines), va="top", family="monospace", fontsize=8.5
    )
    path = PICTURES / f"{name.replace('/', '_')}.png"
    figure.savefig(path)
    shrink(path)


def lay_out_tiles(lines: list[str]) -> list[str]:
    """Arranges the text of a game in tiles, one per move; leaves out moves in the middle of long games."""
    tiles: list[list[str]] = [[]]
    for line in lines:
        if MOVE.match(line):
            tiles.append([])
        tiles[-1] += textwrap.wrap(line, CHARACTERS) or [""]
    width = max(len(line) for tile in tiles for line in tile) + 3
    beside = max((CHARACTERS + 3) // width, 1)
    if len(tiles) > beside * MOST_ROWS:
        tiles = [*tiles[: beside * MOST_ROWS - 2], ["..."], tiles[-1]]
    found = []
    for start in range(0, len(tiles), beside):
        row = tiles[start : start + beside]
        for height in range(max(map(len, row))):
            found.append("".join((tile[height] if height < len(tile) else "").ljust(width) for tile in row))
        found.append("")
    return found[:-1]


def draw_spawns() -> None:
    """Draws where the attacker starts at every spawn point, relative to the defender, at equal headings."""
    car = limo_car()
    size, defender = np.array([float(car.length), float(car.width)]), np.zeros(3)
    figure = Figure(figsize=(10, 5.2), dpi=100)
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, (name, attacker) in zip(panels.flat, BUILT_IN.items(), strict=True):
        _draw_car(axes, np.array(attacker), size, ATTACKER, "attacker", filled=True)
        _draw_car(axes, defender, size, DEFENDER, "defender", filled=False)
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
    """Makes a picture small enough: `WIDTH` pixels wide, and with fewer colours above `MOST_BYTES`."""
    image = Image.open(path).convert("RGB")
    image.thumbnail((WIDTH, 10 * WIDTH), Image.Resampling.LANCZOS)
    image.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Draws the pictures named on the command line, or all."""
    for name in sys.argv[1:] or [*EPISODES, *GAMES, SPAWNS]:
        print(name, flush=True)
        if name == SPAWNS:
            draw_spawns()
        else:
            (draw_game if name in GAMES else draw_episodes)(name)


if __name__ == "__main__":
    main()
