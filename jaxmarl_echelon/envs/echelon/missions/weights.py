"""Weights of the missions' reward: schedules over training, gates by verb, parameters of orders.

There are three families: shaping components, objective components and the terminal reward. A schedule
assigns each family a share of a constant budget, so that the sum of all weights is the same in every phase.
Reference: docs/reference/echelon.md 16.1 and 16.2.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, VERBS

FAMILIES = ("shaping", "objective", "terminal")
OBJECTIVE = ("zone_control", "mission_progress")
SHAPING = tuple(name for name in COMPONENTS if name not in OBJECTIVE)
BUDGET = 1.0
# Weight of each family where its schedule is 1.
TOTALS = (0.7, 0.8, 1.0)
# Least values of the continuous schedules of shaping and of the terminal reward.
FLOOR, SUCCESS = 0.05, 0.5
# Relative weights within a family.
BASE = {
    "survival": 0.3,
    "damage_dealt": 0.2,
    "heat_management": 0.05,
    "pack_cohesion": 0.1,
    "zone_progress": 0.2,
    "zone_control": 0.5,
    "mission_progress": 0.3,
    "stealth": 0.1,
    "detection": 0.2,
    "suppression_effect": 0.2,
    "resource_preservation": 0.05,
    "coverage": 0.3,
}
# Gates in the order of `VERBS`; other components are not gated.
GATES = {
    # Not in suppression: a destroyed enemy can't be suppressed any longer.
    "damage_dealt": (1.0, 0.5, 0.7, 0.3, 0.0, 0.0, 0.0),
    "survival": (0.5, 1.0, 0.8, 0.7, 0.5, 1.0, 1.0),
    "stealth": (0.0, 0.0, 0.3, 1.0, 0.0, 0.8, 0.5),
    "detection": (0.0, 0.3, 0.5, 0.2, 0.3, 1.0, 0.3),
    "suppression_effect": (0.2, 0.3, 0.8, 0.0, 1.0, 0.0, 0.0),
    "zone_progress": (1.0, 0.0, 0.0, 0.5, 0.0, 0.3, 0.8),
    "resource_preservation": (0.3, 0.5, 0.4, 0.6, 0.3, 0.7, 1.0),
    "heat_management": (0.3, 0.5, 0.4, 0.6, 0.3, 0.7, 1.0),
    # For orders that are carried out in the objective; others would be paid for sitting in it.
    "zone_control": (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0),
    "coverage": (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
}
# Shares of shaping, objective and terminal reward in each of four phases.
TABLE = ((1.0, 0.0, 0.0), (0.6, 0.2, 0.2), (0.2, 0.2, 0.6), (0.0, 0.0, 1.0))
SCHEDULES = ("continuous", "table", "terminal", "constant", "document")
# Schedules that show success as it is earned.
_EARLY = ("continuous", "constant")
DITHERING = 0.1
_HURRIED = ("zone_progress", "mission_progress")
_NEAREST, _WIDEST = 6.0, 24.0
_LEAST = 1e-8


class OrderTerms(NamedTuple):
    """Reward terms set by the parameters of an order; arrays `[...]`.

    Attributes:
      death: penalty for dying, at most 0, applied once within the component `survival`.
      haste: factor on the weights of `zone_progress` and `mission_progress`.
      dithering: penalty per decision without progress, at most 0.
      spacing: desired distance from the squad's centre, voxels.
    """

    death: jax.Array
    haste: jax.Array
    dithering: jax.Array
    spacing: jax.Array


def schedule_levels(progress: jax.Array, floor: float = FLOOR, success: float = 0.0) -> jax.Array:
    """Returns values of the continuous schedules at `progress [...]` in [0, 1].

    Returns:
      `[..., 3]`: shaping falls from 1 to `floor` at 3/4; the objective is a trapezoid over [0, 3/4]; the
      terminal reward rises from 0 at 1/2 to 1, but is at least `success`.
    """
    shaping = jnp.maximum(floor, 1.0 - progress * (1.0 - floor) / 0.75)
    objective = jnp.clip(jnp.minimum(4.0 * progress, 4.0 * (0.75 - progress)), 0.0, 1.0)
    return jnp.stack([shaping, objective, jnp.maximum(success, 2.0 * (progress - 0.5))], axis=-1)


def normalise_shares(levels: jax.Array, totals=TOTALS, budget: float = BUDGET) -> jax.Array:
    """Returns shares `[..., 3]` of the budget, proportional to `levels [..., 3]` times family totals."""
    raw = levels * jnp.asarray(totals, jnp.float32)
    return budget * raw / jnp.maximum(jnp.sum(raw, axis=-1, keepdims=True), _LEAST)


def family_shares(
    schedule: jax.Array, progress: jax.Array, totals=TOTALS, floor: float = FLOOR, success: float = SUCCESS
) -> jax.Array:
    """Returns the shares of the three families.

    Args:
      schedule: int32 index into `SCHEDULES`: continuous, with mission success paid at any progress; the
        document's table of phases; the terminal reward only; all families at their full weight throughout;
        or the document's continuous schedule, which pays no success up to a progress of 1/2.
      progress: float32 in [0, 1].
      totals: `[3]` weight of each family where its schedule is 1.
      floor: least value of the continuous schedule of shaping.
      success: least value of the continuous schedule of the terminal reward.

    Returns:
      `[3]`, with sum 1.
    """
    quarter = jnp.clip(jnp.floor(4.0 * progress), 0, len(TABLE) - 1).astype(jnp.int32)
    choices = (
        normalise_shares(schedule_levels(progress, floor, success), totals),
        jnp.asarray(TABLE, jnp.float32)[quarter],
        jnp.array([0.0, 0.0, 1.0]),
        normalise_shares(jnp.ones(3), totals),
        normalise_shares(schedule_levels(progress, floor), totals),
    )
    return jnp.stack(choices)[schedule]


def early_share(schedule: jax.Array, share: jax.Array) -> jax.Array:
    """Returns the `share` of success that a schedule shows as it is earned: 0 for those of the document."""
    return jnp.where(jnp.asarray([name in _EARLY for name in SCHEDULES])[schedule], share, 0.0)


def base_weights(given: Mapping[str, float] | None = None) -> np.ndarray:
    """Returns `BASE` with replacements, in the order of `COMPONENTS`; float32 `[C]`."""
    return np.array([(BASE | dict(given or {}))[name] for name in COMPONENTS], np.float32)


def component_weights(shares: jax.Array, base: jax.Array) -> jax.Array:
    """Returns weights `[C]` before gates: each family's share `[3]`, split in proportion to `base [C]`."""
    shaping = _members(SHAPING)

    def split(member, share):
        own = jnp.where(member, base, 0.0)
        return own * share / jnp.maximum(jnp.sum(own), _LEAST)

    return split(shaping, shares[0]) + split(~shaping, shares[1])


def gate_table(gates: Mapping[str, tuple[float, ...]] = GATES) -> np.ndarray:
    """Returns the gates of all verbs, float32 `[verbs, C]`; 1 for components without a gate."""
    ones = (1.0,) * len(VERBS)
    return np.array([gates.get(name, ones) for name in COMPONENTS], np.float32).T


def apply_gates(weights: jax.Array, gates: jax.Array) -> jax.Array:
    """Multiplies `weights [..., N]` by `gates [..., N]` and rescales them to their previous sum.

    Without rescaling where all gated weights are 0.
    """
    passed = weights * gates
    before, after = (jnp.sum(x, axis=-1, keepdims=True) for x in (weights, passed))
    rescaled = passed * before / jnp.where(after > _LEAST, after, 1.0)
    return jnp.where(after > _LEAST, rescaled, passed)


def verb_weights(weights: jax.Array, gates: jax.Array) -> jax.Array:
    """Applies gates `[..., C]` to the weights `[..., C]`, preserving the sums of both families."""
    shaping = _members(SHAPING)
    parts = (apply_gates(jnp.where(part, weights, 0.0), gates) for part in (shaping, ~shaping))
    return sum(parts)


def apply_time_pressure(weights: jax.Array, orders: OrderTerms) -> jax.Array:
    """Multiplies the progress weights among `[..., C]` by `orders.haste`; this exceeds the budget."""
    return jnp.where(_members(_HURRIED), weights * orders.haste[..., None], weights)


def compute_order_terms(
    loss_appetite: jax.Array, time_pressure: jax.Array, grouping: jax.Array, decisions: jax.Array
) -> OrderTerms:
    """Returns the reward terms of an order's parameters `[...]` in [0, 1]; `decisions` is the time limit."""
    return OrderTerms(
        death=loss_appetite - 1.0,
        haste=1.0 + time_pressure,
        dithering=-DITHERING * time_pressure / decisions,
        spacing=_NEAREST + _WIDEST * (1.0 - grouping),
    )


def blend_weights(before: jax.Array, after: jax.Array, share: jax.Array) -> jax.Array:
    """Blends weights linearly: `before` at a share of 0, `after` at 1 and beyond."""
    share = jnp.clip(share, 0.0, 1.0)
    return (1.0 - share) * before + share * after


def _members(names) -> np.ndarray:
    """Returns a mask `[C]` of the named components."""
    return np.array([name in names for name in COMPONENTS])
