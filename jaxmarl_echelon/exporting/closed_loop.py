"""Exported policies in the environments of a run, to compare their scores with those of `evaluate`."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import Environment, Role
from jaxmarl_echelon.exporting.exported_folder import ExportedPolicy
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.program.agents import single_seat_role


def make_exported_controller(policy: ExportedPolicy, env: Environment, role: Role) -> Controller:
    """Builds the controller that acts by an exported policy, outside of the compiled program.

    Args:
      policy: of any format.
      env: the environment; where it has turns, the policy acts for one seat at a time.
      role: the role that it plays, with its number of agents.

    Returns:
      a controller for `Program.evaluate_with_controllers`.
    """
    agents = single_seat_role(env, role).size

    def init(num_envs):
        return jax.tree.map(jnp.asarray, policy.initial_memory((num_envs, agents)))

    def act(key, state, memory, view, reset):
        del key, state
        obs, mask = view.time.obs[role.name], view.time.action_mask.get(role.name)
        shape = obs.shape[: obs.ndim - len(role.observation.shape)]
        action = jax.ShapeDtypeStruct((*shape, *role.action.shape), role.action.dtype)
        after = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), memory)
        given = obs, memory, view.time.restarts(role.name, reset), mask
        action, memory = jax.pure_callback(policy, (action, after), *given)
        return memory, action, None

    return Controller(init, act)
