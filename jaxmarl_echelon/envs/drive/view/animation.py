"""Animates one episode from above, as a GIF."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from jaxmarl_echelon.envs.drive.state import DT
from jaxmarl_echelon.envs.drive.view.frames import DriveEpisode
from jaxmarl_echelon.envs.drive.view.palette import (
    INK,
    OUTCOME_COLOURS,
    PAPER,
    ROAD_COLOURS,
    ROAD_WIDTHS,
    SCRIPTED,
)
from jaxmarl_echelon.envs.drive.view.road_drawing import scene_extent

SIDE = 640
HEADER = 24
MOST_BYTES = 5_000_000
_LAST = 2000  # ms, duration of the last frame


class DriveCanvas:
    """Image of a scene from above for drawing: world coordinates in m, y upwards."""

    def __init__(self, scene):
        low, high = scene_extent(scene)
        self.low, self.scale = low, SIDE / float(max(high - low))
        width, height = ((high - low) * self.scale).astype(int)
        self.height = height
        self.image = Image.new("RGB", (int(width), int(height) + HEADER), PAPER)
        self.draw = ImageDraw.Draw(self.image)
        for kind, colour in ROAD_COLOURS.items():
            for segment in scene.segment[scene.segment_kind == kind]:
                ends = [self.pixel(segment[:2]), self.pixel(segment[2:])]
                self.draw.line(ends, fill=colour, width=ROAD_WIDTHS[kind])

    def pixel(self, point) -> tuple[float, float]:
        """Returns the pixel of a point."""
        x, y = (np.asarray(point) - self.low) * self.scale
        return float(x), HEADER + self.height - float(y)


def save_drive_gif(path: str | Path, episode: DriveEpisode) -> None:
    """Animates an episode at 10 frames/s; drops frames until the file is below 5 MB."""
    background = DriveCanvas(episode.scene)
    palette = _palette()
    stride = 1
    while True:
        order = np.unique(np.append(np.arange(0, episode.last, stride), episode.last))
        images = [
            _drawn(background, episode, int(moment)).quantize(palette=palette, dither=Image.Dither.NONE)
            for moment in order
        ]
        durations = [*(1000 * DT * np.diff(order)).astype(int).tolist(), _LAST]
        images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)
        if Path(path).stat().st_size < MOST_BYTES or len(images) < 4:
            return
        stride *= 2


def _palette() -> Image.Image:
    colours = (PAPER, INK, SCRIPTED, *OUTCOME_COLOURS.values(), *ROAD_COLOURS.values())
    image = Image.new("P", (1, 1))
    image.putpalette([channel for colour in colours for channel in ImageColor.getrgb(colour)])
    return image


def _drawn(background: DriveCanvas, episode: DriveEpisode, moment: int) -> Image.Image:
    image = background.image.copy()
    draw = ImageDraw.Draw(image)
    pose, size = episode.pose[moment], episode.scene.size
    for slot in np.flatnonzero(episode.states.present[moment]):
        learner = slot < episode.agents and episode.scene.learner[slot]
        colour = OUTCOME_COLOURS[episode.outcome[slot]] if learner else SCRIPTED
        ghost = learner and bool(episode.states.ghost[moment, slot])
        _box(background, draw, pose[slot], size[slot], colour, ghost)
        if learner and not ghost:
            x, y = background.pixel(episode.states.goal[moment, slot])
            reach = 2.0 * background.scale
            draw.ellipse((x - reach, y - reach, x + reach, y + reach), outline=colour, width=2)
    goals = int(episode.states.record.goals[moment].sum())
    text = f"{episode.kind}   t = {moment * DT:.1f} s   goals {goals}"
    draw.text((6, 4), text, fill=INK, font=ImageFont.load_default(size=14))
    return image


def _box(canvas: DriveCanvas, draw, pose: np.ndarray, size: np.ndarray, colour: str, outline: bool) -> None:
    """Draws a body with a mark at its front; ghosts as outlines."""
    along = np.array([np.cos(pose[2]), np.sin(pose[2])])
    across = np.array([-along[1], along[0]])
    ahead, aside = along * size[0] / 2, across * size[1] / 2
    corners = [pose[:2] + ahead + aside, pose[:2] + ahead - aside]
    corners += [pose[:2] - ahead - aside, pose[:2] - ahead + aside]
    points = [canvas.pixel(corner) for corner in corners]
    draw.polygon(points, outline=colour, fill=None if outline else colour)
    draw.line([canvas.pixel(pose[:2] + ahead * 0.3), canvas.pixel(pose[:2] + ahead)], fill=INK, width=2)
