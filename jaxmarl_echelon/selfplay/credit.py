"""Advantages from reward transforms, for learners without a critic baseline: `conf/transforms/*.yaml`.

Each decision receives the transformed final reward of its trajectory (in turn games that of its seat), plus
the terms of the step transforms. The sampling transforms turn a batch of these rewards into advantages.
Decisions of trajectories that do not end within the rollout are not trained on. See
docs/reference/selfplay.md 5.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.checks import require_switch
from algos.defaults import FROM_FILE, take_defaults_from
from algos.types import PyTree, Rollout
from jaxmarl_echelon.selfplay.rewards import (
    FINAL_TRANSFORMS,
    SAMPLING_TRANSFORMS,
    STEP_TRANSFORMS,
    RewardContext,
    RewardTransform,
    chain_transforms,
)

STAGES = {"final": FINAL_TRANSFORMS, "step": STEP_TRANSFORMS, "sampling": SAMPLING_TRANSFORMS}
# Options that follow from the run and cannot be configured.
DERIVED = ("seats", "games")


@take_defaults_from("transforms/none")
@dataclass(frozen=True)
class TransformSettings:
    """Ordered reward transforms of the three stages; learners estimate their own advantages if all are empty.

    A transform is given by its name, or by a mapping of `name` and its options.

    Attributes:
      final: transforms of each trajectory's final reward; names of `rewards.FINAL_TRANSFORMS`.
      step: transforms of each decision's reward; names of `rewards.STEP_TRANSFORMS`.
      sampling: transforms of the training batch; names of `rewards.SAMPLING_TRANSFORMS`.
      whole_games: in turn games, whether all games begin with a rollout: games still running at its end are
        truncated, and games that may be longer than a rollout are rejected. If False, the decisions of a game
        in a rollout before the one in which it ends are not trained on.
      filter_opponent_invalid: in turn games, whether the decisions of seats that won by another's invalid
        action are not trained on, nor part of the moving averages.
    """

    final: tuple = FROM_FILE
    step: tuple = FROM_FILE
    sampling: tuple = FROM_FILE
    whole_games: bool = FROM_FILE
    filter_opponent_invalid: bool = FROM_FILE

    def __post_init__(self):
        for stage in STAGES:
            chosen = getattr(self, stage)
            if isinstance(chosen, str) or not isinstance(chosen, Sequence):
                raise ValueError(f"transforms.{stage}={chosen}: must be a list of transforms")
            object.__setattr__(self, stage, tuple(chosen))
            for one in self.stage(stage):
                one.build()
        for name in ("whole_games", "filter_opponent_invalid"):
            require_switch(f"transforms.{name}", getattr(self, name))
        if self.filter_opponent_invalid and not self:
            raise ValueError("transforms.filter_opponent_invalid=true: needs a transform")

    def __bool__(self) -> bool:
        """Whether any transform is configured."""
        return bool(self.final or self.step or self.sampling)

    def stage(self, stage: str) -> list["NamedTransform"]:
        """Returns the transforms of a stage; raises ValueError for unknown names."""
        return [parse_transform(stage, one) for one in getattr(self, stage)]


class NamedTransform(NamedTuple):
    """Name, stage and options of a transform."""

    stage: str
    name: str
    options: Mapping[str, Any]

    def build(self, seats: int = 1) -> RewardTransform:
        """Builds the transform; raises ValueError for unknown options and for values of the wrong type.

        Args:
          seats: number of roles or seats with separate baselines.
        """
        make = STAGES[self.stage][self.name]
        takes = inspect.signature(make).parameters
        allowed = [name for name in takes if name not in DERIVED]
        for key, value in self.options.items():
            where = f"transforms.{self.stage}.{self.name}.{key}={value}"
            if key not in allowed:
                raise ValueError(f"{where}: unknown option; allowed: {', '.join(allowed) or 'none'}")
            usual = takes[key].default
            if isinstance(value, bool) != isinstance(usual, bool) or not isinstance(value, int | float):
                kind = "true or false" if isinstance(usual, bool) else "a number"
                raise ValueError(f"{where}: must be {kind}")
        derived = {"seats": seats} if "seats" in takes else {}
        return make(**self.options, **derived)


def parse_transform(stage: str, given: Any) -> NamedTransform:
    """Parses a transform of a configuration's list; raises ValueError for an unknown name."""
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = options.pop("name", None)
    if name not in STAGES[stage]:
        raise ValueError(f"transforms.{stage}={name}: unknown transform; allowed: {', '.join(STAGES[stage])}")
    return NamedTransform(stage, name, options)


class TrajectoryInfo(NamedTuple):
    """Inputs of the transforms for a rollout, in addition to its rewards; arrays `[T, E, A]`.

    Attributes:
      seat: int32; in turn games the deciding seat, else the index of the role among the learner's roles.
      ended: bool; the agent's trajectory ended with this row and was not truncated. If transforms read
        scores, this is the end of the episode, which can be later than the end of the agent's trajectory.
      score: float32 in [0, 1]: the role's score, or in turn games the share of the other seats beaten by this
        seat; a draw counts 1/2. Read only at the ends of trajectories.
      over: bool; the trajectory ended with this row for any reason; None uses `Rollout.boundary`.
      won_by_invalid: bool; the seat won with this row by another's invalid action; None if no action is.
    """

    seat: jax.Array
    ended: jax.Array
    score: jax.Array
    over: jax.Array | None = None
    won_by_invalid: jax.Array | None = None


class TransformState(struct.PyTreeNode):
    """State of the transforms between rollouts.

    Attributes:
      stages: states of the transforms by stage, such as moving averages; equal in all shards.
      running: `[E * A]` float32 sums of rewards of the unfinished trajectories.
    """

    stages: dict[str, PyTree]
    running: jax.Array


class AdvantageTransforms(NamedTuple):
    """Reward transforms of one learner as pure functions.

    Attributes:
      init: `(columns) -> TransformState` for E * A parallel agents.
      apply: `(TransformState, Rollout, TrajectoryInfo) -> (TransformState, Rollout)`; fills in advantages and
        clears `alive` in rows whose trajectory has no known end.
      scored: whether a transform reads scores, so that trajectories are whole episodes.
    """

    init: Callable
    apply: Callable
    scored: bool = False


def make_advantage_transforms(settings: TransformSettings, seats: int) -> AdvantageTransforms:
    """Builds the transforms of a learner that plays `seats` seats or roles."""
    stages = {
        stage: chain_transforms([one.build(seats) for one in settings.stage(stage)]) for stage in STAGES
    }

    def init(columns):
        states = {stage: transform.init() for stage, transform in stages.items()}
        return TransformState(states, jnp.zeros(columns))

    def apply(state, rollout, story):
        running, total = sum_per_trajectory(state.running.reshape(rollout.reward.shape[1:]), rollout)
        after, over = {}, rollout.boundary if story.over is None else story.over
        learnt, counted = rollout.alive, story.ended
        if settings.filter_opponent_invalid and story.won_by_invalid is not None:
            given = story.won_by_invalid.astype(jnp.float32)
            given, _, _ = broadcast_to_decisions(given, rollout.alive, story.ended, over)
            learnt, counted = learnt & (given == 0), counted & ~story.won_by_invalid
        after["final"], final = stages["final"].apply(
            state.stages["final"], total, RewardContext(counted, seat=story.seat, score=story.score)
        )
        reward, known, to_come = broadcast_to_decisions(final, rollout.alive, story.ended, over)
        learnt &= known
        formed, legal = answer_verdicts(rollout)
        context = RewardContext(learnt, seat=story.seat, well_formed=formed, invalid=~legal, to_come=to_come)
        after["step"], reward = stages["step"].apply(state.stages["step"], reward, context)
        after["sampling"], reward = stages["sampling"].apply(state.stages["sampling"], reward, context)
        advantage = jnp.where(learnt, reward, 0.0)
        return TransformState(after, running.ravel()), rollout.replace(advantage=advantage, alive=learnt)

    return AdvantageTransforms(init, apply, stages["final"].scored)


def answer_verdicts(rollout: Rollout) -> tuple[jax.Array, jax.Array]:
    """Returns whether each answer was well-formed and whether it was legal, bool `[T, E, A]`.

    Language policies record both; actions of masked spaces always are.
    """
    right = jnp.ones(rollout.alive.shape, bool)
    told = rollout.extras if isinstance(rollout.extras, dict) else {}
    return told.get("formed", right), told.get("legal", right)


def sum_per_trajectory(running: jax.Array, rollout: Rollout) -> tuple[jax.Array, jax.Array]:
    """Sums rewards per trajectory: after the rollout, `[E, A]`, and after each row, `[T, E, A]`."""

    def step(total, row):
        reward, paid, reset = row
        total = jnp.where(reset, 0.0, total) + jnp.where(paid, reward, 0.0)
        return total, total

    return jax.lax.scan(step, running, (rollout.reward, rollout.paid, rollout.reset))


def broadcast_to_decisions(
    final: jax.Array, alive: jax.Array, ended: jax.Array, over: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Assigns each trajectory's final reward to all of its decisions.

    Args:
      final: `[T, E, A]` rewards of the trajectories that ended with each row.
      alive: `[T, E, A]` bool; rows that are decisions.
      ended, over: `[T, E, A]` bool as in `TrajectoryInfo`; `over` without `ended` marks a truncation.

    Returns:
      the reward, whether it is known, and the number of later decisions of the same trajectory, each
      `[T, E, A]`.
    """

    def step(after, row):
        reward, known, to_come = after
        own, ends, over, alive = row
        reward = jnp.where(ends, own, reward)
        known = ends | (known & ~over)
        to_come = jnp.where(ends | over, 0, to_come)
        return (reward, known, to_come + alive), (reward, known, to_come)

    shape = final.shape[1:]
    start = jnp.zeros(shape), jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32)
    rows = final, ended, over, alive
    return jax.lax.scan(step, start, rows, reverse=True)[1]
