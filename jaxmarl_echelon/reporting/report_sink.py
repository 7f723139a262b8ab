"""A tracking sink that keeps the page of a run up to date."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jaxmarl_echelon.reporting.changed_settings import ChangedSetting, find_changed_settings
from jaxmarl_echelon.reporting.paced_sink import PacedSink
from jaxmarl_echelon.reporting.run_page import REPLAY, write_report
from jaxmarl_echelon.tracking.base import RunInfo
from jaxmarl_echelon.tracking.csv_sink import CsvSink


class ReportSink(PacedSink):
    """Rewrites `report.html` in the run's folder after evaluations, and always at the end.

    Args:
      now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        super().__init__(now)
        self._changed: list[ChangedSetting] = []
        self._replay: Callable[[], None] | None = None

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        super().open(run)
        self._changed = find_changed_settings(run.config)

    def replay(self, step: int, write: Callable[[Path], None]) -> None:
        """See `Sink`."""
        del step
        if self._folder is not None:
            self._replay = partial(write, self._folder / REPLAY)

    def rewrite(self, folder: Path, *, running: bool) -> None:
        """See `PacedSink`."""
        if self._replay is not None:
            self._replay()
            self._replay = None
        write_report(folder, running=running, changed=self._changed)

    def close(self) -> None:
        """See `Sink`."""
        if self._folder is not None and (self._folder / CsvSink.FILES["eval_agg"]).exists():
            self.rewrite(self._folder, running=False)
