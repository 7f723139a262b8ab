"""Trained policies for use outside of training."""

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.types import Agent, PyTree
from jaxmarl_echelon import command_line, run_loading
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.exporting.exported_folder import ExportedPolicy, is_exported, load_exported_policy
from jaxmarl_echelon.training.acting.controllers import to_space
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config.role_assignment import POOL, SHARED
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program.agents import make_actors


# eq=False: hashable by identity, as `jax.jit(policy)` requires; arrays are not comparable.
class Policy(struct.PyTreeNode, eq=False, repr=False):
    """A trained policy of a role: a deterministic pure function from raw observations to actions.

    It is a pytree: `jax.jit(policy)` compiles it with its parameters as constants; as arguments of compiled
    functions, policies of one architecture share a program.

    Attributes:
      state: parameters and the frozen observation normaliser.
      agent: the learner's functions.
      role: the role it acts for, whose spaces define shapes and units.
    """

    state: PyTree
    agent: Agent = struct.field(pytree_node=False)
    role: Role = struct.field(pytree_node=False)

    def __repr__(self) -> str:
        """Returns a one-line summary without the parameters, for notebooks."""
        numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(self.state))
        return (
            f"Policy(role={self.role.name}, observation={list(self.role.observation.shape)}, "
            f"action={type(self.role.action).__name__}, {numbers:,} numbers)"
        )

    def initial_memory(self, batch_shape: tuple[int, ...]) -> PyTree:
        """Returns the initial recurrent carry of `batch_shape` agents; `()` for feed-forward policies."""
        return self.agent.initial_carry(tuple(batch_shape))

    def __call__(
        self,
        obs: jax.Array,
        memory: PyTree,
        reset: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        """Acts for a batch of agents; `batch` stands for any leading axes, such as `[E, A]`.

        Where every agent has its own policy (`learner:per_agent`), the last of them is that of the agents.

        Args:
          obs: `[batch, *role.observation.shape]`, raw, in the environment's units.
          memory: from the previous call, or `initial_memory(batch)`.
          reset: `[batch]` bool; an episode begins with this decision, so the memory is reset first. None for
            no resets.
          mask: `[batch, role.action.mask_size]` bool, legal discrete actions; None if all are legal.

        Returns:
          actions in `role.action`: `[batch, D]` float32 within bounds for a Box, int32 `[batch]` for
          Discrete, int32 `[batch, n]` for n choices; and the memory.

        Raises:
          ValueError: if `obs` does not end in the role's observation shape.
        """
        obs, shape = jnp.asarray(obs), self.role.observation.shape
        batch = obs.shape[: obs.ndim - len(shape)]
        if obs.shape != (*batch, *shape):
            raise ValueError(f"obs of shape {obs.shape}: must end with {shape} for role {self.role.name}")
        reset = jnp.zeros(batch, bool) if reset is None else jnp.asarray(reset, bool)
        action, memory = self.agent.greedy(self.state, obs, memory, reset, mask)
        return to_space(self.role.action, action), memory


def make_policy(config: RunConfig, run: RunState, role: str | None = None) -> Policy:
    """Extracts a policy from a run's state.

    Args:
      config: the run's configuration.
      run: its state, as returned by `make_train`'s function (not vmapped: index into the seeds first).
      role: a role that learns or shares a learner's policy; None for the first learner.

    Raises:
      ValueError: one line, for another role.
    """
    agents = make_actors(config)
    role = next(iter(agents)) if role is None else role
    learner = find_learner(config, role)
    agent = agents[learner]
    return Policy(agent.policy_state(run.policies[learner]), agent, config.env.spec.role(role))


def load_policy(
    path: str | Path, role: str | None = None, checkpoint: str = "best_eval"
) -> Policy | ExportedPolicy:
    """Loads a policy from a checkpoint, or from an exported folder.

    Args:
      path: a run's folder, its `checkpoints` folder, one checkpoint, or a folder that `export` wrote.
      role: as for `make_policy`; an exported folder has one.
      checkpoint: name of the checkpoint in a run's folder.

    Returns:
      the policy; both kinds are called alike, only that of a checkpoint can be compiled.

    Raises:
      ValueError: one line, for a missing or unreadable checkpoint or exported folder, or another role.
    """
    command_line.use_compilation_cache()
    if is_exported(path):
        exported = load_exported_policy(path)
        if role not in (None, found := exported.contract["role"]):
            raise ValueError(f"role={role}: not the role of {path}; allowed: {found}")
        return exported
    _, _, config, _, state = run_loading.load_run(str(path), checkpoint, policy_only=True)
    return make_policy(config, state, role)


def find_learner(config: RunConfig, role: str) -> str:
    """Returns the role whose learner controls the given role; raises a one-line ValueError without one."""
    sharing: Mapping[str, str] = {
        name: controller.removeprefix(SHARED).removeprefix(POOL)
        for name, controller in config.controllers.items()
        if controller.startswith((SHARED, POOL))
    }
    actors = {name: name for name in config.algos} | sharing
    if role not in actors:
        raise ValueError(f"role={role}: has no learnt policy in this run; allowed: {', '.join(actors)}")
    return actors[role]
