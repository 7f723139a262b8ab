"""JaxMARL's `MultiAgentEnv` (0.2) over an environment; everything stays in JAX."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxmarl.environments import spaces as theirs
from jaxmarl.environments.multi_agent_env import MultiAgentEnv

from algos.types import PyTree
from jaxmarl_echelon.envs.adapters.play import (
    Play,
    View,
    advance_plays,
    begin_plays,
    result_names,
    view_seats,
)
from jaxmarl_echelon.envs.adapters.seats import Seats
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.episodes import Running
from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete, Space


class SeatsState(struct.PyTreeNode):
    """State of one environment: its time step and sums, and memories of the players inside the step."""

    running: Running
    memories: dict[str, PyTree]


class SeatsMultiAgentEnv(MultiAgentEnv):
    """JaxMARL environment of the agents of all roles that learn; made by `to_jaxmarl`.

    `step` resets by itself where `dones["__all__"]` is set; `step_env` does not, and returns final
    observations. An agent stays done from its end to that of the episode, or until a later trajectory of its
    slot begins. The episode ends early where all agents are gone, unless some can still come. Infos are
    arrays `[num_agents]`: "terminated" and "truncated", "alive" (the agent's action counts in the coming
    step), and the results of the episode so far by name, 0 for agents of roles without the result.
    """

    def __init__(self, env: Environment, seats: Seats, params: PyTree = None):
        super().__init__(len(seats.names))
        self._env, self._seats = env, seats
        self._params = env.default_params() if params is None else params
        self.agents, self._roles = list(seats.names), [env.spec.role(name) for name, _ in seats.outside]
        self.observation_spaces, self.action_spaces = {}, {}
        for role in self._roles:
            for agent in self.agent_classes[role.name]:
                self.observation_spaces[agent] = _their_space(role.observation)
                self.action_spaces[agent] = _their_space(role.action)

    @property
    def name(self) -> str:
        """The environment's name."""
        return self._env.spec.name

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """Names of the agents by role."""
        return {name: [f"{name}_{index}" for index in indices] for name, indices in self._seats.outside}

    @partial(jax.jit, static_argnums=0)
    def reset(self, key: jax.Array) -> tuple[dict[str, jax.Array], SeatsState]:
        """Begins an episode; returns observations by agent and the state."""
        play = begin_plays(self._env, self._seats, _typed(key)[None], self._params)
        state = _one(play)
        return self.get_obs(state), state

    @partial(jax.jit, static_argnums=0)
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        key: jax.Array,
        state: SeatsState,
        actions: dict[str, jax.Array],
        reset_state: SeatsState | None = None,
    ):
        """Takes one decision, and begins an episode, or `reset_state`, where one has ended."""
        obs, state, rewards, dones, infos = super().step(key, state, actions, reset_state)
        return obs, state, rewards, dones, infos | {"alive": self._in_order(state.running.time.alive)}

    @partial(jax.jit, static_argnums=0)
    def step_env(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, key: jax.Array, state: SeatsState, actions: dict[str, jax.Array]
    ):
        """Takes one decision; returns observations, state, rewards, dones and infos."""
        spec = self._env.spec
        given = {
            name: jnp.stack([actions[agent] for agent in agents])[None]
            for name, agents in self.agent_classes.items()
        }
        running, memories = jax.tree.map(lambda x: x[None], (state.running, state.memories))
        play = Play(_typed(key)[None], running, memories, jnp.zeros(1, bool))
        play = advance_plays(self._env, self._seats, play, given, self._params)
        views, after = view_seats(spec, self._seats, play.running), _one(play)
        done = {name: self._done(play.running, name, view) for name, view in views.items()}
        dones = self._by_agent(done)
        time = play.running.time
        # Agents of roles with `begins` can come later, or come again.
        all_gone = [name not in time.begins and own.all() for name, own in done.items()]
        every = time.over[0] | jnp.stack([jnp.asarray(gone) for gone in all_gone]).all()
        infos = {
            field: self._in_order({name: getattr(view, field)[0] for name, view in views.items()})
            for field in ("terminated", "truncated", "alive")
        } | self._results(views)
        rewards = self._by_agent({name: view.reward[0] for name, view in views.items()})
        return self.get_obs(after), after, rewards, dones | {"__all__": every}, infos

    def get_obs(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state: SeatsState
    ) -> dict[str, jax.Array]:
        """Returns the observations by agent."""
        time = state.running.time
        return self._by_agent({role.name: time.obs[role.name] for role in self._roles})

    @partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: SeatsState) -> dict[str, jax.Array]:
        """Returns legal actions by agent, bool `[n]`: all of them without masks; one per number of a box."""
        masks, time = {}, state.running.time
        for role in self._roles:
            width = role.action.mask_size or max(1, *role.action.shape)
            masks[role.name] = time.action_mask.get(role.name, jnp.ones((role.size, width), bool))
        return self._by_agent(masks)

    def _by_agent(self, values: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {
            agent: values[name][place]
            for name, agents in self.agent_classes.items()
            for place, agent in enumerate(agents)
        }

    def _in_order(self, values: dict[str, jax.Array]) -> jax.Array:
        return jnp.concatenate([values[name] for name, _ in self._seats.outside])

    def _done(self, running: Running, name: str, view: View) -> jax.Array:
        late = self._env.spec.late
        gone = running.sums.ended[name] | ~view.filled if late else ~view.alive
        return (gone | view.terminated | view.truncated | running.time.over[:, None])[0]

    def _results(self, views: dict[str, View]) -> dict[str, jax.Array]:
        spec, columns = self._env.spec, {}
        for result in spec.results:
            own = {}
            for role, view in views.items():
                names = result_names(spec, role)
                known = result.name in names
                column = view.results[0, :, names.index(result.name)] if known else None
                own[role] = jnp.zeros(view.reward.shape[1]) if column is None else column
            columns[result.name] = self._in_order(own)
        return columns


def _one(play: Play) -> SeatsState:
    return SeatsState(*jax.tree.map(lambda x: x[0], (play.running, play.memories)))


def _typed(key: jax.Array) -> jax.Array:
    """Returns a typed key; JaxMARL's users pass both kinds."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _their_space(space: Space) -> Any:
    if isinstance(space, Discrete):
        return theirs.Discrete(space.n)
    if isinstance(space, MultiDiscrete):
        return theirs.MultiDiscrete(space.sizes)
    low, high = (bound.astype(space.dtype) for bound in space.bounds())
    return theirs.Box(jnp.asarray(low), jnp.asarray(high), space.shape, space.dtype)
