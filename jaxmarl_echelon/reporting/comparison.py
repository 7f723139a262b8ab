"""Compares methods by the scores of their runs: aggregates, pairs, profiles and curves."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.reporting.methods import Method, differing_settings
from jaxmarl_echelon.reporting.recorded_evaluations import RecordedEvaluation, read_evaluation
from jaxmarl_echelon.reporting.recorded_runs import COPIES, EVALUATIONS, RecordedRun, measure_label
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
from jaxmarl_echelon.tracking.run_tables import Columns, Measured, find_score

ALL_TASKS = "all"
_POINTS = 40
_THRESHOLDS = 101
# Ends of runs that differ by more than this fraction are not called equal.
_SAME_LENGTH = 0.01
# Beginnings of keys that set the task on which runs are scored; rewards do where no score is compared.
_SCORED = ("env.", "curriculum.evaluation", "curriculum.verbs", "curriculum.fire")
# Of keys in which runs differ, so many are named.
_MOST_KEYS = 6


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings of a comparison: its measure, and its bootstrap.

    Attributes:
      measure: column of the table of scores; None for each task's score, or the return where there is none.
      checkpoint: name of the checkpoint whose evaluations on fresh episodes are compared; None for the last
        rows of `eval.csv`.
      step: environment steps up to which evaluations count; None for all.
      ranges: task to the scores that are scaled to 0 and 1; of all tasks under "".
      seed: of the bootstrap.
      resamples: of the bootstrap.
    """

    measure: str | None = None
    checkpoint: str | None = None
    step: int | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0
    resamples: int = RESAMPLES


class ScoreTable(NamedTuple):
    """Evaluations of which the last counted one is a run's score.

    Attributes:
      file: the file that has them.
      columns: by name.
      fresh: the evaluation of a checkpoint on fresh episodes; None for the run's own evaluations.
    """

    file: Path
    columns: Columns
    fresh: RecordedEvaluation | None = None


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
      source: what the scores are of, if not of the runs' last evaluations.
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
    source: str = ""

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of their runs."""
        return list(dict.fromkeys(one.method for one in self.runs))

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(self.measures)


def compare_methods(methods: Sequence[Method], settings: ComparisonSettings) -> MethodComparison:
    """Compares methods by the last counted evaluation of each run, or by those of a checkpoint.

    Raises:
      ValueError: one line, for runs without evaluations or without the measure, for scores that are not
        finite, for several tasks of which one has no range, and for evaluations of checkpoints under
        different overrides.
    """
    tasks = list(methods[0].tasks)
    every_run = [run for method in methods for task in tasks for run in method.tasks[task]]
    tables = {run.folder: read_score_table(run, settings.checkpoint) for run in every_run}
    for task in tasks:
        require_same_overrides([tables[run.folder] for method in methods for run in method.tasks[task]])
    measured = {task: choose_measure(methods, task, tables, settings.measure) for task in tasks}
    ranges = {task: find_range(task, measured[task], settings, len(tasks)) for task in tasks}
    runs = [
        score_run(method.name, task, run, tables[run.folder], measured[task].column, ranges[task], settings)
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
        list_weaknesses(methods, runs, measured, tables),
        describe_source(tables, settings.checkpoint),
    )


def read_score_table(run: RecordedRun, checkpoint: str | None) -> ScoreTable:
    """Reads a run's evaluations, or that of a checkpoint; raises ValueError for a run without any."""
    if checkpoint is not None:
        fresh = read_evaluation(run, checkpoint)
        return ScoreTable(fresh.file, fresh.columns, fresh)
    if not len(run.evaluations.get("step", ())):
        raise ValueError(f"{run.folder}: no evaluations: eval.csv is missing or empty")
    return ScoreTable(run.folder / EVALUATIONS, run.evaluations)


def require_same_overrides(tables: Sequence[ScoreTable]) -> None:
    """Raises ValueError if checkpoints were evaluated under different overrides, which make other tasks."""
    made = {table.file: " ".join(sorted(table.fresh.settings.overrides)) for table in tables if table.fresh}
    for file, overrides in made.items():
        other, theirs = next(iter(made.items()))
        if overrides != theirs:
            raise ValueError(
                f"{file}: is of another task than {other}: evaluated under {overrides or 'no overrides'}, "
                f"not under {theirs or 'none'}"
            )


def describe_source(tables: Mapping[Path, ScoreTable], checkpoint: str | None) -> str:
    """Names the episodes and the policies that scores of checkpoints are of; empty for other scores."""
    made = [table.fresh.settings for table in tables.values() if table.fresh]
    if not made:
        return ""
    numbers = sorted({one.episodes for one in made})
    number = f"{numbers[0]:,}" + (f" to {numbers[-1]:,}" if len(numbers) > 1 else "")
    changed = " or ".join(dict.fromkeys(" ".join(one.overrides) for one in made if one.overrides))
    under = f" under {changed}" if changed else ""
    return f"{number} fresh episodes of each run's {checkpoint} policy{under}"


def choose_measure(
    methods: Sequence[Method], task: str, tables: Mapping[Path, ScoreTable], column: str | None
) -> Measured:
    """Returns what is compared on a task; raises ValueError for runs without it, or with another score."""
    found = [tables[run.folder] for method in methods for run in method.tasks[task]]
    measured = find_score(found[0].columns) if column is None else Measured(column)
    for table in found:
        if measured.column not in table.columns:
            known = ", ".join(name for name in table.columns if "/" not in name and name != "step")
            raise ValueError(f"--measure={measured.column}: not in {table.file}; allowed: {known}")
        # A run in which only a later role learns has that role's score, beside that of its opponent.
        other = find_score(table.columns)
        if column is None and other.low and other != measured:
            raise ValueError(
                f"{table.file}: has the score {measure_label(other)}, not {measure_label(measured)} as "
                f"{found[0].file}; give --measure"
            )
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
    table: ScoreTable,
    column: str,
    scale: tuple[float, float] | None,
    settings: ComparisonSettings,
) -> ScoredRun:
    """Scores a run by its last evaluation, up to `settings.step`; raises ValueError without a finite one."""
    steps, values = table.columns["step"], table.columns[column]
    counted = np.flatnonzero(steps <= (np.inf if settings.step is None else settings.step))
    if not len(counted):
        raise ValueError(f"{run.folder}: no evaluations up to step {settings.step}")
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
    """Builds the curves of a method on a task over steps and over seconds, where all its runs have values.

    They are of the runs' own evaluations, whatever the scores are of.
    """
    runs = method.tasks[task]
    if any(name not in run.evaluations for run in runs for name in ("step", column)):
        return []
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
    methods: Sequence[Method],
    runs: Sequence[ScoredRun],
    measured: Mapping[str, Measured],
    tables: Mapping[Path, ScoreTable],
) -> list[str]:
    """Lists what weakens a comparison, as lines.

    Args:
      methods: the methods.
      runs: their runs with scores.
      measured: task to what is compared there.
      tables: a run's folder to its evaluations.
    """
    lines = []
    for method in methods:
        for task, mine in method.tasks.items():
            lines += _list_few_seeds(method.name, task, mine) + _list_diverged(method.name, task, mine)
    for task in methods[0].tasks:
        mine = [one for one in runs if one.task == task]
        found = [tables[one.run.folder] for one in mine]
        lines += _list_lengths(task, mine, found)
        # Members share their group's configuration; the checkpoints that were evaluated have their own.
        own = [
            replace(one.run, config=table.fresh.config) if table.fresh else one.run
            for one, table in zip(mine, found, strict=True)
        ]
        scored = _SCORED if measured[task].low else (*_SCORED, "reward.")
        keys = [key for key in differing_settings(own) if key.startswith(scored)]
        if keys:
            more = f" and {len(keys) - _MOST_KEYS} others" if len(keys) > _MOST_KEYS else ""
            named = ", ".join(keys[:_MOST_KEYS]) + more
            lines.append(f"{task}: runs differ in {named}: scores may be of different tasks")
        lines += _list_evaluations(task, [table.fresh for table in found if table.fresh])
        if len({len(method.tasks[task]) for method in methods}) > 1:
            lines.append(f"{task}: methods have different numbers of seeds")
    return lines


def _list_few_seeds(method: str, task: str, runs: Sequence[RecordedRun]) -> list[str]:
    """Lines on too few seeds, and on seeds that are not independent."""
    lines = []
    if len(runs) < ENOUGH_SEEDS:
        seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
        lines.append(f"{method} has {seeds} on {task}; a claim needs {ENOUGH_SEEDS}")
    groups = Counter(run.config_file for run in runs if run.in_one_population)
    if max(groups.values(), default=0) > 1:
        lines.append(f"{method} on {task}: {COPIES}")
    return lines


def _list_diverged(method: str, task: str, runs: Sequence[RecordedRun]) -> list[str]:
    """Lines on runs that have diverged, whose scores are those of their policies before."""
    gone = [run.folder.name for run in runs if run.diverged]
    if not gone:
        return []
    return [f"{method} on {task}: {', '.join(gone)} diverged; scores are of policies of the time before"]


def _list_lengths(task: str, runs: Sequence[ScoredRun], tables: Sequence[ScoreTable]) -> list[str]:
    """Lines on runs of different lengths, whatever the checkpoints are that were evaluated."""
    fresh = tables[0].fresh is not None
    ends = [
        int(one.run.evaluations["step"][-1]) if fresh and one.run.evaluations else one.step for one in runs
    ]
    first, last = min(ends), max(ends)
    if last - first <= _SAME_LENGTH * last:
        return []
    if fresh:
        return [f"{task}: runs end after {first:,} to {last:,} steps"]
    return [f"{task}: scores are of {first:,} to {last:,} steps; --step compares at one step"]


def _list_evaluations(task: str, fresh: Sequence[RecordedEvaluation]) -> list[str]:
    """Lines on evaluations of checkpoints with different numbers of episodes or versions."""
    numbers = sorted({one.settings.episodes for one in fresh})
    versions = sorted({one.settings.environment for one in fresh})
    lines = [f"{task}: evaluations have {numbers[0]:,} to {numbers[-1]:,} episodes"] if numbers[1:] else []
    return lines + ([f"{task}: evaluations are of {' and '.join(versions)}"] if versions[1:] else [])


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
