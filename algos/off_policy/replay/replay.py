"""Replay of transitions on the device: uniform or prioritised, with optional successes and hindsight.

A replay is a bundle of pure functions over a state inside the learner's state, which is updated in place
inside scans and can be vmapped over runs. Disabled parts have no state and no cost.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from algos.checks import require_choice, require_count, require_range, require_switches, require_whole
from algos.defaults import FROM_FILE, take_defaults_from
from algos.off_policy.replay.hindsight import STRATEGIES, EpisodeEnds, extend_ends, init_ends, make_relabel
from algos.off_policy.replay.priorities import Priorities, SamplingRule, make_prioritized, make_uniform
from algos.off_policy.replay.rings import (
    PLAIN_ROWS,
    ReplayRowLayout,
    Ring,
    init_ring,
    make_windows,
    read_samples,
    read_sequences,
    store_step,
)
from algos.off_policy.replay.successes import (
    Successes,
    init_successes,
    make_success_collector,
    make_success_mixer,
)
from algos.types import Goal, Transition

COUNTS = ("capacity", "n_step", "sequence", "importance_samples")
RANGES = {
    "priority_exponent": (0.0, 1.0),
    "importance_exponent": (0.0, 1.0),
    "importance_exponent_end": (0.0, 1.0),
    "priority_epsilon": (1e-12, math.inf),
    "success_ratio": (0.0, 1.0),
    "hindsight_ratio": (0.0, 1.0),
}


@take_defaults_from("algo/sac:replay")
@dataclass(frozen=True)
class ReplayConfig:
    """Settings of the replay.

    Attributes:
      capacity: transitions of all rows together, divided equally between rows.
      n_step: largest number of decisions that one sample spans.
      sequence: consecutive decisions that a sample holds one by one, through the ends of episodes, for
        learners with memory; above 1 excludes `n_step`, successes and hindsight.
      burn_in: first decisions of a sequence that only fill the memory, below `sequence`; an episode that
        begins in the sequence is learnt from whole.
      prioritized: draw by priority instead of uniformly.
      priority_exponent: 0 for uniform, 1 for proportional to the priority.
      priority_epsilon: added to every priority.
      importance_exponent, importance_exponent_end: exponent of the importance weights, initially and after
        `importance_samples` batches; 1 fully corrects the bias of the priorities.
      importance_samples: batches over which that exponent is annealed.
      success_capacity: capacity of a separate ring for transitions of successful episodes; 0 for no ring.
      success_ratio: fraction of each batch drawn from that ring once it is not empty; 0 disables it. If above
        0, every row and `success_capacity` must have room for a whole episode.
      hindsight_ratio: fraction of each batch relabelled with achieved goals.
      hindsight_strategy: "future" (a goal achieved at this or a later step of the episode) or "final".
    """

    capacity: int = FROM_FILE
    n_step: int = FROM_FILE
    sequence: int = FROM_FILE
    burn_in: int = FROM_FILE
    prioritized: bool = FROM_FILE
    priority_exponent: float = FROM_FILE
    importance_exponent: float = FROM_FILE
    importance_exponent_end: float = FROM_FILE
    importance_samples: int = FROM_FILE
    priority_epsilon: float = FROM_FILE
    success_capacity: int = FROM_FILE
    success_ratio: float = FROM_FILE
    hindsight_ratio: float = FROM_FILE
    hindsight_strategy: str = FROM_FILE

    def __post_init__(self):
        for key in COUNTS:
            require_count(f"replay.{key}", getattr(self, key))
        for key, (low, high) in RANGES.items():
            require_range(f"replay.{key}", getattr(self, key), low, high)
        if self.success_capacity != 0:
            require_count("replay.success_capacity", self.success_capacity)
        require_whole("replay.burn_in", self.burn_in, 0, self.sequence - 1)
        require_switches(self, "replay.")
        require_choice("replay.hindsight_strategy", self.hindsight_strategy, STRATEGIES)
        if self.success_ratio > 0 and self.success_capacity == 0:
            raise ValueError("replay.success_capacity=0: must be at least 1 with a success_ratio above 0")
        for key, plain in (("n_step", 1), ("success_ratio", 0.0), ("hindsight_ratio", 0.0)):
            if self.sequence > 1 and (value := getattr(self, key)) != plain:
                raise ValueError(f"replay.{key}={value}: must be {plain:g} with sequence={self.sequence}")
        if self.success_ratio + self.hindsight_ratio > 1:
            raise ValueError(
                f"replay.hindsight_ratio={self.hindsight_ratio}: must be at most 1 - success_ratio, "
                f"{1 - self.success_ratio:g}"
            )

    def of_shard(self, shards: int) -> "ReplayConfig":
        """Returns the settings of one shard's replay, with its part of the capacities."""
        if shards == 1:
            return self
        parts = {key: getattr(self, key) // shards for key in ("capacity", "success_capacity")}
        return replace(self, **parts)


class Replay(NamedTuple):
    """A replay as a bundle of pure functions over an explicit state.

    Attributes:
      init: `() -> state`, empty.
      add: `(state, transition) -> state`: stores one decision of the same N rows in the same order, with
        flat observations `[N, F]`; rows that are not alive store nothing, and their windows end there.
      sample: `(state, key, gamma) -> (state, Sample)`; finite but meaningless while `size` is 0.
      reprioritize: `(state, index, priority) -> state` for a sample's `index` and priorities `[B]`, such as
        absolute TD errors, before the next `add`; of several for one transition the largest is used. No
        effect for relabelled samples, for samples of successes, and with uniform sampling.
      size: `(state) -> int32`, transitions in the ring, excluding the copies of successful episodes.
      nbytes: bytes that `init` allocates.
    """

    init: Callable
    add: Callable
    sample: Callable
    reprioritize: Callable
    size: Callable
    nbytes: int


class ReplayState(struct.PyTreeNode):
    """State of a replay; None for disabled parts.

    Attributes:
      ring: the transitions.
      choice: priorities.
      ends: ends of episodes, for hindsight.
      successes: successful episodes.
    """

    ring: Ring
    choice: Priorities | None
    ends: EpisodeEnds | None
    successes: Successes | None


class ReplayPart(NamedTuple):
    """Optional part of a replay.

    Attributes:
      init: `() -> state`.
      add: `(state, ring, written, transition) -> state`, after a step has been stored in the ring.
      change: `(state, ring, key, gamma, window, sample) -> sample`, modifies a batch.
    """

    init: Callable
    add: Callable
    change: Callable


OFF = ReplayPart(
    init=lambda: None,
    add=lambda state, _ring, _written, _transition: state,
    change=lambda _state, _ring, _key, _gamma, _window, sample: sample,
)


def samples_for_ratio(ratio: float, batch_size: int) -> int:
    """Number of samples of a batch for a ratio: rounded, and at least 1 unless the ratio is 0."""
    return max(round(ratio * batch_size), 1) if ratio > 0 else 0


def make_replay(
    config: ReplayConfig,
    *,
    rows: int,
    observation_size: int,
    action_size: int,
    batch_size: int,
    episode_limit: int,
    goal: Goal | None = None,
    between: bool = False,
    observation_dtype: DTypeLike = jnp.float32,
    layout: ReplayRowLayout = PLAIN_ROWS,
) -> Replay:
    """Builds a replay.

    Args:
      config: the settings.
      rows: N = E * A parallel agents, or teams of agents.
      observation_size: F.
      action_size: D.
      batch_size: B.
      episode_limit: largest number of decisions of an episode.
      goal: access to goals in observations, for hindsight.
      between: whether samples of several decisions include their intermediate states.
      observation_dtype: dtype of the environment's observations; see `init_ring`.
      layout: what else is stored with each step.

    Raises:
      ValueError: for a capacity too small for the batch, the rows or whole successful episodes, or hindsight
        without a goal.
    """
    require_replay_sizes(config, rows, batch_size)
    require_whole_successes(config, rows, episode_limit)
    slots = config.capacity // rows
    from_success = samples_for_ratio(config.success_ratio, batch_size)
    from_hindsight = min(samples_for_ratio(config.hindsight_ratio, batch_size), batch_size - from_success)
    choice = make_sampling_rule(config, rows, slots, batch_size)
    hindsight = make_hindsight_part(config, rows, slots, from_hindsight, goal)
    empty = partial(
        init_ring,
        observation_size=observation_size,
        action_size=action_size,
        observation_dtype=observation_dtype,
        layout=layout,
    )
    success = make_success_part(config, rows, empty, from_success, episode_limit, between)

    def init():
        ring = empty(rows, slots)
        return ReplayState(ring, choice.init(), hindsight.init(), success.init())

    def add(state: ReplayState, transition: Transition):
        ring, written = store_step(state.ring, transition)
        return ReplayState(
            ring=ring,
            choice=choice.add(state.choice, written),
            ends=hindsight.add(state.ends, ring, written, transition),
            successes=success.add(state.successes, ring, written, transition),
        )

    def sample(state: ReplayState, key, gamma):
        choice_key, hindsight_key, success_key = jax.random.split(key, 3)
        ring = state.ring
        chosen, row, slot, weight = choice.draw(state.choice, choice_key, ring)
        if config.sequence > 1:
            index = row * slots + slot
            batch = read_sequences(ring, row, slot, config.sequence, weight, index, gamma, config.burn_in)
            return state.replace(choice=chosen), batch
        window = make_windows(ring, row, slot, config.n_step, gamma)
        batch = read_samples(ring, window, weight, row * slots + slot, between=between)
        batch = hindsight.change(state.ends, ring, hindsight_key, gamma, window, batch)
        batch = success.change(state.successes, ring, success_key, gamma, window, batch)
        return state.replace(choice=chosen), batch

    def reprioritize(state: ReplayState, index, priority):
        return state.replace(choice=choice.reprioritize(state.choice, index, priority))

    leaves = jax.tree.leaves(jax.eval_shape(init))
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return Replay(init, add, sample, reprioritize, lambda state: state.ring.count.sum(), nbytes)


def require_replay_sizes(config: ReplayConfig, rows: int, batch_size: int) -> None:
    """Checks for room for a batch, and in every row for a window and one more step."""
    key = "n_step" if config.sequence == 1 else "sequence"
    least = rows * max(-(-batch_size // rows), getattr(config, key) + 1)
    if config.capacity < least:
        raise ValueError(
            f"replay.capacity={config.capacity}: must be at least {least} for batches of {batch_size} and "
            f"{rows} parallel agents with {key}={getattr(config, key)}"
        )


def require_whole_successes(config: ReplayConfig, rows: int, episode_limit: int) -> None:
    """Checks for room for the longest episode in every row and among the successes, if these are stored."""
    if config.success_ratio == 0:
        return
    reason = (
        f"with success_ratio={config.success_ratio} for whole episodes of up to {episode_limit} decisions"
    )
    for key, copies in (("capacity", rows), ("success_capacity", 1)):
        least = copies * episode_limit
        if getattr(config, key) < least:
            beside = f" and {rows} parallel agents" if copies > 1 else ""
            raise ValueError(
                f"replay.{key}={getattr(config, key)}: must be at least {least} {reason}{beside}"
            )


def make_sampling_rule(config: ReplayConfig, rows: int, slots: int, batch_size: int) -> SamplingRule:
    """Builds uniform or prioritised sampling, by the settings."""
    if not config.prioritized:
        return make_uniform(batch_size)
    return make_prioritized(
        rows=rows,
        slots=slots,
        size=batch_size,
        exponent=config.priority_exponent,
        epsilon=config.priority_epsilon,
        importance=(config.importance_exponent, config.importance_exponent_end),
        annealing=config.importance_samples,
    )


def make_hindsight_part(
    config: ReplayConfig, rows: int, slots: int, count: int, goal: Goal | None
) -> ReplayPart:
    """Builds the part that relabels the first `count` samples of a batch.

    Raises:
      ValueError: without a goal.
    """
    if count == 0:
        return OFF
    if goal is None:
        raise ValueError(
            f"algo.replay.hindsight_ratio={config.hindsight_ratio}: this environment has no goals; must be 0"
        )
    relabel = make_relabel(goal, config.hindsight_strategy, count)
    return ReplayPart(
        init=lambda: init_ends(rows, slots),
        add=lambda ends, _ring, written, _transition: extend_ends(ends, written),
        change=lambda ends, ring, key, _gamma, window, batch: relabel(ring, ends, key, window, batch),
    )


def make_success_part(
    config: ReplayConfig,
    rows: int,
    empty: Callable,
    count: int,
    longest: int,
    between: bool,
) -> ReplayPart:
    """Builds the part that stores successful episodes and draws the last `count` samples from them.

    `empty` is `(rows, slots) -> Ring`.
    """
    if count == 0:
        return OFF
    collect = make_success_collector(longest)
    mix = make_success_mixer(count, config.n_step, between)
    return ReplayPart(
        init=lambda: init_successes(rows, empty(1, config.success_capacity)),
        add=lambda kept, ring, written, transition: collect(kept, ring, written, transition.success),
        change=lambda kept, _ring, key, gamma, _window, batch: mix(kept, key, gamma, batch),
    )
