"""Profiles of a few updates, for XProf and Perfetto."""

from collections.abc import Callable
from pathlib import Path

import jax

from jaxmarl_echelon.training.config.run_config import read_profile

FOLDER = "profile"


class UpdateProfile:
    """Context that records a profile of the chunks that contain some updates of a run.

    A profiler that fails is reported, and the run goes on.

    Args:
      setting: `FIRST:NUMBER`, counted from 1; None for no profile.
      folder: the run's folder; the profile is in `profile/` below it.
      report: receives a line about the profile.
    """

    def __init__(self, setting: str | None, folder: Path, report: Callable[[str], None]):
        self._first, self._last = (0, 0) if setting is None else read_profile(setting)
        self._folder, self._report = folder / FOLDER, report
        self._recording = False

    def __enter__(self) -> "UpdateProfile":
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def begin(self, done: int, chunk: int) -> None:
        """Starts before a chunk of updates after `done` ones, if it has an update to be recorded."""
        if not self._recording and done < self._last and self._first <= done + chunk:
            try:
                jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
                self._recording = True
            except Exception as error:
                self._fail(error)

    def end(self, done: int) -> None:
        """Stops after the last update to be recorded."""
        if done >= self._last:
            self._stop()

    def _stop(self) -> None:
        if not self._recording:
            return
        self._recording = False
        try:
            jax.profiler.stop_trace()
            self._report(f"profile: {self._folder}")
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._last = 0
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        self._report(f"profile: failed ({reason})")
