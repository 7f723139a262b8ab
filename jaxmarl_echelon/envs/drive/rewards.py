"""Rewards of driving: what each component pays a learner per step.

The first four are paid by default. `progress` is a shaping of our own, the others are those of PufferDrive 3;
they pay nothing unless asked for.
Source: spec drive 0.11, 1.6.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.drive.measures.ride import Jolt
from jaxmarl_echelon.envs.drive.state import DT, Condition
from jaxmarl_echelon.envs.rewards import Catalogue, Component, Reward, Weights
from physics.bicycle import Motion

Memory = tuple[()]
MOVING = 2.5
STILL = 0.01
COMFORT = 3.0
COMFORT_JERK = 5.0
TOLERANCE = 2.0


@struct.dataclass
class Situation:
    """What a step brought learners, every leaf `[A]`.

    Attributes:
      reached: bool; a goal.
      again: bool; the learner is a ghost, which has been at a goal before.
      condition: of the road at the new poses.
      motion: after the step.
      jolt: what it felt like.
      limit: speed limit of the lane, m/s; 0 if unknown.
      displacement: mean distance to the recording on the first attempt so far, m.
      gained: metres by which the goal came nearer.
      ran: bool; crossed the line of a red light.
    """

    reached: jax.Array
    again: jax.Array
    condition: Condition
    motion: Motion
    jolt: Jolt
    limit: jax.Array
    displacement: jax.Array
    gained: jax.Array
    ran: jax.Array


def goal(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for a goal on the first attempt, and for every new goal."""
    return (situation.reached & ~situation.again).astype(jnp.float32), memory


def goal_again(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays ghosts for their goals."""
    return (situation.reached & situation.again).astype(jnp.float32), memory


def collision(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Counts every step of contact."""
    return situation.condition.colliding.astype(jnp.float32), memory


def offroad(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Counts every step off the road."""
    return situation.condition.offroad.astype(jnp.float32), memory


def progress(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays per metre by which the goal came nearer, and charges going away."""
    return situation.gained, memory


def impact(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges the speed of contact."""
    speed = jnp.abs(situation.motion.speed)
    return jnp.where(situation.condition.colliding, -speed, 0.0), memory


def red_light(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Counts red lights that were run; only where `env.lights` is `enforce`."""
    return situation.ran.astype(jnp.float32), memory


def lane_align(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges driving across or against the lane, and pays a little for driving along it."""
    lane = situation.condition.lane
    along = jnp.cos(lane.angle)
    pay = jnp.minimum(along, 0.0) + weights["velocity"] * jnp.minimum(situation.motion.speed * along, 0.0)
    pay = pay + 0.0025 * (1 - jnp.abs(lane.angle) / (math.pi / 2))
    return jnp.where(lane.found, pay * DT, 0.0), memory


def lane_center(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges the distance from a line `bias` m left of the lane's middle, and pays for being on it."""
    lane = situation.condition.lane
    away = jnp.abs(lane.offset - weights["bias"])
    charge = jnp.where(jnp.cos(lane.angle) > 0.5, away, 0.0) - 0.05 * jnp.exp(0.5 - away)
    return jnp.where(lane.found, -charge * DT, 0.0), memory


def velocity(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for moving along a lane."""
    lane = situation.condition.lane
    moving = lane.found & (jnp.abs(situation.motion.speed) > MOVING)
    return jnp.where(moving, DT * jnp.maximum(jnp.cos(lane.angle), 0.0), 0.0), memory


def timestep(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges time, unless the learner waits."""
    moving = (jnp.abs(situation.motion.speed) > STILL) | (jnp.abs(situation.jolt.longitudinal) > STILL)
    return jnp.where(moving, -DT, 0.0), memory


def reverse(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges time spent backing."""
    return jnp.where(situation.motion.speed < -STILL, -DT, 0.0), memory


def comfort(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges hard braking, steering and jolts."""
    jolt = situation.jolt
    hard = (jnp.abs(jolt.longitudinal) > COMFORT).astype(jnp.float32)
    hard += jnp.abs(jolt.lateral) > COMFORT
    hard += jnp.maximum(jnp.abs(jolt.longitudinal_jerk), jnp.abs(jolt.lateral_jerk)) > COMFORT_JERK
    return -hard, memory


def overspeed(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges speeds above the limit."""
    limit = situation.limit
    fast = (limit > 0) & (jnp.abs(situation.motion.speed) > limit + TOLERANCE)
    return -fast.astype(jnp.float32), memory


def ade(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges the mean distance to the recording."""
    return -situation.displacement, memory


def smoothness(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges changes of speed."""
    return -jnp.abs(situation.jolt.longitudinal), memory


COMPONENTS: dict[str, Component] = {
    "goal": Component({"weight": 1.0}, goal),
    "goal_again": Component({"weight": 1.0}, goal_again),
    "collision": Component({"weight": -0.5}, collision),
    "offroad": Component({"weight": -0.5}, offroad),
    "progress": Component({"weight": 0.0}, progress),
    "impact": Component({"weight": 0.0}, impact),
    "red_light": Component({"weight": -0.5}, red_light),
    "lane_align": Component({"weight": 0.0, "velocity": 1.0}, lane_align),
    "lane_center": Component({"weight": 0.0, "bias": 0.0}, lane_center),
    "velocity": Component({"weight": 0.0}, velocity),
    "timestep": Component({"weight": 0.0}, timestep),
    "reverse": Component({"weight": 0.0}, reverse),
    "comfort": Component({"weight": 0.0}, comfort),
    "overspeed": Component({"weight": 0.0}, overspeed),
    "ade": Component({"weight": 0.0}, ade),
    "smoothness": Component({"weight": 0.0}, smoothness),
}
DEFAULT = ("goal", "goal_again", "collision", "offroad")
CATALOGUE = Catalogue(COMPONENTS)


def make_reward(
    components: Mapping[str, Mapping[str, float] | None] | None = None,
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward of driving; see `Catalogue.make`. The first four components by default."""
    return CATALOGUE.make(dict.fromkeys(DEFAULT) if components is None else components, sets)
