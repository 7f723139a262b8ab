"""Means of metrics over the gradient steps that they are of; some networks take fewer steps than others."""

import math
from collections.abc import Container, Mapping

import jax.numpy as jnp

from algos.types import Metrics

STEPS, COUNT = "gradient_steps", "_steps"
# Of the parameters as they are, whether or not there were steps.
OF_PARAMETERS = "parameter_norm"


def step_count_name(name: str, names: Container[str]) -> str | None:
    """Name of the metric that counts the gradient steps of another metric's mean; None for a count.

    `PART_loss` has `PART_steps` where a part is stepped less often than the rest; all others have
    `gradient_steps`, but for those of the parameters themselves. Both names may have a prefix.

    Args:
      name: of a metric.
      names: of all metrics that there are.
    """
    if name.endswith((COUNT, OF_PARAMETERS)):
        return None
    own = name.removesuffix("_loss") + COUNT
    counts = own if own in names else name[: name.rfind("/") + 1] + STEPS
    return counts if counts in names else None


def find_divergence(metrics: Mapping[str, float], prefix: str = "") -> str | None:
    """Returns the first metric, by name, that is not finite although its steps were taken; None without one.

    Args:
      metrics: means over steps, and counts of steps.
      prefix: of the names of those that count.
    """
    for name in sorted(name for name in metrics if name.startswith(prefix)):
        counts = step_count_name(name, metrics)
        if (counts is None or metrics[counts] > 0) and not math.isfinite(metrics[name]):
            return name
    return None


def mean_over_steps(metrics: Metrics) -> Metrics:
    """Means of metrics `[n]`, each over the steps that it is of, and sums of the counts; NaN without any."""

    def joined(name, values):
        if name.endswith(COUNT):
            return jnp.sum(values)
        counts = step_count_name(name, metrics)
        if counts is None:
            return jnp.mean(values)
        weight = metrics[counts]
        total = jnp.sum(weight)
        summed = jnp.sum(jnp.where(weight > 0, values * weight, 0.0))
        return jnp.where(total > 0, summed / jnp.maximum(total, 1.0), jnp.nan)

    return {name: joined(name, values) for name, values in metrics.items()}


def mean_over_learners(metrics: Metrics) -> Metrics:
    """Means of metrics `[A]` over those of A learners that took steps, or over all where none are counted."""

    def mean(name, values):
        counts = step_count_name(name, metrics)
        if counts is None:
            return jnp.mean(values)
        learnt = metrics[counts] > 0
        of_these = jnp.sum(jnp.where(learnt, values, 0.0)) / jnp.maximum(jnp.sum(learnt), 1)
        return jnp.where(jnp.any(learnt), of_these, jnp.mean(values))

    return {name: mean(name, values) for name, values in metrics.items()}
