"""The base of tracking sinks that draw a run again after its evaluations, at a small share of its time."""

import time
from collections.abc import Callable
from pathlib import Path

from jaxmarl_echelon.tracking.base import RunInfo, Sink, Values

# A file is written when at least this many times the seconds of the last writing have passed.
PAUSE = 50.0


class PacedSink(Sink):
    """Calls `rewrite` after evaluations, from the CSV files in the run's folder.

    Evaluations that follow too soon are left to the next one, so that writing costs at most 2 % of a run. The
    sink of the CSV files must come before this one.

    Args:
      now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._folder: Path | None = None
        self._evaluated = False
        self._next = -float("inf")

    def rewrite(self, folder: Path, *, running: bool) -> None:
        """Writes the sink's file into the folder of a run that goes on or has ended."""
        raise NotImplementedError

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        self._folder = run.folder

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        del step, values
        self._evaluated |= namespace == "eval_agg"

    def flush(self) -> None:
        """See `Sink`."""
        if self._folder is None or not self._evaluated or self._now() < self._next:
            return
        begin = self._now()
        self.rewrite(self._folder, running=True)
        end = self._now()
        self._evaluated, self._next = False, end + PAUSE * (end - begin)
