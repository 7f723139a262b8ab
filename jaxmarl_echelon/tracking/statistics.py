"""Host-side statistics: confidence intervals, bounded trends, speed."""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

# Share of a sum of squares below which a difference of such sums is rounding.
SAME = 1e-12


def wilson_interval(successes: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a success probability (Wilson 1927), without continuity correction.

    See docs/reference/selfplay.md 8.1.

    Args:
      successes: number of successes, 0 to n.
      n: number of trials; 0 gives (0, 1).
      z: normal quantile; default for 95 %.

    Returns:
      Lower and upper bound.

    Raises:
      ValueError: unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes={successes}: must lie in 0 to n={n}")
    if n == 0:
        return 0.0, 1.0
    p, shrink = successes / n, 1.0 / (1.0 + z * z / n)
    centre = (p + z * z / (2.0 * n)) * shrink
    half = z * math.sqrt(p * (1.0 - p) / n + z * z / (4.0 * n * n)) * shrink
    # Exact at the ends, where rounding would be slightly off.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return low, high


def student_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of a mean of at least two independent values (seeds).

    See docs/reference/selfplay.md 8.2.
    """
    mean = statistics.fmean(values)
    half = float(half_width(statistics.stdev(values), len(values), confidence))
    return mean - half, mean + half


def half_width(spread, number, confidence: float = 0.95):
    """Half the width of Student's interval of the mean of `number` values with this sample deviation.

    Elementwise; NaN for fewer than two values.
    """
    return special.stdtrit(number - 1, 0.5 + confidence / 2.0) * spread / np.sqrt(number)


class ScoreSums(NamedTuple):
    """Sums over scored episodes; each adds `value` to the score's numerator and `weight` to its denominator.

    Sums of several sets of episodes can be added, so a joint interval does not need single episodes.

    Attributes:
      number: number of episodes with a weight other than 0.
      value, weight: sums of the terms.
      value_squared, product, weight_squared: sums of `value**2`, `value * weight` and `weight**2`.
    """

    number: float
    value: float
    weight: float
    value_squared: float
    product: float
    weight_squared: float

    @property
    def mean(self) -> float:
        """The score, a ratio of sums; NaN without episodes."""
        return self.value / self.weight if self.weight else math.nan

    @property
    def binary(self) -> bool:
        """Whether every episode has the weight 1 and scored 0 or 1, for scores in [0, 1]."""
        return self.number == self.weight == self.weight_squared and self.value == self.value_squared


def sum_scores(value: np.ndarray, weight: np.ndarray) -> ScoreSums:
    """Sums the terms of episodes `[N]` in the numerator and denominator of a score."""
    counts = np.asarray(weight) != 0
    value, weight = (np.asarray(x)[counts].astype(np.float64) for x in (value, weight))
    sums = (value, weight, value * value, value * weight, weight * weight)
    return ScoreSums(int(counts.sum()), *(float(x.sum()) for x in sums))


def add_scores(parts: Iterable[ScoreSums]) -> ScoreSums:
    """Adds the sums of several sets of episodes."""
    return ScoreSums(*(float(sum(column)) for column in zip(*parts, strict=True)))


def score_interval(sums: ScoreSums) -> tuple[float, float]:
    """Returns the 95 % interval of a score in [0, 1]; NaN without episodes.

    Wilson's interval if every episode scored 0 or 1, else Student's t interval of the linearised ratio over
    episodes (Cochran, Sampling Techniques, 1977, section 6.4); [0, 1] for a single graded episode. If all
    episodes scored the same, Student's interval has no width, and Wilson's for their mean is returned.
    """
    number, mean = sums.number, sums.mean
    if not sums.weight:
        return math.nan, math.nan
    if sums.binary:
        return wilson_interval(sums.value, number)
    if number < 2:
        return 0.0, 1.0
    squares = sums.value_squared - 2.0 * mean * sums.product + mean * mean * sums.weight_squared
    if squares <= SAME * sums.value_squared:
        return wilson_interval(min(mean, 1.0) * number, number)
    spread = math.sqrt(squares / (number - 1)) * number / sums.weight
    half = float(half_width(spread, number))
    return max(mean - half, 0.0), min(mean + half, 1.0)


class Trend:
    """Downsampled time series of a value over a whole run, in bounded memory.

    Values are averaged in groups of equal size; neighbouring groups are merged when there are `capacity`.

    Attributes:
      first, last: environment steps of the first and of the newest value; NaN if unknown.
    """

    def __init__(self, capacity: int = 256):
        self.first, self.last = math.nan, math.nan
        self._capacity = capacity
        self._groups: list[tuple[float, float]] = []
        self._per_group = 1
        self._pending: list[tuple[float, float]] = []

    def add(self, value: float, step: float = math.nan) -> None:
        """Adds a value at a number of environment steps; non-finite values are ignored."""
        if not math.isfinite(value):
            return
        self.first, self.last = self.first if math.isfinite(self.first) else step, step
        self._pending.append((step, value))
        if len(self._pending) < self._per_group:
            return
        self._groups.append(_mean_point(self._pending))
        self._pending.clear()
        if len(self._groups) == self._capacity:
            self._groups = [
                _mean_point(two) for two in zip(self._groups[::2], self._groups[1::2], strict=True)
            ]
            self._per_group *= 2

    def points(self, count: int) -> list[float]:
        """Returns at most `count` values, oldest first, each the mean of about equally many groups."""
        return [value for _, value in self.course(count)]

    def course(self, count: int) -> list[tuple[float, float]]:
        """Returns `points` with their mean environment steps: pairs of step and value."""
        found = self._groups + ([_mean_point(self._pending)] if self._pending else [])
        if len(found) <= count:
            return found
        edges = [round(i * len(found) / count) for i in range(count + 1)]
        return [_mean_point(found[a:b]) for a, b in itertools.pairwise(edges)]


def _mean_point(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns the mean step and the mean value."""
    steps, values = zip(*points, strict=True)
    return sum(steps) / len(steps), sum(values) / len(values)


class Pace:
    """Speed and remaining time of a run, from the times of its reports.

    Args:
      total: total steps of the run.
      start: steps already done.
      window: number of reports used for the speed.
      least: reports less than this many seconds apart are merged.
    """

    def __init__(self, total: int, start: int = 0, window: int = 32, least: float = 0.01):
        self.total = total
        self.step = start
        self._least = least
        self._reports: deque[tuple[float, int]] = deque(maxlen=window)

    def report(self, now: float, step: int) -> None:
        """Records that `step` steps are done at time `now` (seconds)."""
        self.step = max(self.step, step)
        if self._reports and now - self._reports[-1][0] < self._least:
            # Updates of one compiled chunk are reported at once: one measurement.
            self._reports[-1] = (self._reports[-1][0], self.step)
        else:
            self._reports.append((now, self.step))

    @property
    def fraction(self) -> float:
        """Fraction of the run completed."""
        return min(self.step / self.total, 1.0) if self.total > 0 else 0.0

    @property
    def speed(self) -> float:
        """Steps per second over the window; NaN before the second report."""
        if len(self._reports) < 2:
            return math.nan
        (first_time, first_step), (last_time, last_step) = self._reports[0], self._reports[-1]
        return (last_step - first_step) / max(last_time - first_time, 1e-9)

    def remaining(self, now: float) -> float:
        """Seconds to the end at the current speed; NaN if unknown."""
        if self.step >= self.total:
            return 0.0
        if not self.speed > 0:
            return math.nan
        return max((self.total - self.step) / self.speed - (now - self._reports[-1][0]), 0.0)
