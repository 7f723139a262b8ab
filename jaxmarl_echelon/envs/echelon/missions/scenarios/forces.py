"""Forces: how many mechs of which classes a strength in packs is. Source: spec sections 7.1 and 7.9."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.unit_tables import HEAVY, LIGHT, MEDIUM, SCOUT

# Pack-equivalents of a mech by class, in the order of `tables.CLASSES`; ten units are a pack.
WEIGHTS = np.array([0.5, 0.7, 1.0, 2.0], np.float32) / 10.0
# The order in which a force fills up, but for the mech that its order needs (`led_by`); it repeats.
PATTERNS: dict[str, tuple[int, ...]] = {
    "balanced": (MEDIUM, HEAVY, MEDIUM, LIGHT, MEDIUM, SCOUT, MEDIUM, LIGHT, MEDIUM, LIGHT),
    "scout_heavy": (MEDIUM, SCOUT, LIGHT, SCOUT, LIGHT, MEDIUM, SCOUT, LIGHT, SCOUT, LIGHT),
    "assault_heavy": (MEDIUM, HEAVY, MEDIUM, HEAVY, MEDIUM, HEAVY, MEDIUM, LIGHT, HEAVY, MEDIUM),
}
ROSTER = "roster"
COMPOSITIONS = (ROSTER, *PATTERNS)
# Shares of the full hit points: [low, high] by distribution.
HEALTH = {"full": (1.0, 1.0), "mixed": (0.5, 1.0), "critical": (0.3, 0.5)}


class Force(NamedTuple):
    """One team's mechs.

    Attributes:
      classes: `[A]` int32, of empty slots too.
      count: int32 slots filled, the first ones.
      packs: their strength in packs.
    """

    classes: jax.Array
    count: jax.Array
    packs: jax.Array


def patterns(roster: tuple[int, ...]) -> np.ndarray:
    """Classes `[COMPOSITIONS, A]` in the order in which the slots of a roster fill up."""
    rows = [np.resize(pattern, len(roster)) for pattern in PATTERNS.values()]
    return np.stack([np.array(roster), *rows]).astype(np.int32)


def led_by(classes: jax.Array, first: jax.Array) -> jax.Array:
    """Classes `[A]` in the order of filling, with the first of one class before all others, if there is one.

    Args:
      classes: `[A]` in the order of filling.
      first: int32 class; -1 for no change.
    """
    place = jnp.argmax(classes == first)
    slot = jnp.arange(classes.size)
    return classes[jnp.where(slot == 0, place, jnp.where(slot <= place, slot - 1, slot))]


def muster(classes: jax.Array, strength: jax.Array, count: jax.Array, least: jax.Array) -> Force:
    """As many of the slots as come nearest to a strength.

    Args:
      classes: `[A]` in the order of filling.
      strength: in packs.
      count: int32 mechs that are wanted whatever their strength, or -1.
      least: mechs that there are at least.
    """
    reached = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.asarray(WEIGHTS)[classes])])
    sizes = jnp.arange(reached.size)
    near = jnp.argmin(jnp.where(sizes >= least, jnp.abs(reached - strength), jnp.inf))
    number = jnp.where(count >= 0, jnp.minimum(count, classes.size), near).astype(jnp.int32)
    return Force(classes, number, reached[number])


def packs(classes) -> float:
    """Strength of mechs in packs; the standard roster of ten is 0.96."""
    return float(WEIGHTS[np.asarray(classes, int)].sum())
