"""Kinematic bicycle models of road vehicles; each advances a body by one step of `dt` seconds.

Positions in m, headings in rad (counter-clockwise from +x), speeds in m/s. All arguments broadcast; nothing
depends on the number of bodies. Formulas: docs/reference/f110.md 16.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from physics.angles import wrap_angle

CLASSIC_SPEEDS = (-5.0, 40.0)
JERK_SPEEDS = (-2.0, 20.0)
LONGITUDINAL = (-5.0, 2.5)
LATERAL = 4.0
STEERING = 0.55
STEERING_RATE = 0.6
_STRAIGHT = 1e-5


class Motion(NamedTuple):
    """Positions, headings and speeds of bodies, every leaf `[...]`.

    Attributes:
      x, y: centre.
      heading: rad.
      speed: along the heading, negative backwards.
    """

    x: jax.Array
    y: jax.Array
    heading: jax.Array
    speed: jax.Array


class JerkState(NamedTuple):
    """State of the jerk-controlled model in addition to `Motion`, every leaf `[...]`.

    Attributes:
      longitudinal: acceleration along the heading, m/s^2.
      lateral: acceleration to the left, m/s^2.
      steering: rad.
    """

    longitudinal: jax.Array
    lateral: jax.Array
    steering: jax.Array


def step_classic_bicycle(
    motion: Motion, acceleration: jax.Array, steering: jax.Array, wheelbase: jax.Array, dt: float
) -> Motion:
    """Advances a bicycle about the middle of its wheelbase with the mean of the old and the new speed.

    A speed that would change its sign is 0 for one step; speeds are clipped to [-5, 40] m/s.

    Args:
      motion: before the step.
      acceleration: m/s^2.
      steering: rad, left positive.
      wheelbase: m.
      dt: s.
    """
    speed = jnp.clip(_stop_at_sign_change(motion.speed, motion.speed + acceleration * dt), *CLASSIC_SPEEDS)
    mean = (motion.speed + speed) / 2
    slope = jnp.tan(steering)
    slip = jnp.arctan(slope / 2)
    course = motion.heading + slip
    return Motion(
        motion.x + mean * jnp.cos(course) * dt,
        motion.y + mean * jnp.sin(course) * dt,
        wrap_angle(motion.heading + mean * jnp.cos(slip) * slope / wheelbase * dt),
        speed,
    )


def step_puffer_bicycle(
    motion: Motion,
    velocity: jax.Array,
    acceleration: jax.Array,
    steering: jax.Array,
    wheelbase: jax.Array,
    dt: float,
    gain: float = 1.0,
) -> tuple[Motion, jax.Array]:
    """Advances one step as in PufferDrive (December 2025): unsigned old speed, tanh in place of arctan.

    Args:
      motion: before the step; its speed is not used.
      velocity: `[..., 2]` in the world's axes, m/s.
      acceleration: m/s^2.
      steering: rad.
      wheelbase: m.
      dt: s.
      gain: factor on the acceleration; 0.5 is the version of October 2025.

    Returns:
      motion with the speed at which the body moved, and the velocity `[..., 2]`.
    """
    speed = jnp.hypot(velocity[..., 0], velocity[..., 1]) + gain * acceleration * dt
    slope = jnp.tan(steering)
    slip = jnp.tanh(slope / 2)
    course = motion.heading + slip
    velocity = speed[..., None] * jnp.stack([jnp.cos(course), jnp.sin(course)], axis=-1)
    heading = motion.heading + speed * jnp.cos(slip) * slope / wheelbase * dt
    x, y = motion.x + velocity[..., 0] * dt, motion.y + velocity[..., 1] * dt
    return Motion(x, y, heading, speed), velocity


def step_jerk_bicycle(
    motion: Motion,
    drive: JerkState,
    longitudinal: jax.Array,
    lateral: jax.Array,
    wheelbase: jax.Array,
    dt: float,
) -> tuple[Motion, JerkState]:
    """Advances a bicycle that is controlled by its jerks along and across the heading.

    Accelerations integrate the jerks, the steering angle follows the lateral acceleration at a limited rate,
    and the body moves along a circular arc.

    Args:
      motion: before the step.
      drive: accelerations and steering before the step.
      longitudinal: jerk along the heading, m/s^3.
      lateral: jerk to the left, m/s^3.
      wheelbase: m.
      dt: s.
    """
    along = jnp.clip(
        _stop_at_sign_change(drive.longitudinal, drive.longitudinal + longitudinal * dt), *LONGITUDINAL
    )
    across = jnp.clip(_stop_at_sign_change(drive.lateral, drive.lateral + lateral * dt), -LATERAL, LATERAL)
    gained = motion.speed + (drive.longitudinal + along) / 2 * dt
    speed = jnp.clip(_stop_at_sign_change(motion.speed, gained), *JERK_SPEEDS)
    wanted = jnp.arctan(across / jnp.square(jnp.maximum(jnp.abs(speed), 1.0)) * wheelbase)
    turn = jnp.clip(wanted - drive.steering, -STEERING_RATE * dt, STEERING_RATE * dt)
    steering = jnp.clip(drive.steering + turn, -STEERING, STEERING)
    curvature = jnp.tan(steering) / wheelbase
    arc = (motion.speed + speed) / 2 * dt
    angle = arc * curvature
    ahead, left = _along_arc(arc, angle, curvature)
    cos, sin = jnp.cos(motion.heading), jnp.sin(motion.heading)
    moved = Motion(
        motion.x + cos * ahead - sin * left,
        motion.y + sin * ahead + cos * left,
        wrap_angle(motion.heading + angle),
        speed,
    )
    return moved, JerkState(along, jnp.square(speed) * curvature, steering)


def _stop_at_sign_change(before: jax.Array, after: jax.Array) -> jax.Array:
    """Returns `after`, or 0 where its sign is opposite to that of `before`."""
    return jnp.where(before * after < 0, 0.0, after)


def _along_arc(arc: jax.Array, angle: jax.Array, curvature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns displacements ahead and to the left along an arc, m; a straight line for tiny curvatures."""
    straight = (jnp.abs(curvature) < _STRAIGHT) | (jnp.abs(angle) < _STRAIGHT)
    safe = jnp.where(straight, 1.0, curvature)
    ahead = jnp.where(straight, arc, jnp.sin(angle) / safe)
    return ahead, jnp.where(straight, 0.0, (1 - jnp.cos(angle)) / safe)
