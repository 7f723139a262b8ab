"""Explicit one-step integrators over pytrees."""

from collections.abc import Callable
from typing import Any

import jax

PyTree = Any
Derivative = Callable[[PyTree, PyTree], PyTree]


def _moved(x: PyTree, k: PyTree, h: float | jax.Array) -> PyTree:
    return jax.tree.map(lambda x_i, k_i: x_i + h * k_i, x, k)


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
    k1 = f(x, u)
    k2 = f(_moved(x, k1, dt / 2), u)
    k3 = f(_moved(x, k2, dt / 2), u)
    k4 = f(_moved(x, k3, dt), u)
    mean = jax.tree.map(lambda a, b, c, d: (a + 2 * (b + c) + d) / 6, k1, k2, k3, k4)
    return _moved(x, mean, dt)
