"""Results of a search: `trials.csv`, a table on the terminal, and a picture."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jaxmarl_echelon.searching.trial_groups import name_trial
from jaxmarl_echelon.training.config.search_space import CHOICE, Dimension

SHOWN = 10


def trial_rows(trials: Sequence[Any], values: Any) -> list[dict[str, Any]]:
    """Returns a row per trial: name, state, value (the last reported one of pruned trials), and settings.

    Args:
      trials: Optuna's.
      values: `(trial) -> settings by key`.
    """
    rows = []
    for trial in trials:
        value = trial.value
        if value is None and trial.intermediate_values:
            value = trial.intermediate_values[max(trial.intermediate_values)]
        row = {"trial": name_trial(trial), "state": trial.state.name.lower(), "value": value}
        rows.append(row | {"evaluations": len(trial.intermediate_values)} | values(trial))
    return rows


def write_trials(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows as CSV, under a temporary name first."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        names = list(dict.fromkeys(key for row in rows for key in row))
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    temporary.replace(path)


def best_trials_table(rows: Sequence[Mapping[str, Any]], measure: str) -> Table:
    """Returns a table of the best complete trials."""
    complete = [row for row in rows if row["state"] == "complete"]
    best = sorted(complete, key=lambda row: row["value"], reverse=True)[:SHOWN]
    keys = [key for key in (best[0] if best else {}) if key not in ("trial", "state", "value", "evaluations")]
    table = Table(title=f"best of {len(rows)} trials ({len(complete)} complete)", title_justify="left")
    for name in ("trial", measure, *keys):
        table.add_column(name, justify="left" if name == "trial" else "right")
    for row in best:
        table.add_row(row["trial"], f"{row['value']:.4g}", *(f"{row[key]}" for key in keys))
    return table


def trials_plot(
    path: Path, rows: Sequence[Mapping[str, Any]], space: Mapping[str, Dimension], measure: str
) -> None:
    """Plots values over trials with the best so far, and over every searched key.

    Args:
      path: the PNG file to write.
      rows: of `trial_rows`.
      space: the searched keys.
      measure: name of the values.
    """
    # Importing Matplotlib takes as long as importing jax.
    from matplotlib.ticker import ScalarFormatter

    from jaxmarl_echelon.tracking.plots import EVALUATION, TRAINING, make_figure, style_axes

    valued = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    complete = np.array([row["state"] == "complete" for row in valued], bool)
    value = np.array([row["value"] for row in valued], float)
    panels = 1 + len(space)
    columns = min(panels, 3)
    height = -(-panels // columns)
    figure = make_figure(4.0 * columns, 3.2 * height, "")
    axes = np.atleast_1d(figure.subplots(height, columns)).reshape(-1)

    def scatter(at, place):
        at.scatter(place[~complete], value[~complete], s=14, c="#b0b0b0", label="pruned, last value")
        at.scatter(place[complete], value[complete], s=18, c=TRAINING, label="complete")

    for at in axes:
        style_axes(at, measure)
        at.xaxis.set_major_formatter(ScalarFormatter())
    scatter(axes[0], np.arange(len(valued)))
    if complete.any():
        so_far = np.maximum.accumulate(np.where(complete, value, -np.inf))
        so_far = np.where(np.isfinite(so_far), so_far, np.nan)
        axes[0].step(np.arange(len(valued)), so_far, where="post", c=EVALUATION)
    axes[0].set_xlabel("trial; the line is the best so far")
    axes[0].legend(frameon=False, fontsize=8, loc="best")
    for at, (key, dimension) in zip(axes[1:], space.items(), strict=False):
        at.set_xlabel(key)
        if dimension.kind == CHOICE:
            places = [dimension.options.index(row[key]) for row in valued]
            at.set_xticks(range(len(dimension.options)), [str(one) for one in dimension.options])
        else:
            places = [row[key] for row in valued]
            if dimension.kind == "log":
                at.set_xscale("log")
        scatter(at, np.array(places, float))
    for at in axes[panels:]:
        at.set_visible(False)
    figure.savefig(path)
