"""Reads from the tables of a run, without its environment: its score, changes of phase, rows of its pool."""

import csv
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.tracking.csv_sink import read_whole_lines

Columns = Mapping[str, np.ndarray]
PoolRows = list[dict[str, str]]
RETURN = "avg_reward"


class Measured(NamedTuple):
    """Columns of an evaluation's measure and of its interval, without namespace; empty for none."""

    column: str
    low: str = ""
    high: str = ""


def find_score(columns: Collection[str]) -> Measured:
    """Finds the run's score among the columns of evaluations; the mean return without one.

    It is the last one: if only a later role learns, its own score follows the environment's.
    """
    return next(reversed(find_scores(columns)), Measured(RETURN))


def find_scores(columns: Collection[str]) -> list[Measured]:
    """Lists the measures with an interval: `NAME_low` and `NAME_high` next to `NAME_rate` or `NAME`.

    Of names with a slash, which may be labels of a code, only rates count.
    """
    found = []
    for low in columns:
        name = low.removesuffix("_low")
        if name == low or f"{name}_high" not in columns:
            continue
        names = (f"{name}_rate",) if "/" in name else (f"{name}_rate", name)
        known = next((column for column in names if column in columns), None)
        if known is not None:
            found.append(Measured(known, low, f"{name}_high"))
    return found


class PhaseChange(NamedTuple):
    """A change of a curriculum's phase, at a number of environment steps."""

    step: float
    before: int
    after: int


def find_phase_changes(metrics: Columns) -> list[PhaseChange]:
    """Lists the changes of phase in the columns of `metrics.csv`, the earliest first.

    The means of a group whose members are in different phases have none.
    """
    stages = metrics.get("curriculum/current_stage", np.empty(0))
    known = np.isfinite(stages)
    if np.any(stages[known] % 1.0):
        return []
    steps, stages = metrics.get("step", stages)[known], stages[known]
    return [
        PhaseChange(float(steps[i]), int(stages[i - 1]), int(stages[i]))
        for i in np.flatnonzero(np.diff(stages)) + 1
    ]


def read_pool_rows(path: Path) -> PoolRows:
    """Reads the rows of a run's `pool.csv`; empty for a missing file. An incomplete last row is dropped."""
    if not path.exists():
        return []
    return [row for row in csv.DictReader(read_whole_lines(path)) if None not in row.values()]


def group_by_name(rows: PoolRows) -> dict[str, PoolRows]:
    """Groups rows by opponent, in order of appearance."""
    found: dict[str, PoolRows] = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row)
    return found


def is_own_learner(row: Mapping[str, str]) -> bool:
    """Whether a row describes the learner that owns the table, not another learner of its league."""
    return row["kind"] == "learner" and int(row["entry"]) == 0
