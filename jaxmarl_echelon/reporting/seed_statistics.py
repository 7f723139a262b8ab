"""Statistics of scores over seeds and tasks, with percentile intervals of a stratified bootstrap.

See Agarwal et al. 2021 (arXiv 2108.13264): the runs of each task are drawn again with replacement.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

RESAMPLES = 10_000
# Fewer seeds than this give intervals that are too narrow.
ENOUGH_SEEDS = 10
# Resamples of which all pairs of runs are compared at once.
_BLOCK = 500

Statistic = Callable[[np.ndarray], np.ndarray]


class Estimate(NamedTuple):
    """A statistic and the ends of its 95 % interval; each a number, or an array of the same shape.

    The ends are NaN if a task has a single run, which every resample would repeat.
    """

    value: Any
    low: Any
    high: Any


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Averages the scores `[..., N]` without the lowest and highest quarter; the mean below four runs.

    As `scipy.stats.trim_mean(scores, 0.25)`, whose checks take longer than the sums of few runs.
    """
    number = scores.shape[-1]
    return np.sort(scores, -1)[..., number // 4 : number - number // 4].mean(-1)


def optimality_gap(scores: np.ndarray) -> np.ndarray:
    """Mean amount by which scores `[..., N]` fall short of 1, the upper end of their scale."""
    return np.mean(np.maximum(1.0 - scores, 0.0), -1)


def improvement_probability(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Probability that a run of `ours` `[..., N]` scores higher than one of `theirs` `[..., M]`.

    Ties count half (Mann and Whitney 1947).
    """
    left, right = ours[..., :, None], theirs[..., None, :]
    return np.mean((left > right) + 0.5 * (left == right), (-2, -1))


def score_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Fraction of the scores `[..., N]` above each of P thresholds, `[..., P]`."""
    return np.stack([np.mean(scores > threshold, -1) for threshold in thresholds], -1)


STATISTICS: dict[str, Statistic] = {
    "iqm": interquartile_mean,
    "median": lambda scores: np.median(scores, -1),
    "mean": lambda scores: np.mean(scores, -1),
    "optimality_gap": optimality_gap,
}


def resample_runs(tasks: Sequence[np.ndarray], seed: int, resamples: int = RESAMPLES) -> list[np.ndarray]:
    """Draws runs with replacement within each task.

    The same numbers of runs and the same seed draw the same runs: two methods with the same seeds, in one
    order, are then resampled in pairs.

    Args:
      tasks: scores `[n]` of the runs of each task.
      seed: of the draws.
      resamples: R.

    Returns:
      scores `[R, n]` per task.
    """
    rng = np.random.default_rng(seed)
    return [scores[rng.integers(len(scores), size=(resamples, len(scores)))] for scores in tasks]


def percentile_interval(draws: np.ndarray, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of the interval that holds the middle of the draws `[R, ...]`."""
    outside = (1.0 - confidence) / 2.0
    low, high = np.quantile(draws, [outside, 1.0 - outside], axis=0)
    return low, high


def _interval_over_runs(draws: np.ndarray, *methods: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The interval of draws from the runs `[n]` of each task of methods; NaN with a single run."""
    alone = any(len(scores) < 2 for tasks in methods for scores in tasks)
    low, high = percentile_interval(draws)
    return (low * np.nan, high * np.nan) if alone else (low, high)


def estimate_statistic(
    tasks: Sequence[np.ndarray], statistic: Statistic, seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """Estimates a statistic of all runs of all tasks; arguments are as for `resample_runs`."""
    value = statistic(np.concatenate(tasks))
    draws = statistic(np.concatenate(resample_runs(tasks, seed, resamples), -1))
    return Estimate(value, *_interval_over_runs(draws, tasks))


def estimate_difference(
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    statistic: Statistic,
    seeds: tuple[int, int],
    resamples: int = RESAMPLES,
) -> Estimate:
    """Estimates a statistic of our runs minus that of theirs.

    Args:
      ours, theirs: scores `[n]` of the runs of each task.
      statistic: of pooled scores.
      seeds: of the draws from both; equal for runs in pairs, see `resample_runs`.
      resamples: number of resamples.
    """
    value = statistic(np.concatenate(ours)) - statistic(np.concatenate(theirs))
    left, right = (
        statistic(np.concatenate(resample_runs(tasks, seed, resamples), -1))
        for tasks, seed in zip((ours, theirs), seeds, strict=True)
    )
    return Estimate(value, *_interval_over_runs(left - right, ours, theirs))


def estimate_improvement(
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    seeds: tuple[int, int],
    resamples: int = RESAMPLES,
) -> Estimate:
    """Estimates the probability of improvement, averaged over tasks; see `estimate_difference`."""
    value = np.mean([improvement_probability(*pair) for pair in zip(ours, theirs, strict=True)])
    left, right = (
        resample_runs(tasks, seed, resamples) for tasks, seed in zip((ours, theirs), seeds, strict=True)
    )
    draws = [_improvement_in_blocks(*pair) for pair in zip(left, right, strict=True)]
    return Estimate(value, *_interval_over_runs(np.mean(draws, 0), ours, theirs))


def _improvement_in_blocks(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """As `improvement_probability` of R resamples, in bounded memory."""
    return np.concatenate(
        [
            improvement_probability(ours[start : start + _BLOCK], theirs[start : start + _BLOCK])
            for start in range(0, len(ours), _BLOCK)
        ]
    )


def estimate_curve(
    tasks: Sequence[np.ndarray], statistic: Statistic, seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """Estimates a statistic at each of P points of the runs' curves, with pointwise intervals `[P]`.

    Args:
      tasks: curves `[n, P]` of the runs of each task.
      statistic, seed, resamples: as for `estimate_statistic`; whole runs are drawn.
    """
    points = [
        estimate_statistic([curves[:, point] for curves in tasks], statistic, seed, resamples)
        for point in range(tasks[0].shape[1])
    ]
    return Estimate(*(np.array(column) for column in zip(*points, strict=True)))
