"""Reward weights that every learner draws per episode and observes.

Reference: docs/reference/drive.md 9.2.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Bounds(NamedTuple):
    """Range of a conditioned number and the weight that it replaces.

    Attributes:
      low, high: of the number as observed.
      component, weight: the weight that it replaces; empty for the goal radius.
      sign: factor from the number to the weight.
    """

    low: float
    high: float
    component: str = ""
    weight: str = "weight"
    sign: float = 1.0


GOAL_RADIUS = "goal_radius"
BOUNDS: dict[str, Bounds] = {
    GOAL_RADIUS: Bounds(2.0, 12.0),
    "goal": Bounds(1.0, 2.0, "goal"),
    "collision": Bounds(0.0, 3.0, "collision", sign=-1.0),
    "offroad": Bounds(0.0, 3.0, "offroad", sign=-1.0),
    "comfort": Bounds(0.0, 0.1, "comfort"),
    "lane_align": Bounds(2.5e-4, 2.5e-2, "lane_align"),
    "lane_align_velocity": Bounds(0.0, 1.0, "lane_align", "velocity"),
    "lane_center": Bounds(2.5e-4, 7.5e-3, "lane_center"),
    "lane_center_bias": Bounds(-0.5, 0.5, "lane_center", "bias"),
    "reverse": Bounds(2.5e-4, 7.5e-3, "reverse"),
    "overspeed": Bounds(0.0, 1.0, "overspeed"),
}


def draw_conditioned_weights(key: jax.Array, names: Sequence[str], agents: int) -> dict[str, jax.Array]:
    """Draws every named number independently for every learner, `[A]` each."""
    keys = jax.random.split(key, max(len(names), 1))
    return {
        name: jax.random.uniform(one, (agents,), minval=BOUNDS[name].low, maxval=BOUNDS[name].high)
        for name, one in zip(names, keys, strict=False)
    }


def scale_conditioned_weight(name: str, value: jax.Array) -> jax.Array:
    """Scales a number to [-1, 1], as observed by learners."""
    low, high = BOUNDS[name].low, BOUNDS[name].high
    return jnp.clip(2 * (value - low) / (high - low) - 1, -1.0, 1.0)


def clear_conditioned_weights(
    weights: Mapping[str, Mapping[str, jax.Array]], names: Sequence[str]
) -> dict[str, dict[str, jax.Array]]:
    """Returns the weights of a reward with 0 for those that learners draw, whose values have no effect."""
    return replace_conditioned_weights(weights, {name: jnp.zeros(()) for name in names})


def refuse_conditioned(
    names: Sequence[str], given: Iterable[str], weights: Mapping[str, Iterable[str]]
) -> None:
    """Raises a one-line ValueError for a setting that learners draw instead.

    Args:
      names: of the conditioned numbers.
      given: settings that are changed.
      weights: weights of the reward that are changed, by component.
    """
    for name in names:
        component, weight = BOUNDS[name].component, BOUNDS[name].weight
        changed = weight in weights.get(component, ()) if component else name in given
        if changed:
            key = f"reward.{component}.{weight}" if component else f"env.{name}"
            raise ValueError(f"{key}: has no effect, as every learner draws it (env.condition={name})")


def replace_conditioned_weights(
    weights: Mapping[str, Mapping[str, jax.Array]], drawn: Mapping[str, jax.Array]
) -> dict[str, dict[str, jax.Array]]:
    """Returns the weights of a reward with the drawn ones `[A]` replaced."""
    changed = {name: dict(own) for name, own in weights.items()}
    for name, value in drawn.items():
        bounds = BOUNDS[name]
        if bounds.component:
            changed[bounds.component][bounds.weight] = bounds.sign * value
    return changed
