"""Animates one episode of cars from above, as a GIF."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageFont

from jaxmarl_echelon.envs.f110.view.frames import RecordedDrive
from jaxmarl_echelon.envs.f110.view.style import (
    FREE,
    RAY,
    WALL,
    bound_positions,
    car_colour,
    is_filled,
    pick_outcome_colour,
    sample_walls,
)
from jaxmarl_echelon.envs.viewing.canvas import MapCanvas
from jaxmarl_echelon.envs.viewing.gif import save_gif
from jaxmarl_echelon.palette import INK, PAPER, contrast_text
from physics.boxes import box_corners

HEADER = 26
_SIZE = (720, 360)
_MOST_FRAMES, _MOST_BEAMS = 180, 36
_VIEW = 14.0


def save_car_gif(path: str | Path, episode: RecordedDrive, angles: np.ndarray) -> None:
    """Animates one episode, as a GIF below 5 MB; long drives are followed.

    Args:
      path: file to write.
      episode: the recorded episode.
      angles: `[B]` directions of the beams, rad.
    """
    low, high = bound_positions([episode.frames.pose], margin=1.0)
    follow = bool(np.any(high - low > _VIEW))
    scale = _SIZE[0] / _VIEW if follow else float(np.min(_SIZE / (high - low)))

    def draw(moments) -> list[Image.Image]:
        images = []
        for moment in moments:
            centre = episode.frames.pose[moment, 0, :2] if follow else (low + high) / 2
            image = _draw_moment(episode, int(moment), angles, centre, scale)
            images.append(image.quantize(32, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))
        return images

    def durations(moments) -> np.ndarray:
        return np.clip(1000 * np.diff(episode.seconds[moments]), 20, 500)

    save_gif(path, episode.last, draw, durations, stride=max(1, -(-(episode.last + 1) // _MOST_FRAMES)))


def _draw_moment(episode: RecordedDrive, moment: int, angles, centre, scale: float) -> Image.Image:
    span = np.array(_SIZE) / scale / 2
    walls = sample_walls(episode.grid, centre - span, centre + span, np.array(_SIZE))[::-1]
    image = Image.new("RGB", (_SIZE[0], _SIZE[1] + HEADER), PAPER)
    image.paste(Image.fromarray(np.where(walls[..., None], np.uint8(WALL), np.uint8(FREE))), (0, HEADER))
    origin = (_SIZE[0] / 2, HEADER + _SIZE[1] / 2)
    canvas = MapCanvas(image, scale, np.asarray(centre, np.float64), origin)
    _draw_beams(canvas, episode, moment, angles)
    for car in range(len(episode.names)):
        _draw_car(canvas, episode, moment, car)
    _draw_header(canvas, episode, moment)
    return image


def _draw_beams(canvas: MapCanvas, episode: RecordedDrive, moment: int, angles: np.ndarray) -> None:
    """Draws some of the beams of car 0; all of many would hide the map and make large files."""
    some = slice(None, None, -(-len(angles) // _MOST_BEAMS))
    x, y, heading = episode.frames.pose[moment, 0]
    direction = heading + angles[some]
    ends = episode.frames.scan[moment, some, None] * np.stack([np.cos(direction), np.sin(direction)], -1)
    for end in np.array([x, y]) + ends:
        canvas.line((x, y), end, RAY, 1)


def _draw_car(canvas: MapCanvas, episode: RecordedDrive, moment: int, car: int) -> None:
    """Draws a car, filled or outlined, with its front wheels as a line."""
    pose, size = episode.frames.pose[moment, car], episode.size
    colour = car_colour(car, race=episode.is_race)
    filled = is_filled(car, race=episode.is_race)
    canvas.polygon(
        box_corners(pose, size),
        fill=colour if filled else PAPER,
        outline=INK if filled else colour,
        width=1 if filled else 3,
    )
    angle = pose[2] + episode.frames.steer[moment, car]
    nose = pose[:2] + 0.35 * size[0] * np.array([np.cos(pose[2]), np.sin(pose[2])])
    wheel = 0.25 * size[0] * np.array([np.cos(angle), np.sin(angle)])
    canvas.line(nose - wheel, nose + wheel, INK, 3)


def _draw_header(canvas: MapCanvas, episode: RecordedDrive, moment: int) -> None:
    """Draws the time, each car's mark, name, speed and lap; at the end, the outcome in its colour."""
    last, font = moment == episode.last, ImageFont.load_default(size=14)
    back = pick_outcome_colour(episode.outcome) if last else PAPER
    ink, width = contrast_text(back), canvas.image.width
    canvas.draw.rectangle((0, 0, width, HEADER), fill=back)
    left = 8.0
    for car, name in enumerate(episode.names):
        colour = car_colour(car, race=episode.is_race)
        filled = is_filled(car, race=episode.is_race)
        square = (left, 8, left + 11, 19)
        canvas.draw.rectangle(
            square,
            fill=colour if filled else PAPER,
            outline=INK if filled else colour,
            width=1 if filled else 3,
        )
        words = f"{name} {episode.speed[moment, car]:.1f} m/s"
        if episode.is_race:
            words += f" lap {episode.completed_laps[moment, car] + 1}"
        canvas.draw.text((left + 16, 5), words, fill=ink, font=font)
        left += 16 + font.getlength(words) + 18
    text = episode.describe() if last else f"t = {episode.seconds[moment]:.2f} s"
    canvas.draw.text((width - 8, 5), text, fill=ink, font=font, anchor="ra")
