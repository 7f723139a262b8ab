"""Writes one drive as an interactive page: one file, without network access, for any browser."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.viewing.pages import PageParts, encode_array, write_page
from physics.gridmap import OccupancyMap

PAGE = PageParts(
    __package__,
    ("recording", "scene"),
    panel="""  <h1 id="caption">Cars</h1>
  <div id="cars"></div>""",
    help="""Wheel: zoom. Drag: move. Click a car or a row: follow it; Esc: stop following. Lines are the
    beams of car 0.""",
)
_MOST_CELLS = 1000


def save_car_replay(
    path: str | Path,
    grid: OccupancyMap,
    frames,
    outcome: str,
    angles: np.ndarray,
    dt: float,
    bounds: tuple[np.ndarray, np.ndarray],
    colours: Mapping,
) -> None:
    """Writes an episode as a page with playback, in which single cars can be followed.

    Args:
      path: file to write.
      grid: the map.
      frames: the episode's frames, `[T, ...]` (`viewer.CarFrame`).
      outcome: the outcome's name.
      angles: `[B]` directions of the beams, rad.
      dt: seconds per physics step.
      bounds: lower left and upper right corner of the shown part of the map.
      colours: by name, and `outcome`'s.
    """
    low, high = bounds
    walls = sample_walls(grid, low, high)
    last = len(frames.step) - 1
    recording = {
        "period": float(frames.step[min(1, last)] - frames.step[0]) * dt or dt,
        "dt": dt,
        "events": [[last, 0, outcome]],
        "outcomeColour": colours["outcome"],
        "low": np.asarray(low, float).tolist(),
        "high": np.asarray(high, float).tolist(),
        "cells": walls.shape,
        "size": np.asarray(frames.size[0], float).tolist(),
        "angles": np.asarray(angles, float).tolist(),
        "colours": {name: colour for name, colour in colours.items() if name != "outcome"},
        "arrays": {
            "pose": encode_array(frames.pose.astype(np.float32)),
            "steer": encode_array(frames.steer.astype(np.float32)),
            "scan": encode_array(frames.scan.astype(np.float32)),
            "step": encode_array(frames.step.astype(np.int32)),
            "walls": encode_array(np.packbits(walls, bitorder="little")),
        },
    }
    write_page(path, f"F110: {outcome}", recording, PAGE)


def sample_walls(grid: OccupancyMap, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns bool `[rows, columns]` walls of a rectangle of a map, from the lower left, by cells."""
    count = np.ceil((high - low) / grid.resolution).astype(int).clip(2, _MOST_CELLS)
    x, y = (low[i] + (np.arange(count[i]) + 0.5) * (high[i] - low[i]) / count[i] for i in (0, 1))
    rows, columns, inside = grid.cells(np.stack(np.meshgrid(x, y), axis=-1))
    return ~inside | grid.occupied[rows, columns]
