"""Results of a search: `trials.csv`, a table on the terminal, and a picture."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jaxmarl_echelon.searching.trial_groups import name_trial
from jaxmarl_echelon.training.config.search_space import CHOICE, COMPLEMENT, Dimension

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


def final_rows(trials: Sequence[Any], scores: Mapping[str, float], values: Any) -> list[dict[str, Any]]:
    """Returns a row per finalist, the best first: name, value, that of its trial, and settings.

    Args:
      trials: Optuna's.
      scores: values of the finalists by name; those that are not finite are the last.
      values: `(trial) -> settings by key`.
    """
    rows = [
        {"trial": name, "value": scores[name], "trial_value": trial.value} | values(trial)
        for trial in trials
        if (name := name_trial(trial)) in scores
    ]
    return sorted(
        rows, key=lambda row: row["value"] if math.isfinite(row["value"]) else -math.inf, reverse=True
    )


def read_scores(path: Path) -> dict[str, float]:
    """Reads the values of a table of finalists by name; empty without the file."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["trial"]: float(row["value"]) for row in csv.DictReader(file)}


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
    left_out = ("state", "evaluations")
    shown = [{key: value for key, value in row.items() if key not in left_out} for row in best]
    return values_table(f"best of {len(rows)} trials ({len(complete)} complete)", shown, measure)


def values_table(title: str, rows: Sequence[Mapping[str, Any]], measure: str) -> Table:
    """Returns a table of rows with a trial's name, its value, and settings; `measure` names the value."""
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ("trial", "value"):
        table.add_column(measure if name == "value" else name, justify="left" if name == "trial" else "right")
    for row in rows:
        table.add_row(
            *(f"{value:.4g}" if "value" in name else f"{value}" for name, value in row.items()),
        )
    return table


def trials_plot(
    path: Path, rows: Sequence[Mapping[str, Any]], space: Mapping[str, Dimension], measure: str
) -> None:
    """Plots values over the trials' numbers with the best so far, and over every searched key.

    Trials that diverged before their first evaluation have no value.

    Args:
      path: the PNG file to write.
      rows: of `trial_rows`.
      space: the searched keys.
      measure: name of the values.
    """
    # Importing Matplotlib takes as long as importing jax.
    from matplotlib.ticker import ScalarFormatter

    from jaxmarl_echelon.tracking.plots import EVALUATION, make_figure, style_axes

    valued = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    state = np.array([row["state"] for row in valued], str)
    complete = state == "complete"
    value = np.array([row["value"] for row in valued], float)
    number = np.array([int(row["trial"].rpartition("_")[2]) for row in valued])
    panels = 1 + len(space)
    columns = min(panels, 3)
    height = -(-panels // columns)
    figure = make_figure(4.0 * columns, 3.2 * height, "")
    axes = np.atleast_1d(figure.subplots(height, columns)).reshape(-1)

    for at in axes:
        style_axes(at, measure)
        at.xaxis.set_major_formatter(ScalarFormatter())
    _scatter_trials(axes[0], number, value, state)
    if complete.any():
        so_far = np.maximum.accumulate(np.where(complete, value, -np.inf))
        so_far = np.where(np.isfinite(so_far), so_far, np.nan)
        axes[0].step(number, so_far, where="post", c=EVALUATION)
    axes[0].set_xlabel("trial; the line is the best so far")
    axes[0].legend(frameon=False, fontsize=8, loc="best")
    for at, (key, dimension) in zip(axes[1:], space.items(), strict=False):
        at.set_xlabel(key)
        if dimension.kind == CHOICE:
            places = [dimension.options.index(row[key]) for row in valued]
            at.set_xticks(range(len(dimension.options)), [str(one) for one in dimension.options])
        else:
            places = [row[key] for row in valued]
            if dimension.kind == COMPLEMENT:
                places = [1.0 - place for place in places]
                at.set_xlabel(f"1 - {key}")
            if dimension.kind in ("log", COMPLEMENT):
                at.set_xscale("log")
        _scatter_trials(at, np.array(places, float), value, state)
    for at in axes[panels:]:
        at.set_visible(False)
    figure.savefig(path)


def _scatter_trials(axes: Any, place: np.ndarray, value: np.ndarray, state: np.ndarray) -> None:
    """Draws the values `[n]` of trials in these states at places `[n]`; those not complete in grey."""
    from jaxmarl_echelon.tracking.plots import TRAINING

    for name, told, marker in (("pruned", "pruned", "o"), ("fail", "diverged", "x")):
        if (mine := state == name).any():
            style = {"s": 14, "c": "#b0b0b0", "marker": marker, "label": f"{told}, last value"}
            axes.scatter(place[mine], value[mine], **style)
    complete = state == "complete"
    axes.scatter(place[complete], value[complete], s=18, c=TRAINING, label="complete")
