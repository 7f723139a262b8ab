"""Host-side statistics: confidence intervals, bounded trends, speed."""

import math
import statistics
from collections import deque
from collections.abc import Sequence

from scipy import special


def wilson(successes: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a success probability (Wilson 1927), without continuity correction.

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


def student(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of a mean from at least two independent values (seeds)."""
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    half = special.stdtrit(len(values) - 1, 0.5 + confidence / 2.0) * spread / math.sqrt(len(values))
    return mean - half, mean + half


class Trend:
    """Downsampled time series of a value over a whole run, in bounded memory.

    Averages groups of equal size; once there are `capacity` groups, neighbours are merged.
    """

    def __init__(self, capacity: int = 256):
        self._capacity = capacity
        self._groups: list[float] = []
        self._per_group = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Adds a value; non-finite ones are ignored."""
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self._per_group:
            return
        self._groups.append(sum(self._pending) / len(self._pending))
        self._pending.clear()
        if len(self._groups) == self._capacity:
            self._groups = [(a + b) / 2 for a, b in zip(self._groups[::2], self._groups[1::2], strict=True)]
            self._per_group *= 2

    def points(self, count: int) -> list[float]:
        """Returns at most `count` values, oldest first, each the mean of about equally many groups."""
        values = self._groups + ([sum(self._pending) / len(self._pending)] if self._pending else [])
        if len(values) <= count:
            return values
        edges = [round(i * len(values) / count) for i in range(count + 1)]
        return [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]


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
        """Seconds to the end at the present speed; NaN if unknown."""
        if self.step >= self.total:
            return 0.0
        if not self.speed > 0:
            return math.nan
        return max((self.total - self.step) / self.speed - (now - self._reports[-1][0]), 0.0)
