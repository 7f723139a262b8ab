"""A tracking sink that keeps the page of a run up to date."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jaxmarl_echelon.reporting.changed_settings import ChangedSetting, find_changed_settings
from jaxmarl_echelon.reporting.run_page import REPLAY, write_report
from jaxmarl_echelon.tracking.base import RunInfo, Sink, Values
from jaxmarl_echelon.tracking.csv_sink import CsvSink

# A page is written when at least this many times the seconds of the last writing have passed.
PAUSE = 50.0


class ReportSink(Sink):
    """Rewrites `report.html` in the run's folder after evaluations, from the CSV files there.

    Evaluations that follow too soon are left to the next one, so that the page costs at most 2 % of a run; it
    is always written at the end. The sink of the CSV files must come before this one.

    Args:
      now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._folder: Path | None = None
        self._changed: list[ChangedSetting] = []
        self._replay: Callable[[], None] | None = None
        self._evaluated = False
        self._next = -float("inf")

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        self._changed = find_changed_settings(run.config)
        self._folder = run.folder

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        del step, values
        self._evaluated |= namespace == "eval_agg"

    def replay(self, step: int, write: Callable[[Path], None]) -> None:
        """See `Sink`."""
        del step
        if self._folder is not None:
            self._replay = partial(write, self._folder / REPLAY)

    def flush(self) -> None:
        """See `Sink`."""
        if self._folder is not None and self._evaluated and self._now() >= self._next:
            self._write(self._folder, running=True)

    def close(self) -> None:
        """See `Sink`."""
        if self._folder is not None and (self._folder / CsvSink.FILES["eval_agg"]).exists():
            self._write(self._folder, running=False)

    def _write(self, folder: Path, *, running: bool) -> None:
        begin = self._now()
        if self._replay is not None:
            self._replay()
            self._replay = None
        write_report(folder, running=running, changed=self._changed)
        end = self._now()
        self._evaluated, self._next = False, end + PAUSE * (end - begin)
