"""Seats of an environment that other libraries play, and the scripts and policies that play the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.types import PyTree
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, ScriptedPolicy
from jaxmarl_echelon.envs.episodes import Running
from jaxmarl_echelon.envs.spaces import Box, MultiDiscrete

LEARNER = "learner"
Controllers = Mapping[str, Any]


@dataclass(frozen=True)
class Seats:
    """Players of the agents: static and hashable, so that programs can be shared.

    Attributes:
      outside: roles with the indices of their agents that the other library plays.
      inside: roles with the script's name, `ScriptedPolicy` or policy that plays their other agents.
    """

    outside: tuple[tuple[str, tuple[int, ...]], ...]
    inside: tuple[tuple[str, Any], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names `{role}_{index}` of the agents that the other library plays."""
        return tuple(f"{role}_{index}" for role, indices in self.outside for index in indices)


class Player(NamedTuple):
    """Plays a role in E environments.

    Attributes:
      init: `(num_envs) -> memory [E]`.
      act: `(keys [E], memory, running, params) -> (memory, action [E, A, ...])`.
    """

    init: Callable
    act: Callable


def choose_all_seats(env: Environment, controllers: Controllers | None = None) -> Seats:
    """Returns the seats of all agents of the roles that are learners, for libraries with many agents.

    Args:
      env: the environment.
      controllers: per role "learner", the name of a script, a `ScriptedPolicy` or a `Policy`; the
        environment's own controllers for omitted roles.

    Raises:
      ValueError: one line, for an unknown role or controller, or without a learner.
    """
    chosen = _assign(env, controllers)
    learners = [role for role in env.spec.roles if chosen[role.name] == LEARNER]
    if not learners:
        raise ValueError(f"controllers={_shown(chosen)}: at least one role must be a learner")
    return Seats(
        tuple((role.name, tuple(range(role.size))) for role in learners),
        tuple((name, player) for name, player in chosen.items() if player != LEARNER),
    )


def choose_one_seat(
    env: Environment, agent: str | None = None, controllers: Controllers | None = None
) -> Seats:
    """Returns the seat of one agent, for libraries with one; all other agents are played inside.

    Args:
      env: the environment, without turns.
      agent: its name, `{role}_{index}`; None for the first agent of the first role that is a learner.
      controllers: as for `choose_all_seats`; that of the agent's own role plays its team mates.

    Raises:
      ValueError: one line, for turns, an unknown agent, role or controller, or agents without a player.
    """
    spec = env.spec
    if spec.turns:
        raise ValueError(
            f"env={spec.name}: has turns, in which one agent does not act at every step; allowed: "
            "to_pettingzoo, to_jaxmarl"
        )
    chosen = _assign(env, controllers)
    own, index = _find_agent(env, chosen, agent)
    for role in spec.roles:
        others = role.size - (role.name == own)
        if others and chosen[role.name] == LEARNER:
            known = ", ".join([*_script_names(env, role.name), "a ScriptedPolicy", "a Policy"])
            raise ValueError(
                f"controllers.{role.name}={LEARNER}: must play {others} agents beside {own}_{index}; "
                f"allowed: {known}"
            )
    inside = (role for role in spec.roles if role.size > (role.name == own))
    return Seats(((own, (index,)),), tuple((role.name, chosen[role.name]) for role in inside))


def make_player(env: Environment, role: Role, player: Any) -> Player:
    """Builds the player of a role from a script's name, a `ScriptedPolicy` or a policy.

    Args:
      env: the environment, with the world in use.
      role: the role.
      player: a script's name, a `ScriptedPolicy`, or a policy as `load_policy` returns.
    """
    if isinstance(player, str):
        player = _find_script(env, role.name, player)
    if isinstance(player, ScriptedPolicy):
        script = player

        def init(num_envs: int) -> PyTree:
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), script.init())

        def act(keys: jax.Array, memory: PyTree, running: Running, params: PyTree):
            return jax.vmap(script.act)(keys, memory, running.env, params)

        return Player(init, act)

    def init_policy(num_envs: int) -> PyTree:
        return player.initial_memory((num_envs, role.size))

    def act_policy(_keys: jax.Array, memory: PyTree, running: Running, _params: PyTree):
        time = running.time
        begins, mask = time.begins.get(role.name), time.action_mask.get(role.name)
        action, memory = player(time.obs[role.name], memory, begins, mask)
        return memory, action

    return Player(init_policy, act_policy)


def make_legal(role: Role, action: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns actions `[..., *shape]` within the role's space: clipped, and legal where there is a mask.

    Other libraries sample without masks and give no action to agents that are gone. A choice that the mask
    `[..., n]` forbids becomes the first legal one.
    """
    space = role.action
    action = jnp.asarray(action).astype(space.dtype)
    if isinstance(space, Box):
        low, high = (jnp.asarray(bound, space.dtype) for bound in space.bounds())
        return jnp.clip(action, low, high)
    many = isinstance(space, MultiDiscrete)
    sizes = space.sizes if many else (space.n,)
    choices = action if many else action[..., None]
    choices = jnp.clip(choices, 0, np.asarray(sizes) - 1)
    if mask is not None:
        parts = jnp.split(mask, np.cumsum(sizes)[:-1], axis=-1)
        legal = [
            jnp.where(jnp.take_along_axis(part, one[..., None], -1)[..., 0], one, jnp.argmax(part, -1))
            for part, one in zip(parts, jnp.moveaxis(choices, -1, 0), strict=True)
        ]
        choices = jnp.stack(legal, axis=-1).astype(space.dtype)
    return choices if many else choices[..., 0]


def _assign(env: Environment, controllers: Controllers | None) -> dict[str, Any]:
    """Returns the checked controllers of all roles."""
    given, roles = dict(controllers or {}), [role.name for role in env.spec.roles]
    for role in given:
        if role not in roles:
            raise ValueError(f"controllers.{role}: unknown role; allowed: {', '.join(roles)}")
    chosen = {name: given.get(name) or env.controllers.get(name, LEARNER) for name in roles}
    for name, player in chosen.items():
        if isinstance(player, str):
            if player != LEARNER:
                _find_script(env, name, player)
        elif not isinstance(player, ScriptedPolicy):
            _require_policy(env.spec, name, player)
    return chosen


def _require_policy(spec: EnvSpec, role: str, player: Any) -> None:
    where = f"controllers.{role}={type(player).__name__}"
    if not hasattr(player, "initial_memory") or hasattr(player, "contract"):
        raise ValueError(f"{where}: cannot be compiled; allowed: a script's name, a ScriptedPolicy, a Policy")
    if not player.role.fits(spec.role(role)):
        raise ValueError(
            f"{where}: a policy of {player.role.name} does not fit {role}; spaces must be those of {role}"
        )


def _find_agent(env: Environment, chosen: Mapping[str, Any], agent: str | None) -> tuple[str, int]:
    if agent is None:
        learners = [name for name, player in chosen.items() if player == LEARNER]
        usual = [name for name in chosen if env.controllers.get(name, LEARNER) == LEARNER]
        return (learners or usual or [env.spec.roles[0].name])[0], 0
    known = [(role.name, index) for role in env.spec.roles for index in range(role.size)]
    for role, index in known:
        if agent == f"{role}_{index}":
            return role, index
    allowed = ", ".join(f"{role}_{index}" for role, index in known)
    raise ValueError(f"agent={agent}: unknown; allowed: {allowed}")


def _script_names(env: Environment, role: str) -> list[str]:
    others = tuple(f"_{other.name}" for other in env.spec.roles if other.name != role)
    return list(
        dict.fromkeys(key.removesuffix(f"_{role}") for key in env.scripts if not key.endswith(others))
    )


def _find_script(env: Environment, role: str, name: str) -> ScriptedPolicy:
    """Returns a script; `NAME_ROLE` takes precedence over `NAME`, as in trainings."""
    for key in (f"{name}_{role}", name):
        if key in env.scripts:
            return env.scripts[key]
    known = ", ".join([LEARNER, *_script_names(env, role), "a ScriptedPolicy", "a Policy"])
    raise ValueError(f"controllers.{role}={name}: unknown controller; allowed: {known}")


def _shown(chosen: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: player if isinstance(player, str) else type(player).__name__ for name, player in chosen.items()
    }
