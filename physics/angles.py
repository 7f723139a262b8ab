"""Wraps angles, rad. The formulas differ in rounding, and every caller keeps its own."""

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Angle = TypeVar("Angle", float, np.ndarray, jax.Array)


def wrap_angle(angle: jax.Array) -> jax.Array:
    """Wraps angles to [-pi, pi)."""
    return angle - 2 * jnp.pi * jnp.floor(angle / (2 * jnp.pi) + 0.5)


def wrap_angle_below_pi(angle: jax.Array) -> jax.Array:
    """Wraps angles to [-pi, pi), never to pi itself by rounding."""
    wrapped = angle - 2 * math.pi * jnp.floor((angle + math.pi) / (2 * math.pi))
    return jnp.where(wrapped >= math.pi, -math.pi, wrapped)


def wrap_angle_by_rounding(angle: jax.Array) -> jax.Array:
    """Wraps angles to [-pi, pi]; angles within this range are returned exactly."""
    return angle - 2.0 * jnp.pi * jnp.round(angle / (2.0 * jnp.pi))


def wrap_angle_by_remainder(angle: Angle) -> Angle:
    """Wraps angles to [-pi, pi); of NumPy arrays on the host too."""
    return (angle + math.pi) % (2 * math.pi) - math.pi
