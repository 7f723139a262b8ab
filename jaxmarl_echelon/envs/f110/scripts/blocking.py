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
from jaxmarl_echelon.envs.f110.cars.simulation import SPEED, YAW, CarSimulation, X, Y, poses_of
from jaxmarl_echelon.envs.f110.state import ATTACKER, DEFENDER, F110Params, F110State
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


# Laws by spawn point, found by `benchmarks/archive/blocking_search.py` with the starts of evaluations: for
# drivers that aim at the farthest point, and for those that aim at the gap's centre.
FARTHEST = {
    "pinch_right": BlockingLaw(
        ((0.504, 0.205, 0.427), (0.38, -0.059, 0.143), (0.739, 0.813, -0.212)),
        *(4.001, 2.121, 2.857, 1.131, 0.592, 0.404),
    ),
    "pinch_left": BlockingLaw(
        ((0.511, -0.03, 0.413), (0.372, -0.061, 0.116), (0.808, 0.86, -0.155)),
        *(3.964, 2.353, 2.803, 1.912, 0.618, 0.461),
    ),
    "pinch_ahead": BlockingLaw(
        ((0.534, 0.137, 0.338), (0.372, -0.013, 0.047), (0.793, 0.713, -0.253)),
        *(4.347, 2.833, 3.14, 0.994, 0.602, 0.408),
    ),
    "approach_0.0C": BlockingLaw(
        ((0.547, 0.231, 0.346), (0.366, -0.025, 0.071), (0.677, 0.804, -0.194)),
        *(4.629, 2.568, 2.711, 1.086, 0.578, 0.407),
    ),
    "approach_0.3L": BlockingLaw(
        ((0.525, 0.071, 0.417), (0.397, -0.057, 0.072), (0.789, 0.769, -0.201)),
        *(4.189, 1.69, 2.574, 1.025, 0.636, 0.407),
    ),
    "approach_0.3R": BlockingLaw(
        ((0.526, 0.124, 0.425), (0.374, -0.013, 0.053), (0.734, 0.744, -0.14)),
        *(4.438, 2.515, 2.862, 1.794, 0.667, 0.411),
    ),
}
CENTER = {
    "pinch_right": BlockingLaw(
        ((0.591, 0.027, 0.363), (0.409, -0.067, 0.171), (0.637, 0.855, 0.012)),
        *(5.308, 0.688, 3.547, 2.989, 0.578, 0.72),
    ),
    "pinch_left": BlockingLaw(
        ((0.553, -0.036, 0.386), (0.415, 0.019, 0.114), (0.592, 0.871, -0.085)),
        *(4.022, 2.109, 2.879, 1.895, 0.568, 0.535),
    ),
    "pinch_ahead": BlockingLaw(
        ((0.546, 0.15, 0.436), (0.476, 0.034, 0.123), (0.924, 0.772, -0.317)),
        *(4.711, 3.076, 3.071, 1.146, 0.608, 0.473),
    ),
    "approach_0.0C": BlockingLaw(
        ((0.591, 0.236, 0.316), (0.421, 0.051, 0.138), (0.595, 0.842, -0.231)),
        *(4.988, 2.588, 2.805, 1.803, 0.584, 0.421),
    ),
    "approach_0.3L": BlockingLaw(
        ((0.533, 0.135, 0.385), (0.4, -0.022, 0.15), (0.622, 0.728, -0.169)),
        *(3.729, 1.748, 2.53, 1.148, 0.571, 0.47),
    ),
    "approach_0.3R": BlockingLaw(
        ((0.534, -0.022, 0.503), (0.376, 0.006, 0.184), (0.53, 0.706, -0.219)),
        *(4.558, 1.021, 2.814, 3.468, 0.759, 0.471),
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
    low, high = (np.asarray(bound, np.float32) for bound in env.spec.role("attacker").action.bounds())

    def act(_key, memory, state, params):
        law = BlockingLaw(*(jnp.asarray(x)[params.ftg.farthest.astype(int), state.spawn] for x in table))
        memory, command = follow_law(law, memory, state, params, env.simulation)
        return memory, jnp.clip(command, low, high)[None]

    return ScriptedPolicy(lambda: jnp.float32(jnp.nan), act)


def follow_law(
    law: BlockingLaw, memory: jax.Array, state: F110State, params: F110Params, simulation: CarSimulation
) -> tuple[jax.Array, jax.Array]:
    """Chooses a pose by the law and drives towards it.

    Args:
      law: the numbers, of this spawn point and driver.
      memory: the defender's heading at the start, NaN before the first decision, rad.
      state: true state of the episode.
      params: parameters of the episode.
      simulation: its step and its maps.

    Returns:
      the memory after the decision, and the command `[2]` (rad, m/s), not clipped.
    """
    mine, theirs = state.cars.state[ATTACKER], state.cars.state[DEFENDER]
    heading = jnp.where(jnp.isnan(memory), theirs[YAW], memory)
    corners = corners_of_box(poses_of(theirs[None])[0], params.car.length, params.car.width)
    room = jnp.min(distance_at(simulation.bank, state.map_index, corners))
    leaves = (room < law.near) | (jnp.abs(wrap_angle(theirs[YAW] - heading)) > law.off)
    phase = jnp.where(leaves, 2, jnp.where(state.step * simulation.dt < law.after, 0, 1))
    return heading, track_pose(law, law.poses[phase], mine, theirs)


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
