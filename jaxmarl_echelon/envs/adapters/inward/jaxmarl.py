"""Adapter from JaxMARL environments (Rutherford et al. 2024; version 0.2) to `jaxmarl_echelon.envs.base`."""

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from algos.checks import require_keys
from algos.types import PyTree
from jaxmarl_echelon.envs import results, settings
from jaxmarl_echelon.envs.adapters.inward.conversions import (
    cast_array,
    convert_action_space,
    require_known_name,
    restore_types,
    unbounded_box,
)
from jaxmarl_echelon.envs.adapters.inward.jaxmarl_ends import Ends, find_ends, has_ends
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Box, Discrete
from jaxmarl_echelon.envs.trees import strip_weak_types

CRITICS = ("own", "state")
ALL = "__all__"
MPE = "MPE_"
# What MPE's base class looks up in the `**kwargs` of its constructor.
_MPE_EXTRAS = (
    "rad", "moveable", "silent", "collide", "mass", "accel", "max_speed", "u_noise", "c_noise", "damping",
    "contact_force", "contact_margin",
)  # fmt: skip
Agent = Any  # a name, or in some environments a number


class JaxMARL(Environment):
    """One JaxMARL environment; its agents of one class with equal spaces are a role.

    JaxMARL's `step`, which resets by itself, is bypassed: `episodes` resets. Agents that are done before the
    others are not alive; where their team's rewards reach them (SMAX), these are credited to their last
    decision. Observations are float32, or uint8 where JaxMARL's are.

    Attributes:
      spec: the roles; in SMAX the outcome of the battle, with the rate `success` of the allies' victories.
      groups: the agents of each role, as JaxMARL calls them.
    """

    def __init__(self, name: str, env: Any, ends: Ends, critic: str = "own"):
        self._env, self._ends, self._central = env, ends, critic == "state"
        obs, state = jax.eval_shape(env.reset, jax.random.key(0))
        self.groups = _group_agents(env, obs)
        self._masks = _find_masks(env, state)
        width = jax.eval_shape(self._world_state, obs, state).size
        first, *others = self.groups
        self.spec = EnvSpec(
            name=name,
            version=1,
            roles=tuple(self._role(role, obs, width, role != first) for role in self.groups),
            decision_period=0.0,
            episode_limit=ends.limit(env),
            results=_results(ends, others),
            score="success" if ends.outcomes else None,
            late=ends.late,
            ends_with_team=ends.ends_with_team,
        )

    def _role(self, name: str, obs: Mapping[Agent, Any], width: int, other: bool) -> Role:
        agents = self.groups[name]
        one = obs[agents[0]]
        space = Box(one.shape, 0, 255, one.dtype) if one.dtype == jnp.uint8 else unbounded_box(one.shape)
        return Role(
            name,
            len(agents),
            space,
            convert_action_space(self._env.action_space(agents[0])),
            score=f"{name}_success" if self._ends.outcomes and other else None,
            critic_observation=unbounded_box((width + len(agents),)) if self._central else None,
        )

    def default_params(self) -> dict[str, jax.Array]:
        """Returns no parameters: JaxMARL's are fixed when an environment is made."""
        return {}

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        del params
        obs, state = self._env.reset(key)
        agents = (*(agent for group in self.groups.values() for agent in group), ALL)
        running = {agent: jnp.zeros((), bool) for agent in agents}
        state = strip_weak_types(state)
        return state, self._show(obs, state, {agent: 0.0 for agent in agents}, running, running)

    def step(
        self, key: jax.Array, state: PyTree, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        """Advances one decision."""
        del params
        given = {
            agent: actions[role][place]
            for role, group in self.groups.items()
            for place, agent in enumerate(group)
        }
        obs, after, rewards, dones, _ = self._env.step_env(key, state, given)
        after = restore_types(after, state)
        # Some environments only tell when the whole episode is done.
        every = (*given, ALL)
        dones = {agent: cast_array(dones.get(agent, dones[ALL]), bool) for agent in every}
        return after, self._show(obs, after, rewards, dones, self._ends.ended(self._env, after, dones))

    def _show(self, obs, state: PyTree, rewards, dones, ended) -> TimeStep:
        over, finished = dones[ALL], dones[ALL] & ended[ALL]
        gone = self._by_role(ended, bool)
        # Agents that wait for the rewards of their team end with it, all others in the step of their own end.
        terminated = {
            role: jnp.broadcast_to(finished, own.shape) if self.spec.late else own | finished
            for role, own in gone.items()
        }
        truncated = {role: over & ~own for role, own in terminated.items()}
        # Who has ended by the step of the time limit has no action to bootstrap from.
        present = {role: ~(own & truncated[role]) for role, own in gone.items()}
        return TimeStep(
            obs={
                role.name: cast_array(self._stack(obs, role.name), role.observation.dtype)
                for role in self.spec.roles
            },
            reward=self._by_role(rewards, jnp.float32),
            terminated=terminated,
            truncated=truncated,
            alive={role: ~own & ~over for role, own in gone.items()},
            action_mask=self._legal(state),
            over=over,
            info=self._info(state, over),
            present=present if self.spec.late else {},
            critic_obs=self._critic_obs(obs, state) if self._central else {},
        )

    def _stack(self, values: Mapping[Agent, Any], role: str) -> jax.Array:
        return jnp.stack([jnp.asarray(values[agent]) for agent in self.groups[role]])

    def _by_role(self, values: Mapping[Agent, Any], dtype: Any) -> dict[str, jax.Array]:
        return {role: cast_array(self._stack(values, role), dtype) for role in self.groups}

    def _legal(self, state: PyTree) -> dict[str, jax.Array]:
        if self._masks is None:
            return {}
        masks = self._masks(state)
        choosing = (role.name for role in self.spec.roles if isinstance(role.action, Discrete))
        return {role: cast_array(self._stack(masks, role), bool) for role in choosing}

    def _critic_obs(self, obs: Mapping[Agent, Any], state: PyTree) -> dict[str, jax.Array]:
        """Returns the state of the world, and for each agent which one of its role it is."""
        world = self._world_state(obs, state)
        return {
            role: jnp.concatenate([jnp.tile(world, (len(group), 1)), jnp.eye(len(group))], axis=1)
            for role, group in self.groups.items()
        }

    def _world_state(self, obs: Mapping[Agent, Any], state: PyTree) -> jax.Array:
        # FACMAC's tasks have a view of the world per agent there, no state.
        whole = self._env.get_world_state(state) if hasattr(self._env, "get_world_state") else {}
        if not isinstance(whole, Mapping):
            return cast_array(whole, jnp.float32).reshape(-1)
        seen = (obs[agent] for group in self.groups.values() for agent in group)
        return jnp.concatenate([cast_array(one, jnp.float32).reshape(-1) for one in seen])

    def _info(self, state: PyTree, over: jax.Array) -> dict[str, jax.Array]:
        ends = self._ends
        return {} if ends.outcome is None else {"outcome": ends.outcome(self._env, state, over)}


def make(
    name: str,
    scenario: str | None = None,
    layout: str | None = None,
    critic: str = "own",
    options: Mapping[str, object] | None = None,
) -> JaxMARL:
    """Builds a JaxMARL environment.

    Args:
      name: JaxMARL's name, e.g. "MPE_simple_spread_v3".
      scenario: of SMAX, e.g. "3m"; None for that of JaxMARL.
      layout: of the kitchen in Overcooked, e.g. "cramped_room"; None for that of JaxMARL.
      critic: what critics observe: "own", as actors; "state", the state of the world where
        JaxMARL has it, else all observations, and which agent it is.
      options: further arguments of JaxMARL's constructor, e.g. `max_steps`.

    Raises:
      ValueError: one line, for an invalid setting.
    """
    # Imported here because it takes seconds and most runs do not need it.
    with _keep_streams():
        import jaxmarl

    require_known_name("JaxMARL", name, [known for known in jaxmarl.registered_envs if has_ends(known)])
    settings.read_choice("critic", critic, CRITICS)
    chosen = dict(options or {})
    if scenario is not None:
        from jaxmarl.environments.smax import smax_env

        chosen["scenario"] = _read_named("scenario", scenario, smax_env.MAP_NAME_TO_SCENARIO)
    if layout is not None:
        chosen["layout"] = _read_named("layout", layout, _layouts(name))
    try:
        env = jaxmarl.make(name, **chosen)
    except (TypeError, ValueError, AssertionError, KeyError) as error:
        raise ValueError(f"env.options={dict(options or {})}: JaxMARL cannot make {name}: {error}") from error
    if name.startswith(MPE):
        _require_mpe_options(env, options or {})
    return JaxMARL(name, env, find_ends(name), critic)


@contextlib.contextmanager
def _keep_streams() -> Iterator[None]:
    """Hides what is printed, and keeps the process's streams.

    JaxMARL prints what it lacks, and on the way sets both streams to those that the process began with, which
    in a notebook, or where a caller has redirected them, are others.
    """
    names = ("stdout", "stderr", "__stdout__", "__stderr__")
    before = {name: getattr(sys, name) for name in names}
    try:
        for name in names:
            setattr(sys, name, io.StringIO())
        yield
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)


def _require_mpe_options(env: Any, options: Mapping[str, object]) -> None:
    """Raises a one-line ValueError for options that MPE swallows in `**kwargs` without reading them."""
    inits = [inspect.signature(base.__init__).parameters for base in type(env).__mro__]
    named = [one.name for init in inits for one in init.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    require_keys("env.options.", options, sorted({*named, *_MPE_EXTRAS} - {"self"}), "unknown to JaxMARL")


def _read_named(setting: str, name: str, known: Mapping[str, Any]) -> Any:
    return known[settings.read_choice(setting, name, tuple(known))]


def _layouts(name: str) -> Mapping[str, Any]:
    from jaxmarl.environments import overcooked, overcooked_v2

    return overcooked.overcooked_layouts if name == "overcooked" else overcooked_v2.overcooked_v2_layouts


def _group_agents(env: Any, obs: Mapping[Agent, Any]) -> dict[str, list[Agent]]:
    """Groups agents by JaxMARL's classes, their names without numbers, and their spaces."""
    classes = {agent: label for label, agents in _classes(env).items() for agent in agents}
    groups = {}
    for agent in env.agents:
        stem = re.sub(r"_?\d+$", "", str(agent)) or "agent"
        space = (obs[agent].shape, convert_action_space(env.action_space(agent)))
        groups.setdefault((stem, classes.get(agent), space), []).append(agent)
    stems = [stem for stem, _, _ in groups]
    return {
        stem if stems.count(stem) == 1 else f"{stem}_{number}": agents
        for number, ((stem, _, _), agents) in enumerate(groups.items())
    }


def _classes(env: Any) -> dict[str, list[Agent]]:
    try:
        found = env.agent_classes
        found = found() if callable(found) else found
    except NotImplementedError:
        return {}
    return {label: [agents] if isinstance(agents, str) else list(agents) for label, agents in found.items()}


def _find_masks(env: Any, state: PyTree) -> Callable | None:
    """Returns the method that says which actions are legal, or None."""
    for method in ("get_avail_actions", "get_legal_moves"):
        try:
            masks = getattr(env, method)
            if isinstance(jax.eval_shape(masks, state), Mapping):
                return masks
        except (AttributeError, NotImplementedError):
            continue
    return None


def _results(ends: Ends, others: Sequence[str]) -> tuple[Result, ...]:
    """Returns the results of battles: their outcome, and the rates of victories by role."""
    if not ends.outcomes:
        return ()
    won, lost, *_ = ends.outcomes
    rates = (Result(f"{role}_success", kind="rate", source="outcome", among=(lost,)) for role in others)
    return (*results.standard_results(ends.outcomes, success=(won,)), *rates)
