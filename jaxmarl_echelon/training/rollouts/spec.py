"""Inputs and outputs of rollout collection."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.types import Agent, PyTree, Rollout
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.base import Environment, TimeStep
from jaxmarl_echelon.envs.episodes import EpisodeEvents
from jaxmarl_echelon.selfplay.credit import AdvantageTransforms, TrajectoryInfo
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.opponents.pool_role import PoolRole, split_rows


class RolloutSpec(NamedTuple):
    """Static inputs of a rollout.

    Attributes:
      env: the environment.
      agents: role name to its learner.
      controllers: role name to its controller.
      horizon: decisions T per rollout.
      segments: equal parts of a rollout; the recurrent state is stored at the start of each.
      seat: the role that a pool plays; None without a pool.
      credits: learner's name to its reward transforms; empty without any.
      teachers: role name to the controller of its scripted teacher, for all roles whose learner has one.
      whole_games: whether turn-based games that are running at the end of a rollout are truncated.
      teams: names of learners of whole teams, whose transitions are complete after every decision.
    """

    env: Environment
    agents: dict[str, Agent]
    controllers: dict[str, Controller]
    horizon: int
    segments: int = 1
    seat: PoolRole | None = None
    credits: Mapping[str, AdvantageTransforms] = MappingProxyType({})
    whole_games: bool = False
    teachers: Mapping[str, Controller] = MappingProxyType({})
    teams: frozenset[str] = frozenset()

    def learning(self, when: str) -> dict[str, Agent]:
        """Returns the agents that learn per `when`: "rollout" or "step"."""
        return {role: agent for role, agent in self.agents.items() if agent.learns == when}

    def seats(self, learner: str) -> tuple[str, ...]:
        """Returns the roles that a learner controls and learns from, its own first."""
        others = (r for r, c in self.controllers.items() if c.policy == learner and r != learner)
        pooled = self.seat is not None and self.seat.owner == learner and self.seat.role != learner
        mirrors = pooled and self.seat.pool.settings.mirrored > 0
        return (learner, *others, *([self.seat.role] if mirrors else []))

    def part(self, role: str, tree: PyTree) -> PyTree:
        """Selects the environments of arrays `[E, ...]` in which a role's learner plays it and learns."""
        if self.seat is None or self.seat.role != role:
            return tree
        return split_rows(tree, self.seat.mirrored(jax.tree.leaves(tree)[0].shape[0]))[0]

    def memory(self, role: str, memories: dict[str, PyTree]) -> PyTree:
        """Returns the memory of a role's learner in the environments of `part`."""
        pooled = self.seat is not None and self.seat.role == role
        return memories[role].mirror if pooled else memories[role]


class CollectedRollout(NamedTuple):
    """Results of one rollout.

    Attributes:
      rollouts: role name to Rollout, axes `[T, E, A]`, for agents that learn from rollouts.
      metrics: role name to metrics of the agents that learn in each step, averaged over the
        gradient steps that each is of; NaN without any.
      flow: starts and ends of episodes, `[T, E]`.
      quarantined: `[T, E]` bool; the environment was reset because of a non-finite value.
      transform_inputs: role name to the inputs of its learner's reward transforms.
    """

    rollouts: dict[str, Rollout]
    metrics: dict[str, dict[str, jax.Array]]
    flow: EpisodeEvents
    quarantined: jax.Array
    transform_inputs: Mapping[str, TrajectoryInfo] = MappingProxyType({})


class StepRecord(NamedTuple):
    """Record of one decision in E environments: time steps before and after it, and the transition.

    Attributes:
      before, after: time steps.
      reset: `[E]` bool; the episode begins with this decision.
      transition: see `episodes.BatchTransition`.
    """

    before: TimeStep
    after: TimeStep
    reset: jax.Array
    transition: episodes.BatchTransition


def make_step_record(run: RunState, transition: episodes.BatchTransition) -> StepRecord:
    """Builds the record of the decision that led from a run's state to a transition."""
    return StepRecord(run.episodes.time, transition.time, run.reset, transition)


def concatenate_roles(parts) -> PyTree:
    """Concatenates arrays `[E, A, ...]` of several roles along the agent axis.

    Arrays with different numbers of environments are concatenated as columns `[C, 1, ...]`.
    """

    def join(*x):
        if len(x) == 1:
            return x[0]
        if len({one.shape[0] for one in x}) == 1:
            return jnp.concatenate(x, axis=1)
        return jnp.concatenate([one.reshape(-1, 1, *one.shape[2:]) for one in x])

    return jax.tree.map(join, *parts)
