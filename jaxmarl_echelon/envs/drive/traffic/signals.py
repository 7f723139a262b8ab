"""Traffic lights as learners meet them: the next one ahead, and who runs a red one. Source: spec drive 0.21.

A light concerns who drives towards the place where its lane's traffic waits, in about the direction of that
lane. A learners, K lights.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import LIGHTS
from physics.bicycle import Motion, wrap
from physics.segments import between

OBSERVE, ENFORCE = "observe", "enforce"
KINDS = (OBSERVE, ENFORCE)
RED = tuple(LIGHTS.index(name) for name in ("stop", "arrow_stop", "flashing_stop"))
REACH = 50.0  # m ahead
ASIDE = 2.5  # m to either side of the line
TURN = jnp.pi / 4  # between the headings of the body and the lane
OVER = 0.5  # m by which who waits may stand over the line


class Signal(NamedTuple):
    """The next light ahead of learners, every leaf `[A]`.

    Attributes:
      gap: from the front to the line, m; 0 without a light.
      red: bool; it says stop.
      found: bool; there is one.
    """

    gap: jax.Array
    red: jax.Array
    found: jax.Array


def red(bank: SceneBank, scene: jax.Array, sample: jax.Array) -> jax.Array:
    """Which lights say stop at a sample of the recording, bool `[K]`."""
    states = bank.light[scene, jnp.clip(sample, 0, bank.light.shape[1] - 1)]
    return jnp.any(states[:, None] == jnp.array(RED, states.dtype), axis=-1)


def ahead(bank: SceneBank, scene: jax.Array, sample: jax.Array, motion: Motion, length: jax.Array) -> Signal:
    """The nearest light ahead of each learner.

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
    return Signal(jnp.where(found, gap, 0.0), found & red(bank, scene, sample)[nearest], found)


def ran(
    bank: SceneBank, scene: jax.Array, sample: jax.Array, before: Motion, after: Motion, length: jax.Array
) -> jax.Array:
    """Which learners crossed the line of a red light in a step, bool `[A]`; arguments are as in `ahead`."""
    (gap, meant), (left, _) = (_lines(bank, scene, motion, length) for motion in (before, after))
    return jnp.any(meant & (gap > 0) & (left <= 0) & red(bank, scene, sample), axis=-1)


def _lines(bank: SceneBank, scene: jax.Array, motion: Motion, length: jax.Array):
    """Metres `[A, K]` from fronts to the lines of lights, and whether these concern the learners."""
    point, lane = bank.light_point[scene], bank.light_lane[scene].astype(jnp.int32)
    ends = bank.segment[scene][jnp.maximum(bank.lane_first[scene][jnp.maximum(lane, 0)], 0)]
    part = between(ends[:, :2], ends[:, 2:])
    dx, dy = motion.x[:, None] - point[:, 0], motion.y[:, None] - point[:, 1]
    along, aside = dx * part.cos + dy * part.sin, dy * part.cos - dx * part.sin
    turn = jnp.abs(wrap(motion.heading[:, None] - jnp.arctan2(part.sin, part.cos)))
    meant = (lane >= 0) & (jnp.abs(aside) <= ASIDE) & (turn <= TURN)
    return -along - length[:, None] / 2, meant
