"""Compares methods by the scores of their runs: aggregates, pairs, profiles and curves."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.reporting.methods import Method, differing_settings
from jaxmarl_echelon.reporting.recorded_runs import EVALUATIONS, RecordedRun, measure_label
from jaxmarl_echelon.reporting.seed_statistics import (
    ENOUGH_SEEDS,
    RESAMPLES,
    STATISTICS,
    Estimate,
    estimate_curve,
    estimate_difference,
    estimate_improvement,
    estimate_statistic,
    interquartile_mean,
    score_profile,
)
from jaxmarl_echelon.tracking.run_tables import Measured

ALL_TASKS = "all"
_POINTS = 40
_THRESHOLDS = 101
# Ends of runs that differ by more than this fraction are not called equal.
_SAME_LENGTH = 0.01
# Beginnings of keys that set the task on which runs are scored; rewards do where no score is compared.
_SCORED = ("env.", "curriculum.evaluation")
# Of keys in which runs differ, so many are named.
_MOST_KEYS = 6


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings of a comparison: its measure, and its bootstrap.

    Attributes:
      measure: column of `eval.csv`; None for each task's score, or the return where there is none.
      step: environment steps up to which evaluations count; None for all.
      ranges: task to the scores that are scaled to 0 and 1; of all tasks under "".
      seed: of the bootstrap.
      resamples: of the bootstrap.
    """

    measure: str | None = None
    step: int | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0
    resamples: int = RESAMPLES


class ScoredRun(NamedTuple):
    """A run with its last counted evaluation: environment steps, score as recorded, and scaled score."""

    method: str
    task: str
    run: RecordedRun
    step: int
    raw: float
    score: float


class Pair(NamedTuple):
    """Comparison of a method with a lower-ranked one.

    Attributes:
      better, worse: names; `better` has the higher interquartile mean.
      paired: whether their runs have the same seeds, and are resampled in pairs.
      difference: of interquartile means.
      improvement: probability that a run of `better` scores higher.
    """

    better: str
    worse: str
    paired: bool
    difference: Estimate
    improvement: Estimate


class Curve(NamedTuple):
    """Interquartile mean of a method's runs on a task over `x`, environment steps or seconds, `[P]`."""

    method: str
    task: str
    axis: str
    x: np.ndarray
    score: Estimate


class MethodComparison(NamedTuple):
    """Results of a comparison.

    Attributes:
      runs: every run with its score.
      measures: task to a name of what is scored there.
      scaled: whether scores are scaled to [0, 1]; otherwise there is no optimality gap.
      statistics: (method, task) to name to its estimate; task `ALL_TASKS` has the runs of all tasks.
      pairs: of all methods.
      thresholds: `[P]` of the profiles.
      profiles: method to the fraction of its runs above each threshold.
      curves: by method, task and axis.
      warnings: lines on what weakens the comparison.
    """

    runs: list[ScoredRun]
    measures: dict[str, str]
    scaled: bool
    statistics: dict[tuple[str, str], dict[str, Estimate]]
    pairs: list[Pair]
    thresholds: np.ndarray
    profiles: dict[str, Estimate]
    curves: list[Curve]
    warnings: list[str]

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of their runs."""
        return list(dict.fromkeys(one.method for one in self.runs))

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(self.measures)


def compare_methods(methods: Sequence[Method], settings: ComparisonSettings) -> MethodComparison:
    """Compares methods by the last counted evaluation of each run.

    Raises:
      ValueError: one line, for runs without evaluations or without the measure, for scores that are not
        finite, and for several tasks of which one has no range.
    """
    tasks = list(methods[0].tasks)
    measured = {task: choose_measure(methods, task, settings.measure) for task in tasks}
    ranges = {task: find_range(task, measured[task], settings, len(tasks)) for task in tasks}
    runs = [
        score_run(method.name, task, run, measured[task].column, ranges[task], settings.step)
        for method in methods
        for task in tasks
        for run in method.tasks[task]
    ]
    scores = {method.name: [_scores(runs, method.name, task) for task in tasks] for method in methods}
    scaled = None not in ranges.values()
    every = np.concatenate([x for one in scores.values() for x in one])
    bounds = (min(0.0, every.min()), max(1.0, every.max())) if scaled else (every.min(), every.max())
    thresholds = np.linspace(*bounds, _THRESHOLDS)
    draws = (settings.seed, settings.resamples)
    return MethodComparison(
        runs,
        {task: name_measure(measured[task], ranges[task]) for task in tasks},
        scaled,
        {
            key: _statistics(groups, scaled, draws)
            for name, groups_of_tasks in scores.items()
            for key, groups in _by_task(name, tasks, groups_of_tasks)
        },
        compare_pairs(methods, scores, settings),
        thresholds,
        {
            name: estimate_statistic(groups, lambda x: score_profile(x, thresholds), *draws)
            for name, groups in scores.items()
        },
        [
            curve
            for method in methods
            for task in tasks
            for curve in build_curves(method, task, measured[task].column, ranges[task], settings)
        ],
        list_weaknesses(methods, runs, measured),
    )


def choose_measure(methods: Sequence[Method], task: str, column: str | None) -> Measured:
    """Returns what is compared on a task; raises ValueError for runs without it."""
    runs = [run for method in methods for run in method.tasks[task]]
    for run in runs:
        if not len(run.evaluations.get("step", ())):
            raise ValueError(f"{run.folder}: no evaluations: eval.csv is missing or empty")
    measured = runs[0].score if column is None else Measured(column)
    for run in runs:
        if measured.column not in run.evaluations:
            known = ", ".join(name for name in run.evaluations if "/" not in name and name != "step")
            missing = f"--measure={measured.column}: not in {run.folder / EVALUATIONS}"
            raise ValueError(f"{missing}; allowed: {known}")
    return measured


def find_range(
    task: str, measured: Measured, settings: ComparisonSettings, tasks: int
) -> tuple[float, float] | None:
    """Returns the scores of a task that are scaled to 0 and 1; None to compare them as they are.

    Scores with an interval lie in [0, 1]. Raises ValueError for other measures of several tasks without a
    range.
    """
    found = settings.ranges.get(task, settings.ranges.get("", (0.0, 1.0) if measured.low else None))
    if found is None and tasks > 1:
        raise ValueError(f"{task}: {measured.column} has no range; give --range {task}=LOW:HIGH")
    return found


def name_measure(measured: Measured, scale: tuple[float, float] | None) -> str:
    """Names a measure for people, and whether it is scaled."""
    return measure_label(measured) + ("" if scale in (None, (0.0, 1.0)) else ", scaled")


def score_run(
    method: str,
    task: str,
    run: RecordedRun,
    column: str,
    scale: tuple[float, float] | None,
    step: int | None,
) -> ScoredRun:
    """Scores a run by its last evaluation, up to `step`; raises ValueError without a finite one."""
    steps, values = run.evaluations["step"], run.evaluations[column]
    counted = np.flatnonzero(steps <= (np.inf if step is None else step))
    if not len(counted):
        raise ValueError(f"{run.folder}: no evaluations up to step {step}")
    last = counted[-1]
    if not np.isfinite(values[last]):
        raise ValueError(f"{run.folder}: {column} is not finite at step {int(steps[last])}")
    raw = float(values[last])
    return ScoredRun(method, task, run, int(steps[last]), raw, float(scale_scores(raw, scale)))


def scale_scores(scores, scale: tuple[float, float] | None):
    """Scales scores so that the ends of the range become 0 and 1; unchanged without a range."""
    return scores if scale is None else (scores - scale[0]) / (scale[1] - scale[0])


def compare_pairs(
    methods: Sequence[Method], scores: Mapping[str, Sequence[np.ndarray]], settings: ComparisonSettings
) -> list[Pair]:
    """Compares each method with every lower-ranked one, by scores `[n]` per task.

    Runs are resampled in pairs where both methods have the same seeds on every task.
    """
    ranked = sorted(methods, key=lambda one: -interquartile_mean(np.concatenate(scores[one.name])))
    found = []
    for better, worse in itertools.combinations(ranked, 2):
        paired = all(better.seeds(task) == worse.seeds(task) for task in better.tasks)
        seeds = (settings.seed, settings.seed if paired else settings.seed + 1)
        ours, theirs = scores[better.name], scores[worse.name]
        difference = estimate_difference(ours, theirs, interquartile_mean, seeds, settings.resamples)
        improvement = estimate_improvement(ours, theirs, seeds, settings.resamples)
        found.append(Pair(better.name, worse.name, paired, difference, improvement))
    return found


def build_curves(
    method: Method, task: str, column: str, scale: tuple[float, float] | None, settings: ComparisonSettings
) -> list[Curve]:
    """Builds the curves of a method on a task over steps and over seconds, where all its runs have values."""
    runs = method.tasks[task]
    steps = [run.evaluations["step"] for run in runs]
    axes = {"steps": steps, "seconds": [run.seconds_at(x) for run, x in zip(runs, steps, strict=True)]}
    values = [scale_scores(run.evaluations[column], scale) for run in runs]
    found = []
    for axis, places in axes.items():
        known = [np.isfinite(x) & np.isfinite(y) for x, y in zip(places, values, strict=True)]
        if min(np.count_nonzero(one) for one in known) < 2:
            continue
        courses = [(x[one], y[one]) for x, y, one in zip(places, values, known, strict=True)]
        x = np.linspace(max(at[0] for at, _ in courses), min(at[-1] for at, _ in courses), _POINTS)
        if x[-1] <= x[0]:
            continue
        curves = np.stack([np.interp(x, *course) for course in courses])
        score = estimate_curve([curves], interquartile_mean, settings.seed, settings.resamples)
        found.append(Curve(method.name, task, axis, x, score))
    return found


def list_weaknesses(
    methods: Sequence[Method], runs: Sequence[ScoredRun], measured: Mapping[str, Measured]
) -> list[str]:
    """Lists what weakens a comparison, as lines; `measured` is what is compared on each task."""
    lines = []
    for method in methods:
        for task, mine in method.tasks.items():
            if len(mine) < ENOUGH_SEEDS:
                seeds = f"{len(mine)} seed{'s' if len(mine) > 1 else ''}"
                lines.append(f"{method.name} has {seeds} on {task}; a claim needs {ENOUGH_SEEDS}")
            # With variants, the population is the runs of one seed, so that seeds are independent.
            groups = Counter(run.config_file for run in mine if run.config.get("pbt") and not run.variant)
            if max(groups.values(), default=0) > 1:
                copies = "runs of one population (pbt) copy each other"
                lines.append(f"{method.name} on {task}: {copies}, so that they are no independent seeds")
    for task in methods[0].tasks:
        mine = [one for one in runs if one.task == task]
        first, last = min(one.step for one in mine), max(one.step for one in mine)
        if last - first > _SAME_LENGTH * last:
            lines.append(f"{task}: scores are of {first:,} to {last:,} steps; --step compares at one step")
        scored = _SCORED if measured[task].low else (*_SCORED, "reward.")
        keys = [key for key in differing_settings([one.run for one in mine]) if key.startswith(scored)]
        if keys:
            more = f" and {len(keys) - _MOST_KEYS} others" if len(keys) > _MOST_KEYS else ""
            named = ", ".join(keys[:_MOST_KEYS]) + more
            lines.append(f"{task}: runs differ in {named}: scores may be of different tasks")
        if len({len(method.tasks[task]) for method in methods}) > 1:
            lines.append(f"{task}: methods have different numbers of seeds")
    return lines


def _scores(runs: Sequence[ScoredRun], method: str, task: str) -> np.ndarray:
    return np.array([one.score for one in runs if (one.method, one.task) == (method, task)])


def _by_task(
    name: str, tasks: Sequence[str], groups: Sequence[np.ndarray]
) -> list[tuple[tuple[str, str], list[np.ndarray]]]:
    """Keys of a method's statistics and the scores of which they are made: of all tasks, then of each."""
    single = [((name, task), [scores]) for task, scores in zip(tasks, groups, strict=True)]
    return [((name, ALL_TASKS), list(groups)), *(single if len(tasks) > 1 else [])]


def _statistics(groups: Sequence[np.ndarray], scaled: bool, draws: tuple[int, int]) -> dict[str, Estimate]:
    return {
        name: estimate_statistic(groups, statistic, *draws)
        for name, statistic in STATISTICS.items()
        if scaled or name != "optimality_gap"
    }
