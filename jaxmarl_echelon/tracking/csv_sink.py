"""CSV files in the run's folder."""

import contextlib
import csv
import io
import math
import os
from pathlib import Path

import numpy as np

from jaxmarl_echelon.tracking.base import RunInfo, Sink, Values

# The table with a row per update.
METRICS = "metrics.csv"
# The table with a row per exchange of population based training and member.
LINEAGE = "pbt.csv"


class CsvTable:
    """A CSV file with the first column `step` and a growing set of further columns.

    Every row is flushed. A row with new keys rewrites the file with the extended header under a temporary
    name and renames it atomically, so a complete file exists at all times.

    Args:
      path: the file; created with the first row.
      resume_step: keeps rows up to this step of an existing file, dropping later and incomplete ones;
        None replaces an existing file.
    """

    def __init__(self, path: Path, resume_step: int | None = None):
        self._path = path
        self._columns = ["step"]
        self._file = None
        self._last: dict[str, str] = {}
        self._last_at = 0
        if resume_step is None:
            path.unlink(missing_ok=True)
        elif path.exists():
            self._columns, rows = _read(path)
            self._rewrite([row for row in rows if int(row[0]) <= resume_step])

    def append(self, step: int, values: Values) -> None:
        """Writes one row; cells of missing keys are empty."""
        row = {"step": str(step), **{key: _cell(value) for key, value in values.items()}}
        self._grow(row)
        self._write(row)

    def extend(self, step: int, values: Values) -> None:
        """Adds cells to the last row if it has the same step, else appends a row."""
        if self._last.get("step") != str(step):
            self.append(step, values)
            return
        row = {**self._last, **{key: _cell(value) for key, value in values.items()}}
        self._grow(row)
        self._file.truncate(self._last_at)
        self._write(row)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _grow(self, row: dict[str, str]) -> None:
        new = [key for key in row if key not in self._columns]
        if new or self._file is None:
            rows = _read(self._path)[1] if self._path.exists() else []
            self._columns += new
            self._rewrite([cells + [""] * len(new) for cells in rows])

    def _write(self, row: dict[str, str]) -> None:
        self._last, self._last_at = row, os.fstat(self._file.fileno()).st_size
        _writer(self._file).writerow([row.get(key, "") for key in self._columns])
        self._file.flush()

    def _rewrite(self, rows: list[list[str]]) -> None:
        self.close()
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            _writer(file).writerows([self._columns, *rows[:-1]])
        self._last_at = temporary.stat().st_size
        with temporary.open("a", newline="", encoding="utf-8") as file:
            _writer(file).writerows(rows[-1:])
        os.replace(temporary, self._path)
        self._file = self._path.open("a", newline="", encoding="utf-8")
        self._last = dict(zip(self._columns, rows[-1], strict=True)) if rows else {}


class CsvSink(Sink):
    """CSV files in the run's folder, each created with its first row.

    `metrics.csv` has one row per step (update) with columns `namespace/key`, `eval.csv` one per
    evaluation, `episodes.csv` one per finished training episode, `eval_episodes.csv` one per evaluation
    episode, `games.csv` one per recorded game, move by move, `pool.csv` one per update and pool entry.
    """

    FILES = {
        "eval_agg": "eval.csv",
        "episodes": "episodes.csv",
        "eval": "eval_episodes.csv",
        "games": "games.csv",
        "entries": "pool.csv",
    }

    def __init__(self):
        self._metrics: CsvTable | None = None
        self._rows: dict[str, CsvTable] = {}

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        self._metrics = CsvTable(run.folder / METRICS, run.resume_step)
        self._rows = {name: CsvTable(run.folder / file, run.resume_step) for name, file in self.FILES.items()}

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if namespace in self._rows:
            self._rows[namespace].append(step, values)
        else:
            self._metrics.extend(step, {f"{namespace}/{key}": value for key, value in values.items()})

    def close(self) -> None:
        """See `Sink`."""
        for table in filter(None, (self._metrics, *self._rows.values())):
            table.close()


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Reads a CSV file's columns as float64 arrays `[rows]`; non-numeric cells are NaN.

    Returns an empty dictionary for a missing file.
    """
    if not Path(path).exists():
        return {}
    names, rows = _read(Path(path))
    return {name: np.array([_float(row[i]) for row in rows]) for i, name in enumerate(names)}


def read_logged_rows(path: Path, last: float = math.inf) -> list[tuple[int, dict[str, float]]]:
    """Reads the rows of a CSV file up to a step: the step, and the logged numbers by column.

    Empty cells and texts are left out, NaN is not: it was logged, and replaces an earlier number.
    """
    if not path.exists():
        return []
    (_, *names), rows = _read(path)
    found = []
    for step, *cells in (row for row in rows if int(row[0]) <= last):
        numbers = {}
        for name, cell in zip(names, cells, strict=True):
            with contextlib.suppress(ValueError):
                numbers[name] = float(cell)
        found.append((int(step), numbers))
    return found


def read_texts(path: Path, name: str, last: float = math.inf) -> list[str]:
    """Reads a column of texts of a CSV file, of the rows up to a step; empty without the file."""
    if not path.exists():
        return []
    names, rows = _read(path)
    if name not in names:
        return []
    column = names.index(name)
    return [row[column] for row in rows if int(row[0]) <= last]


def read_whole_lines(path: Path) -> io.StringIO:
    """Reads a CSV file without its last line if that has no end, as a killed process can leave it."""
    with path.open(newline="", encoding="utf-8") as file:
        text = file.read()
    return io.StringIO(text[: text.rfind("\n") + 1], newline="")


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    names, *rows = list(csv.reader(read_whole_lines(path))) or [["step"]]
    # A line may also end within a text.
    return names, [row for row in rows if len(row) == len(names) and row[0].isdigit()]


def _writer(file):
    return csv.writer(file, lineterminator="\n")


def _cell(value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, (bool, int, np.bool_, np.integer)) else repr(float(value))


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
