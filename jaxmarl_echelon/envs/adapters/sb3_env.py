"""Stable-Baselines3's `VecEnv` (2.4 to 2.9) over one compiled step of E environments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from algos.types import PyTree
from jaxmarl_echelon.envs.adapters.gymnasium_env import OneSeat
from jaxmarl_echelon.envs.adapters.gymnasium_spaces import read_actions, to_gymnasium_space
from jaxmarl_echelon.envs.adapters.play import Autoreset
from jaxmarl_echelon.envs.adapters.seats import Seats
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.spaces import Box

SUCCESS = "success"


class SeatVecEnv(VecEnv):
    """Vector of E environments in which SB3 learns one agent; made by `to_sb3`.

    Actions of a box are in [-1, 1], mapped linearly to the role's bounds, as SB3 recommends and as this
    project's learners act. The infos of an episode's end have "terminal_observation",
    "TimeLimit.truncated", the results by name, and "is_success" where the environment has the result
    `success`. Roles with masks have the method `action_masks` of sb3-contrib.
    """

    def __init__(self, env: Environment, seats: Seats, num_envs: int, params: PyTree = None):
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: must be at least 1")
        self._seat = OneSeat(env, seats, num_envs, Autoreset.SAME_STEP, params)
        self.render_mode = None
        space = self._seat.role.action
        shown, self._low, self._high = to_gymnasium_space(space), None, None
        if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
            self._low, self._high = (bound.astype(np.float32) for bound in space.bounds())
            shown = spaces.Box(-1.0, 1.0, space.shape, np.float32)
        super().__init__(num_envs, to_gymnasium_space(self._seat.role.observation), shown)

    def reset(self) -> np.ndarray:
        """Begins an episode in every environment, of the seeds that `seed` set if it was called before."""
        if not self._seat.begun and self._seeds[0] is None:
            self.seed()
        self._seat.begin(None if self._seeds[0] is None else self._seeds)
        self._reset_seeds()
        self._reset_options()
        return self._seat.first_obs()

    def step_async(self, actions: np.ndarray) -> None:
        """Starts a decision in each environment; jax returns before it is computed.

        Raises:
          ValueError: one line, for actions of another shape.
        """
        space = self._seat.role.action
        given = read_actions("actions", actions, (self.num_envs, *space.shape), space)
        if self._low is not None:
            given = self._low + (np.clip(given, -1.0, 1.0) + 1.0) * 0.5 * (self._high - self._low)
        self._seat.advance(given)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Returns first observations of new episodes where one ended, rewards, ends and infos."""
        seat = self._seat
        rewards, ended = seat.read("reward"), np.array(seat.step.ended)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if ended.any():
            last, results, cut = seat.read("obs"), seat.read("results"), seat.read("truncated")
            success = seat.names.index(SUCCESS) if SUCCESS in seat.names else None
            for row in np.flatnonzero(ended):
                values = results[row].tolist()
                infos[row] = dict(zip(seat.names, values, strict=True)) | {
                    "terminal_observation": last[row].copy(),
                    "TimeLimit.truncated": bool(cut[row]),
                }
                if success is not None:
                    infos[row]["is_success"] = values[success] >= 0.5
        return seat.first_obs(), rewards, ended, infos

    def action_masks(self) -> np.ndarray:
        """Returns the legal actions of the coming decision, bool `[E, n]`.

        Raises:
          AttributeError: for environments without masks.
        """
        mask = self._seat.first_mask() if self._seat.begun else None
        if mask is None:
            raise AttributeError(f"action_masks: {self._seat.env.spec.name} has no masks, or was not reset")
        return mask.astype(bool)

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns an attribute once per environment.

        Raises:
          AttributeError: for attributes other than `render_mode` and, with masks, `action_masks`.
        """
        rows = list(self._get_indices(indices))
        if attr_name == "render_mode":
            return [None] * len(rows)
        # Asked for before the first reset as well, to learn whether there are masks.
        if attr_name == "action_masks" and self._seat.masked:
            return [lambda row=row: self.action_masks()[row] for row in rows]
        raise AttributeError(f"{attr_name}: environments of one program have no attributes of their own")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raises AttributeError: the environments are rows of one program."""
        del indices
        raise AttributeError(f"{attr_name}={value}: environments of one program have no attributes to set")

    def env_method(self, method_name: str, *method_args, indices: Any = None, **method_kwargs) -> list[Any]:
        """Returns the result of a method, once per environment.

        Raises:
          AttributeError: for methods other than `action_masks`.
        """
        if method_name != "action_masks" or method_args or method_kwargs:
            raise AttributeError(f"{method_name}: unknown method; allowed: action_masks")
        return list(self.action_masks()[list(self._get_indices(indices))])

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> Sequence[bool]:
        """Returns False once per environment."""
        del wrapper_class
        return [False for _ in self._get_indices(indices)]
