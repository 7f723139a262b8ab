"""Ride dynamics by backward differences of speed and heading. Reference: docs/reference/drive.md 13.3."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.state import DT, Ride
from physics.angles import wrap_angle
from physics.bicycle import Motion

# Comfort bounds of nuPlan (Caesar et al. 2021, arXiv:2106.11810).
LONGITUDINAL = (-4.05, 2.40)
LATERAL = 4.89
YAW_RATE = 0.95
YAW_ACCELERATION = 1.93
LONGITUDINAL_JERK = 4.13
JERK = 8.37


class RideDynamics(NamedTuple):
    """Accelerations and jerks of a step, every leaf `[A]`; 0 where samples before the start were needed.

    Attributes:
      longitudinal, lateral: accelerations, m/s^2.
      yaw_rate: rad/s.
      yaw_acceleration: rad/s^2.
      longitudinal_jerk, lateral_jerk: m/s^3.
    """

    longitudinal: jax.Array
    lateral: jax.Array
    yaw_rate: jax.Array
    yaw_acceleration: jax.Array
    longitudinal_jerk: jax.Array
    lateral_jerk: jax.Array


def start_ride(motion: Motion) -> Ride:
    """Returns the differences before the first step from a pose."""
    zero = jnp.zeros_like(motion.speed)
    return Ride(motion.speed, motion.heading, zero, zero, zero, zero.astype(jnp.int32))


def differentiate_ride(ride: Ride, motion: Motion) -> tuple[RideDynamics, Ride]:
    """Differentiates one step; returns its accelerations and jerks, and the memory for the next step."""
    longitudinal = (motion.speed - ride.speed) / DT
    yaw_rate = wrap_angle(motion.heading - ride.heading) / DT
    lateral = motion.speed * yaw_rate

    def change(after, before):
        return jnp.where(ride.samples >= 1, (after - before) / DT, 0.0)

    jolt = RideDynamics(
        longitudinal,
        lateral,
        yaw_rate,
        change(yaw_rate, ride.yaw_rate),
        change(longitudinal, ride.longitudinal),
        change(lateral, ride.lateral),
    )
    return jolt, Ride(motion.speed, motion.heading, longitudinal, lateral, yaw_rate, ride.samples + 1)


def is_comfortable(jolt: RideDynamics) -> jax.Array:
    """Returns whether a step is within all bounds of comfort, bool `[A]`."""
    low, high = LONGITUDINAL
    return (
        (jolt.longitudinal >= low)
        & (jolt.longitudinal <= high)
        & (jnp.abs(jolt.lateral) <= LATERAL)
        & (jnp.abs(jolt.yaw_rate) <= YAW_RATE)
        & (jnp.abs(jolt.yaw_acceleration) <= YAW_ACCELERATION)
        & (jnp.abs(jolt.longitudinal_jerk) <= LONGITUDINAL_JERK)
        & (jnp.hypot(jolt.longitudinal_jerk, jolt.lateral_jerk) <= JERK)
    )
