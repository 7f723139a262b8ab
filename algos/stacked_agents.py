"""Many states of one agent at once: a policy per agent of a role, or one per group of environments."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.nets.distributions import full
from algos.types import Agent, Metrics, PyTree, Rollout, Transition

# Where the axis A of agents lies in `[E, A, ...]` and in `[T, E, A, ...]`.
DECISION, HISTORY = 1, 2


def per_agent(agent: Agent, number: int) -> Agent:
    """Learners of one kind side by side, one for each of the A agents of a role.

    Every leaf of the state has a leading axis `[A]`. Each learner has the batches that it would have alone,
    with an axis of one agent; nothing passes between them. Metrics are means over them, weighted with their
    gradient steps where they count these. Under `vmap` both branches of a conditional are computed: learners
    with a replay take their steps in the warm-up too, and throw them away.

    Args:
      agent: one of them, made for one agent in each environment.
      number: A.
    """

    def init(key):
        return jax.vmap(agent.init)(jax.random.split(key, number))

    def act(state, key, *seen):
        keys = jax.random.split(key, number)
        return together(jax.vmap(agent.act)(state, keys, *apart(seen, DECISION)), DECISION)

    def greedy(state, *seen):
        return together(jax.vmap(agent.greedy)(state, *apart(seen, DECISION)), DECISION)

    def value(state, *seen):
        return together(jax.vmap(agent.value)(state, *apart(seen, DECISION)), DECISION)

    def update(state, key, batch):
        keys = jax.random.split(key, number)
        state, metrics = jax.vmap(agent.update)(state, keys, batch_apart(batch))
        return state, averaged(metrics)

    def teach(state, obs, carry, reset, mask):
        def lessons(state, obs, carry, reset, mask):
            distribution, value = agent.teach(state, obs, carry, reset, mask)
            return full(distribution), value

        carry = rows_apart(carry, 0, number)
        obs, reset, mask = rows_apart((obs, reset, mask), 1, number)
        taught = jax.vmap(lessons)(state, obs, carry, reset, mask)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape((x.shape[1], -1) + x.shape[3:]), taught)

    def hyper():
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x))), agent.hyper())

    return agent._replace(
        init=init,
        act=act,
        greedy=greedy,
        value=None if agent.value is None else value,
        update=update,
        policy_state=jax.vmap(agent.policy_state),
        acting_state=jax.vmap(agent.rollout_policy),
        teach=None if agent.teach is None else teach,
        gamma=None if agent.gamma is None else jax.vmap(agent.gamma),
        hyper=None if agent.hyper is None else hyper,
    )


def apart(tree: PyTree, axis: int) -> PyTree:
    """Leaves `[..., A, ...]` with the agents at `axis` as `[A, ..., 1, ...]`."""
    return jax.tree.map(lambda x: jnp.expand_dims(jnp.moveaxis(x, axis, 0), axis + 1), tree)


def together(tree: PyTree, axis: int) -> PyTree:
    """The inverse of `apart`."""
    return jax.tree.map(lambda x: jnp.moveaxis(jnp.squeeze(x, axis + 1), 0, axis), tree)


def batch_apart(batch: Rollout | Transition) -> Rollout | Transition:
    """What each of the A agents learns from: leading axis `[A]`, and 1 for the axis of agents."""
    if isinstance(batch, Transition):
        return apart(batch, DECISION)
    ends = apart({"last_value": batch.last_value, "last_skip": batch.last_skip}, DECISION)
    return apart(batch.replace(last_value=None, last_skip=None), HISTORY).replace(**ends)


def rows_apart(tree: PyTree, axis: int, number: int) -> PyTree:
    """Rows S at `axis`, ordered by environment and then by agent, as `[A, ..., S / A, ...]`."""

    def split(x):
        return jnp.moveaxis(x.reshape(x.shape[:axis] + (-1, number) + x.shape[axis + 1 :]), axis + 1, 0)

    return jax.tree.map(split, tree)


def averaged(metrics: Metrics) -> Metrics:
    """Means over A learners; those that took no gradient steps, where steps are counted, say nothing."""
    steps = metrics.get("gradient_steps")
    if steps is None:
        return {name: x.mean(0) for name, x in metrics.items()}
    share = steps / jnp.maximum(steps.sum(), 1.0)
    means = {name: (x * share).sum(0) for name, x in metrics.items()}
    return means | {"gradient_steps": steps.mean(0)}


class Bank(NamedTuple):
    """The acting part of an `Agent` whose state is a stack of G states `[G, ...]`; see there."""

    initial_carry: Callable
    act: Callable
    greedy: Callable
    value: Callable | None
    asymmetric: bool


def in_groups(agent: Agent, groups: int) -> Bank:
    """Lets G states of one agent act, each in its own part of the environments.

    The first E / G environments belong to the first state, and so on: parameters are never copied per row.

    Args:
      agent: whose functions they are.
      groups: G.

    Raises:
      ValueError: by the functions, where E is no multiple of G.
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
        return merge(jax.vmap(agent.value)(state, *split(seen)))

    return Bank(
        initial_carry=agent.initial_carry,
        act=act,
        greedy=greedy,
        value=None if agent.value is None else value,
        asymmetric=agent.asymmetric,
    )
