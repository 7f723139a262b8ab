"""Reads finished and running runs from their folders, without building their environments."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from algos.metrics import find_divergence
from jaxmarl_echelon.config_keys import flatten_leaves
from jaxmarl_echelon.tracking.csv_sink import METRICS, CsvSink, read_columns
from jaxmarl_echelon.tracking.run_tables import RETURN, Columns, Measured, find_score

EVALUATIONS = CsvSink.FILES["eval_agg"]
CONFIG = "config.yaml"
# The table of a group's members, with the settings that their variants change.
MEMBERS = "members.csv"
# What weakens statistics over the members of one population.
COPIES = "runs of one population (pbt) copy each other, so that they are no independent seeds"
# The compiled one, where it is installed: it takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SEED = re.compile(r"(?:(?P<variant>.+)_)?seed_(?P<seed>\d+)")


@dataclass(frozen=True)
class RecordedRun:
    """A run of one seed, or a member of a vectorized group.

    Attributes:
      folder: its folder.
      config: its configuration as plain data; a member has its group's.
      seed: its seed.
      variant: name of a member's variant; empty for single runs, and in groups without variants.
    """

    folder: Path
    config: Mapping[str, Any]
    seed: int
    variant: str = ""

    @cached_property
    def evaluations(self) -> Columns:
        """Columns of its evaluations."""
        return read_columns(self.folder / EVALUATIONS)

    @cached_property
    def metrics(self) -> Columns:
        """Columns of its updates, with namespaces."""
        return read_columns(self.folder / METRICS)

    @property
    def diverged(self) -> bool:
        """Whether its last update had a loss that is not finite, with which a run ends."""
        updates = np.flatnonzero(np.isfinite(self.metrics.get("time/train_seconds", np.empty(0))))
        if not updates.size:
            return False
        last = {name: float(column[updates[-1]]) for name, column in self.metrics.items()}
        return find_divergence(last, "losses/") is not None

    @property
    def config_file(self) -> Path:
        """The file of its configuration, or of its group's."""
        return (self.folder if (self.folder / CONFIG).is_file() else self.folder.parent) / CONFIG

    @property
    def in_one_population(self) -> bool:
        """Whether a member's group is one population (`pbt` without variants): its runs copy each other.

        With variants, the population is the runs of one seed, so that seeds are independent.
        """
        return bool(self.config.get("pbt")) and not self.variant

    @property
    def changes(self) -> dict[str, str]:
        """The settings of a member's variant by key, as text; empty without any."""
        row = _find_member(self.folder)
        if row is None:
            given = flatten_leaves(self.config.get("variants") or {})
            mine = f"{self.variant}."
            return {key.removeprefix(mine): str(x) for key, x in given.items() if key.startswith(mine)}
        return {key: x for key, x in row.items() if x and key not in ("member", "variant", "seed")}

    @property
    def steps(self) -> np.ndarray:
        """Environment steps `[n]` of its updates."""
        return self.metrics.get("step", np.empty(0))

    @property
    def score(self) -> Measured:
        """Its score, or the return."""
        return find_score(self.evaluations)

    @property
    def title(self) -> str:
        """Environment, algorithm and name of the folder; for a member, of its group's folder, too."""
        choices = self.config["choices"]
        alone = self.config_file.parent == self.folder
        named = [self.folder.name] if alone else [self.folder.parent.name, self.folder.name]
        return " ".join(str(part) for part in (choices["env"], choices.get("algo"), *named) if part)

    def seconds_at(self, steps: np.ndarray) -> np.ndarray:
        """Interpolates the seconds spent on training and evaluations at numbers of environment steps.

        Compilation is not included. Members of a group share the time of their program.
        """
        known = np.isfinite(self.metrics.get("time/train_seconds", np.empty(0)))
        if not known.any():
            return np.full(len(steps), np.nan)
        column = self.metrics["time/train_seconds"][known]
        return np.interp(steps, [0.0, *self.metrics["step"][known]], [0.0, *column])


def read_run(folder: Path) -> RecordedRun:
    """Reads a run, a group as one run with its means, or a member of a group.

    Raises:
      ValueError: one line, for a folder that is not one of a run.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    if (folder / CONFIG).is_file():
        config = read_run_config(folder)
        return RecordedRun(folder, config, int(config.get("seed", 0)))
    if (folder / EVALUATIONS).is_file() and (folder.parent / CONFIG).is_file():
        return read_member(folder, read_run_config(folder.parent))
    raise ValueError(f"{folder}: not a run folder: it has no {CONFIG}")


def read_runs(folder: Path) -> list[RecordedRun]:
    """Reads a run, or all members of a group; a member can be read by itself. Raises as `read_run`."""
    run = read_run(folder)
    return [read_member(member, run.config) for member in find_members(folder)] or [run]


def read_member(folder: Path, config: Mapping[str, Any]) -> RecordedRun:
    """Reads a member of a group by its row of the table of members.

    Groups of older versions have no table. There the folder's name tells: `VARIANT`, `seed_N` or
    `VARIANT_seed_N`.
    """
    if row := _find_member(folder):
        seed, alone = int(row["seed"]), folder.name == f"seed_{row['seed']}"
        return RecordedRun(folder, config, seed, "" if alone else row["variant"])
    found = _SEED.fullmatch(folder.name)
    if found is None:
        return RecordedRun(folder, config, _only_seed(config), folder.name)
    return RecordedRun(folder, config, int(found["seed"]), found["variant"] or "")


def _find_member(folder: Path) -> dict[str, str] | None:
    """Returns a member's row in its group's table; None without one."""
    table = folder.parent / MEMBERS
    if not table.is_file():
        return None
    with table.open(newline="", encoding="utf-8") as file:
        return next((row for row in csv.DictReader(file) if row["member"] == folder.name), None)


def _only_seed(config: Mapping[str, Any]) -> int:
    """Returns the seed of a group's members, whose names do not have it if there is only one."""
    listed = config.get("seeds")
    return int(listed[0] if isinstance(listed, list) else config.get("seed", 0))


def is_group_folder(folder: Path) -> bool:
    """Whether a folder is that of a vectorized group."""
    return (folder / CONFIG).is_file() and bool(find_members(folder))


def find_members(folder: Path) -> list[Path]:
    """Lists the folders of a group's members, by variant and seed; empty for a single run."""
    found = [path for path in folder.iterdir() if path.is_dir() and (path / EVALUATIONS).is_file()]

    def order(path: Path) -> tuple[str, int]:
        """Returns the variant and the seed."""
        named = _SEED.fullmatch(path.name)
        return (named["variant"] or "", int(named["seed"])) if named else (path.name, 0)

    return sorted(found, key=order)


def read_run_config(folder: Path) -> dict[str, Any]:
    """Reads a run's configuration as plain data.

    Raises:
      ValueError: one line, for a file that is not a run's configuration.
    """
    try:
        found = yaml.load((folder / CONFIG).read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"{folder / CONFIG}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not isinstance(found.get("choices"), dict):
        raise ValueError(f"{folder / CONFIG}: not the configuration of a run")
    return found


def measure_label(measured: Measured) -> str:
    """Names a measure for people."""
    return "return" if measured.column == RETURN else measured.column.removeprefix("avg_").replace("_", " ")


def last_row(columns: Columns) -> dict[str, float]:
    """Returns the last row of a table by column; values that are not finite are left out."""
    found = {name: float(column[-1]) for name, column in columns.items() if len(column)}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def last_finite(column: Sequence[float] | np.ndarray) -> float:
    """Returns the last finite value of a column; NaN without one."""
    known = np.asarray(column, float)
    known = known[np.isfinite(known)]
    return float(known[-1]) if known.size else float("nan")
