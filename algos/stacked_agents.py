"""Several stacked states of one agent: a policy per agent of a role, or one per group of environments."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_given
from algos.metrics import mean_over_learners
from algos.nets.distributions import broadcast_distribution
from algos.types import Agent, PyTree, Rollout, Transition

# Index of the axis A of agents in `[E, A, ...]` and in `[T, E, A, ...]`.
DECISION, HISTORY = 1, 2
# Place of the reset flags, whose last axis is that of the agents, in `(obs, carry, reset, mask)`.
RESET = 2


def vectorize_over_agents(agent: Agent, number: int) -> Agent:
    """Vectorises a learner over the A agents of a role: one independent learner per agent.

    Every leaf of the state has a leading axis `[A]`. Each learner gets the batches that it would get alone,
    with an axis of one agent; the learners share nothing. Metrics are means over the learners that took
    gradient steps. Under `vmap` both branches of a conditional are computed: learners with a replay compute
    their steps in the warm-up too, and discard them.

    Args:
      agent: a learner for one agent in each environment.
      number: A, agents of the role.
    """

    def init(key):
        return jax.vmap(agent.init)(jax.random.split(key, number))

    def act(state, key, *seen):
        keys, axis = jax.random.split(key, number), seen[RESET].ndim - 1
        return merge_agent_axis(jax.vmap(agent.act)(state, keys, *split_agent_axis(seen, axis)), axis)

    def greedy(state, *seen):
        axis = seen[RESET].ndim - 1
        return merge_agent_axis(jax.vmap(agent.greedy)(state, *split_agent_axis(seen, axis)), axis)

    def value(state, *seen):
        values, axis = jax.vmap(require_given("value", agent.value)), seen[RESET].ndim - 1
        return merge_agent_axis(values(state, *split_agent_axis(seen, axis)), axis)

    def update(state, key, batch):
        keys = jax.random.split(key, number)
        state, metrics = jax.vmap(agent.update)(state, keys, split_batch_by_agent(batch))
        return state, mean_over_learners(metrics)

    def teach(state, obs, carry, reset, mask):
        def lessons(state, obs, carry, reset, mask):
            distribution, value = require_given("teach", agent.teach)(state, obs, carry, reset, mask)
            return broadcast_distribution(distribution), value

        carry = split_rows_by_agent(carry, 0, number)
        obs, reset, mask = split_rows_by_agent((obs, reset, mask), 1, number)
        taught = jax.vmap(lessons)(state, obs, carry, reset, mask)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape((x.shape[1], -1) + x.shape[3:]), taught)

    def with_world(world):
        return vectorize_over_agents(require_given("with_world", agent.with_world)(world), number)

    def hyper():
        initial = require_given("hyper", agent.hyper)()
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x))), initial)

    return agent._replace(
        init=init,
        init_with=_vectorize_init_with(agent.init_with, number),
        act=act,
        greedy=greedy,
        value=None if agent.value is None else value,
        update=update,
        policy_state=jax.vmap(agent.policy_state),
        acting_state=jax.vmap(agent.rollout_policy),
        after_warm_up=jax.vmap(agent.after_warm_up),
        teach=None if agent.teach is None else teach,
        gamma=None if agent.gamma is None else jax.vmap(agent.gamma),
        hyper=None if agent.hyper is None else hyper,
        with_world=None if agent.with_world is None else with_world,
    )


def _vectorize_init_with(init_with: Callable | None, number: int) -> Callable | None:
    """Vectorises `Agent.init_with` over agents, which share the frozen arrays; None without any."""
    if init_with is None:
        return None
    return lambda key, frozen: jax.vmap(init_with, (0, None))(jax.random.split(key, number), frozen)


def split_agent_axis(tree: PyTree, axis: int) -> PyTree:
    """Moves the agents' axis `axis` of leaves `[..., A, ...]` to the front: `[A, ..., 1, ...]`."""
    return jax.tree.map(lambda x: jnp.expand_dims(jnp.moveaxis(x, axis, 0), axis + 1), tree)


def merge_agent_axis(tree: PyTree, axis: int) -> PyTree:
    """Inverse of `split_agent_axis`."""
    return jax.tree.map(lambda x: jnp.moveaxis(jnp.squeeze(x, axis + 1), 0, axis), tree)


def split_batch_by_agent(batch: Rollout | Transition) -> Rollout | Transition:
    """Splits a batch by agent: leading axis `[A]`, and an axis of length 1 in place of the agents'."""
    if isinstance(batch, Transition):
        return split_agent_axis(batch, DECISION)
    names = ("last_value", "last_skip", "last_alive")
    ends = split_agent_axis({name: getattr(batch, name) for name in names}, DECISION)
    return split_agent_axis(batch.replace(**dict.fromkeys(names)), HISTORY).replace(**ends)


def split_rows_by_agent(tree: PyTree, axis: int, number: int) -> PyTree:
    """Splits the S rows at `axis`, ordered by environment and then agent, into `[A, ..., S / A, ...]`."""

    def split(x):
        return jnp.moveaxis(x.reshape(x.shape[:axis] + (-1, number) + x.shape[axis + 1 :]), axis + 1, 0)

    return jax.tree.map(split, tree)


class GroupedAgent(NamedTuple):
    """Acting functions of an `Agent` whose state is a stack of G states `[G, ...]`; see `Agent`."""

    initial_carry: Callable
    act: Callable
    greedy: Callable
    value: Callable | None
    asymmetric: bool


def vectorize_over_groups(agent: Agent, groups: int) -> GroupedAgent:
    """Vectorises an agent's acting functions over G states, each in its own part of the environments.

    The first E / G environments belong to the first state, and so on; parameters are not copied per row.

    Args:
      agent: the agent.
      groups: G, number of states.

    Raises:
      ValueError: from the functions, if E is not a multiple of G.
    """

    def split(tree):
        def grouped(x):
            if x.shape[0] % groups:
                raise ValueError(f"groups={groups}: must divide the {x.shape[0]} environments")
            return x.reshape((groups, x.shape[0] // groups) + x.shape[1:])

        return jax.tree.map(grouped, tree)

    def merge(tree):
        return jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), tree)

    def act(state, key, *seen):
        return merge(jax.vmap(agent.act)(state, jax.random.split(key, groups), *split(seen)))

    def greedy(state, *seen):
        return merge(jax.vmap(agent.greedy)(state, *split(seen)))

    def value(state, *seen):
        return merge(jax.vmap(require_given("value", agent.value))(state, *split(seen)))

    return GroupedAgent(
        initial_carry=agent.initial_carry,
        act=act,
        greedy=greedy,
        value=None if agent.value is None else value,
        asymmetric=agent.asymmetric,
    )
