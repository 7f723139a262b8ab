"""Profiles of a few updates, for XProf and Perfetto."""

from pathlib import Path

import jax

from jaxmarl_echelon.training.config.run_config import read_profile

FOLDER = "profile"


class UpdateProfile:
    """Context that records a profile of the chunks that contain some updates of a run.

    Args:
      setting: `FIRST:NUMBER`, counted from 1; None for no profile.
      folder: the run's folder; the profile is in `profile/` below it.
    """

    def __init__(self, setting: str | None, folder: Path):
        self._first, self._last = (0, 0) if setting is None else read_profile(setting)
        self._folder = folder / FOLDER
        self._recording = False

    def __enter__(self) -> "UpdateProfile":
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def begin(self, done: int, chunk: int) -> None:
        """Starts before a chunk of updates after `done` ones, if it has an update to be recorded."""
        if not self._recording and done < self._last and self._first <= done + chunk:
            self._recording = True
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)

    def end(self, done: int) -> bool:
        """Stops after the last update to be recorded; returns whether it stopped."""
        return done >= self._last and self._stop()

    def _stop(self) -> bool:
        was, self._recording = self._recording, False
        if was:
            jax.profiler.stop_trace()
        return was
