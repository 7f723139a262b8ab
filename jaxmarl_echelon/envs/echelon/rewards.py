"""Reward components of the mech battles, per mech and decision.

Default weights are those of the original, except for `cohesion`, which belongs to an earlier version
of it and has a weight of 0 by default. Damage to the own team is not rewarded.
Reference: docs/reference/echelon.md 13.3.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.rewards import Catalogue, Component, Reward, Weights

BattleRewardMemory = tuple[()]


class BattleRewardInputs(struct.PyTreeNode):
    """Inputs of the reward components for one decision.

    Attributes:
      approach: `[M]` distance gained towards the zone's centre, in lengths of the map's longer side.
      inside: `[M]` bool; alive and in the zone.
      friends_inside: `[M]` int32 other teammates in the zone.
      tick: `[M]` share of a full hold that the own team receives.
      fighting: `[M]` bool; in the zone, or killed there in this decision, while a living enemy is in it.
      pack_gap: `[M]` voxels to the centre of the other living packmates; 0 without any.
      dealt: `[M]` damage dealt to enemies.
      kills: `[M]` int32.
      assists: `[M]` int32 hits by others on targets that the mech had painted.
      died: `[M]` bool; died in this decision.
      alive: `[M]` bool; alive after it.
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


def reward_zone_approach(
    weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Rewards approaching the zone from outside, times `crowding` for each teammate inside."""
    crowd = weights["crowding"] ** situation.friends_inside.astype(jnp.float32)
    return jnp.where(situation.inside, 0.0, situation.approach * crowd), memory


def reward_zone_hold(
    _weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Rewards mechs in the zone with their team's share of a full hold."""
    return jnp.where(situation.inside, situation.tick, 0.0), memory


def reward_damage(
    weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Rewards each hit point of damage to enemies."""
    return situation.dealt * _fight(weights, situation), memory


def reward_kills(
    weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Rewards each enemy killed."""
    return situation.kills * _fight(weights, situation), memory


def reward_assists(
    weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Rewards each hit by others on a target that the mech had painted."""
    return situation.assists * _fight(weights, situation), memory


def penalise_death(
    weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Penalises dying."""
    return jnp.where(situation.died, -_fight(weights, situation), 0.0), memory


def reward_cohesion(
    weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Rewards a moderate distance to the pack and penalises a very large one, for living mechs."""
    gap = situation.pack_gap
    near = situation.alive & (gap > weights["near"]) & (gap < weights["away"])
    lost = situation.alive & (gap > weights["lost"])
    return jnp.where(near, 1.0, jnp.where(lost, -weights["charge"], 0.0)), memory


def reward_win(
    _weights: Weights, situation: BattleRewardInputs, memory: BattleRewardMemory
) -> tuple[jax.Array, BattleRewardMemory]:
    """Rewards winners and penalises losers at the end of the episode, if alive before the last decision."""
    return situation.result, memory


def _fight(weights: Weights, situation: BattleRewardInputs) -> jax.Array:
    return jnp.where(situation.fighting, weights["contested"], 1.0)


COMPONENTS: dict[str, Component] = {
    "zone_approach": Component(reward_zone_approach),
    "zone_hold": Component(reward_zone_hold),
    "damage": Component(reward_damage),
    "kills": Component(reward_kills),
    "assists": Component(reward_assists),
    "death": Component(penalise_death),
    "cohesion": Component(reward_cohesion),
    "win": Component(reward_win),
}
CATALOGUE = Catalogue(COMPONENTS, ("reward/echelon",))


def make_battle_reward(
    components: Mapping[str, Mapping[str, float] | None] | None = None,
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward of the mech battles; see `Catalogue.make`. All components by default."""
    return CATALOGUE.make(dict.fromkeys(COMPONENTS) if components is None else components, sets)
