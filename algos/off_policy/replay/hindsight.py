"""Hindsight: relabelling of samples with goals achieved in their episodes (Andrychowicz et al. 2017)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from algos.checks import require_choice
from algos.off_policy.replay.rings import Ring, Sample, StoredPositions, Window, window_sum
from algos.types import Goal

STRATEGIES = ("future", "final")


class EpisodeEnds(struct.PyTreeNode):
    """Table of the episode ends of all transitions in a ring, read with two look-ups.

    Episodes are numbered per row, modulo C: a row holds at most C of them.

    Attributes:
      episode: `[N, C]` int32, number of the episode of the transition in a slot.
      end: `[N, C]` int32, slot of the newest transition of the episode with a number.
      current: `[N]` int32, number of the row's newest episode.
    """

    episode: jax.Array
    end: jax.Array
    current: jax.Array


def init_ends(rows: int, slots: int) -> EpisodeEnds:
    """Returns the table of an empty ring."""
    shape = (rows, slots)
    return EpisodeEnds(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(rows, jnp.int32))


def extend_ends(ends: EpisodeEnds, written: StoredPositions) -> EpisodeEnds:
    """Updates the table after a step has been stored."""
    row, slots = written.row, ends.end.shape[-1]
    current = (ends.current + (written.stored & written.first)) % slots
    number = jnp.where(written.stored, current, slots)
    return EpisodeEnds(
        episode=ends.episode.at[row, written.slot].set(current, mode="drop"),
        end=ends.end.at[row, number].set(written.slot, mode="drop"),
        current=current,
    )


def steps_left(ends: EpisodeEnds, row: jax.Array, slot: jax.Array) -> jax.Array:
    """Number `[B]` of stored steps after `(row, slot)` in the same episode; 0 for an episode's newest."""
    slots = ends.end.shape[-1]
    return (ends.end[row, ends.episode[row, slot]] - slot) % slots


def make_relabel(goal: Goal, strategy: str, count: int) -> Callable:
    """Builds the function that relabels the first `count` samples of a batch.

    The new goal is the one achieved at a step of the sampled transition's episode: with "future" a step
    drawn uniformly from the transition's own to the newest stored one, with "final" the newest. In every
    step of the window the goal-dependent part of the reward is replaced; discounts are unchanged. Relabelled
    samples have index -1, so that their errors do not become priorities of the original transitions.

    Returns:
      `(ring, ends, key, window, sample) -> sample`.

    Raises:
      ValueError: for an unknown strategy.
    """
    require_choice("hindsight_strategy", strategy, STRATEGIES)

    def ahead(key, left):
        return left if strategy == "final" else jax.random.randint(key, left.shape, 0, left + 1)

    def relabel(ring: Ring, ends: EpisodeEnds, key, window: Window, sample: Sample) -> Sample:
        window = jax.tree.map(lambda x: x[:count], window)
        row, begin = window.row, window.slot[:, 0]
        reached = (begin + ahead(key, steps_left(ends, row, begin))) % ring.slots
        new_goal = goal.achieved(ring.next_obs[row, reached].astype(jnp.float32))

        achieved = goal.achieved(ring.next_obs[row[:, None], window.slot].astype(jnp.float32))
        old_goals = goal.desired(ring.obs[row[:, None], window.slot].astype(jnp.float32))
        new_goals = jnp.broadcast_to(new_goal[:, None], old_goals.shape)
        change = goal.reward(achieved, new_goals) - goal.reward(achieved, old_goals)

        def renew(obs, goals):
            return obs.at[:count].set(goal.replace(obs[:count], goals))

        between = sample.between
        if between is not None:
            between = between.replace(obs=renew(between.obs, new_goals[:, 1:]))
        return sample.replace(
            obs=renew(sample.obs, new_goal),
            next_obs=renew(sample.next_obs, new_goal),
            reward=sample.reward.at[:count].add(window_sum(window, change)),
            index=sample.index.at[:count].set(-1),
            between=between,
        )

    return relabel
