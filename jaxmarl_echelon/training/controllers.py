"""Who acts for a role: a learner, or a script. One interface for rollouts and evaluation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from algos.types import ActionSpec, Agent, Asymmetric
from jaxmarl_echelon.envs.base import Environment, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.spaces import Box, Discrete, Space
from jaxmarl_echelon.envs.trees import select

PyTree = Any


class Choice(NamedTuple):
    """What a learner's agents did, as it wants it back.

    Attributes:
      action: `[E, A, D]` in the learner's own units.
      extras: the learner's own pytree, leaves `[E, A, ...]`; None where it acted greedily.
    """

    action: jax.Array
    extras: PyTree


class Controller(NamedTuple):
    """Acts for all agents of a role in E environments.

    Attributes:
      init: `(num_envs) -> memory [E]`.
      act: `(key, learner_state, memory, view, reset [E]) -> (memory, action [E, A, ...], choice)`;
        `action` is in the role's action space, `choice` a learner's `Choice`, None of others.
      policy: role whose learner's state it acts with; None where it needs none.
    """

    init: Callable
    act: Callable
    policy: str | None = None


def action_spec(space: Space) -> ActionSpec:
    """Describes an action space to a learner. Raises ValueError for shapes it cannot act in."""
    if isinstance(space, Box):
        if len(space.shape) != 1:
            raise ValueError(f"action space {space}: learners act in one-dimensional boxes")
        return ActionSpec("continuous", (space.shape[0],))
    if isinstance(space, Discrete):
        return ActionSpec("discrete", (space.n,))
    return ActionSpec("discrete", tuple(space.sizes))


def to_space(space: Space, action: jax.Array) -> jax.Array:
    """Maps a learner's action `[..., D]` into an action space: boxes linearly from [-1, 1], clipped."""
    if isinstance(space, Box):
        low = jnp.asarray(np.broadcast_to(space.low, space.shape), jnp.float32)
        high = jnp.asarray(np.broadcast_to(space.high, space.shape), jnp.float32)
        return low + (jnp.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
    return action[..., 0] if isinstance(space, Discrete) else action


def learner(agent: Agent, role: Role, policy: str, *, greedy: bool) -> Controller:
    """Lets the learner of the role `policy` act: sampled actions with what it learns from, or greedy ones."""

    def init(num_envs):
        return agent.initial_carry((num_envs, role.size))

    def act(key, state, carry, view, reset):
        mask = view.time.action_mask.get(role.name)
        reset = view.time.restarts(role.name, reset)
        if greedy:
            action, carry = agent.greedy(state, view.time.obs[role.name], carry, reset, mask)
            extras = None
        else:
            obs = observed(agent, view.time, role.name)
            action, carry, extras = agent.act(state, key, obs, carry, reset, mask)
        return carry, to_space(role.action, action), Choice(action, extras)

    return Controller(init, act, policy)


def observed(agent: Agent, time: TimeStep, role: str) -> PyTree:
    """What a learner is handed of a role's observations: with those for critics if it tells them apart."""
    obs = time.obs[role]
    return Asymmetric(obs, time.critic_obs[role]) if agent.asymmetric else obs


def script(policy: ScriptedPolicy) -> Controller:
    """Lets a scripted policy act; its memory is renewed when an episode begins."""

    def init(num_envs):
        memory = policy.init()
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), memory)

    def act(key, state, memory, view, reset):
        del state
        memory = select(reset, init(reset.shape[0]), memory)
        keys = jax.random.split(key, reset.shape[0])
        memory, action = jax.vmap(policy.act)(keys, memory, view.env, view.params)
        return memory, action, None

    return Controller(init, act)


def one_of(options: Sequence[Controller], index: jax.Array) -> Controller:
    """Lets the option with the traced number `index` act, so that one program serves them all.

    All options get the state of the one learner that any of them acts with.
    """

    def init(num_envs):
        return tuple(option.init(num_envs) for option in options)

    def act_as(number, key, state, memories, view, reset):
        memory, action, _ = options[number].act(key, state, memories[number], view, reset)
        return (*memories[:number], memory, *memories[number + 1 :]), action, None

    def act(*inputs):
        return lax.switch(index, [partial(act_as, number) for number in range(len(options))], *inputs)

    return Controller(init, act, next((option.policy for option in options if option.policy), None))


def find_script(env: Environment, role: str, name: str) -> ScriptedPolicy:
    """Returns a script of the environment, `NAME_ROLE` before `NAME`.

    Raises:
      ValueError: no such script; one line says which there are.
    """
    scripts = env.scripts
    suffix = f"_{role}"
    for key in (name + suffix, name):
        if key in scripts:
            return scripts[key]
    others = tuple(f"_{other.name}" for other in env.spec.roles if other.name != role)
    fitting = dict.fromkeys(key.removesuffix(suffix) for key in scripts if not key.endswith(others))
    known = ", ".join(["learner", "learner:per_agent", *fitting])
    raise ValueError(f"controllers.{role}={name}: unknown controller; allowed: {known}")
