"""Animates one episode from above, as a GIF."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageColor, ImageFont

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
from jaxmarl_echelon.envs.viewing.canvas import MapCanvas
from jaxmarl_echelon.envs.viewing.gif import make_palette, save_gif
from physics.boxes import box_corners

SIDE = 640
HEADER = 44


def save_drive_gif(path: str | Path, episode: DriveEpisode) -> None:
    """Animates an episode at 10 frames/s, as a GIF below 5 MB."""
    background = _draw_background(episode.scene)
    colours = (PAPER, INK, SCRIPTED, *OUTCOME_COLOURS.values(), *ROAD_COLOURS.values())
    palette = make_palette([ImageColor.getrgb(colour) for colour in colours])

    def draw(moments) -> list[Image.Image]:
        images = (_draw_moment(background, episode, int(moment)) for moment in moments)
        return [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]

    save_gif(path, episode.last, draw, lambda moments: 1000 * DT * np.diff(moments))


def _draw_background(scene) -> MapCanvas:
    low, high = scene_extent(scene)
    scale = SIDE / float(max(high - low))
    width, height = ((high - low) * scale).astype(int)
    image = Image.new("RGB", (int(width), int(height) + HEADER), PAPER)
    canvas = MapCanvas(image, scale, low, (0, HEADER + int(height)))
    for kind, colour in ROAD_COLOURS.items():
        for segment in scene.segment[scene.segment_kind == kind]:
            canvas.line(segment[:2], segment[2:], colour, ROAD_WIDTHS[kind])
    _draw_legend(canvas)
    return canvas


def _draw_legend(canvas: MapCanvas) -> None:
    """Draws the colours of outcomes and of scripted bodies, from the right."""
    font, right = ImageFont.load_default(size=11), canvas.image.width - 6.0
    for name, colour in [*OUTCOME_COLOURS.items(), ("scripted", SCRIPTED)][::-1]:
        right -= font.getlength(name)
        canvas.draw.text((right, 6), name, fill=INK, font=font)
        canvas.draw.rectangle((right - 14, 7, right - 4, 17), fill=colour)
        right -= 22


def _draw_moment(background: MapCanvas, episode: DriveEpisode, moment: int) -> Image.Image:
    canvas = MapCanvas(background.image.copy(), background.scale, background.anchor, background.origin)
    pose, size = episode.pose[moment], episode.scene.size
    for slot in np.flatnonzero(episode.states.present[moment]):
        learner = slot < episode.agents and episode.scene.learner[slot]
        colour = OUTCOME_COLOURS[episode.outcome[slot]] if learner else SCRIPTED
        ghost = learner and bool(episode.states.ghost[moment, slot])
        _draw_body(canvas, pose[slot], size[slot], colour, ghost)
        if learner and not ghost:
            radius = float(episode.radius[moment, slot])
            canvas.disc(episode.states.goal[moment, slot], radius, outline=colour, width=2)
    goals = int(episode.states.record.goals[moment].sum())
    text = f"{episode.kind}   t = {moment * DT:.1f} s   goals {goals}"
    canvas.draw.text((6, 24), text, fill=INK, font=ImageFont.load_default(size=14))
    return canvas.image


def _draw_body(canvas: MapCanvas, pose: np.ndarray, size: np.ndarray, colour: str, ghost: bool) -> None:
    """Draws a body with a mark at its front; ghosts as outlines."""
    canvas.polygon(box_corners(pose, size)[::-1], outline=colour, fill=None if ghost else colour)
    ahead = np.array([np.cos(pose[2]), np.sin(pose[2])]) * size[0] / 2
    canvas.line(pose[:2] + ahead * 0.3, pose[:2] + ahead, INK)
