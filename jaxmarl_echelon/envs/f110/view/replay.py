"""Writes one drive as an interactive page: one file, without network access, for any browser."""

from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.f110.view.frames import RecordedDrive
from jaxmarl_echelon.envs.f110.view.style import (
    RAY,
    WALL,
    bound_positions,
    car_colour,
    is_filled,
    pick_outcome_colour,
    sample_walls,
)
from jaxmarl_echelon.envs.viewing.pages import PageParts, encode_array, write_page
from jaxmarl_echelon.palette import INK, PAPER

PAGE = PageParts(
    __package__,
    ("recording", "scene"),
    panel="""  <h1 id="caption">Cars</h1>
  <div id="cars"></div>""",
    help="""Wheel: zoom. Drag: move. Click a car or a row: follow it; Esc: stop following. Lines are the
    beams of car 0.""",
)
_MOST_CELLS = 1000
_PAGE_WALL, _PAGE_BEAM = (f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in (WALL, RAY))


def save_car_replay(path: str | Path, episode: RecordedDrive, angles: np.ndarray) -> None:
    """Writes an episode as a page with playback, in which single cars can be followed.

    Args:
      path: file to write.
      episode: the recorded episode.
      angles: `[B]` directions of the beams, rad.
    """
    frames, race = episode.frames, episode.is_race
    low, high = bound_positions([frames.pose], margin=3.0)
    count = np.ceil((high - low) / episode.grid.resolution).astype(int).clip(2, _MOST_CELLS)
    walls = sample_walls(episode.grid, low, high, count)
    cars = range(len(episode.names))
    recording = {
        "period": float(episode.seconds[min(1, episode.last)] - episode.seconds[0]) or episode.dt,
        "dt": episode.dt,
        "events": [[episode.last, 0, episode.outcome]],
        "outcomeColour": pick_outcome_colour(episode.outcome),
        "low": low.astype(float).tolist(),
        "high": high.astype(float).tolist(),
        "cells": walls.shape,
        "size": episode.size.astype(float).tolist(),
        "angles": np.asarray(angles, float).tolist(),
        "names": episode.names,
        "lap": episode.lap,
        "filled": [is_filled(car, race=race) for car in cars],
        "colours": {
            "paper": PAPER,
            "wall": _PAGE_WALL,
            "beam": _PAGE_BEAM,
            "ink": INK,
            "cars": [car_colour(car, race=race) for car in cars],
        },
        "arrays": {
            "pose": encode_array(frames.pose.astype(np.float32)),
            "steer": encode_array(frames.steer.astype(np.float32)),
            "progress": encode_array(frames.progress.astype(np.float32)),
            "scan": encode_array(frames.scan.astype(np.float32)),
            "step": encode_array(frames.step.astype(np.int32)),
            "walls": encode_array(np.packbits(walls, bitorder="little")),
        },
    }
    write_page(path, f"F110: {episode.describe()}", recording, PAGE)
