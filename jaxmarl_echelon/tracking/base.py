"""Results go to a tracker in one call, which hands them to sinks that know nothing of each other."""

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

NAMESPACES = (
    "train", "episodes", "eval", "eval_agg", "curriculum", "losses", "time", "pool", "events"
)  # fmt: skip

Values = Mapping[str, float | int | str]


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run that sinks may show or need.

    Attributes:
      folder: the run's folder; it exists.
      spec: the environment's `EnvSpec`, of which sinks use `name`, `outcomes`, `good_outcomes`,
        `score`, `score_column` and `measures`.
      total_steps: environment steps after which the run ends.
      config: the whole configuration as plain dictionaries.
      resume_step: environment steps of the checkpoint the run continues from; None if new.
    """

    folder: Path
    spec: Any
    total_steps: int
    config: Mapping[str, Any] = field(default_factory=dict)
    resume_step: int | None = None

    @property
    def title(self) -> tuple[str, ...]:
        """Environment, algorithm (where the configuration names it), run and seed, for people."""
        algo = self.config.get("choices", {}).get("algo")
        seed = self.config.get("seed")
        parts = (self.spec.name, algo, self.folder.name, None if seed is None else f"seed {seed}")
        return tuple(part for part in parts if part is not None)


class Sink(Protocol):
    """Somewhere that results go. Subclasses override what they need; the rest does nothing.

    `step` counts environment steps and is a Python int. Any call may raise: the tracker then
    reports the sink and drops it.
    """

    def open(self, run: RunInfo) -> None:
        """Called once, before anything else."""

    def write(self, namespace: str, step: int, values: Values) -> None:
        """Takes values of one namespace; keys lack the `namespace/` prefix."""

    def event(self, step: int, text: str) -> None:
        """Takes one line about something that happened."""

    def flush(self) -> None:
        """Called when everything about the last step has been written."""

    def close(self) -> None:
        """Called once at the end, also of an interrupted run."""


class Tracker:
    """Fans results out to independent sinks.

    A sink that raises is named once on stderr and dropped; the other sinks and the run go on.
    As a context manager the tracker closes itself.

    Args:
      sinks: sinks by the name they have in the configuration.
    """

    def __init__(self, sinks: Mapping[str, Sink]):
        self._sinks = dict(sinks)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the sinks that still work."""
        return tuple(self._sinks)

    def open(self, run: RunInfo) -> "Tracker":
        """Opens every sink for `run` and returns the tracker."""
        self._each("open", run)
        return self

    def log(self, namespace: str, step: int, values: Values) -> None:
        """Records `values` at environment step `step`.

        Args:
          namespace: one of `NAMESPACES`. `episodes` and `eval` take one finished episode per
            call, of training and of evaluation; `events` takes texts; the others take scalars
            that hold at `step`.
          step: environment steps so far, a Python int.
          values: names without the namespace (`success_rate`, `outcome/timeout`) to scalars.

        Raises:
          ValueError: for an unknown namespace.
        """
        if namespace not in NAMESPACES:
            raise ValueError(f"namespace={namespace!r}: must be one of {', '.join(NAMESPACES)}")
        if namespace != "events":
            self._each("write", namespace, step, values)
            return
        for text in values.values():
            self._each("event", step, str(text))

    def event(self, step: int, text: str) -> None:
        """Records one line about something that happened: `log("events", ...)` in short."""
        self.log("events", step, {"text": text})

    def flush(self) -> None:
        """Tells the sinks that everything about the last step has been logged."""
        self._each("flush")

    def close(self) -> None:
        """Closes every sink; later calls do nothing."""
        self._each("close")
        self._sinks.clear()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _each(self, method: str, *arguments: Any) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                getattr(sink, method)(*arguments)
            except Exception as error:
                del self._sinks[name]
                if method != "close":
                    # Gives the terminal or the file back; the first error is the one that counts.
                    with contextlib.suppress(Exception):
                        sink.close()
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                line = f"tracking: {name} failed in {method} and is off from now on ({reason})"
                print(line, file=sys.stderr)
