"""Explicit one-step integrators over pytrees; see docs/reference/f110.md 2.8."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
Derivative = Callable[[PyTree, PyTree], PyTree]


def _moved(x: PyTree, k: PyTree, h: float | jax.Array) -> PyTree:
    return jax.tree.map(lambda x_i, k_i: x_i + jnp.asarray(h, x_i.dtype) * k_i, x, k)


def euler(f: Derivative, x: PyTree, u: PyTree, dt: float | jax.Array) -> PyTree:
    """Advances x' = f(x, u) by one explicit Euler step; the local error is O(dt^2).

    Args:
      f: derivative, `(x, u) -> dx/dt` with the structure of `x`.
      x: state, any pytree of arrays.
      u: input, held constant over the step.
      dt: length of the step.

    Returns:
      The state after `dt`.
    """
    return _moved(x, f(x, u), dt)


def rk4(f: Derivative, x: PyTree, u: PyTree, dt: float | jax.Array) -> PyTree:
    """Advances x' = f(x, u) by one classical fourth-order Runge-Kutta step; the local error is O(dt^5).

    `f` sees the state of each of the four stages, so limits that depend on the state belong inside it.

    Args:
      f: derivative, `(x, u) -> dx/dt` with the structure of `x`.
      x: state, any pytree of arrays.
      u: input, held constant over the step.
      dt: length of the step.

    Returns:
      The state after `dt`.
    """
    nodes, weights = np.array([0, 1 / 2, 1 / 2, 1]), np.array([1, 2, 2, 1]) / 6

    # A loop instead of four calls: XLA's CPU fusion would recompute the first stage for every use in the
    # later ones, which is 200 times slower for a car.
    def stage(carry, coefficients):
        k, total = carry
        node, weight = coefficients
        k = f(_moved(x, k, dt * node), u)
        return (k, _moved(total, k, dt * weight)), None

    (_, total), _ = jax.lax.scan(stage, (jax.tree.map(jnp.zeros_like, x), x), (nodes, weights))
    return total
