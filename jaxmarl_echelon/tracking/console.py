"""Plain-text progress lines, for pipes and log files."""

import math
import sys
import time
from collections.abc import Callable
from typing import TextIO

from jaxmarl_echelon.tracking.base import RunInfo, Sink, Values
from jaxmarl_echelon.tracking.formats import (
    format_clock,
    format_count,
    format_finite,
    format_number,
    format_percent,
)
from jaxmarl_echelon.tracking.view import RunView


class ConsoleSink(Sink):
    """Prints a progress line at most every `every_seconds`, and one line per evaluation and event.

    The first and the last update are always printed. ASCII only.

    Args:
      every_seconds: minimum time between progress lines; 0 prints every update.
      stream: output stream; None for `sys.stdout`.
      now: a monotonic clock in seconds.
    """

    shows_events = True

    def __init__(
        self,
        every_seconds: float = 10.0,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        self._every = every_seconds
        self._stream = stream
        self._now = now
        self._view: RunView | None = None
        self._shown_at = -math.inf
        self._pending = False
        self._compiled = False

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        self._view = RunView(run, self._now())
        start = "" if run.resume_step is None else f", resumed at {format_count(run.resume_step)}"
        self._print(f"{' '.join(run.title)}: {format_count(run.total_steps)} steps{start}, in {run.folder}")

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if step > self._view.pace.step:
            self._progress()
        self._view.write(namespace, step, values, self._now())
        if namespace == "train":
            self._pending = True
        if namespace == "time" and "compile_seconds" in values and not self._compiled:
            self._compiled = True
            self._print(f"compiled in {values['compile_seconds']:.1f} s")
        if namespace == "eval_agg":
            self._progress()
            self._print(evaluation_line(self._view, step, values))

    def event(self, step: int, text: str) -> None:
        """See `Sink`."""
        self._print(f"event  {format_count(step):>7}  {text}")

    def flush(self) -> None:
        """See `Sink`."""
        self._progress()

    def close(self) -> None:
        """See `Sink`."""
        if self._view is None:
            return
        self._shown_at = -math.inf
        self._progress()
        view, now = self._view, self._now()
        steps = f"{format_count(view.pace.step)} of {format_count(view.pace.total)} steps"
        parts = [f"{steps} in {format_clock(now - view.started)}"]
        if math.isfinite(view.value("time/compile_seconds")):
            parts.append(f"compiling took {view.value('time/compile_seconds'):.1f} s of it")
        if view.best is not None:
            best, at = format_percent(view.best[1]), format_count(view.best[0])
            parts.append(f"best evaluation{view.best_of} {best} at {at}")
        self._print("ended: " + ", ".join(parts))

    def _progress(self) -> None:
        now = self._now()
        if self._pending and now - self._shown_at >= self._every:
            self._print(train_line(self._view, now))
            self._shown_at = now
            self._pending = False

    def _print(self, line: str) -> None:
        print(line, file=self._stream or sys.stdout, flush=True)


def train_line(view: RunView, now: float) -> str:
    """Formats the progress line: steps, speed, ETA, newest results, phase, losses."""
    pace = view.pace
    parts = [
        f"train  {format_count(pace.step):>7}  {format_percent(pace.fraction):>7}",
        f"{format_count(view.speed):>6} steps/s",
        f"ETA {format_clock(pace.remaining(now)):>5}",
    ]
    trained, evaluated = (f"{name}/{view.score_column}" for name in ("train", "eval_agg"))
    if trained in view.latest:
        parts.append(f"{view.score} {format_percent(view.value(trained))}")
    parts += _phase(view)
    if evaluated in view.latest:
        parts.append(f"eval {format_percent(view.value(evaluated))}")
    parts += [
        f"return{role.replace('/', ' ')} {format_finite(value)}"
        for role, value in view.section("train/return")
    ]
    if "train/episode_length" in view.latest:
        parts.append(f"length {format_finite(view.value('train/episode_length'))}")
    parts += [f"{name} {format_finite(value)}" for name, value in view.results()[:3]]
    parts += view.answers()
    losses = [(name, value) for name, value in view.losses() if not isinstance(value, str)]
    parts += [f"{name} {format_number(value)}" for name, value in losses[:3]]
    return "  ".join(parts)


def evaluation_line(view: RunView, step: int, values: Values) -> str:
    """Formats the evaluation line: score with its interval, phase, return, length, outcomes."""
    parts = [f"eval   {format_count(step):>7}"]
    if view.score_column in values:
        mean, low, high = view.interval(values)
        interval = f" [{100 * low:.1f}, {100 * high:.1f}]" if math.isfinite(low + high) else ""
        parts.append(f"{view.score} {format_percent(mean)}{interval}")
    parts += _phase(view)
    if "phase_success_rate" in values:
        parts.append(f"phase {view.score} {format_percent(values['phase_success_rate'])}")
    for key, label in (("avg_reward", "return"), ("avg_episode_length", "length")):
        if key in values:
            parts.append(f"{label} {format_finite(values[key])}")
    columns = [one.column for one in view.run.spec.measures if one.column in values]
    parts += [f"{name} {format_finite(values[name])}" for name in columns[:3]]
    if values.get("quarantined"):
        parts.append(f"quarantined {format_number(values['quarantined'])}")
    prefix = "outcome/"
    outcomes = [(k[len(prefix) :], v) for k, v in values.items() if k.startswith(prefix) and v > 0]
    parts += [f"{name} {format_percent(value)}" for name, value in outcomes if name not in view.good_outcomes]
    return "  ".join(parts)


def _phase(view: RunView) -> list[str]:
    found = " ".join(filter(None, view.phase))
    return [f"phase {found}"] if found else []
