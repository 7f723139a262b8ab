"""One step of learners under each of the dynamics. Source: spec drive 0.14."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.state import DT
from physics import bicycle
from physics.bicycle import Drive, Motion

NAMES = ("classic", "puffer", "puffer_o25", "jerk")
JERK_WHEELBASE = 0.6


class Dynamics(NamedTuple):
    """How commands move bodies.

    Attributes:
      start: `(motion) -> memory` of bodies that are put somewhere.
      step: `(motion, memory, first, second, wheelbase) -> (motion, memory)`.
      wheelbase: of a body of length 1 m, unless the settings say otherwise.
    """

    start: Callable
    step: Callable
    wheelbase: float = 1.0


def dynamics(name: str) -> Dynamics:
    """The dynamics called `name`, one of `NAMES`."""
    if name == "classic":
        return Dynamics(lambda motion: (), _classic)
    if name == "jerk":
        return Dynamics(_at_ease, _jerk, JERK_WHEELBASE)
    return Dynamics(_velocity, _puffer(1.0 if name == "puffer" else 0.5))


def _classic(motion: Motion, memory, first, second, wheelbase):
    return bicycle.classic(motion, first, second, wheelbase, DT), memory


def _velocity(motion: Motion) -> jax.Array:
    heading = motion.heading
    return motion.speed[..., None] * jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)


def _puffer(gain: float) -> Callable:
    def step(motion: Motion, velocity, first, second, wheelbase):
        return bicycle.puffer(motion, velocity, first, second, wheelbase, DT, gain)

    return step


def _at_ease(motion: Motion) -> Drive:
    return Drive(*(jnp.zeros_like(motion.speed) for _ in Drive._fields))


def _jerk(motion: Motion, drive: Drive, first, second, wheelbase):
    return bicycle.jerk(motion, drive, first, second, wheelbase, DT)
