"""Plots of a finished or running run, from its CSV files."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from jaxmarl_echelon.palette import RISING, SERIES
from jaxmarl_echelon.tracking.csv_sink import read_columns
from jaxmarl_echelon.tracking.formats import format_finite, format_percent
from jaxmarl_echelon.tracking.run_tables import RETURN, find_phase_changes
from jaxmarl_echelon.tracking.view import loss_rank

TRAINING, EVALUATION = "#7a9cc6", "#c0392b"
PHASE, BACK = "#8a8a8a", "#d98880"
MOST_LOSSES = 6
MOST_NAMES = 12

Columns = dict[str, np.ndarray]
Rows = Sequence[Mapping[str, Any]]


def learning_curve(
    path: Path, metrics_csv: Path, eval_csv: Path, *, score: str | None = "success", title: str = ""
) -> None:
    """Plots score and return against environment steps, and losses below, of a finished or running run.

    Training is a faint line per update with a strong moving mean; evaluations are points with the score's
    interval. Vertical lines labelled with the new phase mark curriculum transitions, red for regressions.
    Quantities without a value get no panel.

    Args:
      path: the PNG file to write.
      metrics_csv: a run's `metrics.csv`; may be missing.
      eval_csv: a run's `eval.csv`; may be missing.
      score: name of the score; None without one.
      title: figure title.
    """
    metrics, evaluations = read_columns(metrics_csv), read_columns(eval_csv)
    rate = f"{score}_rate"
    column = rate if f"train/{rate}" in metrics or rate in evaluations else str(score)
    shown = [
        one
        for one in (column, RETURN)
        if _has_values(metrics, _trained(one)) or _has_values(evaluations, one)
    ]
    losses = [name for name in metrics if name.startswith("losses/") and _has_values(metrics, name)]
    losses = sorted(losses, key=loss_rank)[:MOST_LOSSES]
    figure = make_figure(10.0, 4.2 + (2.2 if losses and shown else 0.0), title)
    parts = [part for part in (shown, losses) if part]
    if not parts:
        figure.text(0.5, 0.5, "no results yet", ha="center", va="center", color=PHASE)
    rows = (
        figure.subfigures(len(parts), 1, squeeze=False, height_ratios=(2, 1)[: len(parts)])[:, 0]
        if parts
        else ()
    )
    for row, part in zip(rows, parts, strict=True):
        for axes, name in zip(row.subplots(1, len(part), squeeze=False)[0], part, strict=True):
            if part is losses:
                _curve(axes, metrics, name, name.removeprefix("losses/"), small=True)
            else:
                _results(axes, metrics, evaluations, name, score)
    figure.savefig(path)


def _has_values(table: Columns, name: str) -> bool:
    return name in table and bool(np.isfinite(table[name]).any())


def _trained(column: str) -> str:
    """Returns the column of `metrics.csv` for one of evaluations."""
    return "train/return" if column == RETURN else f"train/{column}"


def _results(axes: Axes, metrics: Columns, evaluations: Columns, column: str, score: str | None) -> None:
    """Plots the score or the return in training and evaluations; the return of each of several learners."""
    scored = column != RETURN
    _curve(axes, metrics, _trained(column), column.replace("_", " ") if scored else "return")
    several = [] if scored else [name for name in metrics if name.startswith("train/return/")]
    for name, colour in zip(several, pick_colours(len(several)), strict=True):
        axes.plot(metrics["step"], metrics[name], color=colour, label=name.removeprefix("train/return/"))
    _evaluations(axes, evaluations, column, (f"{score}_low", f"{score}_high") if scored else None)
    if scored:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _phases(axes, metrics)
    axes.legend(framealpha=0.8, edgecolor="none", loc="best")


def ladder_plot(path: Path, rows: Rows, *, title: str = "") -> None:
    """Plots the success rate per phase as horizontal bars with intervals, the first phase on top.

    Args:
      path: the PNG file to write.
      rows: per phase `name`, `success` (a fraction) and optionally `low` and `high`, the ends of its
        interval.
      title: figure title.
    """
    figure = make_figure(8.0, _bars_height(len(rows)), title)
    _success_bars(figure.subplots(), rows, [TRAINING] * len(rows))
    figure.savefig(path)


def variants_plot(path: Path, rows: Rows, *, title: str = "", label: str = "success rate") -> None:
    """Plots the variants of a sweep: success with intervals and, if given, learning curves.

    Args:
      path: the PNG file to write.
      rows: per variant `name` and `success`; optionally `measure`, the name of that quantity (a fraction,
        except for the return), `low` and `high`, the ends of its interval, and `steps` `[n]` and `curves`
        `[members, n]`, one curve per seed, drawn faintly with a strong mean in the colour of its bar.
      title: figure title.
      label: quantity of the curves.
    """
    courses = [row for row in rows if len(row.get("curves", ()))]
    height = _bars_height(len(rows))
    figure = make_figure(12.0 if courses else 8.0, max(height, 4.2) if courses else height, title)
    colours = pick_colours(len(rows))
    if not courses:
        _success_bars(figure.subplots(), rows, colours)
        figure.savefig(path)
        return
    left, right = figure.subplots(1, 2, width_ratios=(4, 5))
    _success_bars(left, rows, colours)
    style_axes(right, label)
    for row, colour in zip(rows, colours, strict=True):
        if len(row.get("curves", ())):
            _course(right, np.asarray(row["steps"], float), np.atleast_2d(row["curves"]), row["name"], colour)
    if len(courses) <= MOST_NAMES:
        right.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(path)


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Averages over the last `window` entries, `[n]` to `[n]`; non-finite entries are ignored."""
    known = np.isfinite(values)
    # Offset by a typical value, so that constant inputs give exactly constant means.
    typical = values[known][0] if known.any() else 0.0
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values - typical, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    start = np.maximum(np.arange(1, len(values) + 1) - window, 0)
    total, number = sums[1:] - sums[start], counts[1:] - counts[start]
    return np.where(number > 0, typical + total / np.maximum(number, 1), np.nan)


def make_figure(width: float, height: float, title: str) -> Figure:
    """Makes an empty figure of a size in inches, independent of pyplot."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title)
    return figure


def style_axes(axes: Axes, label: str, small: bool = False, across: str = "environment steps") -> None:
    """Styles axes of curves: title, grid, and a horizontal axis named `across` unless they are `small`."""
    axes.set_title(label, fontsize=9 if small else 11, loc="left")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7 if small else 9)
    if not small:
        axes.set_xlabel(across)


def _curve(axes: Axes, metrics: Columns, name: str, label: str, small: bool = False) -> None:
    style_axes(axes, label, small)
    if not _has_values(metrics, name):
        return
    known = np.isfinite(metrics[name])
    steps, values = metrics["step"][known], metrics[name][known]
    axes.plot(steps, values, color=TRAINING, alpha=0.35, linewidth=0.8)
    mean = moving_mean(values, max(len(values) // 40, 1))
    style = {"marker": "o", "markersize": 3} if len(values) == 1 else {}
    axes.plot(steps, mean, color=TRAINING, linewidth=1.0 if small else 1.8, label="training", **style)


def _evaluations(axes: Axes, table: Columns, name: str, bounds: tuple[str, str] | None = None) -> None:
    if not _has_values(table, name):
        return
    known = np.isfinite(table[name])
    steps, values = table["step"][known], table[name][known]
    spread = None
    if bounds is not None and all(bound in table for bound in bounds):
        low, high = (table[bound][known] for bound in bounds)
        spread = np.maximum(np.stack([values - low, high - values]), 0.0)
    style = {"fmt": "o-", "markersize": 4, "linewidth": 1.0, "capsize": 2.5}
    axes.errorbar(steps, values, yerr=spread, color=EVALUATION, label="evaluation", **style)


def _phases(axes: Axes, metrics: Columns) -> None:
    """Marks phase transitions; overlapping labels are omitted, lines are not."""
    changes = find_phase_changes(metrics)
    if not changes:
        return
    axes.set_title(axes.get_title(loc="left"), fontsize=11, loc="left", pad=14)
    least, labelled = 0.025 * (metrics["step"].max() - metrics["step"].min()), -math.inf
    for step, before, stage in changes:
        colour = BACK if stage < before else PHASE
        axes.axvline(step, color=colour, linewidth=0.7, alpha=0.8, zorder=0.5)
        if step - labelled >= least:
            place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
            axes.annotate(f"{stage}", (step, 1.0), color=colour, fontsize=6.5, **place)
            labelled = step


def _bars_height(rows: int) -> float:
    return 1.1 + 0.27 * max(rows, 1)


def _success_bars(axes: Axes, rows: Rows, colours: Sequence) -> None:
    success = np.array([float(row["success"]) for row in rows])
    ends = [np.array([float(row.get(end, math.nan)) for row in rows]) for end in ("low", "high")]
    places = np.arange(len(rows))
    axes.barh(places, np.nan_to_num(success), color=colours, height=0.72)
    known = np.isfinite(success) & np.isfinite(ends[0]) & np.isfinite(ends[1])
    spread = np.maximum(np.stack([success - ends[0], ends[1] - success]), 0.0)[:, known]
    style = {"fmt": "none", "ecolor": "#303030", "elinewidth": 1.0, "capsize": 2.5}
    axes.errorbar(success[known], places[known], xerr=spread, **style)
    measure = rows[0].get("measure", "success_rate") if len(rows) else "success_rate"
    shown = format_finite if measure == RETURN else format_percent
    for place, value, top in zip(places, success, ends[1], strict=True):
        right = np.nanmax([value, top, 0.0]) if math.isfinite(value) else 0.0
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(shown(value), (right, place), **beside)
    axes.set_yticks(places, [str(row["name"]) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    if measure == RETURN:
        axes.margins(x=0.15)
    else:
        axes.set_xlim(0.0, 1.12)
        axes.set_xticks(np.linspace(0.0, 1.0, 6))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("return" if measure == RETURN else measure.replace("_", " "))
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def pick_colours(number: int) -> list:
    """Picks a colour for each of several things that are drawn together."""
    if number <= len(SERIES):
        return list(SERIES[:number])
    return list(matplotlib.colormaps[RISING](np.linspace(0.0, 0.95, number)))


def _course(axes: Axes, steps: np.ndarray, curves: np.ndarray, name: str, colour) -> None:
    for curve in curves:
        axes.plot(steps, curve, color=colour, alpha=0.25, linewidth=0.8)
    known = np.isfinite(curves)
    mean = np.where(known, curves, 0.0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)
    axes.plot(steps, mean, color=colour, linewidth=1.8, label=name)
