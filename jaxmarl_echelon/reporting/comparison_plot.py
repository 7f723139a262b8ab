"""Picture of a comparison: aggregates, probabilities of improvement, profiles and curves."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from jaxmarl_echelon.reporting.comparison import ALL_TASKS, MethodComparison
from jaxmarl_echelon.reporting.comparison_files import AXIS_NAMES, STATISTIC_NAMES, comparison_title
from jaxmarl_echelon.reporting.seed_statistics import Estimate
from jaxmarl_echelon.tracking.plots import make_figure, pick_colours, style_axes

_MOST_PAIRS = 12
_WIDTH, _HEIGHT = 4.0, 3.2


def comparison_plot(path: Path, comparison: MethodComparison) -> None:
    """Draws a comparison: statistics, pairs and profile in the first row, then each task's curves.

    Args:
      path: the PNG file to write.
      comparison: see `compare_methods`.
    """
    colours = dict(zip(comparison.methods, pick_colours(len(comparison.methods)), strict=True))
    names = list(next(iter(comparison.statistics.values())))
    rows = 2 + len(comparison.tasks)
    figure = make_figure(_WIDTH * 3, _HEIGHT * rows, comparison_title(comparison))
    parts = figure.subfigures(rows, 1, squeeze=False)[:, 0]
    for axes, name in zip(np.atleast_1d(parts[0].subplots(1, len(names), sharey=True)), names, strict=True):
        _points(
            axes,
            STATISTIC_NAMES[name],
            {m: comparison.statistics[m, ALL_TASKS][name] for m in colours},
            colours,
        )
    left, right = parts[1].subplots(1, 2)
    _pairs(left, comparison)
    style_axes(right, "runs above a score", across="score")
    for method, profile in comparison.profiles.items():
        _band(right, comparison.thresholds, profile, method, colours[method])
    right.set_ylim(-0.02, 1.02)
    right.xaxis.set_major_formatter(ScalarFormatter())
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    right.legend(frameon=False, fontsize=8)
    for part, task in zip(parts[2:], comparison.tasks, strict=True):
        for axes, (axis, across) in zip(part.subplots(1, 2), AXIS_NAMES.items(), strict=True):
            style_axes(axes, f"{task}: {comparison.measures[task]}", across=across)
            for curve in comparison.curves:
                if (curve.task, curve.axis) == (task, axis):
                    _band(axes, curve.x, curve.score, curve.method, colours[curve.method])
    figure.savefig(path)


def _points(axes: Axes, label: str, estimates: dict[str, Estimate], colours: dict) -> None:
    """Draws an estimate with its interval per method, the first on top."""
    for place, (method, one) in enumerate(estimates.items()):
        axes.plot(
            [one.low, one.high],
            [place, place],
            color=colours[method],
            linewidth=6,
            alpha=0.35,
            solid_capstyle="butt",
        )
        axes.plot(one.value, place, "o", color=colours[method])
    axes.set_yticks(range(len(estimates)), list(estimates), fontsize=8)
    axes.set_ylim(len(estimates) - 0.4, -0.6)
    _finish(axes, label)


def _pairs(axes: Axes, comparison: MethodComparison) -> None:
    """Draws the probability of improvement of each pair."""
    pairs = comparison.pairs[:_MOST_PAIRS]
    for place, pair in enumerate(pairs):
        one = pair.improvement
        axes.plot(
            [one.low, one.high],
            [place, place],
            color="#505050",
            linewidth=6,
            alpha=0.35,
            solid_capstyle="butt",
        )
        axes.plot(one.value, place, "o", color="#303030")
    axes.axvline(0.5, color="#8a8a8a", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(pairs)), [f"{pair.better}\nover {pair.worse}" for pair in pairs], fontsize=8)
    axes.set_ylim(max(len(pairs), 1) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    _finish(axes, "probability of improvement" if pairs else "one method: no pairs")


def _finish(axes: Axes, label: str) -> None:
    axes.set_title(label, fontsize=11, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _band(axes: Axes, x: np.ndarray, estimate: Estimate, name: str, colour) -> None:
    axes.fill_between(x, estimate.low, estimate.high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, estimate.value, color=colour, linewidth=1.6, label=name)
