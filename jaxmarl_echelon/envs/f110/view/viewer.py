"""Pictures of F110 episodes: trajectories by outcome, and an animation of one episode."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from PIL import Image, ImageFont

from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.f110.cars.simulation import STEER, poses_of
from jaxmarl_echelon.envs.f110.view.replay import save_car_replay
from jaxmarl_echelon.envs.viewing.canvas import MapCanvas, box_corners
from jaxmarl_echelon.envs.viewing.gif import save_gif
from physics.gridmap import OccupancyMap

COLOURS = {
    "target_crash": "#2ca02c",
    "self_crash": "#d62728",
    "collision": "#e0b000",
    "timeout": "#1f77b4",
    "idle_stop": "#d33bd3",
    "target_finish": "#17becf",
    "finished": "#2ca02c",
    "crashed": "#d62728",
}
UNFINISHED = "#888888"
CAR_COLOURS = ("#e8590c", "#364fc7", "#2b8a3e", "#862e9c", "#0b7285", "#5c940d")

_SIZE = (720, 360)
_MOST_FRAMES = 180
_VIEW = 14.0
_FREE, _WALL, _RAY, _INK = (250, 250, 248), (90, 90, 96), (205, 222, 238), (30, 30, 30)
_PAGE_COLOURS = {
    "paper": "#fafaf8",
    "wall": "#5a5a60",
    "beam": "#cddeee",
    "ink": "#1e1e1e",
    "cars": CAR_COLOURS,
}


@struct.dataclass
class CarFrame:
    """Recorded state of an episode of N cars at one decision.

    Attributes:
      pose: `[N, 3]` x, y (m), heading (rad).
      steer: `[N]` steering angles, rad.
      scan: `[B]` float16 ranges of car 0, m.
      size: `[2]` length and width of a car, m.
      map_index: int32.
      step: int32, physics steps since the start.
    """

    pose: jax.Array
    steer: jax.Array
    scan: jax.Array
    size: jax.Array
    map_index: jax.Array
    step: jax.Array


def snapshot(state, params, time=None) -> CarFrame:
    """Returns the frame of a state that pictures need; pure, for use inside jit."""
    del time
    return CarFrame(
        pose=poses_of(state.cars.state),
        steer=state.cars.state[:, STEER],
        scan=state.cars.scan[0].astype(jnp.float16),
        size=jnp.stack([params.car.length, params.car.width]),
        map_index=state.map_index,
        step=state.step,
    )


class F110Viewer(base.Viewer):
    """Renderer of one environment's evaluations; see `jaxmarl_echelon.training.program.evaluation`.

    Attributes:
      snapshot: the function to record with.
    """

    snapshot = staticmethod(snapshot)

    def __init__(self, maps: Sequence[OccupancyMap], outcomes: Sequence[str], simulation):
        self.maps, self.outcomes, self.simulation = maps, tuple(outcomes), simulation

    def picture(self, path: Path, evaluation) -> None:
        """Draws the episodes of an evaluation that took place on the same map as the first."""
        frames = jax.tree.map(np.asarray, evaluation.frames)
        here = np.flatnonzero(frames.map_index[0] == frames.map_index[0, 0])
        episodes = [
            (frames.pose[: int(evaluation.length[n]) + 1, n], self._name(evaluation.results["outcome"][n]))
            for n in here
        ]
        save_trajectories(path, self.maps[int(frames.map_index[0, 0])], episodes, frames.size[0, 0])

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one episode of an evaluation."""
        frames = self._episode(evaluation, episode)
        grid = self.maps[int(frames.map_index[0])]
        lidar = self.simulation.lidar
        animate_cars(
            path,
            grid,
            frames,
            self._name(evaluation.results["outcome"][episode]),
            lidar.angles,
            self.simulation.dt,
        )

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one episode of an evaluation as an interactive page for any browser."""
        frames = self._episode(evaluation, episode)
        outcome = self._name(evaluation.results["outcome"][episode])
        bounds = _bounds([frames.pose], margin=3.0)
        colours = {"outcome": COLOURS.get(outcome, UNFINISHED), **_PAGE_COLOURS}
        grid, angles = self.maps[int(frames.map_index[0])], self.simulation.lidar.angles
        save_car_replay(path, grid, frames, outcome, angles, self.simulation.dt, bounds, colours)

    def _name(self, outcome) -> str:
        return self.outcomes[int(outcome)] if int(outcome) >= 0 else "running"


def save_trajectories(
    path: str | Path, grid: OccupancyMap, episodes: Sequence[tuple[np.ndarray, str]], size: np.ndarray
) -> None:
    """Draws trajectories on a map, as a PNG.

    Car 0's path has its outcome's colour, other cars' paths are grey; boxes show the cars' final
    poses, car 0 filled.

    Args:
      path: file to write.
      grid: the map.
      episodes: per episode its poses `[T, N, 3]` and its outcome's name.
      size: length and width of a car, m.
    """
    from matplotlib.figure import Figure

    low, high = _bounds([poses for poses, _ in episodes], margin=0.8)
    span = high - low
    width = 11.0
    figure = Figure(figsize=(width, float(np.clip(width * span[1] / span[0], 2.2, 11.0)) + 1.0), dpi=110)
    axes = figure.add_subplot()
    _draw_map(axes, grid, low, high)
    for poses, outcome in episodes:
        colour = COLOURS.get(outcome, UNFINISHED)
        for car in range(1, poses.shape[1]):
            axes.plot(*poses[:, car, :2].T, color="#444444", linewidth=0.7, alpha=0.5)
        axes.plot(*poses[:, 0, :2].T, color=colour, linewidth=1.2, alpha=0.8)
        for car in range(poses.shape[1]):
            corners = box_corners(poses[-1, car], size)
            axes.fill(*corners.T, facecolor=colour if car == 0 else "none", edgecolor=colour, alpha=0.8)
    _legend(axes, [outcome for _, outcome in episodes])
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="x [m]", ylabel="y [m]", aspect="equal")
    figure.tight_layout()
    figure.savefig(path)


def animate_cars(
    path: str | Path, grid: OccupancyMap, frames: CarFrame, outcome: str, angles: np.ndarray, dt: float
) -> None:
    """Animates one episode, as a GIF below 5 MB.

    Args:
      path: file to write.
      grid: the map.
      frames: the episode's frames, `[T, ...]`.
      outcome: the outcome's name.
      angles: `[B]` directions of the beams, rad.
      dt: seconds per physics step.
    """

    def draw(moments) -> list[Image.Image]:
        shown = jax.tree.map(partial(np.take, indices=moments, axis=0), frames)
        return _draw_frames(grid, shown, outcome, angles, dt)

    def durations(moments) -> np.ndarray:
        return np.clip(1000 * (np.diff(frames.step[moments]) * dt), 20, 500)

    count = len(frames.step)
    save_gif(path, count - 1, draw, durations, stride=max(1, -(-count // _MOST_FRAMES)))


def _draw_frames(grid, frames, outcome, angles, dt) -> list[Image.Image]:
    low, high = _bounds([frames.pose], margin=1.0)
    follow = np.any(high - low > _VIEW)
    scale = _SIZE[0] / _VIEW if follow else np.min(_SIZE / (high - low))
    font = ImageFont.load_default(size=15)
    images = []
    for moment in range(len(frames.step)):
        center = frames.pose[moment, 0, :2] if follow else (low + high) / 2
        last = moment == len(frames.step) - 1
        image = _backdrop(grid, center, scale)
        canvas = MapCanvas(image, scale, np.asarray(center, np.float64), (_SIZE[0] / 2, _SIZE[1] / 2))
        _draw_cars(canvas, frames, moment, angles)
        text = f"t = {frames.step[moment] * dt:5.2f} s" + (f"   {outcome}" if last else "")
        canvas.draw.rectangle((0, 0, _SIZE[0], 24), fill=COLOURS.get(outcome, UNFINISHED) if last else _WALL)
        canvas.draw.text((8, 3), text, fill=(255, 255, 255), font=font)
        images.append(image.quantize(32, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))
    return images


def _draw_cars(canvas: MapCanvas, frames: CarFrame, moment: int, angles: np.ndarray) -> None:
    pose, size = frames.pose[moment], frames.size[moment]
    direction = pose[0, 2] + angles
    ends = pose[0, :2] + frames.scan[moment, :, None] * np.stack([np.cos(direction), np.sin(direction)], -1)
    for end in ends:
        canvas.line(pose[0, :2], end, _RAY, 1)
    for car in range(len(pose)):
        colour = CAR_COLOURS[car % len(CAR_COLOURS)]
        canvas.polygon(box_corners(pose[car], size), fill=colour, outline=_INK)
        angle = pose[car, 2] + frames.steer[moment, car]
        nose = pose[car, :2] + 0.35 * size[0] * np.array([np.cos(pose[car, 2]), np.sin(pose[car, 2])])
        wheel = 0.25 * size[0] * np.array([np.cos(angle), np.sin(angle)])
        canvas.line(nose - wheel, nose + wheel, _INK, 3)


def _backdrop(grid: OccupancyMap, center: np.ndarray, scale: float) -> Image.Image:
    column, row = np.meshgrid(np.arange(_SIZE[0]) + 0.5, np.arange(_SIZE[1]) + 0.5)
    offset = np.stack([column - _SIZE[0] / 2, _SIZE[1] / 2 - row], axis=-1) / scale
    rows, columns, inside = grid.cells(center + offset)
    wall = ~inside | grid.occupied[rows, columns]
    return Image.fromarray(np.where(wall[..., None], np.uint8(_WALL), np.uint8(_FREE)))


def _draw_map(axes, grid: OccupancyMap, low, high) -> None:
    count = np.ceil((high - low) / grid.resolution * 2).astype(int).clip(2, 1600)
    x, y = (np.linspace(low[i], high[i], count[i], endpoint=False) for i in (0, 1))
    step = (high - low) / count
    rows, columns, inside = grid.cells(np.stack(np.meshgrid(x + step[0] / 2, y + step[1] / 2), axis=-1))
    wall = ~inside | grid.occupied[rows, columns]
    colours = np.where(wall[..., None], np.uint8(_WALL), np.uint8(_FREE))
    axes.imshow(colours, origin="lower", extent=(low[0], high[0], low[1], high[1]), interpolation="nearest")


def _legend(axes, outcomes: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS.get(name, UNFINISHED), label=f"{name} ({outcomes.count(name)})")
        for name in sorted(set(outcomes), key=outcomes.count, reverse=True)
    ]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False)


def _bounds(poses: Sequence[np.ndarray], margin: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns two corners of the rectangle around all positions, with a margin in metres."""
    low = np.min([p[..., :2].reshape(-1, 2).min(axis=0) for p in poses], axis=0)
    high = np.max([p[..., :2].reshape(-1, 2).max(axis=0) for p in poses], axis=0)
    return low - margin, high + margin
