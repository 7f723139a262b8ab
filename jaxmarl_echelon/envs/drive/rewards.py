"""Reward components of driving, per learner and step.

The first four are on by default. `progress` and `red_light` are this project's, the others are those
of PufferDrive 3; they are off by default. Reference: docs/reference/drive.md 9.1.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from algos.defaults import read_defaults
from jaxmarl_echelon.envs.drive.measures.ride import RideDynamics
from jaxmarl_echelon.envs.drive.state import DT, RoadCondition
from jaxmarl_echelon.envs.rewards import Catalogue, Component, Reward, Weights
from physics.bicycle import Motion

DriveRewardMemory = tuple[()]
MOVING = 2.5
STILL = 0.01
COMFORT = 3.0
COMFORT_JERK = 5.0
TOLERANCE = 2.0


class DriveRewardInputs(struct.PyTreeNode):
    """Inputs of the reward components for one step, every leaf `[A]`.

    Attributes:
      reached: bool; reached a goal.
      again: bool; the learner is a ghost, which has reached a goal before.
      condition: contacts and lanes at the new poses.
      motion: after the step.
      jolt: accelerations and jerks of the step.
      limit: speed limit of the lane, m/s; 0 if unknown.
      displacement: mean distance to the recording on the first attempt so far, m.
      gained: decrease of the distance to the goal, m.
      ran: bool; crossed the line of a red light.
    """

    reached: jax.Array
    again: jax.Array
    condition: RoadCondition
    motion: Motion
    jolt: RideDynamics
    limit: jax.Array
    displacement: jax.Array
    gained: jax.Array
    ran: jax.Array


def count_goals(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """1 for the goal of the first attempt, and for every new goal."""
    return (situation.reached & ~situation.again).astype(jnp.float32), memory


def count_ghost_goals(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """1 for goals of ghosts."""
    return (situation.reached & situation.again).astype(jnp.float32), memory


def count_collision_steps(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """1 for every step of contact with a body."""
    return situation.condition.colliding.astype(jnp.float32), memory


def count_offroad_steps(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """1 for every step off the road."""
    return situation.condition.offroad.astype(jnp.float32), memory


def measure_goal_progress(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Decrease of the distance to the goal, m; negative when the learner moves away."""
    return situation.gained, memory


def penalize_impact_speed(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Minus the speed at contact, m/s."""
    speed = jnp.abs(situation.motion.speed)
    return jnp.where(situation.condition.colliding, -speed, 0.0), memory


def count_red_lights(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """1 for running a red light; 0 unless `env.lights` is `enforce`."""
    return situation.ran.astype(jnp.float32), memory


def reward_lane_alignment(
    weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Penalises driving across or against the lane, with a small bonus for driving along it."""
    lane = situation.condition.lane
    along = jnp.cos(lane.angle)
    pay = jnp.minimum(along, 0.0) + weights["velocity"] * jnp.minimum(situation.motion.speed * along, 0.0)
    pay = pay + 0.0025 * (1 - jnp.abs(lane.angle) / (math.pi / 2))
    return jnp.where(lane.found, pay * DT, 0.0), memory


def penalize_lane_offset(
    weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Penalises the distance to a line `bias` m left of the lane's centre, with a bonus near that line."""
    lane = situation.condition.lane
    away = jnp.abs(lane.offset - weights["bias"])
    charge = jnp.where(jnp.cos(lane.angle) > 0.5, away, 0.0) - 0.05 * jnp.exp(0.5 - away)
    return jnp.where(lane.found, -charge * DT, 0.0), memory


def reward_lane_motion(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Rewards motion along a lane."""
    lane = situation.condition.lane
    moving = lane.found & (jnp.abs(situation.motion.speed) > MOVING)
    return jnp.where(moving, DT * jnp.maximum(jnp.cos(lane.angle), 0.0), 0.0), memory


def penalize_time(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Penalises time, except while the learner waits."""
    moving = (jnp.abs(situation.motion.speed) > STILL) | (jnp.abs(situation.jolt.longitudinal) > STILL)
    return jnp.where(moving, -DT, 0.0), memory


def penalize_reversing(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Penalises time spent reversing."""
    return jnp.where(situation.motion.speed < -STILL, -DT, 0.0), memory


def penalize_discomfort(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Penalises hard braking, cornering and jerks."""
    jolt = situation.jolt
    hard = (jnp.abs(jolt.longitudinal) > COMFORT).astype(jnp.float32)
    hard += jnp.abs(jolt.lateral) > COMFORT
    hard += jnp.maximum(jnp.abs(jolt.longitudinal_jerk), jnp.abs(jolt.lateral_jerk)) > COMFORT_JERK
    return -hard, memory


def penalize_speeding(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Penalises speeds above the limit."""
    limit = situation.limit
    fast = (limit > 0) & (jnp.abs(situation.motion.speed) > limit + TOLERANCE)
    return -fast.astype(jnp.float32), memory


def penalize_displacement(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Minus the mean distance to the recording, m."""
    return -situation.displacement, memory


def penalize_speed_changes(
    _weights: Weights, situation: DriveRewardInputs, memory: DriveRewardMemory
) -> tuple[jax.Array, DriveRewardMemory]:
    """Minus the magnitude of the longitudinal acceleration, m/s^2."""
    return -jnp.abs(situation.jolt.longitudinal), memory


COMPONENTS: dict[str, Component] = {
    "goal": Component(count_goals),
    "goal_again": Component(count_ghost_goals),
    "collision": Component(count_collision_steps),
    "offroad": Component(count_offroad_steps),
    "progress": Component(measure_goal_progress, {"weight": 0.0}),
    "impact": Component(penalize_impact_speed, {"weight": 0.0}),
    "red_light": Component(count_red_lights, {"weight": -0.5}),
    "lane_align": Component(reward_lane_alignment, {"weight": 0.0, "velocity": 1.0}),
    "lane_center": Component(penalize_lane_offset, {"weight": 0.0, "bias": 0.0}),
    "velocity": Component(reward_lane_motion, {"weight": 0.0}),
    "timestep": Component(penalize_time, {"weight": 0.0}),
    "reverse": Component(penalize_reversing, {"weight": 0.0}),
    "comfort": Component(penalize_discomfort, {"weight": 0.0}),
    "overspeed": Component(penalize_speeding, {"weight": 0.0}),
    "ade": Component(penalize_displacement, {"weight": 0.0}),
    "smoothness": Component(penalize_speed_changes, {"weight": 0.0}),
}
CATALOGUE = Catalogue(COMPONENTS, ("reward/drive",))


def make_reward(
    components: Mapping[str, Mapping[str, float] | None] | None = None,
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward of driving; see `Catalogue.make`. Its default is that of `conf/reward/drive.yaml`."""
    return CATALOGUE.make(
        read_defaults("reward/drive:components") if components is None else components, sets
    )
