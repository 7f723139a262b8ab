"""Traffic lights for learners: the next light ahead, and running a red light.

A light applies to bodies that approach the point at which its lane's traffic waits, in about the direction of
that lane. Axes: A learners, K lights. Reference: docs/reference/drive.md 11.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import LIGHTS
from physics.angles import wrap_angle
from physics.bicycle import Motion
from physics.segments import segments_between

OBSERVE, ENFORCE = "observe", "enforce"
KINDS = (OBSERVE, ENFORCE)
RED = tuple(LIGHTS.index(name) for name in ("stop", "arrow_stop", "flashing_stop"))
REACH = 50.0  # m ahead
ASIDE = 2.5  # m to either side of the line
TURN = jnp.pi / 4  # between the headings of the body and the lane
OVER = 0.5  # m by which a waiting body may have crossed the line


class Signal(NamedTuple):
    """The next light ahead of learners, every leaf `[A]`.

    Attributes:
      gap: from the learner's front to the stop line, m; 0 without a light.
      red: bool; the light is red.
      found: bool; there is a light.
    """

    gap: jax.Array
    red: jax.Array
    found: jax.Array


def find_red_lights(bank: SceneBank, scene: jax.Array, sample: jax.Array) -> jax.Array:
    """Lights that are red at a sample of the recording, bool `[K]`."""
    states = bank.light[scene, jnp.clip(sample, 0, bank.light.shape[1] - 1)]
    return jnp.any(states[:, None] == jnp.array(RED, states.dtype), axis=-1)


def find_next_lights(
    bank: SceneBank, scene: jax.Array, sample: jax.Array, motion: Motion, length: jax.Array
) -> Signal:
    """Returns the nearest light ahead of each learner.

    Args:
      bank: the scenes.
      scene: int32.
      sample: int32, of the recording.
      motion: of the learners, leaves `[A]`.
      length: of the learners, `[A]` m.
    """
    gap, meant = _lines(bank, scene, motion, length)
    gap = jnp.where(meant & (gap > -OVER) & (gap < REACH), gap, jnp.inf)
    nearest = jnp.argmin(gap, axis=-1)
    gap = jnp.min(gap, axis=-1)
    found = jnp.isfinite(gap)
    return Signal(jnp.where(found, gap, 0.0), found & find_red_lights(bank, scene, sample)[nearest], found)


def ran_red_light(
    bank: SceneBank, scene: jax.Array, sample: jax.Array, before: Motion, after: Motion, length: jax.Array
) -> jax.Array:
    """Learners that crossed a red light's line in a step, bool `[A]`; arguments as in `find_next_lights`."""
    (gap, meant), (left, _) = (_lines(bank, scene, motion, length) for motion in (before, after))
    return jnp.any(meant & (gap > 0) & (left <= 0) & find_red_lights(bank, scene, sample), axis=-1)


def _lines(bank: SceneBank, scene: jax.Array, motion: Motion, length: jax.Array):
    """Distances `[A, K]` from fronts to the stop lines, m, and whether each light applies to each learner."""
    point, lane = bank.light_point[scene], bank.light_lane[scene].astype(jnp.int32)
    ends = bank.segment[scene][jnp.maximum(bank.lane_first[scene][jnp.maximum(lane, 0)], 0)]
    part = segments_between(ends[:, :2], ends[:, 2:])
    dx, dy = motion.x[:, None] - point[:, 0], motion.y[:, None] - point[:, 1]
    along, aside = dx * part.cos + dy * part.sin, dy * part.cos - dx * part.sin
    turn = jnp.abs(wrap_angle(motion.heading[:, None] - jnp.arctan2(part.sin, part.cos)))
    meant = (lane >= 0) & (jnp.abs(aside) <= ASIDE) & (turn <= TURN)
    return -along - length[:, None] / 2, meant
