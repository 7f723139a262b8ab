"""Eviction rules that choose the bank slot `[K]` of a new snapshot; see docs/reference/selfplay.md 1.5."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.selfplay.settings import IDLE


class BankSlots(NamedTuple):
    """Inputs of the eviction rules: the state of the bank's slots.

    Attributes:
      iteration: `[K]` int32 number of the snapshot.
      filled: `[K]` bool; the slot holds a snapshot.
      free: `[K]` bool; filled and evictable: neither pinned nor in use by a group.
      lower: `[K]` float32 lower bound of the rating.
      tried: `[K]` bool; has played enough games to be judged by its rating.
      payoff: `[K, n]` float32 score against every entry.
      met: `[K, n]` bool; there were games.
      now: int32 number of the next snapshot.
      drawn: `[K]` bool; has a positive probability as opponent; None unless the rule needs it.
    """

    iteration: jax.Array
    filled: jax.Array
    free: jax.Array
    lower: jax.Array
    tried: jax.Array
    payoff: jax.Array
    met: jax.Array
    now: jax.Array
    drawn: jax.Array | None = None


def choose_slot(rule: str, slots: BankSlots) -> tuple[jax.Array, jax.Array]:
    """Returns the slot for a new snapshot (int32: an empty one, else by the rule), and whether one exists."""
    empty = ~slots.filled
    cost = jnp.where(slots.free, RULES[rule](slots), jnp.inf)
    oldest_of_equals = jnp.where(cost == jnp.min(cost), slots.iteration, jnp.iinfo(jnp.int32).max)
    place = jnp.where(jnp.any(empty), jnp.argmax(empty), jnp.argmin(oldest_of_equals))
    return place.astype(jnp.int32), jnp.any(empty) | jnp.any(slots.free & jnp.isfinite(cost))


def evict_oldest(slots: BankSlots) -> jax.Array:
    """Evicts the oldest snapshot."""
    return slots.iteration.astype(jnp.float32)


def evict_weakest(slots: BankSlots) -> jax.Array:
    """Evicts the lowest rating bound; snapshots with too few games come last."""
    return jnp.where(slots.tried, slots.lower, jnp.max(slots.lower) + 1.0)


def evict_idle(slots: BankSlots) -> jax.Array:
    """Evicts snapshots that are never drawn first, by lowest rating bound, then as `evict_weakest`."""
    span = jnp.max(slots.lower) - jnp.min(slots.lower)
    return jnp.where(slots.drawn, evict_weakest(slots) + span + 1.0, slots.lower)


def evict_spaced(slots: BankSlots) -> jax.Array:
    """Keeps ages in a geometric progression: evicts the least gap by age, never the oldest of several."""
    s = jnp.where(slots.filled, slots.iteration, slots.now)
    older, newer = s[None, :] < s[:, None], s[None, :] > s[:, None]
    before = jnp.max(jnp.where(older & slots.filled, s[None, :], -1), axis=1)
    after = jnp.min(jnp.where(newer & slots.filled, s[None, :], slots.now), axis=1)
    gap = (after - before) / jnp.maximum(slots.now - s, 1)
    # A bank of one slot would keep its first snapshot for ever.
    return jnp.where((before >= 0) | (jnp.sum(slots.filled) == 1), gap, jnp.inf)


def evict_similar(slots: BankSlots) -> jax.Array:
    """Evicts the older of the two snapshots with the closest scores against common opponents."""
    common = slots.met[:, None] & slots.met[None] & slots.filled[:, None, None] & slots.filled[None, :, None]
    apart = jnp.abs(slots.payoff[:, None] - slots.payoff[None])
    number = jnp.sum(common, axis=-1)
    mean = jnp.sum(jnp.where(common, apart, 0.0), axis=-1) / jnp.maximum(number, 1)
    newer = slots.iteration[None, :] > slots.iteration[:, None]
    distance = jnp.min(jnp.where((number > 0) & newer, mean, jnp.inf), axis=1)
    # Snapshots without common opponents rank above all distances (at most 1), the oldest first.
    late = 2.0 + slots.iteration / jnp.maximum(slots.now, 1)
    return jnp.where(jnp.isfinite(distance), distance, late)


RULES = {
    "oldest": evict_oldest,
    "spaced": evict_spaced,
    "weakest": evict_weakest,
    "similar": evict_similar,
    IDLE: evict_idle,
}
