"""Forces: numbers and classes of mechs for a strength in packs. Reference: docs/reference/echelon.md 15.6."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon.battle.unit_tables import HEAVY, LIGHT, MEDIUM, SCOUT

# Strength of a mech in packs by class, in the order of `unit_tables.CLASSES`.
WEIGHTS = np.array([0.5, 0.7, 1.0, 2.0], np.float32) / 10.0
# Classes in the order in which slots are filled, repeated; `move_class_first` may move one class to the
# front.
PATTERNS: dict[str, tuple[int, ...]] = {
    "balanced": (MEDIUM, HEAVY, MEDIUM, LIGHT, MEDIUM, SCOUT, MEDIUM, LIGHT, MEDIUM, LIGHT),
    "scout_heavy": (MEDIUM, SCOUT, LIGHT, SCOUT, LIGHT, MEDIUM, SCOUT, LIGHT, SCOUT, LIGHT),
    "assault_heavy": (MEDIUM, HEAVY, MEDIUM, HEAVY, MEDIUM, HEAVY, MEDIUM, LIGHT, HEAVY, MEDIUM),
}
ROSTER = "roster"
COMPOSITIONS = (ROSTER, *PATTERNS)
# Composition in settings: that of the verb's template.
BY_VERB = "verb"
# Ranges of the share of the full hit points, by distribution.
HEALTH = {"full": (1.0, 1.0), "mixed": (0.5, 1.0), "critical": (0.3, 0.5)}


class Force(struct.PyTreeNode):
    """Mechs of one team.

    Attributes:
      classes: `[A]` int32, also of empty slots.
      count: int32 number of filled slots, the first ones.
      packs: their strength in packs.
    """

    classes: jax.Array
    count: jax.Array
    packs: jax.Array


def class_patterns(roster: tuple[int, ...]) -> np.ndarray:
    """Returns classes `[COMPOSITIONS, A]` in the order in which the slots of a roster are filled."""
    rows = [np.resize(pattern, len(roster)) for pattern in PATTERNS.values()]
    return np.stack([np.array(roster), *rows]).astype(np.int32)


def move_class_first(classes: jax.Array, first: jax.Array) -> jax.Array:
    """Moves the first mech of a class to the front of `classes` `[A]`, if it occurs.

    Args:
      classes: `[A]` in the order of filling.
      first: int32 class; -1 for no change.
    """
    place = jnp.argmax(classes == first)
    slot = jnp.arange(classes.size)
    return classes[jnp.where(slot == 0, place, jnp.where(slot <= place, slot - 1, slot))]


def muster_force(classes: jax.Array, strength: jax.Array, count: jax.Array, least: jax.Array) -> Force:
    """Fills the number of slots whose strength is nearest to the requested one.

    Args:
      classes: `[A]` in the order of filling.
      strength: requested strength in packs.
      count: int32 fixed number of mechs, or -1.
      least: minimum number of mechs.
    """
    reached = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.asarray(WEIGHTS)[classes])])
    sizes = jnp.arange(reached.size)
    near = jnp.argmin(jnp.where(sizes >= least, jnp.abs(reached - strength), jnp.inf))
    number = jnp.where(count >= 0, jnp.minimum(count, classes.size), near).astype(jnp.int32)
    return Force(classes, number, reached[number])


def strength_in_packs(classes) -> float:
    """Returns the strength of mechs in packs; the standard roster of ten has 0.96."""
    return float(WEIGHTS[np.asarray(classes, int)].sum())
