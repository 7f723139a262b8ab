"""Constant arrays of a program, and its parts over them."""

from typing import NamedTuple

import jax
import numpy as np

from algos.types import Agent, PyTree
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training.program.agents import FrozenPolicy


class World(NamedTuple):
    """Constant arrays shared by all runs of a group; an argument that is never donated or checkpointed.

    Attributes:
      env: `Environment.world`.
      policies: initial states of frozen policies, by name.
      teachers: states of the policies that learners imitate, by the learner's name.
      agents: `Agent.world` by `Agent.digest`, of learners and frozen policies; one for all with one digest.
    """

    env: PyTree
    policies: dict[str, PyTree]
    teachers: dict[str, PyTree]
    agents: dict[str, PyTree] = {}


class Parts(NamedTuple):
    """Parts of a program that have a world: the environment, the learners and the frozen policies by name."""

    env: Environment
    agents: dict[str, Agent]
    frozen: dict[str, FrozenPolicy]


def collect_world(env: Environment, agents: dict[str, Agent], frozen: dict[str, FrozenPolicy]) -> World:
    """Collects the constant arrays of a program's parts."""
    states = {role: jax.tree.map(np.asarray, policy.state) for role, policy in frozen.items()}
    taught = {role: agent.frozen for role, agent in agents.items() if agent.frozen is not None}
    acting = [*agents.values(), *(policy.agent for policy in frozen.values())]
    worlds = {agent.digest: agent.world for agent in acting if agent.with_world is not None}
    return World(env.world, states, taught, worlds)


def place_parts(parts: Parts, world: World | None) -> Parts:
    """Returns the parts over a world; with None the parts themselves, over their own as constants."""
    if world is None:
        return parts
    return Parts(
        parts.env.with_world(world.env),
        {name: agent.in_worlds(world.agents) for name, agent in parts.agents.items()},
        {name: one._replace(agent=one.agent.in_worlds(world.agents)) for name, one in parts.frozen.items()},
    )
