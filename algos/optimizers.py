"""Adam and RMSprop with traced hyper-parameters, gradient clipping and annealing."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

PyTree = Any

SCHEDULES = ("constant", "linear", "cosine")


@struct.dataclass
class AdamState:
    """State of Adam.

    Attributes:
      mean: running mean of the gradients, shaped like the parameters.
      square: running mean of their squares, shaped like the parameters.
      count: int32 scalar, steps taken.
    """

    mean: PyTree
    square: PyTree
    count: jax.Array


def init_adam(params: PyTree) -> AdamState:
    """State before the first step."""
    return AdamState(
        jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32)
    )


def adam(
    grads: PyTree,
    state: AdamState,
    params: PyTree,
    *,
    learning_rate: jax.Array | float,
    beta1: jax.Array | float = 0.9,
    beta2: jax.Array | float = 0.999,
    eps: jax.Array | float = 1e-8,
    scale: jax.Array | float = 1.0,
    apply: jax.Array | bool = True,
) -> tuple[PyTree, AdamState]:
    """One step of Adam (Kingma and Ba 2015, algorithm 1).

    Both bias corrections are folded into the step size and `eps`, which leaves one square root
    and one division per parameter.

    Args:
      grads: gradients, shaped like `params`.
      state: the state so far.
      params: the parameters.
      learning_rate, beta1, beta2, eps: as in the paper; may be traced.
      scale: factor on the gradients, from `clip_scale`.
      apply: bool scalar; where False nothing changes, whatever the gradients hold.

    Returns:
      `(params, state)` after the step.
    """
    count = state.count + 1
    root = jnp.sqrt(1.0 - beta2**count)
    step_size = learning_rate * root / (1.0 - beta1**count)

    mean = jax.tree.map(
        lambda m, g: jnp.where(apply, beta1 * m + (1.0 - beta1) * scale * g, m), state.mean, grads
    )
    square = jax.tree.map(
        lambda v, g: jnp.where(apply, beta2 * v + (1.0 - beta2) * jnp.square(scale * g), v),
        state.square,
        grads,
    )
    step_size = jnp.where(apply, step_size, 0.0)
    params = jax.tree.map(
        lambda p, m, v: p - step_size * m / (jnp.sqrt(v) + eps * root), params, mean, square
    )
    return params, AdamState(mean, square, jnp.where(apply, count, state.count))


@struct.dataclass
class RMSpropState:
    """State of RMSprop: the running mean of the squared gradients, shaped like the parameters."""

    square: PyTree


def init_rmsprop(params: PyTree) -> RMSpropState:
    """State before the first step."""
    return RMSpropState(jax.tree.map(jnp.zeros_like, params))


def rmsprop(
    grads: PyTree,
    state: RMSpropState,
    params: PyTree,
    *,
    learning_rate: jax.Array | float,
    decay: jax.Array | float = 0.99,
    eps: jax.Array | float = 1e-5,
    scale: jax.Array | float = 1.0,
    apply: jax.Array | bool = True,
) -> tuple[PyTree, RMSpropState]:
    """One step of RMSprop (Tieleman and Hinton 2012), without momentum or bias correction.

    Args:
      grads: gradients, shaped like `params`.
      state: the state so far.
      params: the parameters.
      learning_rate: length of a step along a gradient of constant size; may be traced.
      decay: weight of the past in the running mean; may be traced.
      eps: added to the root of the running mean; may be traced.
      scale: factor on the gradients, from `clip_scale`.
      apply: bool scalar; where False nothing changes, whatever the gradients hold.

    Returns:
      `(params, state)` after the step.
    """
    square = jax.tree.map(
        lambda v, g: jnp.where(apply, decay * v + (1.0 - decay) * jnp.square(scale * g), v),
        state.square,
        grads,
    )
    params = jax.tree.map(
        lambda p, g, v: p - jnp.where(apply, learning_rate * scale * g / (jnp.sqrt(v) + eps), 0.0),
        params,
        grads,
        square,
    )
    return params, RMSpropState(square)


def global_norm(tree: PyTree) -> jax.Array:
    """Euclidean norm over all leaves together, a scalar."""
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree)))


def clip_scale(norm: jax.Array, max_norm: jax.Array | float) -> jax.Array:
    """Factor that brings a gradient of this norm down to at most `max_norm`; 1 where it is below."""
    return jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))


def anneal(
    schedule: str, start: jax.Array | float, end: jax.Array | float, progress: jax.Array | float
) -> jax.Array:
    """Value at `progress` in [0, 1] (clipped) on the way from `start` to `end`.

    Args:
      schedule: "constant" (always `start`), "linear" or "cosine" (half a period).
      start: value at progress 0.
      end: value at progress 1.
      progress: share of the training done.

    Raises:
      ValueError: for an unknown schedule.
    """
    if schedule == "constant":
        return jnp.asarray(start)
    done = jnp.clip(progress, 0.0, 1.0)
    if schedule == "cosine":
        done = 0.5 * (1.0 - jnp.cos(jnp.pi * done))
    elif schedule != "linear":
        raise ValueError(f"schedule={schedule}: unknown; allowed: {', '.join(SCHEDULES)}")
    return start + (end - start) * done
