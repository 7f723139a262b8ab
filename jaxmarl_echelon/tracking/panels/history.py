"""Courses of results over the whole run, drawn with Braille dots where a terminal has room for them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.panel import Panel
from rich.text import Text

from jaxmarl_echelon.tracking.formats import format_count, format_number, format_short_percent
from jaxmarl_echelon.tracking.panels.parts import ACCENT, draw_panel
from jaxmarl_echelon.tracking.run_tables import RETURN
from jaxmarl_echelon.tracking.view import RunView

LEAST_HEIGHT = 8
MOST_HEIGHT = 18
PANEL_WIDTH = 46
EVALUATION = "bold yellow"
# Bits of the dots of a Braille character, by row and column.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BLANK = 0x2800


class Course(NamedTuple):
    """A quantity over the run: its title, and the trends of training and of evaluations; "" for none."""

    title: str
    trained: str
    evaluated: str = ""


def find_courses(view: RunView) -> list[Course]:
    """Lists what changed over a run, the most important first: score, returns, length, measures, losses."""
    found = [
        Course(view.score or "", f"train/{view.score_column}", f"eval_agg/{view.score_column}"),
        Course("return", "train/return", f"eval_agg/{RETURN}"),
        *(Course(f"return, {role}", f"train/return/{role}") for role, _ in view.section("train/return/")),
        Course("length", "train/episode_length", "eval_agg/avg_episode_length"),
        *(Course(name, f"train/{name}", f"eval_agg/{name}") for name, _ in view.results()),
        *(Course(name, f"losses/{name}") for name, _ in view.losses()),
    ]
    return [one for one in found if any(len(view.trend(name, 2)) == 2 for name in one[1:])]


def draw_history(view: RunView, width: int, height: int) -> list[tuple[int, list[Panel]]]:
    """Draws as many courses as fit, each in a panel; returns the heights of rows and their panels.

    There is one row, or two if they are tall enough and one does not hold all courses; none before a course
    has two values.
    """
    courses, beside = find_courses(view), max(width // PANEL_WIDTH, 1)
    rows = 2 if len(courses) > beside and height >= 2 * LEAST_HEIGHT else 1
    if not courses or height < LEAST_HEIGHT:
        return []
    tall = min(height // rows, MOST_HEIGHT)
    parts = [courses[row * beside : (row + 1) * beside] for row in range(rows)]
    return [
        (tall, [draw_course(view, one, width // len(part) - 4, tall - 2) for one in part]) for part in parts
    ]


def draw_course(view: RunView, course: Course, width: int, height: int) -> Panel:
    """Draws one quantity over environment steps: training in one colour, evaluations over it in another."""
    scored = course.title == view.score
    named, ends = {}, []
    parts = (("training", course.trained, ACCENT), ("evaluation", course.evaluated, EVALUATION))
    for label, name, style in parts:
        if name in view.trends and (points := view.trends[name].course(2 * width)):
            named[label] = *np.array(points).T, style
            ends += [view.trends[name].first, view.trends[name].last]
    curves = list(named.values())
    values = np.concatenate([values for _, values, _ in curves])
    low, high = (0.0, 1.0) if scored else (float(values.min()), float(values.max()))
    told = format_short_percent if scored else format_number
    labels = [told(high), told(low)]
    margin = max(map(len, labels)) + 1
    ends = min(ends), max(ends)
    lines = draw_dots(curves, ends, (low, high), width - margin, height - 1)
    for row, line in enumerate(lines):
        label = labels[0] if row == 0 else labels[1] if row == len(lines) - 1 else ""
        lines[row] = Text.assemble((label.rjust(margin - 1) + " ", "dim"), line)
    first, last = (format_count(end) for end in ends)
    foot = " " * margin + first + last.rjust(max(width - margin - len(first), 0))
    text = Text("\n", no_wrap=True, overflow="crop").join([*lines, Text(foot, style="dim")])
    legend = " ".join(f"[{style}]━ {name}[/]" for name, (*_, style) in named.items() if len(named) > 1)
    return draw_panel(" ".join(filter(None, [course.title.replace("_", " "), legend])), text)


def draw_dots(
    curves: Sequence[tuple[np.ndarray, np.ndarray, str]],
    across: tuple[float, float],
    up: tuple[float, float],
    width: int,
    height: int,
) -> list[Text]:
    """Draws curves as lines of Braille dots, two by four per character; a later curve covers earlier ones.

    Args:
      curves: `[n]` places, `[n]` values, and a style, each.
      across: ends of the horizontal axis.
      up: ends of the vertical axis.
      width, height: characters; at least 1.
    """
    width, height = max(width, 1), max(height, 1)
    cells, styles = np.zeros((height, width), int), np.full((height, width), "", object)
    for x, y, style in curves:
        columns = _scale(x, across, 2 * width)
        rows = 4 * height - 1 - _scale(y, up, 4 * height)
        for row, column in _connect(rows, columns):
            cells[row // 4, column // 2] |= _DOTS[row % 4, column % 2]
            styles[row // 4, column // 2] = style
    return [
        Text.assemble(*((chr(_BLANK + int(dots)), style) for dots, style in zip(*line, strict=True)))
        for line in zip(cells, styles, strict=True)
    ]


def _scale(values: np.ndarray, ends: tuple[float, float], count: int) -> np.ndarray:
    """Converts values to places from 0 to `count` - 1."""
    low, high = ends
    share = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    return np.clip(np.round(share * (count - 1)), 0, count - 1).astype(int)


def _connect(rows: np.ndarray, columns: np.ndarray) -> list[tuple[int, int]]:
    """Lists the dots of a line through points."""
    found = [(int(rows[0]), int(columns[0]))] if len(rows) else []
    for i in range(len(rows) - 1):
        count = int(max(abs(rows[i + 1] - rows[i]), abs(columns[i + 1] - columns[i]), 1)) + 1
        line = (np.round(np.linspace(end[i], end[i + 1], count)).astype(int) for end in (rows, columns))
        found += list(zip(*(part.tolist() for part in line), strict=True))
    return found
