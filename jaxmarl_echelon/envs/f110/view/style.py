"""Colours and marks of the pictures of cars."""

from collections.abc import Sequence

import numpy as np

from jaxmarl_echelon.palette import (
    ATTACKER,
    DEFENDER,
    GOLD,
    GREEN,
    INDIGO,
    NEUTRAL,
    PURPLE,
    SERIES,
    SKY,
    WINE,
)
from physics.gridmap import OccupancyMap

OUTCOME_COLOURS = {
    "target_crash": GREEN,
    "self_crash": WINE,
    "collision": GOLD,
    "timeout": SKY,
    "idle_stop": PURPLE,
    "target_finish": INDIGO,
}
RACE_COLOURS = {"finished": GREEN, "crashed": WINE, "timeout": SKY}
OUTCOME_MARKS = {
    "target_crash": "*",
    "self_crash": "X",
    "collision": "P",
    "timeout": "s",
    "idle_stop": "d",
    "target_finish": ">",
    "finished": "*",
    "crashed": "X",
}
FREE, WALL, RAY = (250, 250, 248), (90, 90, 96), (205, 222, 238)


def pick_outcome_colour(name: str) -> str:
    """Returns the colour of an outcome, also of an episode that is not over."""
    return (OUTCOME_COLOURS | RACE_COLOURS).get(name, NEUTRAL)


def car_colour(car: int, *, race: bool) -> str:
    """Returns a car's colour: that of its role, or in a race one of its own."""
    return SERIES[car % len(SERIES)] if race else (ATTACKER, DEFENDER)[car % 2]


def is_filled(car: int, *, race: bool) -> bool:
    """Whether a car is drawn filled: all of a race are, of the roles the attacker is."""
    return race or car == 0


def bound_positions(poses: Sequence[np.ndarray], margin: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns two corners of the rectangle around all positions `[..., 2 or 3]`, with a margin in metres."""
    points = np.concatenate([one[..., :2].reshape(-1, 2) for one in poses])
    return points.min(0) - margin, points.max(0) + margin


def sample_walls(grid: OccupancyMap, low: np.ndarray, high: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Returns bool `[rows, columns]` walls of a rectangle of a map, from the lower left.

    Args:
      grid: the map.
      low, high: corners of the rectangle, m.
      count: numbers of columns and of rows.
    """
    x, y = (low[i] + (np.arange(count[i]) + 0.5) * (high[i] - low[i]) / count[i] for i in (0, 1))
    rows, columns, inside = grid.cells(np.stack(np.meshgrid(x, y), axis=-1))
    return ~inside | grid.occupied[rows, columns]
