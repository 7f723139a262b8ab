"""How smoothly bodies ride, by backward differences of speed and heading. Source: spec drive 3.1."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.state import DT, Ride
from physics.bicycle import Motion, wrap

# Bounds of nuPlan (Caesar et al. 2021).
LONGITUDINAL = (-4.05, 2.40)
LATERAL = 4.89
YAW_RATE = 0.95
YAW_ACCELERATION = 1.93
LONGITUDINAL_JERK = 4.13
JERK = 8.37


class Jolt(NamedTuple):
    """What passengers feel in a step, every leaf `[A]`; 0 where samples before the start were needed.

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


def begin(motion: Motion) -> Ride:
    """Before the first step from a pose."""
    zero = jnp.zeros_like(motion.speed)
    return Ride(motion.speed, motion.heading, zero, zero, zero, zero.astype(jnp.int32))


def feel(ride: Ride, motion: Motion) -> tuple[Jolt, Ride]:
    """One step: what it felt like, and what the next one needs."""
    longitudinal = (motion.speed - ride.speed) / DT
    yaw_rate = wrap(motion.heading - ride.heading) / DT
    lateral = motion.speed * yaw_rate

    def change(after, before):
        return jnp.where(ride.samples >= 1, (after - before) / DT, 0.0)

    jolt = Jolt(
        longitudinal,
        lateral,
        yaw_rate,
        change(yaw_rate, ride.yaw_rate),
        change(longitudinal, ride.longitudinal),
        change(lateral, ride.lateral),
    )
    return jolt, Ride(motion.speed, motion.heading, longitudinal, lateral, yaw_rate, ride.samples + 1)


def comfortable(jolt: Jolt) -> jax.Array:
    """Whether a step is within all bounds, bool `[A]`."""
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
