"""Policies of finished runs, to act with outside of the training program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from algos.types import Agent
from jaxmarl_echelon import evaluate
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.training.agents import make_actors
from jaxmarl_echelon.training.config import SHARED, RunConfig
from jaxmarl_echelon.training.controllers import to_space
from jaxmarl_echelon.training.types import RunState

PyTree = Any


# Compared by identity, so that `jax.jit(policy)` can tell policies apart without looking at their arrays.
@struct.dataclass(eq=False)
class Policy:
    """What a learner has learnt for a role: deterministic, pure, from raw observations to actions.

    A pytree: `jax.jit(policy)` compiles it with its parameters, and it can be an argument of other
    compiled functions, so that policies of one architecture share a program.

    Attributes:
      state: what the learner acts with: parameters, and the observation normaliser, which stays as it is.
      agent: the learner's functions.
      role: the role that it acts for; its spaces give shapes and units.
    """

    state: PyTree
    agent: Agent = struct.field(pytree_node=False)
    role: Role = struct.field(pytree_node=False)

    def initial_memory(self, batch_shape: tuple[int, ...]) -> PyTree:
        """Memory before the first decision of `batch_shape` agents; `()` where the policy has none."""
        return self.agent.initial_carry(tuple(batch_shape))

    def __call__(
        self,
        obs: jax.Array,
        memory: PyTree,
        reset: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        """Decides for any number of agents; `batch` stands for one or more leading axes, as `[E, A]`.

        Args:
          obs: `[batch, *role.observation.shape]`, as the environment returns them, in its units.
          memory: as returned by the last call, or by `initial_memory(batch)`.
          reset: `[batch]` bool, where an episode begins with this decision: memory is cleared before it.
            None for nowhere.
          mask: `[batch, role.action.mask_size]` bool, which discrete actions are allowed; None for all.

        Returns:
          the actions in `role.action`: for a box `[batch, D]` float32 in its units, within its bounds; for
          discrete choices int32, `[batch]` of one and `[batch, n]` of n; and the memory.

        Raises:
          ValueError: observations of another shape.
        """
        obs, shape = jnp.asarray(obs), self.role.observation.shape
        batch = obs.shape[: obs.ndim - len(shape)]
        if obs.shape != (*batch, *shape):
            raise ValueError(f"obs of shape {obs.shape}: must end with {shape}, as {self.role.name} sees it")
        reset = jnp.zeros(batch, bool) if reset is None else jnp.asarray(reset, bool)
        action, memory = self.agent.greedy(self.state, obs, memory, reset, mask)
        return to_space(self.role.action, action), memory


def make_policy(config: RunConfig, run: RunState, role: str | None = None) -> Policy:
    """The policy of a run's state.

    Args:
      config: of the run.
      run: its state, as `make_train`'s function returns it (of one run: index those of mapped ones first).
      role: that it is to act for, one that learns or shares a learner's policy; None for the first learner.

    Raises:
      ValueError: one line, for another role.
    """
    agents = make_actors(config)
    role = next(iter(agents)) if role is None else role
    learner = _learner(config, role)
    agent = agents[learner]
    return Policy(agent.policy_state(run.policies[learner]), agent, config.env.spec.role(role))


def load_policy(path: str | Path, role: str | None = None, checkpoint: str = "best_eval") -> Policy:
    """The policy of a checkpoint.

    Args:
      path: a run's folder, its `checkpoints` folder, or one checkpoint.
      role: as for `make_policy`.
      checkpoint: which one of a run's folder.

    Raises:
      ValueError: one line, for no such checkpoint, one that cannot be read, or another role.
    """
    _, _, config, _, state = evaluate.load(path, checkpoint)
    return make_policy(config, state, role)


def _learner(config: RunConfig, role: str) -> str:
    """The role whose learner acts for a role."""
    sharing: Mapping[str, str] = {
        name: controller.removeprefix(SHARED)
        for name, controller in config.controllers.items()
        if controller.startswith(SHARED)
    }
    actors = {name: name for name in config.algos} | sharing
    if role not in actors:
        raise ValueError(f"role={role}: that run learnt {', '.join(actors)}")
    return actors[role]
