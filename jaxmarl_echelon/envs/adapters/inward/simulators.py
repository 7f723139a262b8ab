"""Environments with the interface of brax, which MuJoCo Playground shares: `reset`, `step(state, action)`."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.types import PyTree
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.adapters.inward.conversions import (
    PLAYER,
    cast_array,
    restore_types,
    show_one_agent,
    unbounded_box,
)
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.envs.trees import strip_weak_types

SHOWN, PRIVILEGED = "state", "privileged_state"


class SimulatorState(struct.PyTreeNode):
    """The simulator's state, and the decisions taken so far, int32."""

    own: PyTree
    clock: jax.Array


class Simulator(Environment):
    """One raw environment of brax or MuJoCo Playground, with a single agent of role `player`.

    Their wrappers, which restore the first state of each environment for ever and count time limits as ends,
    are bypassed: `episodes` resets, and every episode has its own start. Of observations by name, the agent
    sees `state`, and critics see `privileged_state` where there is one.

    Attributes:
      spec: one role; metrics are reported as `metrics/NAME`, the mean over an episode's decisions of their
        means over the steps of a decision.
    """

    def __init__(self, name: str, env: Any, episode_length: int, action_repeat: int = 1):
        """Builds the environment.

        Args:
          name: its name.
          env: without wrappers.
          episode_length: steps of the environment after which an episode is cut.
          action_repeat: its steps per decision; their rewards are summed.

        Raises:
          ValueError: one line, for observations without the entry `state`.
        """
        self._env, self._repeats = env, action_repeat
        start = jax.eval_shape(env.reset, jax.random.key(0))
        shown, privileged = split_observation(name, start.obs)
        actions = Box((env.action_size,), -1.0, 1.0)
        critic = None if privileged is None else unbounded_box(privileged.shape)
        self._metrics = tuple(sorted(start.metrics))
        self.spec = EnvSpec(
            name=name,
            version=1,
            roles=(Role(PLAYER, 1, unbounded_box(shown.shape), actions, critic_observation=critic),),
            # brax's `fast` has no physics, and no `dt`.
            decision_period=float(np.asarray(getattr(env, "dt", 0.0))) * action_repeat,
            episode_limit=-(-episode_length // action_repeat),
            results=tuple(Result(f"metrics/{metric}", reduce="mean") for metric in self._metrics),
        )

    def default_params(self) -> dict[str, jax.Array]:
        """Returns the decisions after which an episode is cut; it can be lowered."""
        return {"limit": jnp.int32(self.spec.episode_limit)}

    def reset(self, key: jax.Array, params: PyTree) -> tuple[SimulatorState, TimeStep]:
        """Starts an episode."""
        del params
        own = strip_weak_types(self._env.reset(key))
        return SimulatorState(own, jnp.int32(0)), self._show(own, own.metrics, 0.0, False, False)

    def step(
        self, key: jax.Array, state: SimulatorState, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[SimulatorState, TimeStep]:
        """Advances one decision."""
        del key
        own, (rewards, taken, metrics) = jax.lax.scan(
            lambda own, _: self._step_once(own, actions[PLAYER][0]), state.own, None, self._repeats
        )
        taken |= ~taken.any()  # after the end of an episode, evaluations step on
        means = {name: jnp.mean(values, where=taken) for name, values in metrics.items()}
        clock = state.clock + 1
        shown = self._show(own, means, rewards.sum(), own.done, clock >= params["limit"])
        return SimulatorState(own, clock), shown

    def _step_once(self, own: PyTree, action: jax.Array) -> tuple[PyTree, tuple]:
        """Steps the simulator unless the episode has ended within the decision.

        Returns:
          the state; and the reward, whether the step was taken, and the metrics.
        """
        ended = cast_array(own.done, bool)
        # A copy of the containers, because brax's environments change the dictionaries of their input.
        copied = jax.tree.map(lambda x: x, own)
        after = restore_types(self._env.step(copied, action), own)
        after = jax.tree.map(lambda new, old: jnp.where(ended, old, new), after, own)
        metrics = {name: cast_array(after.metrics[name], jnp.float32) for name in self._metrics}
        return after, (jnp.where(ended, 0.0, cast_array(after.reward, jnp.float32)), ~ended, metrics)

    def _show(self, own: PyTree, metrics: PyTree, reward: Any, terminated: Any, truncated: Any) -> TimeStep:
        shown, privileged = split_observation(self.spec.name, own.obs)
        info = {f"metrics/{name}": cast_array(metrics[name], jnp.float32) for name in self._metrics}
        return show_one_agent(shown, reward, terminated, truncated, info, privileged)


def split_observation(name: str, obs: Any) -> tuple[Any, Any]:
    """Returns what the agent sees and what only critics see, or None; raises ValueError for other entries."""
    if not isinstance(obs, Mapping):
        return obs, None
    if SHOWN not in obs:
        raise ValueError(f"env.name={name}: observations are {', '.join(obs)}; must have {SHOWN}")
    return obs[SHOWN], obs.get(PRIVILEGED)


def read_length(episode_length: int | None, default: int) -> int:
    """Returns the steps of an episode, `default` for None; raises ValueError for an invalid number."""
    return default if episode_length is None else settings.read_whole("episode_length", episode_length, 1)
