"""What is known about a run while it is going on; the console and the dashboard show it."""

import math
from collections import deque

from jaxmarl_echelon.tracking.base import RunInfo, Values
from jaxmarl_echelon.tracking.statistics import Pace, Trend

HEADLINES = ("loss", "entropy", "kl", "explained_variance", "gradient_norm", "learning_rate")


def prominence(name: str) -> int:
    """Rank of a loss by name, for places that have no room for all; small is shown first."""
    return next((rank for rank, end in enumerate(HEADLINES) if name.endswith(end)), len(HEADLINES))


class RunView:
    """Collects results in bounded memory. Single episodes are passed over.

    Args:
      run: the run.
      now: time at its start, in seconds of any steady clock.

    Attributes:
      latest: newest value of every `namespace/key`; a NaN does not replace a known value.
      trends: courses of the `train/` and `eval_agg/` keys.
      evaluations: newest evaluations, oldest first, as (step, values).
      best: (step, success rate) of the best evaluation, if there is one.
      events: newest events as (step, text).
    """

    def __init__(self, run: RunInfo, now: float):
        self.run = run
        self.started = now
        self.first_update: float | None = None
        self.pace = Pace(run.total_steps, run.resume_step or 0)
        self.latest: dict[str, float | int | str] = {}
        self.trends: dict[str, Trend] = {}
        self.evaluations: deque[tuple[int, Values]] = deque(maxlen=32)
        self.best: tuple[int, float] | None = None
        self.events: deque[tuple[int, str]] = deque(maxlen=32)

    def write(self, namespace: str, step: int, values: Values, now: float) -> None:
        """Takes values as a sink does; `now` is the time of the call."""
        if namespace in ("episodes", "eval"):
            return
        for key, value in values.items():
            self._remember(namespace, key, value)
        if namespace == "train":
            self.first_update = now if self.first_update is None else self.first_update
            self.pace.report(now, step)
        if namespace == "eval_agg":
            self._evaluation(step, values)

    def value(self, key: str) -> float:
        """Newest value of `namespace/key` as a number; NaN where unknown."""
        return float(self.latest.get(key, math.nan))

    def trend(self, key: str, count: int) -> list[float]:
        """At most `count` points of the course of `namespace/key`."""
        return self.trends[key].points(count) if key in self.trends else []

    def section(self, prefix: str) -> list[tuple[str, float | int | str]]:
        """Newest values whose full key starts with `prefix`, without it, as first seen."""
        return [(key[len(prefix) :], value) for key, value in self.latest.items() if key.startswith(prefix)]

    def losses(self) -> list[tuple[str, float | int | str]]:
        """Newest losses, the most telling first."""
        return sorted(self.section("losses/"), key=lambda item: prominence(item[0]))

    def outcomes(self) -> list[tuple[str, float]]:
        """Outcome names and their fractions in training; success first, then in the task's order."""
        order = {name: rank for rank, name in enumerate(self.run.spec.outcomes)} | {self.success: -1}
        return sorted(self.section("train/outcome/"), key=lambda item: order.get(item[0], len(order)))

    @property
    def success(self) -> str | None:
        """Name of the outcome that counts as success, if there is one."""
        return self.run.spec.success

    @property
    def speed(self) -> float:
        """Environment steps per second: as reported by the run, else as observed."""
        reported = self.value("time/steps_per_second")
        return reported if math.isfinite(reported) else self.pace.speed

    def _remember(self, namespace: str, key: str, value: float | int | str) -> None:
        name = f"{namespace}/{key}"
        if isinstance(value, str):
            self.latest[name] = value
            return
        # A diverged loss must be seen; a rate of no episodes is only not known yet.
        if math.isfinite(value) or name not in self.latest or namespace == "losses":
            self.latest[name] = value
        if namespace in ("train", "eval_agg"):
            self.trends.setdefault(name, Trend()).add(float(value))

    def _evaluation(self, step: int, values: Values) -> None:
        self.evaluations.append((step, dict(values)))
        success = float(values.get("success_rate", math.nan))
        if math.isfinite(success) and (self.best is None or success > self.best[1]):
            self.best = (step, success)
