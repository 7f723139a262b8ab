"""State of a run for display by the console and the dashboard."""

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from jaxmarl_echelon.tracking.base import RunInfo, Values
from jaxmarl_echelon.tracking.csv_sink import METRICS, CsvSink, read_columns, read_logged_rows, read_texts
from jaxmarl_echelon.tracking.formats import format_count, format_finite, format_percent
from jaxmarl_echelon.tracking.run_tables import find_phase_changes, read_pool_rows
from jaxmarl_echelon.tracking.statistics import Pace, Trend

RECENT = 40
HEADLINES = ("loss", "entropy", "kl", "explained_variance", "gradient_norm", "learning_rate")
PHASE_NAME = "curriculum/phase_name"
# Namespaces of `metrics.csv` that a resumed run continues; times and speeds begin anew.
RESUMED = ("train", "losses", "curriculum", "pool")


def loss_rank(name: str) -> int:
    """Returns the display rank of a loss by name; lower ranks are shown first."""
    return next((rank for rank, end in enumerate(HEADLINES) if name.endswith(end)), len(HEADLINES))


def select_prefix(values: Values, prefix: str) -> list[tuple[str, float | int | str]]:
    """Selects values whose keys start with `prefix`, which is removed."""
    return [(key[len(prefix) :], value) for key, value in values.items() if key.startswith(prefix)]


class RunView:
    """Latest results of a run in bounded memory; of single episodes, only training outcomes are kept.

    A resumed run starts with what its folder has up to the step it continues from: evaluations, courses of
    training results, the newest losses and outcomes, changes of phase, and the entries of a pool.

    Args:
      run: the run.
      now: time at its start, in seconds of a monotonic clock.

    Attributes:
      latest: newest value of every `namespace/key`; a non-finite value replaces a known one only in
        losses and curriculum.
      trends: `Trend` of each `train/`, `eval_agg/` and `losses/` key.
      evaluations: newest evaluations, oldest first, as (step, values).
      recent: outcomes of the newest training episodes, newest last.
      best: (step, mean score) of the best evaluation by the run's score; ties are broken by the mean return,
        as for best checkpoints. None before the first evaluation, and if scores cannot rank policies.
      events: newest events as (step, text).
      entries: the newest rows of an opponent pool by entry; empty without one.
    """

    def __init__(self, run: RunInfo, now: float):
        self.run = run
        self.started = now
        self.first_update: float | None = None
        self.pace = Pace(run.total_steps, run.resume_step or 0)
        self.latest: dict[str, float | int | str] = {}
        self.trends: dict[str, Trend] = {}
        self.evaluations: deque[tuple[int, Values]] = deque(maxlen=32)
        self.recent: deque[str] = deque(maxlen=RECENT)
        self.best: tuple[int, float] | None = None
        self._best_score = (-math.inf, -math.inf)
        self.events: deque[tuple[int, str]] = deque(maxlen=32)
        self.entries: dict[int, Values] = {}
        if run.resume_step is not None:
            self._read_history(run.folder, run.resume_step)

    def write(self, namespace: str, step: int, values: Values, now: float) -> None:
        """Records values, as `Sink.write`; `now` is the time of the call."""
        if namespace in ("episodes", "eval"):
            if namespace == "episodes" and values.get("outcome"):
                self.recent.append(str(values["outcome"]))
            return
        if namespace == "games":
            return
        if namespace == "entries":
            self.entries[int(values["entry"])] = dict(values)
            return
        for key, value in values.items():
            self._remember(namespace, step, key, value)
        if namespace == "train":
            self.first_update = now if self.first_update is None else self.first_update
            self.pace.report(now, step)
        if namespace == "eval_agg":
            self._evaluation(step, values)

    def value(self, key: str) -> float:
        """Returns the newest value of `namespace/key` as a float; NaN if unknown."""
        return float(self.latest.get(key, math.nan))

    def trend(self, key: str, count: int) -> list[float]:
        """Returns at most `count` points of the trend of `namespace/key`."""
        return self.trends[key].points(count) if key in self.trends else []

    def section(self, prefix: str) -> list[tuple[str, float | int | str]]:
        """Returns newest values whose full keys start with `prefix`, which is removed; in logged order."""
        return select_prefix(self.latest, prefix)

    def losses(self) -> list[tuple[str, float | int | str]]:
        """Returns the newest losses, sorted by `loss_rank`."""
        return sorted(self.section("losses/"), key=lambda item: loss_rank(item[0]))

    def outcomes(self) -> list[tuple[str, float]]:
        """Returns outcome names and rates in training, in the order of `ordered`."""
        return self.ordered(self.section("train/outcome/"))

    def ordered(self, outcomes: list[tuple[str, float]]) -> list[tuple[str, float]]:
        """Sorts outcomes: successes first, then in the spec's order."""
        order = {name: rank for rank, name in enumerate(self.run.spec.outcomes)}
        order |= dict.fromkeys(self.run.spec.good_outcomes, -1)
        return sorted(outcomes, key=lambda item: order.get(item[0], len(order)))

    def results(self) -> list[tuple[str, float]]:
        """Returns the environment's measures (`EnvSpec.measures`) in training."""
        columns = [one.column for one in self.run.spec.measures]
        return [(name, self.latest[key]) for name in columns if (key := f"train/{name}") in self.latest]

    def answers(self) -> list[str]:
        """Returns facts about the answers of language policies, as text; empty without a language policy."""
        if "train/format_rate" not in self.latest:
            return []
        return [
            f"{format_count(self.value('time/tokens_per_second'))} tokens/s",
            f"formed {format_percent(self.value('train/format_rate'))}",
            f"legal {format_percent(1.0 - self.value('train/invalid_rate'))}",
            f"answer {format_finite(self.value('train/answer_tokens'))} tokens",
        ]

    @property
    def phases(self) -> float:
        """Number of phases of the curriculum; NaN if unknown."""
        totals = (self.value(f"curriculum/total_{name}") for name in ("phases", "stages"))
        return next(filter(math.isfinite, totals), math.nan)

    @property
    def phase(self) -> tuple[str, str]:
        """Number ("3/26", "3", "2.3" for a mean) and name of the curriculum's phase; empty if unknown."""
        stage, total = self.value("curriculum/current_stage"), self.phases
        number = f"{round(stage, 1):g}" if math.isfinite(stage) else ""
        if number and math.isfinite(total):
            number += f"/{total:.0f}"
        name = self.latest.get(PHASE_NAME, "")
        return number, name if isinstance(name, str) else ""

    @property
    def score(self) -> str | None:
        """Name of the score; None without one."""
        return self.run.spec.score

    @property
    def score_column(self) -> str:
        """Name of the mean score, without namespace; empty without a score."""
        return self.run.spec.score_column or ""

    @property
    def best_column(self) -> str:
        """Name of the mean score by which `best` is chosen, without namespace; empty without a score."""
        return self.run.judged_by or self.score_column

    @property
    def best_of(self) -> str:
        """Name of the score of `best`, " of " before it, for display; empty for the environment's score."""
        own = self.best_column
        return "" if own == self.score_column else f" of {own.replace('_', ' ')}"

    def interval(self, values: Values) -> tuple[float, float, float]:
        """Returns the mean score of an evaluation and the ends of its interval; NaN if unknown."""
        names = (self.score_column, f"{self.score}_low", f"{self.score}_high")
        return tuple(float(values.get(name, math.nan)) for name in names)

    @property
    def good_outcomes(self) -> tuple[str, ...]:
        """Names of successful outcomes."""
        return self.run.spec.good_outcomes

    @property
    def speed(self) -> float:
        """Environment steps per second, as reported by the run, else as observed."""
        reported = self.value("time/steps_per_second")
        return reported if math.isfinite(reported) else self.pace.speed

    def _remember(self, namespace: str, step: int, key: str, value: float | int | str) -> None:
        name = f"{namespace}/{key}"
        if isinstance(value, str):
            self.latest[name] = value
            return
        # Diverged losses and unset criteria must show; elsewhere NaN means "no episodes yet".
        if math.isfinite(value) or name not in self.latest or namespace in ("losses", "curriculum"):
            self.latest[name] = value
        if namespace in ("train", "eval_agg", "losses"):
            self.trends.setdefault(name, Trend()).add(float(value), step)

    def _read_history(self, folder: Path, last: int) -> None:
        """Records what the tables in a run's folder have up to a step, as it was logged."""
        for step, values in read_logged_rows(folder / METRICS, last):
            for name, value in values.items():
                namespace, _, key = name.partition("/")
                if namespace in RESUMED:
                    self._remember(namespace, step, key, value)
        phases = [name for name in read_texts(folder / METRICS, PHASE_NAME, last) if name]
        self.latest |= {PHASE_NAME: phases[-1]} if phases else {}
        for step, values in read_logged_rows(folder / CsvSink.FILES["eval_agg"], last):
            for key, value in values.items():
                self._remember("eval_agg", step, key, value)
            self._evaluation(step, values, self.run.best)
        for change in find_phase_changes(read_columns(folder / METRICS)):
            if change.step <= last:
                self.events.append((int(change.step), f"phase {change.before} -> {change.after}"))
        outcomes = read_texts(folder / CsvSink.FILES["episodes"], "outcome", last)
        self.recent.extend(filter(None, outcomes))
        for row in read_pool_rows(folder / CsvSink.FILES["entries"]):
            if int(row["step"]) <= last:
                self.entries[int(row["entry"])] = row

    def _evaluation(self, step: int, values: Values, known: Sequence[float] | None = None) -> None:
        """Records an evaluation; if it exceeds the `known` best, it does not count."""
        self.evaluations.append((step, dict(values)))
        column = self.best_column
        mean = float(values.get(column, math.nan))
        # The return is the first role's, as the environment's score is.
        reward = float(values.get("avg_reward", math.nan)) if column == self.score_column else math.nan
        score = (mean, reward if math.isfinite(reward) else -math.inf)
        counts = known is None or score <= (*known, -math.inf)
        if self.run.scores_rank_policies and math.isfinite(mean) and counts and score > self._best_score:
            self.best, self._best_score = (step, mean), score
