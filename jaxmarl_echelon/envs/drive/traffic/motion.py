"""Steps of learners under each of the dynamics. Reference: docs/reference/drive.md 6.2 to 6.4."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.state import DT
from physics import bicycle
from physics.bicycle import JerkState, Motion

NAMES = ("classic", "puffer", "puffer_o25", "jerk")
JERK_WHEELBASE = 0.6


class Dynamics(NamedTuple):
    """One vehicle model.

    Attributes:
      start: `(motion) -> memory` for bodies that are placed at a pose.
      step: `(motion, memory, first, second, wheelbase) -> (motion, memory)`.
      wheelbase: default wheelbase as a fraction of the body's length.
    """

    start: Callable
    step: Callable
    wheelbase: float = 1.0


def make_dynamics(name: str) -> Dynamics:
    """Returns the dynamics called `name`, one of `NAMES`."""
    if name == "classic":
        return Dynamics(lambda _motion: (), _classic)
    if name == "jerk":
        return Dynamics(_at_ease, _jerk, JERK_WHEELBASE)
    return Dynamics(_velocity, _puffer(1.0 if name == "puffer" else 0.5))


def _classic(motion: Motion, memory, first, second, wheelbase):
    return bicycle.step_classic_bicycle(motion, first, second, wheelbase, DT), memory


def _velocity(motion: Motion) -> jax.Array:
    heading = motion.heading
    return motion.speed[..., None] * jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)


def _puffer(gain: float) -> Callable:
    def step(motion: Motion, velocity, first, second, wheelbase):
        return bicycle.step_puffer_bicycle(motion, velocity, first, second, wheelbase, DT, gain)

    return step


def _at_ease(motion: Motion) -> JerkState:
    return JerkState(*(jnp.zeros_like(motion.speed) for _ in JerkState._fields))


def _jerk(motion: Motion, drive: JerkState, first, second, wheelbase):
    return bicycle.step_jerk_bicycle(motion, drive, first, second, wheelbase, DT)
