"""Plots of an opponent pool: rating curves, and the learner's score against each opponent."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxmarl_echelon.palette import DIVERGING, INDIGO, ORANGE, SERIES
from jaxmarl_echelon.tracking.run_tables import PoolRows, group_by_name, is_own_learner, read_pool_rows

LEARNER, SNAPSHOT, FIXED = ORANGE, "#7a9cc6", INDIGO
LONGEST_NAME = 24


def pool_plot(path: Path, pool_csv: Path) -> None:
    """Draws ratings against environment steps, and a heat map of the learner's score against each opponent.

    Args:
      path: the PNG file to write.
      pool_csv: a run's `pool.csv`; a reused slot counts as a new opponent.
    """
    rows = read_pool_rows(pool_csv)
    figure = Figure(figsize=(11.0, 4.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    plot_ratings(left, rows)
    image = plot_payoffs(right, rows)
    if image is not None:
        figure.colorbar(image, ax=right, label="score of the learner")
    figure.savefig(path)


def plot_ratings(axes: Axes, rows: PoolRows) -> None:
    """Plots rating curves: the learner's with its uncertainty, those of others without, snapshots faint."""
    axes.set_prop_cycle(color=[colour for colour in SERIES if colour != LEARNER])
    for name, mine in group_by_name(rows).items():
        steps, mu, sigma = (np.array([float(row[key]) for row in mine]) for key in ("step", "mu", "sigma"))
        kind = mine[0]["kind"]
        if is_own_learner(mine[0]):
            axes.fill_between(steps, mu - sigma, mu + sigma, color=LEARNER, alpha=0.2, linewidth=0)
            axes.plot(steps, mu, color=LEARNER, linewidth=1.8, label=name)
        elif kind in ("learner", "fixed"):
            axes.plot(steps, mu, linewidth=1.4, label=_shorten_name(name))
        else:
            axes.plot(steps, mu, color=SNAPSHOT, linewidth=0.8, alpha=0.7)
    axes.set_title("rating", loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(framealpha=0.8, edgecolor="none", fontsize=8)


def plot_payoffs(axes: Axes, rows: PoolRows):
    """Plots a heat map of the learner's score by opponent (rows, by age) and update; grey: no games."""
    others = {name: mine for name, mine in group_by_name(rows).items() if not is_own_learner(mine[0])}
    steps = sorted({int(row["step"]) for row in rows})
    if not others or not steps:
        return None
    order = sorted(others, key=lambda name: int(others[name][0]["iteration"]))
    place = {step: column for column, step in enumerate(steps)}
    score = np.full((len(order), len(steps)), np.nan)
    for line, name in enumerate(order):
        for row in others[name]:
            score[line, place[int(row["step"])]] = float(row["score"])
    axes.set_facecolor("#e0e0e0")
    extent = (steps[0], steps[-1] + 1, len(order) - 0.5, -0.5)
    image = axes.imshow(score, aspect="auto", vmin=0.0, vmax=1.0, cmap=DIVERGING, extent=extent)
    shown = np.unique(np.linspace(0, len(order) - 1, min(len(order), 20)).astype(int))
    axes.set_yticks(shown, [_shorten_name(order[line]) for line in shown], fontsize=7)
    axes.set_title("score against each opponent", loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return image


def _shorten_name(name: str) -> str:
    """Shortens a name for labels; long names, such as those of frozen runs, keep their end."""
    return name if len(name) <= LONGEST_NAME else f"...{name[-LONGEST_NAME:]}"


def matrix_plot(path: Path, names: Sequence[str], payoff: np.ndarray) -> None:
    """Draws a payoff matrix `[n, n]` of scores in [0, 1], the row against the column, as a heat map.

    Args:
      path: the PNG file to write.
      names: of the n entries.
      payoff: scores; NaN where there were no games.
    """
    size = 2.5 + 0.42 * len(names)
    figure = Figure(figsize=(size + 1.2, size), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(payoff, vmin=0.0, vmax=1.0, cmap=DIVERGING)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    for row, column in np.argwhere(np.isfinite(payoff)):
        axes.text(column, row, f"{100 * payoff[row, column]:.0f}", ha="center", va="center", fontsize=7)
    figure.colorbar(image, ax=axes, label="score of the row", shrink=0.8)
    figure.savefig(path)
