"""The environment of driving on scenes made by hand, and programs that tests share."""

from functools import cache

import jax
import numpy as np
from drive_scenes import AGENTS, small_bank

from jaxmarl_echelon.envs.drive.env import Drive
from jaxmarl_echelon.envs.drive.make import make
from jaxmarl_echelon.envs.drive.rewards import make_reward
from jaxmarl_echelon.envs.drive.scenes.library import Scenes

KINDS = ("straight",)


def drive(bank=None, reward=None, **given) -> Drive:
    """The environment with some settings; all scenes are drawn, the last one is held out."""
    bank = small_bank() if bank is None else bank
    count = bank.kind.shape[0]
    scenes = Scenes(bank, ("made",) * count, KINDS, np.zeros((count, 2)), count, (count - 1, 1), ())
    return make(reward or make_reward(), scenes=scenes, **given)


class Programs:
    """Compiled reset and step of one environment, with its parameters and scenes as arguments."""

    def __init__(self, env: Drive):
        self.env = env
        self.params = env.default_params()
        self._reset = jax.jit(lambda key, params, world: env.with_world(world).reset(key, params))
        self._step = jax.jit(
            lambda key, state, action, params, world: env.with_world(world).step(
                key, state, {"vehicle": action}, params
            )
        )

    def reset(self, scene: int = 0, seed: int = 0, **changes):
        """Starts an episode in one scene; `changes` are settings."""
        params = self.in_scene(scene, **changes)
        return self._reset(jax.random.key(seed), params, self.env.world)

    def in_scene(self, scene: int, **changes):
        """Parameters of episodes in one scene."""
        params = self.env.task_params(changes) if changes else self.params
        return params.replace(first_scene=params.first_scene * 0 + scene, scenes=params.scenes * 0 + 1)

    def step(self, state, action, params, seed: int = 0):
        """One decision."""
        return self._step(jax.random.key(seed), state, action, params, self.env.world)

    def play(self, actions, scene: int = 0, **changes):
        """States and time steps of an episode; `actions` is `(index, state) -> [A, ...]`, or one array."""
        params = self.in_scene(scene, **changes)
        state, time = self._reset(jax.random.key(0), params, self.env.world)
        states, times = [state], [time]
        while not bool(time.over):
            action = actions(len(states) - 1, state) if callable(actions) else actions
            state, time = self.step(state, action, params, seed=len(states))
            states.append(state)
            times.append(time)
        return states, times


@cache
def programs(**given) -> Programs:
    """Shared programs of the small scenes."""
    return Programs(drive(**given))


def scripted(env: Drive, name: str):
    """Actions of a script that always gives the same."""
    return env.scripts[name].act(jax.random.key(0), (), None, None)[1]


__all__ = ["AGENTS", "Programs", "drive", "programs", "scripted"]
