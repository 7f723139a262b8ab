"""Charts as inline SVG; colours and fonts come from the page's style, which has a light and a dark scheme."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxmarl_echelon.tracking.formats import format_count, format_finite, format_percent, format_short_percent

# Size in units of the drawing, about pixels, and what the axes leave for their labels.
WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 24
# Numbers of colours of the style.
COLOURS = 8
STEPS = "environment steps"
_MOST_POINTS = 160
_MOST_DOTS = 60
# Decimals of a number on an axis; smaller ones are written with a power of ten.
_MOST_DIGITS = 4
_PREFIXES = (("G", 1e9), ("M", 1e6), ("k", 1e3))


@dataclass(frozen=True)
class Line:
    """A curve of a chart.

    Attributes:
      name: for the legend; empty for none.
      x, y: `[n]`; values that are not finite are left out.
      low, high: `[n]` ends of an interval, drawn as a band where they are finite; None without.
      colour: number of its colour; None for a neutral one.
      style: "line", "dots" (a line with a dot per value), "step" or "faint".
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    colour: int | None = 0
    style: str = "line"


class _Frame:
    """Axes of a chart: converts values to the drawing's coordinates."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]):
        self.x, self.y = x, y

    def across(self, x: np.ndarray | float) -> np.ndarray:
        low, high = self.x
        return LEFT + (np.asarray(x) - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def down(self, y: np.ndarray | float) -> np.ndarray:
        low, high = self.y
        return HEIGHT - BOTTOM - (np.asarray(y) - low) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)

    def points(self, x: np.ndarray, y: np.ndarray) -> list[str]:
        return [f"{a:.1f},{b:.1f}" for a, b in zip(self.across(x), self.down(y), strict=True)]


def draw_chart(
    title: str,
    lines: Sequence[Line],
    *,
    across: str = STEPS,
    bounds: tuple[float, float] | None = None,
    percent: bool = False,
    marks: Sequence[tuple[float, str, bool]] = (),
) -> str:
    """Draws curves with their intervals.

    Args:
      title: headline.
      lines: the curves; without a finite value nothing is drawn.
      across: quantity of the horizontal axis.
      bounds: ends of the vertical axis; None for the range of the values.
      percent: whether values are fractions, shown as percentages.
      marks: vertical lines: position, label, and whether it marks a step back.
    """
    lines = [line for line in map(_finite, lines) if len(line.x)]
    if not lines:
        return ""
    frame = _Frame(_span([line.x for line in lines]), bounds or _span(_heights(lines), margin=0.06))
    told = format_percent if percent else format_finite
    drawn = [*_axes(frame, percent=percent), *_marks(frame, marks)]
    for line in lines:
        drawn += _curve(frame, line, told)
    return _figure(title, across, drawn, [(line.name, line.colour) for line in lines if line.name])


def draw_shares(
    title: str, x: np.ndarray, shares: Mapping[str, np.ndarray], colours: Mapping[str, int]
) -> str:
    """Draws shares of a whole over steps as stacked areas, the first at the bottom.

    Args:
      title: headline.
      x: environment steps `[n]`.
      shares: name to fractions `[n]`.
      colours: name to number of a colour.
    """
    known = np.isfinite(np.sum(list(shares.values()), 0)) if shares else np.empty(0, bool)
    if np.count_nonzero(known) < 2:
        return ""
    frame, below = _Frame(_span([x[known]]), (0.0, 1.0)), np.zeros(np.count_nonzero(known))
    drawn = []
    for name, share in shares.items():
        above = below + share[known]
        outline = frame.points(x[known], above) + frame.points(x[known], below)[::-1]
        drawn.append(f'<polygon class="area {_colour(colours[name])}" points="{" ".join(outline)}"/>')
        below = above
    drawn += _axes(frame, percent=True)
    return _figure(title, STEPS, drawn, [(name, colours[name]) for name in shares])


def find_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Returns round numbers within a range, 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, math.floor(high / step + 1e-9) + 1)]


def thin_curve(x: np.ndarray, y: np.ndarray, most: int = _MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Averages neighbouring finite values of a curve `[n]` until at most `most` are left."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    groups = np.arange(len(x)) * min(most, len(x)) // max(len(x), 1)
    counts = np.maximum(np.bincount(groups), 1)
    return np.bincount(groups, x) / counts, np.bincount(groups, y) / counts


def _finite(line: Line) -> Line:
    known = np.isfinite(line.x) & np.isfinite(line.y)
    low, high = (None if end is None else end[known] for end in (line.low, line.high))
    return Line(line.name, line.x[known], line.y[known], low, high, line.colour, line.style)


def _heights(lines: Sequence[Line]) -> list[np.ndarray]:
    found = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    return [part[np.isfinite(part)] for part in found]


def _span(parts: Sequence[np.ndarray], margin: float = 0.0) -> tuple[float, float]:
    """The range of all values, widened by a margin; never empty."""
    low, high = min(part.min() for part in parts if len(part)), max(part.max() for part in parts if len(part))
    wide = (high - low) * margin if high > low else (abs(low) * 0.1 or 1.0) if margin else 0.0
    return float(low - wide), float(high + wide)


def _colour(number: int | None) -> str:
    return "none" if number is None else f"c{number % COLOURS}"


def label_ticks(ticks: Sequence[float]) -> list[str]:
    """Formats the numbers of an axis with one prefix, and with the digits that tell them apart."""
    largest = max(map(abs, ticks), default=0.0)
    prefix, size = next((one for one in _PREFIXES if largest >= one[1]), ("", 1.0))
    apart = (ticks[1] - ticks[0]) / size if len(ticks) > 1 else largest / size or 1.0
    digits = max(-math.floor(math.log10(apart) + 1e-9), 0)
    if digits > _MOST_DIGITS:
        power = math.floor(math.log10(largest))
        rest = max(digits + power, 0)
        return [f"{value / 10.0**power:.{rest}f}e{power}" if value else "0" for value in ticks]
    return [f"{value / size:.{digits}f}{prefix if value else ''}" for value in ticks]


def _axes(frame: _Frame, *, percent: bool = False) -> list[str]:
    drawn, right, bottom = [], WIDTH - RIGHT, HEIGHT - BOTTOM
    ticks = find_ticks(*frame.y)
    labels = [format_short_percent(value) for value in ticks] if percent else label_ticks(ticks)
    for value, label in zip(ticks, labels, strict=True):
        y = float(frame.down(value))
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(LEFT - 5, y + 3.5, label, "end"))
    ticks = find_ticks(*frame.x)
    for value, label in zip(ticks, label_ticks(ticks), strict=True):
        x = float(frame.across(value))
        drawn.append(_text(x, bottom + 15, label, "end" if x > right - 18 else "middle"))
    return [*drawn, f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>']


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _marks(frame: _Frame, marks: Sequence[tuple[float, str, bool]]) -> list[str]:
    """Draws vertical lines; labels that would overlap are left out."""
    drawn, labelled = [], -math.inf
    for place, label, back in marks:
        x = float(frame.across(place))
        kind = "mark back" if back else "mark"
        drawn.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        if x - labelled >= 14:
            drawn.append(_text(x + 2, TOP + 8, html.escape(label), "start"))
            labelled = x
    return drawn


def _curve(frame: _Frame, line: Line, told: Callable[[float], str]) -> list[str]:
    colour, drawn = _colour(line.colour), []
    if line.low is not None and line.high is not None:
        known = np.isfinite(line.low) & np.isfinite(line.high)
        outline = frame.points(line.x[known], line.high[known])
        outline += frame.points(line.x[known], line.low[known])[::-1]
        if outline:
            drawn.append(f'<polygon class="band {colour}" points="{" ".join(outline)}"/>')
    points = frame.points(line.x, line.y)
    if line.style == "step":
        # Held until the next value: a corner before each point but the first.
        held = frame.points(line.x[1:], line.y[:-1])
        points = [points[0], *(one for pair in zip(held, points[1:], strict=True) for one in pair)]
    faint = " faint" if line.style == "faint" else ""
    drawn.append(f'<polyline class="curve{faint} {colour}" points="{" ".join(points)}"/>')
    if line.style == "dots" or len(points) == 1:
        drawn += _dots(frame, line, told)
    return drawn


def _dots(frame: _Frame, line: Line, told: Callable[[float], str]) -> list[str]:
    """Draws dots whose tooltips have the numbers; only some of many."""
    drawn = []
    shown = np.unique(np.linspace(0, len(line.x) - 1, min(len(line.x), _MOST_DOTS)).astype(int))
    for index in shown:
        x, y = float(frame.across(line.x[index])), float(frame.down(line.y[index]))
        text = f"{format_count(float(line.x[index]))}: {told(float(line.y[index]))}"
        ends = [math.nan if end is None else float(end[index]) for end in (line.low, line.high)]
        if all(map(math.isfinite, ends)):
            text += f" [{told(ends[0])}, {told(ends[1])}]"
        place = f'class="{_colour(line.colour)}" cx="{x:.1f}" cy="{y:.1f}" r="2.4"'
        drawn.append(f"<circle {place}><title>{text}</title></circle>")
    return drawn


def _figure(title: str, across: str, drawn: Sequence[str], legend: Sequence[tuple[str, int | None]]) -> str:
    names = [
        f'<span class="{_colour(number)}">{html.escape(name.replace("_", " "))}</span>'
        for name, number in dict(legend).items()
    ]
    label = html.escape(title)
    return (
        f"<figure><figcaption><b>{label}</b> {' '.join(names)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
        f'<p class="across">{html.escape(across)}</p></figure>'
    )
