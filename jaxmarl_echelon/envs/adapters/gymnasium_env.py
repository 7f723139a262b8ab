"""Gymnasium's `Env` and `VectorEnv` (1.0 to 1.4) over one compiled step of an environment."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from algos.types import PyTree
from jaxmarl_echelon.envs.adapters.gymnasium_spaces import read_actions, to_gymnasium_space
from jaxmarl_echelon.envs.adapters.play import Autoreset, Step, make_keys, make_play_program, result_names
from jaxmarl_echelon.envs.adapters.seats import Seats
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.packed_rows import PackedRows

MOST_SEEDS = 2**31


class OneSeat:
    """Compiled step and last output of E environments in which another library plays one agent.

    Attributes:
      env, seats: the environment and who plays.
      role: the agent's role.
      num_envs: E.
      step: output of the last reset or step.
      names: names of the agent's results.
      may_be_out: whether an action of the agent may count for nothing: with delayed rewards, and in roles
        whose slots may be empty. Known after the first reset.
    """

    def __init__(self, env: Environment, seats: Seats, num_envs: int, mode: Autoreset, params: PyTree):
        ((name, _),) = seats.outside
        self.env, self.seats, self.num_envs = env, seats, num_envs
        self.role = env.spec.role(name)
        self.names = result_names(env.spec, name)
        self._program = make_play_program(env, seats, mode)
        self._params = env.default_params() if params is None else params
        self._rows: PackedRows | None = None
        self.step: Step | None = None
        self.may_be_out = env.spec.late

    @property
    def begun(self) -> bool:
        """Tells whether the environments have been reset."""
        return self._rows is not None

    @property
    def masked(self) -> bool:
        """Tells whether the agent has masks; also before the first reset."""
        if self.step is not None:
            shown = self.step
        else:
            _, shown = self._program.shapes(self._params, make_keys([0]))
        return shown.first[self.role.name].mask is not None

    def begin(self, seeds: Sequence[int] | None, where: np.ndarray | None = None) -> None:
        """Begins episodes, with `seeds [E]` or by the environments' own keys; only `where [E]` if given."""
        keys = make_keys(seeds) if seeds is not None else self._rows.tree.keys
        if where is not None:
            self._rows, self.step = self._program.begin_where(self._params, self._rows, keys, where)
            return
        first = not self.begun
        self._rows, self.step = self._program.begin(self._params, keys)
        if first:
            self.may_be_out |= self.role.name in self._rows.tree.running.time.present

    def advance(self, actions: np.ndarray) -> None:
        """Takes one decision in each environment with `actions [E, *shape]`."""
        given = {self.role.name: actions[:, None]}
        self._rows, self.step = self._program.step(self._params, self._rows, given)

    def first_obs(self) -> np.ndarray:
        """Returns a copy of the observations `[E, *shape]` to act on next."""
        return np.array(np.asarray(self.step.first[self.role.name].obs)[:, 0])

    def first_mask(self) -> np.ndarray | None:
        """Returns a copy of the masks `[E, n]` of the coming decision, int8; None without masks."""
        mask = self.step.first[self.role.name].mask
        return None if mask is None else np.asarray(mask)[:, 0].astype(np.int8)

    def first_alive(self) -> np.ndarray:
        """Returns a copy of bool `[E]`, whether the agent's action of the coming decision counts."""
        return np.array(np.asarray(self.step.first[self.role.name].alive)[:, 0])

    def read(self, field: str) -> np.ndarray:
        """Returns a copy of a field of the agent's `View`, `[E, ...]`."""
        return np.array(np.asarray(getattr(self.step.views[self.role.name], field))[:, 0])


class SeatEnv(gymnasium.Env):
    """Gymnasium environment of one agent; made by `to_gymnasium`.

    `info` has "action_mask" (int8) for roles with masks, "alive" where the agent may be out of the game (with
    delayed rewards, and in roles whose slots may be empty), and, in the step that ends the episode, the
    results of the agent and of the episode by name.
    """

    metadata = {"render_modes": []}

    def __init__(self, env: Environment, seats: Seats, params: PyTree = None):
        self._seat = OneSeat(env, seats, 1, Autoreset.DISABLED, params)
        self.observation_space = to_gymnasium_space(self._seat.role.observation)
        self.action_space = to_gymnasium_space(self._seat.role.action)
        self._ended = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begins an episode from `seed`, or else from the next keys of the environment."""
        super().reset(seed=seed, options=options)
        seat, self._ended = self._seat, False
        if seed is None and not seat.begun:
            seed = int(self.np_random.integers(MOST_SEEDS))
        seat.begin(None if seed is None else [seed])
        return seat.first_obs()[0], self._info()

    def step(self, action):
        """Takes one decision.

        Raises:
          gymnasium.error.ResetNeeded: before a reset and after the end of an episode.
          ValueError: one line, for an action of another shape.
        """
        seat = self._seat
        if self._ended or not seat.begun:
            raise gymnasium.error.ResetNeeded("step: the episode has not begun or is over; call reset first")
        space = seat.role.action
        seat.advance(read_actions("action", action, space.shape, space)[None])
        terminated, truncated = bool(seat.read("terminated")[0]), bool(seat.read("truncated")[0])
        self._ended = bool(seat.step.ended[0])
        return seat.first_obs()[0], float(seat.read("reward")[0]), terminated, truncated, self._info()

    def action_masks(self) -> np.ndarray:
        """Returns the legal actions of the coming decision, bool `[n]`, as sb3-contrib asks.

        Raises:
          AttributeError: for environments without masks.
        """
        mask = self._seat.first_mask()
        if mask is None:
            raise AttributeError(f"action_masks: {self._seat.env.spec.name} has no masks")
        return mask[0].astype(bool)

    def _info(self) -> dict[str, Any]:
        seat, info = self._seat, {}
        mask = seat.first_mask()
        if mask is not None:
            info["action_mask"] = mask[0]
        if seat.may_be_out:
            info["alive"] = bool(seat.first_alive()[0])
        if self._ended:
            values = seat.read("results")[0]
            info |= {name: float(value) for name, value in zip(seat.names, values, strict=True)}
        return info


class SeatVectorEnv(VectorEnv):
    """Gymnasium vector of E environments in one compiled step; made by `to_gymnasium`.

    Environment i of a vector with seed s plays the episodes of a single environment with seed s + i. Infos
    are as in `SeatEnv`, with masks `_NAME`; in mode SAME_STEP results are in "final_info", by "final_obs".
    """

    def __init__(
        self, env: Environment, seats: Seats, num_envs: int, mode: AutoresetMode, params: PyTree = None
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: must be at least 1")
        self._seat = OneSeat(env, seats, num_envs, Autoreset[mode.name], params)
        self._mode, self.num_envs = mode, num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": mode}
        self.single_observation_space = to_gymnasium_space(self._seat.role.observation)
        self.single_action_space = to_gymnasium_space(self._seat.role.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ):
        """Begins episodes in all environments, or where `options["reset_mask"]` (bool `[E]`) is set.

        Raises:
          ValueError: one line, for seeds or a mask of another length, or a mask before the first reset.
        """
        super().reset(seed=seed if isinstance(seed, int | np.integer) else None)
        seeds = self._read_seeds(seed)
        where = (options or {}).get("reset_mask")
        if where is not None:
            where = np.asarray(where)
            if where.shape != (self.num_envs,) or where.dtype != bool or not self._seat.begun:
                found = f"{where.dtype}{list(where.shape)}"
                raise ValueError(
                    f"options.reset_mask={found}: must be bool[{self.num_envs}], after a first reset of all"
                )
        self._seat.begin(seeds, where)
        return self._seat.first_obs(), self._infos(None)

    def step(self, actions):
        """Takes one decision in each environment.

        Raises:
          gymnasium.error.ResetNeeded: before a reset and, in mode DISABLED, where an episode is over.
          ValueError: one line, for actions of another shape.
        """
        seat, space = self._seat, self._seat.role.action
        over = self._mode is AutoresetMode.DISABLED and seat.begun and np.asarray(seat.step.ended).any()
        if over or not seat.begun:
            raise gymnasium.error.ResetNeeded("step: an episode has not begun or is over; call reset first")
        seat.advance(read_actions("actions", actions, (self.num_envs, *space.shape), space))
        flags = seat.read("terminated"), seat.read("truncated")
        infos = self._infos(np.array(seat.step.ended))
        return seat.first_obs(), seat.read("reward").astype(np.float64), *flags, infos

    def _read_seeds(self, seed) -> list[int] | None:
        if seed is None and self._seat.begun:
            return None
        if seed is None:
            seed = int(self.np_random.integers(MOST_SEEDS))
        if isinstance(seed, int | np.integer):
            return [int(seed) + number for number in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed={list(seed)}: must be one number or {self.num_envs}, one per environment")
        return [int(self.np_random.integers(MOST_SEEDS)) if one is None else int(one) for one in seed]

    def _infos(self, ended: np.ndarray | None) -> dict[str, Any]:
        seat, infos, every = self._seat, {}, np.ones(self.num_envs, bool)
        mask = seat.first_mask()
        if mask is not None:
            infos |= {"action_mask": mask, "_action_mask": every.copy()}
        if seat.may_be_out:
            infos |= {"alive": seat.first_alive(), "_alive": every.copy()}
        if ended is None or not ended.any():
            return infos
        values = np.where(ended[:, None], seat.read("results"), 0.0)
        results = {}
        for number, name in enumerate(seat.names):
            results |= {name: values[:, number].copy(), f"_{name}": ended.copy()}
        if self._mode is not AutoresetMode.SAME_STEP:
            return infos | results
        final, last = np.full(self.num_envs, None, object), seat.read("obs")
        for row in np.flatnonzero(ended):
            final[row] = last[row].copy()
        infos |= {"final_obs": final, "_final_obs": ended.copy()}
        return infos | {"final_info": results, "_final_info": ended.copy()}
