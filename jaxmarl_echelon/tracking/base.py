"""The tracker: fans results out to independent sinks."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from jaxmarl_echelon.tracking.unstable_baselines_names import unstable_baselines_name

# Namespaces with one table row per call; the others hold scalars.
TABLES = ("episodes", "eval", "games", "entries")
NAMINGS = ("ours", "doc")
NAMESPACES = (
    "train", "episodes", "eval", "games", "eval_agg", "curriculum", "losses", "time", "pool", "entries",
    "events",
)  # fmt: skip

Values = Mapping[str, float | int | str]

# Methods that sinks written for earlier versions lack.
LATER = ("replay", "media")


@dataclass(frozen=True)
class RunInfo:
    """Facts of a run for sinks.

    Attributes:
      folder: the run's existing folder.
      spec: the environment's `EnvSpec`; sinks use its `name`, `outcomes`, `good_outcomes`, `score`,
        `score_column` and `measures`.
      total_steps: total environment steps of the run.
      config: the whole configuration as plain dictionaries.
      resume_step: environment steps of the checkpoint the run continues from; None if new.
      scores_rank_policies: whether evaluation scores can rank policies, so that a best one exists.
      judged_by: column of the average by which they are ranked, as `EnvSpec.judged_by`; None for the score's.
      best: of a resumed run, what its best evaluation so far is ranked by; empty if none counts, as the task
        has changed; None if unknown.
      group: folder of the group of runs that this one belongs to, also of the group's means; None for a run
        alone.
      variant: name of a member's variant; None for others.
    """

    folder: Path
    spec: Any
    total_steps: int
    config: Mapping[str, Any] = field(default_factory=dict)
    resume_step: int | None = None
    scores_rank_policies: bool = True
    judged_by: str | None = None
    best: Sequence[float] | None = None
    group: Path | None = None
    variant: str | None = None

    @property
    def name(self) -> str:
        """Name of the folder, of a member after that of its group."""
        parts = (self.folder,) if self.variant is None else (self.group, self.folder)
        return "/".join(part.name for part in parts if part is not None)

    @property
    def title(self) -> tuple[str, ...]:
        """Environment, algorithm (if configured), run and seed, of a group its seeds, for display."""
        algo = self.config.get("choices", {}).get("algo")
        parts = (self.spec.name, algo, self.folder.name, self._seeds())
        return tuple(part for part in parts if part is not None)

    def _seeds(self) -> str | None:
        seed, seeds = self.config.get("seed"), self.config.get("seeds")
        if seeds is None or self.group != self.folder:
            return None if seed is None else f"seed {seed}"
        if isinstance(seeds, int):
            return f"{seeds} seeds from {seed}"
        return f"seeds {', '.join(str(one) for one in seeds)}"


def recall_id(run: RunInfo, file: str, make: Callable[[], str]) -> str:
    """Returns the id of a run in another system: a resumed run's stored one, else a new one.

    Args:
      run: the run.
      file: name of the file in the run's folder.
      make: returns a new id, which is stored.
    """
    path = run.folder / file
    if run.resume_step is None or not path.exists():
        path.write_text(make())
    return path.read_text().strip()


class Sink(Protocol):
    """Destination of results; all methods default to no-ops.

    `step` is the number of environment steps, a Python int. A sink that raises is reported and dropped by
    the tracker.

    Attributes:
      shows_events: whether the sink displays events to the user immediately.
    """

    shows_events: bool = False

    def for_member(self) -> "Sink | None":
        """Returns a sink of the same settings for one run of a group; None if the means suffice."""
        return None

    def open(self, run: RunInfo) -> None:
        """Prepares the sink; called once, before all other methods."""

    def write(self, namespace: str, step: int, values: Values) -> None:
        """Writes values of one namespace; keys have no `namespace/` prefix."""

    def event(self, step: int, text: str) -> None:
        """Writes one line about an event."""

    def replay(self, step: int, write: Callable[[Path], None]) -> None:
        """Offers the replay of an episode; `write(path)` writes its page, until the sink is closed."""

    def media(self, step: int, name: str, path: Path) -> None:
        """Shows a picture or an animation; the file stays where it is."""

    def flush(self) -> None:
        """Completes a step; called when all its values have been written."""

    def close(self) -> None:
        """Releases resources; called once at the end, also of interrupted runs."""


class Tracker:
    """Fans results out to independent sinks.

    A sink that raises is reported once on stderr and dropped; the other sinks and the run continue. The
    tracker is a context manager that closes itself.

    Args:
      sinks: sinks by their names in the configuration.
      names: "ours", or "doc" to log metrics under the names of `doc_names` as well.

    Raises:
      ValueError: for other names.
    """

    def __init__(self, sinks: Mapping[str, Sink], names: str = NAMINGS[0]):
        if names not in NAMINGS:
            raise ValueError(f"tracking.names={names}: must be {' or '.join(NAMINGS)}")
        self._sinks = dict(sinks)
        self._named: Callable[[str], str | None] | None = None
        self._names = names

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the sinks not dropped."""
        return tuple(self._sinks)

    def open(self, run: RunInfo) -> "Tracker":
        """Opens every sink for `run` and returns the tracker."""
        self._each("open", run)
        if self._names == "doc":
            opponent = run.config.get("env", {}).get("opponent")
            self._named = partial(unstable_baselines_name, env=run.spec.name, opponent=opponent)
        return self

    def log(self, namespace: str, step: int, values: Values) -> None:
        """Records `values` at environment step `step`.

        Args:
          namespace: one of `NAMESPACES`. `episodes` and `eval` take one finished episode per call, of
            training and evaluation respectively, `games` one as it was played, `entries` one entry of an
            opponent pool; `events` takes texts; the others take scalars at `step`.
          step: environment steps so far, a Python int.
          values: name without namespace (`success_rate`, `outcome/timeout`) to scalar.

        Raises:
          ValueError: for an unknown namespace.
        """
        if namespace not in NAMESPACES:
            raise ValueError(f"namespace={namespace}: must be one of {', '.join(NAMESPACES)}")
        if namespace != "events":
            self._each("write", namespace, step, values)
            if self._named is not None and namespace not in TABLES:
                self._log_renamed(namespace, step, values)
            return
        for text in values.values():
            self._each("event", step, str(text))

    def _log_renamed(self, namespace: str, step: int, values: Values) -> None:
        """Logs values under their names in Unstable Baselines, if they have one."""
        for key, value in values.items():
            if (name := self._named(f"{namespace}/{key}")) is not None:
                place, _, rest = name.partition("/")
                self._each("write", place, step, {rest: value})

    def event(self, step: int, text: str) -> None:
        """Logs one line of text as an event."""
        self.log("events", step, {"text": text})

    def warn(self, step: int, text: str) -> None:
        """Logs an event that the user must see; without a sink that displays it, the line goes to stderr."""
        self.event(step, text)
        if not any(getattr(sink, "shows_events", False) for sink in self._sinks.values()):
            print(text, file=sys.stderr)

    def replay(self, step: int, write: Callable[[Path], None]) -> None:
        """Offers the replay of an episode to the sinks, see `Sink.replay`."""
        self._each("replay", step, write)

    def media(self, step: int, name: str, path: Path) -> None:
        """Hands a picture or an animation to the sinks.

        Args:
          step: environment steps so far, a Python int.
          name: what it shows, with slashes.
          path: the file, such as a GIF.
        """
        self._each("media", step, name, path)

    def member_sinks(self) -> dict[str, Sink]:
        """Returns sinks for one run of a group, by name; to be called before `open`."""
        found = {name: sink.for_member() for name, sink in self._sinks.items() if hasattr(sink, "for_member")}
        return {name: sink for name, sink in found.items() if sink is not None}

    def flush(self) -> None:
        """Signals that all values of the last step have been logged."""
        self._each("flush")

    def close(self) -> None:
        """Closes every sink; later calls are no-ops."""
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
            if method in LATER and not hasattr(sink, method):
                continue
            try:
                getattr(sink, method)(*arguments)
            except Exception as error:
                del self._sinks[name]
                if method != "close":
                    # Releases the terminal or file; only the first error is reported.
                    with contextlib.suppress(Exception):
                        sink.close()
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                line = f"tracking: {name} failed in {method} and is disabled ({reason})"
                print(line, file=sys.stderr)
