"""Rewards of the F110 environments, computed once per physics step; see docs/reference/f110.md 11."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.f110.observing.observe import rotate_vectors
from jaxmarl_echelon.envs.f110.results import OUTCOMES
from jaxmarl_echelon.envs.rewards import Catalogue, Component, Reward, Weights
from physics.angles import wrap_angle_by_rounding

# Shape of the distance shaping: metres to the target, and reward in units of its amplitude.
_GRADIENT_DISTANCE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.5)
_GRADIENT_VALUE = (-1.0, -0.5, 0.0, 0.3, 0.5, 0.2, 0.0, -0.3)


@struct.dataclass
class CarRewardInputs:
    """Inputs of the reward components for one physics step and one rewarded car (ego).

    Attributes:
      ego_pose: `[3]` x, y (m) and heading (rad) after the step.
      ego_velocity: `[3]` vx, vy (m/s, body frame) and yaw rate (rad/s).
      ego_steer: steering command in rad, within the car's limits.
      target_pose: `[3]` of the target.
      target_velocity: `[3]` of the target.
      target_scan_min: shortest range in the target's scan, metres.
      target_offset: lateral offset of the target from the centreline, metres.
      target_wall_distance: distance of the target from the nearest wall, metres.
      ego_progress: metres gained along the centreline in this step.
      ego_offset: lateral offset from the centreline, metres, positive on its left.
      ego_offset_rate: m/s by which that offset changes.
      collided: bool; the car hit something in this step.
      outcome: int32 index into `OUTCOMES`, -1 while the episode runs.
      dt: duration of the step in seconds.
      scan_fresh: bool; `target_scan_min` was measured in this step.
    """

    ego_pose: jax.Array
    ego_velocity: jax.Array
    ego_steer: jax.Array
    target_pose: jax.Array
    target_velocity: jax.Array
    target_scan_min: jax.Array
    target_offset: jax.Array
    target_wall_distance: jax.Array
    ego_progress: jax.Array
    ego_offset: jax.Array
    ego_offset_rate: jax.Array
    collided: jax.Array
    outcome: jax.Array
    dt: jax.Array
    scan_fresh: jax.Array


@struct.dataclass
class CarRewardMemory:
    """Carry of the components from one physics step to the next, reset in every episode.

    Attributes:
      pressure_steps: int32 consecutive steps under pressure.
      idle_steps: int32 consecutive steps below the idle speed.
      last_clearance: metres; valid where `has_clearance`.
      has_clearance: bool.
      last_heading: rad, the target's; valid where `has_heading`.
      has_heading: bool.
      last_speed: m/s; 0 before the first step.
      last_steer: rad; valid where `has_steer`.
      has_steer: bool.
    """

    pressure_steps: jax.Array
    idle_steps: jax.Array
    last_clearance: jax.Array
    has_clearance: jax.Array
    last_heading: jax.Array
    has_heading: jax.Array
    last_speed: jax.Array
    last_steer: jax.Array
    has_steer: jax.Array


def _reward_outcome(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Returns the outcome's reward in the step that ends the episode, else 0."""
    table = jnp.stack([weights[name] for name in OUTCOMES])
    value = table[jnp.clip(situation.outcome, 0, len(OUTCOMES) - 1)]
    return jnp.where(situation.outcome >= 0, value, 0.0), memory


def _reward_pressure(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards driving close to the target while facing it.

    Every `interval`-th consecutive step under pressure is rewarded with `bonus`; from the second step
    on, `streak_bonus` is added in proportion to the length of the streak, up to `streak_limit` steps.
    """
    metres, error = _bearing(situation)
    active = (metres < weights["distance"]) & (_speed(situation) >= weights["speed"])
    active &= jnp.abs(error) <= weights["bearing"]
    steps = jnp.where(active, memory.pressure_steps + 1, 0)
    paid = active & (jnp.mod(steps, jnp.maximum(weights["interval"], 1.0)) == 0)
    growth = jnp.minimum(steps / jnp.maximum(weights["streak_limit"], 1.0), 1.0)
    value = jnp.where(paid, weights["bonus"], 0.0)
    value += jnp.where(steps >= 2, weights["streak_bonus"] * growth, 0.0)
    return value, memory.replace(pressure_steps=steps)


def _reward_distance(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards being near the target, penalises being far, and can add a piecewise linear shape."""
    metres, _ = _bearing(situation)
    value = jnp.where(metres < weights["near_distance"], weights["near"], 0.0)
    value -= jnp.where(metres > weights["far_distance"], weights["far"], 0.0)
    shape = jnp.interp(metres, jnp.asarray(_GRADIENT_DISTANCE), jnp.asarray(_GRADIENT_VALUE))
    slope = weights["gradient"] * shape * _time(weights, situation)
    return value + jnp.clip(slope, -weights["gradient_limit"], weights["gradient_limit"]), memory


def _reward_heading(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards facing the target: `amount` with the target straight ahead, 0 with it straight behind."""
    metres, error = _bearing(situation)
    return jnp.where(metres > 0.0, weights["amount"] * (1.0 - jnp.abs(error) / jnp.pi), 0.0), memory


def _reward_speed(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards speed with `per_mps` for each m/s up to `limit`."""
    return weights["per_mps"] * jnp.minimum(_speed(situation), weights["limit"]), memory


def _reward_pinch(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards being near one of the two pockets diagonally ahead of the target.

    With `potential` the reward runs from `amplitude * peak` in a pocket to `amplitude * floor` far
    away, by the distance to the nearer pocket; without, it is a sum of two Gaussian bumps.
    """
    spot = rotate_vectors(situation.ego_pose[:2] - situation.target_pose[:2], -situation.target_pose[2])
    forward, left = spot[0] - weights["forward"], spot[1]
    gaps = jnp.hypot(forward, jnp.stack([left - weights["lateral"], left + weights["lateral"]]))
    gaps = gaps / weights["sigma"]
    bumps = jnp.sum(jnp.exp(-0.5 * gaps**2))
    well = jnp.exp(-0.5 * jnp.min(gaps) ** weights["power"])
    potential = weights["floor"] + (weights["peak"] - weights["floor"]) * well
    return weights["amplitude"] * jnp.where(weights["potential"], potential, bumps), memory


def _reward_clearance_loss(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards every metre by which the target's shortest range has shrunk since the last scan."""
    metres, fresh = situation.target_scan_min, situation.scan_fresh
    counts = fresh & memory.has_clearance & (metres >= weights["low"]) & (metres <= weights["high"])
    shrunk = jnp.maximum(memory.last_clearance - metres, 0.0) * _time(weights, situation)
    value = jnp.where(counts, jnp.minimum(weights["per_metre"] * shrunk, weights["limit"]), 0.0)
    return value, memory.replace(
        last_clearance=jnp.where(fresh, metres, memory.last_clearance),
        has_clearance=memory.has_clearance | fresh,
    )


def _reward_target_turn(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards every radian by which the target has turned since the last step, in either direction."""
    angle = situation.target_pose[2]
    turned = jnp.abs(wrap_angle_by_rounding(angle - memory.last_heading)) * _time(weights, situation)
    value = jnp.minimum(weights["per_radian"] * turned, weights["limit"])
    known = jnp.ones_like(memory.has_heading)
    return jnp.where(memory.has_heading, value, 0.0), memory.replace(last_heading=angle, has_heading=known)


def _penalize_idling(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises each step from the `patience`-th consecutive one slower than `speed`."""
    steps = jnp.where(_speed(situation) < weights["speed"], memory.idle_steps + 1, 0)
    value = jnp.where(steps >= weights["patience"], -weights["penalty"], 0.0)
    return value, memory.replace(idle_steps=steps)


def _penalize_reversing(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises each step driven backwards faster than `speed`."""
    return jnp.where(situation.ego_velocity[0] < -weights["speed"], -weights["penalty"], 0.0), memory


def _penalize_braking(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises losing more than `drop` m/s in one step that began faster than `speed`."""
    now, before = _speed(situation), memory.last_speed
    hard = (before > weights["speed"]) & (before - now > weights["drop"])
    return jnp.where(hard, -weights["penalty"], 0.0), memory.replace(last_speed=now)


def _reward_step(
    weights: Weights, _situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Adds the same `amount` in every step."""
    return weights["amount"], memory


def _reward_progress(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards each metre gained along the centreline, and penalises each metre lost."""
    return weights["per_metre"] * situation.ego_progress, memory


def _reward_track_speed(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards each m/s along the centreline in every step."""
    return weights["per_mps"] * situation.ego_progress / situation.dt, memory


def _penalize_lateral_rate(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises speed across the centreline, per m/s, in either direction."""
    return -weights["per_mps"] * jnp.abs(situation.ego_offset_rate), memory


def _penalize_offset(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises distance from the centreline, per metre, on either side."""
    return -weights["per_metre"] * jnp.abs(situation.ego_offset), memory


def _penalize_steering(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises the steering command, per radian, in either direction."""
    return -weights["per_radian"] * jnp.abs(situation.ego_steer), memory


def _penalize_steer_rate(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises changes of the steering command, per radian, from the second step on."""
    change = jnp.abs(situation.ego_steer - memory.last_steer)
    value = jnp.where(memory.has_steer, -weights["per_radian"] * change, 0.0)
    known = jnp.ones_like(memory.has_steer)
    return value, memory.replace(last_steer=situation.ego_steer, has_steer=known)


def _penalize_collision(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Penalises each step in which the car hits something."""
    return jnp.where(situation.collided, -weights["penalty"], 0.0), memory


def _reward_target_offset(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards the target's distance from the centreline: all of `amount` from `scale` metres on."""
    share = jnp.clip(jnp.abs(situation.target_offset) / weights["scale"], 0.0, 1.0)
    return weights["amount"] * share, memory


def _reward_target_wall(
    weights: Weights, situation: CarRewardInputs, memory: CarRewardMemory
) -> tuple[jax.Array, CarRewardMemory]:
    """Rewards the target's nearness to a wall: all of `amount` at the wall, 0 from `scale` metres on."""
    share = jnp.clip(1.0 - situation.target_wall_distance / weights["scale"], 0.0, 1.0)
    return weights["amount"] * share, memory


def _initial_memory() -> CarRewardMemory:
    """Returns the components' memory at the start of an episode."""
    zero, none, count = jnp.zeros(()), jnp.zeros((), bool), jnp.zeros((), jnp.int32)
    return CarRewardMemory(count, count, zero, none, zero, none, zero, zero, none)


COMPONENTS: dict[str, Component] = {
    "terminal": Component(_reward_outcome),
    "pressure": Component(_reward_pressure),
    "distance": Component(_reward_distance),
    "heading": Component(_reward_heading),
    "speed": Component(_reward_speed),
    "pinch": Component(_reward_pinch),
    "clearance": Component(_reward_clearance_loss),
    "turn": Component(_reward_target_turn),
    "idle": Component(_penalize_idling),
    "reverse": Component(_penalize_reversing),
    "brake": Component(_penalize_braking),
    "step": Component(_reward_step),
    "progress": Component(_reward_progress),
    "track_speed": Component(_reward_track_speed),
    "lateral_rate": Component(_penalize_lateral_rate),
    "offset": Component(_penalize_offset),
    "steer": Component(_penalize_steering),
    "steer_rate": Component(_penalize_steer_rate),
    "collision": Component(_penalize_collision),
    "target_offset": Component(_reward_target_offset),
    "target_wall": Component(_reward_target_wall),
}

PRESETS = ("gaplock_full", "race_progress", "centerline_racing", "gaplock_centerline_pressure")
CATALOGUE = Catalogue(COMPONENTS, tuple(f"reward/{name}" for name in PRESETS), _initial_memory)


def make_reward(
    components: Mapping[str, Mapping[str, float | bool] | None],
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward of the F110 environments; see `Catalogue.make`."""
    return CATALOGUE.make(components, sets)


def _speed(situation: CarRewardInputs) -> jax.Array:
    return jnp.hypot(situation.ego_velocity[0], situation.ego_velocity[1])


def _bearing(situation: CarRewardInputs) -> tuple[jax.Array, jax.Array]:
    """Returns the distance to the target and its bearing relative to the ego heading, in [-pi, pi]."""
    away = situation.target_pose[:2] - situation.ego_pose[:2]
    error = wrap_angle_by_rounding(jnp.arctan2(away[1], away[0]) - situation.ego_pose[2])
    return jnp.hypot(away[0], away[1]), error


def _time(weights: Weights, situation: CarRewardInputs) -> jax.Array:
    return jnp.where(weights["time_scaled"], situation.dt, 1.0)
