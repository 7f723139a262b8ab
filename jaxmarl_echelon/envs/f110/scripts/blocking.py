"""Attacker that blocks a follow-the-gap driver's view until it turns into a wall.

The attacker holds one of three poses relative to the defender by proportional feedback: first close in front
of its nose, then nearly touching it, and out of its way as soon as it is near a wall or turned. See
docs/reference/f110.md 15.2.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.f110.cars.simulation import SPEED, YAW, X, Y, poses_of
from jaxmarl_echelon.envs.f110.state import ATTACKER, DEFENDER
from physics.angles import wrap_angle
from physics.boxes import corners_of_box
from physics.mapbank import distance_at


class BlockingLaw(NamedTuple):
    """Numbers of the feedback law, or arrays of them.

    Attributes:
      poses: `[3, 3]`, three poses in the defender's frame: m ahead, m to the left, rad.
      kx: 1/s, speed per metre that the attacker is behind its pose.
      ky: rad/m, course per metre that it is to the right of it.
      kp: steering angle per radian of course error.
      after: s, time after which the second pose applies.
      near: m, distance of the defender from a wall below which the third pose applies.
      off: rad, change of the defender's heading since the start above which the third pose applies.
    """

    poses: Any
    kx: Any
    ky: Any
    kp: Any
    after: Any
    near: Any
    off: Any


# Laws by spawn point, for drivers that aim at the farthest point and, where they differ, at the gap's centre.
# The search judged each with the weakest and the strongest driver of the phases.
FARTHEST = {
    "pinch_right": BlockingLaw(
        ((0.479, 0.173, 0.42), (0.369, -0.065, 0.144), (0.772, 0.791, -0.18)),
        *(4.442, 2.058, 2.742, 1.267, 0.638, 0.408),
    ),
    "pinch_left": BlockingLaw(
        ((0.519, 0.035, 0.392), (0.377, -0.061, 0.13), (0.895, 0.757, -0.169)),
        *(3.776, 2.399, 2.741, 1.741, 0.608, 0.431),
    ),
    "pinch_ahead": BlockingLaw(
        ((0.552, 0.132, 0.374), (0.368, -0.021, 0.064), (0.815, 0.657, -0.154)),
        *(4.306, 2.637, 2.995, 1.057, 0.58, 0.409),
    ),
    "approach_0.0C": BlockingLaw(
        ((0.538, 0.187, 0.399), (0.358, -0.046, 0.085), (0.769, 0.722, -0.104)),
        *(4.095, 2.328, 2.71, 1.069, 0.6, 0.418),
    ),
    "approach_0.3L": BlockingLaw(
        ((0.526, 0.12, 0.383), (0.373, -0.058, 0.066), (0.802, 0.797, -0.261)),
        *(4.523, 1.704, 2.609, 1.146, 0.625, 0.446),
    ),
    "approach_0.3R": BlockingLaw(
        ((0.494, 0.121, 0.442), (0.372, -0.025, 0.081), (0.749, 0.744, -0.14)),
        *(4.535, 2.384, 2.705, 1.809, 0.686, 0.398),
    ),
}
CENTER = FARTHEST | {
    "pinch_right": BlockingLaw(
        ((0.541, 0.093, 0.34), (0.409, -0.043, 0.137), (0.663, 0.697, -0.027)),
        *(4.867, 1.561, 3.475, 3.012, 0.573, 0.681),
    ),
    "approach_0.0C": BlockingLaw(
        ((0.53, 0.13, 0.321), (0.385, 0.036, 0.074), (0.72, 0.693, -0.21)),
        *(3.463, 2.213, 2.477, 1.586, 0.543, 0.529),
    ),
    "approach_0.3R": BlockingLaw(
        ((0.516, 0.097, 0.487), (0.428, 0.038, 0.201), (0.555, 0.726, -0.279)),
        *(4.237, 1.055, 2.733, 2.983, 0.754, 0.394),
    ),
}
# Spawn point whose law others take.
OTHERWISE = "pinch_ahead"


def read_law_table(names: Sequence[str]) -> BlockingLaw:
    """Returns the laws as arrays `[2, S, ...]` by the driver's aim (centre, farthest) and spawn point."""
    rows = [[laws.get(name, laws[OTHERWISE]) for name in names] for laws in (CENTER, FARTHEST)]
    return BlockingLaw(*(np.array([[row[i] for row in each] for each in rows], np.float32) for i in range(7)))


def make_blocking_attacker(env) -> ScriptedPolicy:
    """Returns the attacker that blocks the defender's view, with the law of its spawn point and driver.

    It reads the true state: both cars and the defender's distance from the walls. The memory is the
    defender's heading at the start, NaN before the first decision.
    """
    table = read_law_table(env.spec.tasks)
    dt, bank = env.simulation.dt, env.simulation.bank
    low, high = (np.asarray(bound, np.float32) for bound in env.spec.role("attacker").action.bounds())

    def act(_key, memory, state, params):
        mine, theirs = state.cars.state[ATTACKER], state.cars.state[DEFENDER]
        heading = jnp.where(jnp.isnan(memory), theirs[YAW], memory)
        law = BlockingLaw(*(jnp.asarray(x)[params.ftg.farthest.astype(int), state.spawn] for x in table))
        corners = corners_of_box(poses_of(theirs[None])[0], params.car.length, params.car.width)
        room = jnp.min(distance_at(bank, state.map_index, corners))
        leaves = (room < law.near) | (jnp.abs(wrap_angle(theirs[YAW] - heading)) > law.off)
        phase = jnp.where(leaves, 2, jnp.where(state.step * dt < law.after, 0, 1))
        command = track_pose(law, law.poses[phase], mine, theirs)
        return heading, jnp.clip(command, low, high)[None]

    return ScriptedPolicy(lambda: jnp.float32(jnp.nan), act)


def track_pose(law: BlockingLaw, pose: jax.Array, mine: jax.Array, theirs: jax.Array) -> jax.Array:
    """Returns the command `[2]` (rad, m/s) that drives a car towards a pose in another car's frame.

    Args:
      law: the gains.
      pose: `[3]`, m ahead, m to the left, rad.
      mine, theirs: states of the two cars.
    """
    ahead, left, turn = pose
    yaw, dx, dy = theirs[YAW], mine[X] - theirs[X], mine[Y] - theirs[Y]
    forward = jnp.cos(yaw) * dx + jnp.sin(yaw) * dy
    sideways = jnp.cos(yaw) * dy - jnp.sin(yaw) * dx
    speed = theirs[SPEED] + law.kx * (ahead - forward)
    # In reverse a car turns the other way.
    sign = jnp.where(speed < 0, -1.0, 1.0)
    course = yaw + turn + sign * jnp.clip(law.ky * (left - sideways), -1.0, 1.0)
    return jnp.stack([sign * law.kp * wrap_angle(course - mine[YAW]), speed])
