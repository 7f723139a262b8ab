"""Shared by adapters of other libraries' environments: names, spaces, dtypes, time steps of one agent."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from algos.checks import require_choice
from algos.types import PyTree
from jaxmarl_echelon.envs.base import TimeStep
from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete, Space

# The role of an environment's only agent.
PLAYER = "player"


def require_known_name(library: str, name: str, known: Collection[str]) -> None:
    """Raises a one-line ValueError with similar names unless a library knows the environment."""
    require_choice("env.name", name, known, f"unknown to {library}")


def cast_array(x: Any, dtype: Any) -> jax.Array:
    """Converts to a strongly typed array; mixing Python scalars and arrays would cause retraces."""
    return lax.convert_element_type(jnp.asarray(x), dtype)


def restore_types(after: PyTree, before: PyTree) -> PyTree:
    """Converts the leaves of a state from a step to the dtypes of the state before it."""

    def one(new, old):
        keys = jnp.issubdtype(old.dtype, jax.dtypes.extended)
        return new if keys else cast_array(new, old.dtype)

    return jax.tree.map(one, after, before)


def convert_action_space(space: Any) -> Space:
    """Converts a space with `n`, `num_categories` or `low` and `high`, as in gymnax and JaxMARL."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "num_categories"):
        return MultiDiscrete(tuple(np.asarray(space.num_categories).tolist()))
    low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
    return Box(space.shape, low, high)


def unbounded_box(shape: tuple[int, ...]) -> Box:
    """Returns a box without bounds: those of other libraries are often violated, or depend on parameters."""
    return Box(shape, -np.inf, np.inf)


def show_one_agent(
    obs: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    info: Mapping[str, jax.Array] | None = None,
    critic_obs: Any = None,
) -> TimeStep:
    """Returns the time step of an environment with one agent of role `player`.

    Args:
      obs: its observation, converted to float32.
      reward: scalar.
      terminated, truncated: scalar flags; if both are set, the episode is terminated.
      info: entries of results.
      critic_obs: privileged observation, converted to float32, or None.
    """
    terminated = cast_array(terminated, bool)
    truncated = cast_array(truncated, bool) & ~terminated
    over = terminated | truncated
    return TimeStep(
        obs={PLAYER: cast_array(obs, jnp.float32)[None]},
        reward={PLAYER: cast_array(reward, jnp.float32)[None]},
        terminated={PLAYER: terminated[None]},
        truncated={PLAYER: truncated[None]},
        alive={PLAYER: ~over[None]},
        action_mask={},
        over=over,
        info=dict(info or {}),
        critic_obs={} if critic_obs is None else {PLAYER: cast_array(critic_obs, jnp.float32)[None]},
    )
