"""Rewards of the mech battles: what each component pays every mech per decision.

The weights and their defaults are spec section 6.1's; `cohesion` belongs to an earlier version of the
original and pays nothing by default. Damage to one's own side pays nothing.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.rewards import Catalogue, Component, Reward, Weights

Memory = tuple[()]


@struct.dataclass
class Situation:
    """What a decision brought, per mech.

    Attributes:
      approach: `[M]` distance gained towards the zone's centre, in lengths of the map's longer side.
      inside: `[M]` bool; alive and in the zone.
      friends_inside: `[M]` int32 teammates in the zone, without oneself.
      tick: `[M]` share of a full hold that the own team gets.
      fighting: `[M]` bool; in the zone, or fallen there in this decision, while a living enemy is in it.
      pack_gap: `[M]` voxels to the centre of one's living packmates; 0 without any.
      dealt: `[M]` damage done to enemies.
      kills: `[M]` int32.
      assists: `[M]` int32 hits by others on targets that one had painted.
      died: `[M]` bool, in this decision.
      alive: `[M]` bool, after it.
      result: `[M]` 1 where the own team has won, -1 where it has lost; 0 otherwise.
    """

    approach: jax.Array
    inside: jax.Array
    friends_inside: jax.Array
    tick: jax.Array
    fighting: jax.Array
    pack_gap: jax.Array
    dealt: jax.Array
    kills: jax.Array
    assists: jax.Array
    died: jax.Array
    alive: jax.Array
    result: jax.Array


def zone_approach(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for coming nearer to the zone from outside, `crowding` times as much per teammate inside."""
    crowd = weights["crowding"] ** situation.friends_inside.astype(jnp.float32)
    return jnp.where(situation.inside, 0.0, situation.approach * crowd), memory


def zone_hold(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays those in the zone their team's share of the hold."""
    return jnp.where(situation.inside, situation.tick, 0.0), memory


def damage(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays per hit point taken from enemies."""
    return situation.dealt * _fight(weights, situation), memory


def kills(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays per enemy killed."""
    return situation.kills * _fight(weights, situation), memory


def assists(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays per hit by others on a target that one had painted."""
    return situation.assists * _fight(weights, situation), memory


def death(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges dying."""
    return jnp.where(situation.died, -_fight(weights, situation), 0.0), memory


def cohesion(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays the living for being neither on top of their pack nor away from it, and charges being lost."""
    gap = situation.pack_gap
    near = situation.alive & (gap > weights["near"]) & (gap < weights["away"])
    lost = situation.alive & (gap > weights["lost"])
    return jnp.where(near, 1.0, jnp.where(lost, -weights["charge"], 0.0)), memory


def win(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays the winners and charges the losers at the end, those who lived to the last decision."""
    return situation.result, memory


def _fight(weights: Weights, situation: Situation) -> jax.Array:
    return jnp.where(situation.fighting, weights["contested"], 1.0)


COMPONENTS: dict[str, Component] = {
    "zone_approach": Component({"weight": 1.5, "crowding": 0.5}, zone_approach),
    "zone_hold": Component({"weight": 3.0}, zone_hold),
    "damage": Component({"weight": 0.05, "contested": 2.0}, damage),
    "kills": Component({"weight": 10.0, "contested": 2.0}, kills),
    "assists": Component({"weight": 5.0, "contested": 2.0}, assists),
    "death": Component({"weight": 1.0, "contested": 0.5}, death),
    "cohesion": Component({"weight": 0.0, "near": 10.0, "away": 30.0, "lost": 50.0, "charge": 0.5}, cohesion),
    "win": Component({"weight": 0.0}, win),
}
CATALOGUE = Catalogue(COMPONENTS)


def make_reward(
    components: Mapping[str, Mapping[str, float] | None] | None = None,
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward of the mech battles; see `Catalogue.make`. All components by default."""
    return CATALOGUE.make(dict.fromkeys(COMPONENTS) if components is None else components, sets)
