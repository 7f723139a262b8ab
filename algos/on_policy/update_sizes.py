"""Sizes of an update on segments: batch, minibatches, horizon and agents, checked before tracing.

See docs/reference/trainer.md 1.2.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from algos.checks import require_count

# A number, or "auto" for one that follows from the others.
Size = int | Literal["auto"]


@dataclass(frozen=True)
class UpdateSizes:
    """Sizes of one update of a learner that trains on whole segments.

    Every agent contributes `segments_per_agent` segments of `horizon` consecutive decisions to a rollout. A
    minibatch is the input of one forward and backward pass; a gradient step takes `accumulation` of them.

    Attributes:
      agents: A, parallel agents over all environments.
      environments: E, or None if not known.
      segments_per_agent: k.
      horizon: T, decisions per segment.
      minibatch_segments: m, segments per minibatch.
      accumulation: minibatches per gradient step.
      epochs: passes over a rollout.
    """

    agents: int
    environments: int | None
    segments_per_agent: int
    horizon: int
    minibatch_segments: int
    accumulation: int
    epochs: int

    @property
    def decisions(self) -> int:
        """Decisions of each agent per rollout, k * T."""
        return self.segments_per_agent * self.horizon

    @property
    def segments(self) -> int:
        """Segments per rollout, S = k * A, from which minibatches are drawn."""
        return self.segments_per_agent * self.agents

    @property
    def batch_size(self) -> int:
        """Decisions of all agents per rollout, N = S * T."""
        return self.segments * self.horizon

    @property
    def minibatch_size(self) -> int:
        """Decisions per gradient step, n = m * T * accumulation."""
        return self.minibatch_segments * self.horizon * self.accumulation

    @property
    def minibatches(self) -> int:
        """Minibatches per epoch, S / m."""
        return self.segments // self.minibatch_segments

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update, epochs * N / n."""
        return self.epochs * self.minibatches // self.accumulation

    def updates(self, total_steps: int) -> int:
        """Number of whole updates in a run with this many decisions of all agents.

        Raises:
          ValueError: if the run is shorter than one update.
        """
        if total_steps < self.batch_size:
            raise ValueError(f"total_steps={total_steps}: must be at least batch_size={self.batch_size}")
        return total_steps // self.batch_size

    def rows(self) -> list[tuple[str, int, str]]:
        """Returns the plan as a table of rows `(name, value, explanation)`."""
        known = [] if self.environments is None else [("environments", self.environments, "side by side")]
        return [
            *known,
            ("agents", self.agents, "in all environments together"),
            ("segments_per_agent", self.segments_per_agent, "segments of each agent per rollout"),
            ("horizon", self.horizon, "decisions per segment, over which gradients flow back"),
            ("decisions", self.decisions, "of each agent per rollout: segments_per_agent * horizon"),
            ("segments", self.segments, "per rollout: segments_per_agent * agents"),
            ("batch_size", self.batch_size, "decisions per rollout: segments * horizon"),
            ("minibatch_size", self.minibatch_size, "decisions per gradient step"),
            ("accumulation", self.accumulation, "minibatches per gradient step"),
            ("minibatch_segments", self.minibatch_segments, "segments per forward and backward pass"),
            ("minibatches", self.minibatches, "per epoch: segments / minibatch_segments"),
            ("epochs", self.epochs, "passes over a rollout"),
            ("gradient_steps", self.gradient_steps, "per update: epochs * minibatches / accumulation"),
        ]


def make_update_sizes(
    agents: int,
    *,
    minibatch_size: int,
    batch_size: Size = "auto",
    horizon: Size = "auto",
    segments_per_agent: int = 1,
    epochs: int = 1,
    max_minibatch_size: int | None = None,
    environments: int | None = None,
) -> UpdateSizes:
    """Completes and checks the sizes of an update.

    Args:
      agents: parallel agents over all environments.
      minibatch_size: decisions per gradient step.
      batch_size: decisions per rollout; "auto" for segments_per_agent * agents * horizon.
      horizon: decisions per segment; "auto" for batch_size / (segments_per_agent * agents).
      segments_per_agent: segments that each agent fills per rollout.
      epochs: passes over a rollout.
      max_minibatch_size: largest number of decisions of one forward and backward pass; gradients of a
        larger minibatch are accumulated. None for no limit.
      environments: number of environments, for the table; None if not known.

    Raises:
      ValueError: for incompatible sizes, with the nearest compatible ones.
    """
    counts: dict[str, Any] = {
        "agents": agents,
        "minibatch_size": minibatch_size,
        "segments_per_agent": segments_per_agent,
        "epochs": epochs,
    }
    optional = {"max_minibatch_size": max_minibatch_size, "environments": environments}
    counts |= {key: x for key, x in optional.items() if x is not None}
    counts |= {key: x for key, x in {"batch_size": batch_size, "horizon": horizon}.items() if x != "auto"}
    for key, value in counts.items():
        require_count(key, value)
    horizon = plan_horizon(agents, segments_per_agent, batch_size, horizon)
    per_step = plan_minibatch(minibatch_size, segments_per_agent * agents, horizon)
    per_pass = plan_pass(max_minibatch_size, per_step, horizon)
    return UpdateSizes(
        agents=agents,
        environments=environments,
        segments_per_agent=segments_per_agent,
        horizon=horizon,
        minibatch_segments=per_pass,
        accumulation=per_step // per_pass,
        epochs=epochs,
    )


def plan_horizon(agents: int, segments_per_agent: int, batch_size: Size, horizon: Size) -> int:
    """Decisions per segment; requires batch_size = segments_per_agent * agents * horizon (ValueError)."""
    segments = segments_per_agent * agents
    if batch_size == "auto":
        if horizon == "auto":
            raise ValueError(
                "batch_size=auto: cannot be auto together with horizon=auto; "
                f"give one of them, such as horizon=64 or batch_size={segments * 64}"
            )
        return horizon
    if horizon == "auto":
        if batch_size % segments:
            raise ValueError(
                f"batch_size={batch_size}: must be a multiple of segments_per_agent * agents = "
                f"{segments_per_agent} * {agents}; nearest: {format_nearest_multiples(batch_size, segments)}"
            )
        return batch_size // segments
    if batch_size != segments * horizon:
        fixes = [f"batch_size={segments * horizon}"]
        if batch_size % segments == 0:
            fixes.append(f"horizon={batch_size // segments}")
        if batch_size % (agents * horizon) == 0:
            fixes.append(f"segments_per_agent={batch_size // (agents * horizon)}")
        raise ValueError(
            f"batch_size={batch_size}: must be segments_per_agent * agents * horizon = "
            f"{segments_per_agent} * {agents} * {horizon}; nearest: {' or '.join(fixes)}"
        )
    return horizon


def plan_minibatch(minibatch_size: int, segments: int, horizon: int) -> int:
    """Segments per gradient step; they must be whole and divide those of the rollout (ValueError)."""
    return count_whole_segments("minibatch_size", minibatch_size, "batch_size", segments, horizon)


def plan_pass(max_minibatch_size: int | None, per_step: int, horizon: int) -> int:
    """Segments per forward and backward pass; they must be whole and divide `per_step` (ValueError)."""
    if max_minibatch_size is None or max_minibatch_size >= per_step * horizon:
        return per_step
    return count_whole_segments("max_minibatch_size", max_minibatch_size, "minibatch_size", per_step, horizon)


def count_whole_segments(key: str, size: int, total_key: str, segments: int, horizon: int) -> int:
    """Number of segments in `size` decisions, of a total of `segments` with `horizon` decisions each.

    Raises:
      ValueError: unless `size` is a whole number of segments that divides the total; with the nearest
        allowed sizes.
    """
    total = segments * horizon
    if size > total:
        demand = f"must not exceed {total_key}={total}"
    elif size % horizon:
        demand = f"must hold whole segments of horizon={horizon}"
    elif total % size:
        demand = f"must divide {total_key}={total}"
    else:
        return size // horizon
    legal = format_nearest(size, (horizon * n for n in _find_divisors(segments)))
    raise ValueError(f"{key}={size}: {demand}; nearest: {legal}")


def _find_divisors(number: int) -> list[int]:
    """Returns all divisors in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def format_nearest(value: int, legal: Iterable[int]) -> str:
    """Formats the closest legal numbers below and above `value`."""
    legal = list(legal)
    below = [n for n in legal if n < value]
    above = [n for n in legal if n > value]
    return ", ".join(map(str, below[-1:] + above[:1]))


def format_nearest_multiples(value: int, unit: int) -> str:
    """Formats the closest positive multiples of `unit` below and above `value`."""
    below = value // unit * unit
    return ", ".join(str(n) for n in (below, below + unit) if n)
