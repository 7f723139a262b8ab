"""Pictures of a finished or running run, from its CSV files."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from jaxmarl_echelon.tracking.csv_sink import read_columns
from jaxmarl_echelon.tracking.view import prominence

TRAINING, EVALUATION = "#7a9cc6", "#c0392b"
MOST_LOSSES = 6

Columns = dict[str, np.ndarray]


def learning_curve(path: Path, metrics_csv: Path, eval_csv: Path, *, title: str = "") -> None:
    """Draws success and return against environment steps, and the losses below.

    Training is drawn as a faint line per update and a strong moving mean, evaluations as points
    with the interval of their success rate. Panels without data are left empty.

    Args:
      path: the PNG file to write.
      metrics_csv: a run's `metrics.csv`; may be missing.
      eval_csv: a run's `eval.csv`; may be missing.
      title: text above the figure.
    """
    metrics, evaluations = read_columns(metrics_csv), read_columns(eval_csv)
    losses = sorted((name for name in metrics if name.startswith("losses/")), key=prominence)[:MOST_LOSSES]
    figure = Figure(figsize=(10, 4.2 + (2.2 if losses else 0)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title)
    upper, lower = figure.subfigures(2, 1, height_ratios=(2, 1)) if losses else (figure, None)
    success, reward = upper.subplots(1, 2)
    _curve(success, metrics, "train/success_rate", "success rate")
    _evaluations(success, evaluations, "success_rate", ("success_low", "success_high"))
    success.set_ylim(-0.02, 1.02)
    success.yaxis.set_major_formatter(PercentFormatter(1.0))
    _curve(reward, metrics, "train/return", "return")
    _evaluations(reward, evaluations, "avg_reward")
    for axes in (success, reward):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="best")
    if losses:
        for axes, name in zip(np.atleast_1d(lower.subplots(1, len(losses))), losses, strict=True):
            _curve(axes, metrics, name, name.removeprefix("losses/"), small=True)
    figure.savefig(path)


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the last `window` entries, `[n]` to `[n]`; NaN entries do not count."""
    known = np.isfinite(values)
    # Sums of deviations from a typical value keep a constant course constant.
    typical = values[known][0] if known.any() else 0.0
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values - typical, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    start = np.maximum(np.arange(1, len(values) + 1) - window, 0)
    total, number = sums[1:] - sums[start], counts[1:] - counts[start]
    return np.where(number > 0, typical + total / np.maximum(number, 1), np.nan)


def _curve(axes: Axes, metrics: Columns, name: str, label: str, small: bool = False) -> None:
    axes.set_title(label, fontsize=9 if small else 11, loc="left")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7 if small else 9)
    if not small:
        axes.set_xlabel("environment steps")
    if name not in metrics:
        return
    known = np.isfinite(metrics[name])
    steps, values = metrics["step"][known], metrics[name][known]
    axes.plot(steps, values, color=TRAINING, alpha=0.35, linewidth=0.8)
    mean = moving_mean(values, max(len(values) // 40, 1))
    axes.plot(steps, mean, color=TRAINING, linewidth=1.0 if small else 1.8, label="training")


def _evaluations(axes: Axes, table: Columns, name: str, bounds: tuple[str, str] | None = None) -> None:
    if name not in table:
        return
    known = np.isfinite(table[name])
    steps, values = table["step"][known], table[name][known]
    spread = None
    if bounds is not None and all(bound in table for bound in bounds):
        low, high = (table[bound][known] for bound in bounds)
        spread = np.maximum(np.stack([values - low, high - values]), 0.0)
    style = {"fmt": "o-", "markersize": 4, "linewidth": 1.0, "capsize": 2.5}
    axes.errorbar(steps, values, yerr=spread, color=EVALUATION, label="evaluation", **style)
