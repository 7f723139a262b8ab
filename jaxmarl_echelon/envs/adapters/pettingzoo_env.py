"""PettingZoo's `ParallelEnv` (1.24 to 1.27) over one compiled step of an environment."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from algos.types import PyTree
from jaxmarl_echelon.envs.adapters.gymnasium_spaces import read_actions, to_gymnasium_space
from jaxmarl_echelon.envs.adapters.play import Autoreset, Step, make_keys, make_play_program, result_names
from jaxmarl_echelon.envs.adapters.seats import Seats
from jaxmarl_echelon.envs.base import Environment, Role
from jaxmarl_echelon.envs.packed_rows import PackedRows
from jaxmarl_echelon.envs.spaces import MultiDiscrete

MOST_SEEDS = 2**31


class SeatsParallelEnv(ParallelEnv):
    """PettingZoo environment of the agents of all roles that learn; made by `to_pettingzoo`.

    An agent is in `agents` from the reset, or from the step in which its slot is filled, until the step in
    which its trajectory ends, which still reports on it; a later trajectory of its slot is not shown.
    Observations of roles with masks are `{"observation", "action_mask"}`. Infos have "alive" (bool: the
    agent's action counts) with delayed rewards, and the results by name in the step in which it ends.
    """

    def __init__(self, env: Environment, seats: Seats, params: PyTree = None):
        self.metadata = {"name": env.spec.name, "render_modes": [], "is_parallelizable": True}
        self.render_mode = None
        self._env, self._program = env, make_play_program(env, seats, Autoreset.DISABLED)
        self._params = env.default_params() if params is None else params
        # Role, place in the role's views, and names of results of each agent.
        self._places: dict[str, tuple[Role, int, tuple[str, ...]]] = {}
        for name, indices in seats.outside:
            role, results = env.spec.role(name), result_names(env.spec, name)
            self._places |= {f"{name}_{index}": (role, place, results) for place, index in enumerate(indices)}
        self._sizes = {name: len(indices) for name, indices in seats.outside}
        self.possible_agents, self.agents = list(seats.names), []
        masked = self._masked_roles()
        self.observation_spaces, self.action_spaces = {}, {}
        for agent, (role, _, _) in self._places.items():
            shown = to_gymnasium_space(role.observation)
            if role.name in masked:
                shown = spaces.Dict({"observation": shown, "action_mask": _mask_space(role)})
            self.observation_spaces[agent] = shown
            self.action_spaces[agent] = to_gymnasium_space(role.action)
        self._rows: PackedRows | None = None
        self._shown: Step | None = None
        self._seen: set[str] = set()
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space:
        """Returns the space of an agent's observations, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """Returns the space of an agent's actions, always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begins an episode from `seed`, or else from the next keys of the environment."""
        del options
        if seed is None and self._rows is None:
            seed = int(self._random.integers(MOST_SEEDS))
        keys = self._rows.tree.keys if seed is None else make_keys([seed])
        self._rows, self._shown = self._program.begin(self._params, keys)
        view = self._read()
        late = self._env.spec.late
        self.agents = [
            agent
            for agent, (role, place, _) in self._places.items()
            if view[role.name]["filled"][place] and (late or view[role.name]["alive"][place])
        ]
        self._seen = set(self.agents)
        return self._observations(view, self.agents), self._infos(view, self.agents, ())

    def step(self, actions: Mapping[str, Any]):
        """Takes one decision.

        Args:
          actions: by agent; of `agents` only those that wait ("alive" is False) may be left out.

        Raises:
          ValueError: one line, without running agents, and for actions of other agents or another shape.
        """
        before = self._shown
        if before is None or not self.agents:
            raise ValueError("step: no agent is left, or no episode has begun; call reset first")
        given = self._read_actions(actions)
        self._rows, self._shown = self._program.step(self._params, self._rows, given)
        view, there = self._read(), list(self.agents)
        for agent, (role, place, _) in self._places.items():
            own = view[role.name]
            if agent not in self._seen and own["filled"][place] and own["alive"][place]:
                there.append(agent)
                self._seen.add(agent)
        there = [agent for agent in self.possible_agents if agent in there]

        def each(field: str, kind: type) -> dict[str, Any]:
            return {
                agent: kind(view[self._places[agent][0].name][field][self._places[agent][1]])
                for agent in there
            }

        rewards, terminations, truncations = (
            each("reward", float),
            each("terminated", bool),
            each("truncated", bool),
        )
        ended = {agent for agent in there if terminations[agent] or truncations[agent]}
        self.agents = [agent for agent in there if agent not in ended]
        observations, infos = self._observations(view, there), self._infos(view, there, ended)
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Returns the observations of all possible agents as one flat array."""
        if self._shown is None:
            raise ValueError("state: no episode has begun; call reset first")
        view = self._read()
        return np.concatenate([np.ravel(view[name]["obs"]) for name in self._sizes])

    def render(self) -> None:
        """Draws nothing; `evaluate` draws episodes."""

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def _masked_roles(self) -> set[str]:
        """Returns the roles whose time steps have masks."""
        keys = make_keys([0])
        _, shown = self._program.shapes(self._params, keys)
        return {name for name, view in shown.views.items() if view.mask is not None}

    def _read(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the fields of all views as arrays `[N, ...]`, by role."""
        shown = {}
        for name, view in self._shown.views.items():
            fields = {field: value for field, value in view._asdict().items() if value is not None}
            shown[name] = {field: np.asarray(value)[0] for field, value in fields.items()}
        return shown

    def _read_actions(self, actions: Mapping[str, Any]) -> dict[str, np.ndarray]:
        unknown = [agent for agent in actions if agent not in self.agents]
        if unknown:
            raise ValueError(f"actions.{unknown[0]}: not a running agent; allowed: {', '.join(self.agents)}")
        given = {}
        for name, size in self._sizes.items():
            space = self._env.spec.role(name).action
            given[name] = np.zeros((1, size, *space.shape), space.dtype)
        alive = {name: np.asarray(view.alive)[0] for name, view in self._shown.views.items()}
        for agent in self.agents:
            role, place, _ = self._places[agent]
            if agent in actions:
                space = role.action
                given[role.name][0, place] = read_actions(
                    f"actions.{agent}", actions[agent], space.shape, space
                )
            elif alive[role.name][place]:
                raise ValueError(f"actions.{agent}: missing; the agent acts in this step")
        return given

    def _observations(self, view: Mapping[str, Any], agents: list[str]) -> dict[str, Any]:
        shown = {}
        for agent in agents:
            role, place, _ = self._places[agent]
            own = view[role.name]
            shown[agent] = np.array(own["obs"][place])
            if "mask" in own:
                mask = own["mask"][place].astype(np.int8)
                shown[agent] = {"observation": shown[agent], "action_mask": _split_mask(role, mask)}
        return shown

    def _infos(self, view: Mapping[str, Any], agents: list[str], ended) -> dict[str, dict[str, Any]]:
        infos = {}
        for agent in agents:
            role, place, names = self._places[agent]
            own, info = view[role.name], {}
            if self._env.spec.late:
                info["alive"] = bool(own["alive"][place])
            if agent in ended:
                values = own["results"][place]
                info |= {name: float(value) for name, value in zip(names, values, strict=True)}
            infos[agent] = info
        return infos


def _mask_space(role: Role) -> spaces.Space:
    """Returns the space of masks, which PettingZoo's actions are sampled with: one per choice."""
    if isinstance(role.action, MultiDiscrete):
        return spaces.Tuple([spaces.Box(0, 1, (size,), np.int8) for size in role.action.sizes])
    return spaces.Box(0, 1, (role.action.mask_size,), np.int8)


def _split_mask(role: Role, mask: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
    if isinstance(role.action, MultiDiscrete):
        return tuple(part.copy() for part in np.split(mask, np.cumsum(role.action.sizes)[:-1]))
    return mask
