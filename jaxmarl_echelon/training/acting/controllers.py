"""Controllers: one interface for learners and scripts in rollouts and evaluations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from algos import collectives
from algos.masks import expand_mask, select_rows
from algos.settings import SCRIPT
from algos.types import ActionSpec, Agent, Asymmetric, PyTree
from jaxmarl_echelon.envs.base import Environment, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.spaces import Box, Discrete, Space


class RecordedDecision(NamedTuple):
    """Decision of a learner, as recorded for its update.

    Attributes:
      action: `[E, A, D]` in the learner's own units.
      extras: the learner's own pytree, leaves `[E, A, ...]`; None for greedy actions.
    """

    action: jax.Array
    extras: PyTree


class Controller(NamedTuple):
    """Acts for all agents of a role in E environments.

    Attributes:
      init: `(num_envs) -> memory [E]`.
      act: `(key, learner_state, memory, view, reset [E]) -> (memory, action [E, A, ...], choice)`;
        `action` is in the role's action space, `choice` a learner's `RecordedDecision`, otherwise None.
      policy: name of the policy whose state it acts with; None for scripts.
      scored: `(num_envs) -> bool [E, A]`, the agents that an evaluation reports on; None for all.
    """

    init: Callable
    act: Callable
    policy: str | None = None
    scored: Callable | None = None


def action_spec(space: Space) -> ActionSpec:
    """Converts an action space to an `ActionSpec`; raises ValueError for a Box of more than one dimension."""
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
        # The rounded sum can exceed the upper bound.
        return jnp.minimum(low + (jnp.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low), high)
    return action[..., 0] if isinstance(space, Discrete) else action


def from_space(space: Space, action: jax.Array) -> jax.Array:
    """Maps an action of an action space to a learner's `[..., D]`: the inverse of `to_space`.

    Boxes are mapped to [-1, 1], where actions outside the bounds are clipped; a coordinate whose bounds are
    equal becomes 0.
    """
    if isinstance(space, Box):
        low = jnp.asarray(np.broadcast_to(space.low, space.shape), jnp.float32)
        high = jnp.asarray(np.broadcast_to(space.high, space.shape), jnp.float32)
        width = jnp.where(high > low, high - low, 1.0)
        share = jnp.where(high > low, (action - low) / width, 0.5)
        return jnp.clip(2.0 * share - 1.0, -1.0, 1.0).astype(jnp.float32)
    action = action.astype(jnp.int32)
    return action[..., None] if isinstance(space, Discrete) else action


def make_learner_controller(
    agent: Agent, role: Role, policy: str, *, greedy: bool, warms_up: bool = True
) -> Controller:
    """Builds the controller of the learner named `policy`: sampled actions with extras, or greedy actions.

    Without `warms_up` it samples the policy also where the learner still takes random actions.
    """

    def init(num_envs):
        return agent.initial_carry((num_envs, role.size))

    def act(key, state, carry, view, reset):
        mask = view.time.action_mask.get(role.name)
        reset = view.time.restarts(role.name, reset)
        if greedy:
            action, carry = agent.greedy(state, view.time.obs[role.name], carry, reset, mask)
            extras = None
        else:
            obs = learner_observations(agent, view.time, role.name)
            state = state if warms_up else agent.after_warm_up(state)
            action, carry, extras = agent.act(
                state, collectives.fold_shard_into_key(key), obs, carry, reset, mask
            )
        return carry, to_space(role.action, action), RecordedDecision(action, extras)

    return Controller(init, act, policy)


def learner_observations(agent: Agent, time: TimeStep, role: str) -> PyTree:
    """Returns a role's observations for its learner, with `critic_obs` if the critic has its own."""
    obs = time.obs[role]
    return Asymmetric(obs, time.critic_obs[role]) if agent.asymmetric else obs


def make_script_controller(policy: ScriptedPolicy) -> Controller:
    """Builds the controller of a scripted policy, vmapped over E; its memory is reset with each episode.

    In turn-based games it decides for the acting seat.
    """

    def init(num_envs):
        memory = policy.init()
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), memory)

    def act(key, state, memory, view, reset):
        del state
        memory = select_rows(reset, init(reset.shape[0]), memory)
        keys = collectives.split_key_over_shards(key, reset.shape[0])
        memory, action = jax.vmap(policy.act)(keys, memory, view.env, view.params)
        if view.seat is not None:
            action = jnp.take_along_axis(action, expand_mask(view.seat, action.ndim), axis=1)
        return memory, action, None

    return Controller(init, act)


def switch_controller(options: Sequence[Controller], index: jax.Array) -> Controller:
    """Builds a controller that switches to the option of traced `index`: one program for all options.

    All options receive the same policy state, so that at most one of them may use a policy.
    """

    def init(num_envs):
        return tuple(option.init(num_envs) for option in options)

    def act_as(number, key, state, memories, view, reset):
        memory, action, _ = options[number].act(key, state, memories[number], view, reset)
        return (*memories[:number], memory, *memories[number + 1 :]), action, None

    def act(*inputs):
        return lax.switch(index, [partial(act_as, number) for number in range(len(options))], *inputs)

    return Controller(init, act, next((option.policy for option in options if option.policy), None))


def play_one_seat_against(mine: Controller, other: Controller, seats: int) -> Controller:
    """Builds a controller of all seats of a turn-based game: `mine` plays one seat, `other` the rest.

    It decides for the acting seat. The seat of `mine` is the environment's index modulo N, so that it plays
    all seats equally often. Only this seat is scored. `other` must not need a policy.
    """

    def own(num_envs):
        return collectives.global_indices(num_envs) % seats

    def scored(num_envs):
        return own(num_envs)[:, None] == jnp.arange(seats)

    def init(num_envs):
        return mine.init(num_envs), other.init(num_envs)

    def act(key, state, memories, view, reset):
        key_mine, key_other = jax.random.split(key)
        memory, action, choice = mine.act(key_mine, state, memories[0], view, reset)
        others, reply, _ = other.act(key_other, None, memories[1], view, reset)
        decides = own(reset.shape[0]) == view.seat
        chosen = select_rows(decides, action, reply)
        return (memory, others), chosen, choice

    return Controller(init, act, mine.policy, scored)


def add_env_opponents(env: Environment, controllers: dict[str, Controller]) -> dict[str, Controller]:
    """Adds the environment's opponents at the other seats to the controllers of an evaluation."""
    return controllers | {
        role: play_one_seat_against(
            controllers[role], make_script_controller(find_script(env, role, name)), env.spec.turns
        )
        for role, name in env.opponents.items()
    }


def find_script(env: Environment, role: str, name: str, where: str | None = None) -> ScriptedPolicy:
    """Returns a script of the environment; `NAME_ROLE` takes precedence over `NAME`.

    Args:
      env: the environment.
      role: the role that the script plays.
      name: the script.
      where: the setting that names the script, if it is not `controllers.ROLE`; allowed names then differ.

    Raises:
      ValueError: one line that lists the allowed names, for an unknown script.
    """
    scripts = env.scripts
    suffix = f"_{role}"
    for key in (name + suffix, name):
        if key in scripts:
            return scripts[key]
    learning, unknown = ["learner", "learner:per_agent"], "unknown controller"
    if where is not None:
        learning, unknown = ["frozen:PATH"], f"unknown script of {role}"
    known = ", ".join([*learning, *fitting_scripts(env, role)])
    raise ValueError(f"{where or f'controllers.{role}'}={name}: {unknown}; allowed: {known}")


def fitting_scripts(env: Environment, role: str) -> list[str]:
    """Returns the names by which `find_script` finds the scripts that can play a role."""
    others = tuple(f"_{other.name}" for other in env.spec.roles if other.name != role)
    fitting = (key.removesuffix(f"_{role}") for key in env.scripts if not key.endswith(others))
    return list(dict.fromkeys(fitting))


def find_baselines(env: Environment, role: str) -> tuple[str, ...]:
    """Returns the names of the environment's baselines that can play a role."""
    return tuple(name for name in env.baselines if {f"{name}_{role}", name} & env.scripts.keys())


def find_teacher(env: Environment, role: str, name: str) -> ScriptedPolicy:
    """Returns the script `name` of a role as a teacher, for `algo.teacher=script:NAME`.

    Raises:
      ValueError: one line that lists the role's scripts, for one that is unknown or cannot be imitated.
    """
    where, known = f"algo.teacher={SCRIPT}{name}", fitting_scripts(env, role)
    if not known:
        raise ValueError(f"{where}: {role} of {env.spec.name} has no scripts; must be null or a run's folder")
    teaching = [one for one in known if find_script(env, role, one).teaches]
    if name not in teaching:
        fault = "has no actions of its own to imitate" if name in known else f"unknown script of {role}"
        allowed = ", ".join(f"{SCRIPT}{one}" for one in teaching)
        raise ValueError(f"{where}: {fault}; allowed: {allowed}")
    script = find_script(env, role, name)
    return script if script.teach is None else script._replace(act=script.teach)
