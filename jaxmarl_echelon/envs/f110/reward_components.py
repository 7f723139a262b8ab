"""Components of the F110 rewards: what each pays for one physics step."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.f110.observing.observe import rotate
from jaxmarl_echelon.envs.f110.results import OUTCOMES
from jaxmarl_echelon.envs.rewards import Component, Weights

# Shape of the distance shaping: metres to the target, and reward in units of its amplitude.
_GRADIENT_DISTANCE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.5)
_GRADIENT_VALUE = (-1.0, -0.5, 0.0, 0.3, 0.5, 0.2, 0.0, -0.3)


@struct.dataclass
class Situation:
    """What happened in one physics step, as seen by the car that is rewarded.

    Attributes:
      ego_pose: `[3]` x, y (m) and heading (rad) after the step.
      ego_velocity: `[3]` vx, vy (m/s, body frame) and yaw rate (rad/s).
      ego_steer: steering command in rad.
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
      scan_fresh: bool; `target_scan_min` was measured anew in this step.
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
class Memory:
    """What components carry from one physics step to the next; fresh in every episode.

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


def terminal(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays the outcome's reward in the step that ends the episode."""
    table = jnp.stack([weights[name] for name in OUTCOMES])
    value = table[jnp.clip(situation.outcome, 0, len(OUTCOMES) - 1)]
    return jnp.where(situation.outcome >= 0, value, 0.0), memory


def pressure(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for driving close behind the target, facing it.

    Every `interval`-th consecutive step under pressure pays `bonus`; from the second step on,
    `streak_bonus` is added in proportion to the length of the streak, up to `streak_limit`.
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


def distance(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays near the target, charges far from it, and may add a piecewise linear shape between."""
    metres, _ = _bearing(situation)
    value = jnp.where(metres < weights["near_distance"], weights["near"], 0.0)
    value -= jnp.where(metres > weights["far_distance"], weights["far"], 0.0)
    shape = jnp.interp(metres, jnp.asarray(_GRADIENT_DISTANCE), jnp.asarray(_GRADIENT_VALUE))
    slope = weights["gradient"] * shape * _time(weights, situation)
    return value + jnp.clip(slope, -weights["gradient_limit"], weights["gradient_limit"]), memory


def heading(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for facing the target: all of `amount` dead ahead, nothing dead astern."""
    metres, error = _bearing(situation)
    return jnp.where(metres > 0.0, weights["amount"] * (1.0 - jnp.abs(error) / jnp.pi), 0.0), memory


def speed(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays `per_mps` for each m/s up to `limit`."""
    return weights["per_mps"] * jnp.minimum(_speed(situation), weights["limit"]), memory


def pinch(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pulls towards the two pockets diagonally ahead of the target.

    With `potential` the reward runs from `amplitude * peak` in a pocket to `amplitude * floor` far
    away, by the distance to the nearer pocket; without, it is a sum of two Gaussian bumps.
    """
    spot = rotate(situation.ego_pose[:2] - situation.target_pose[:2], -situation.target_pose[2])
    forward, left = spot[0] - weights["forward"], spot[1]
    gaps = jnp.hypot(forward, jnp.stack([left - weights["lateral"], left + weights["lateral"]]))
    gaps = gaps / weights["sigma"]
    bumps = jnp.sum(jnp.exp(-0.5 * gaps**2))
    well = jnp.exp(-0.5 * jnp.min(gaps) ** weights["power"])
    potential = weights["floor"] + (weights["peak"] - weights["floor"]) * well
    return weights["amplitude"] * jnp.where(weights["potential"], potential, bumps), memory


def clearance(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for every metre by which the target's shortest range has shrunk since the last scan."""
    metres, fresh = situation.target_scan_min, situation.scan_fresh
    counts = fresh & memory.has_clearance & (metres >= weights["low"]) & (metres <= weights["high"])
    shrunk = jnp.maximum(memory.last_clearance - metres, 0.0) * _time(weights, situation)
    value = jnp.where(counts, jnp.minimum(weights["per_metre"] * shrunk, weights["limit"]), 0.0)
    return value, memory.replace(
        last_clearance=jnp.where(fresh, metres, memory.last_clearance),
        has_clearance=memory.has_clearance | fresh,
    )


def turn(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for every radian by which the target has turned since the last step, either way."""
    angle = situation.target_pose[2]
    turned = jnp.abs(wrap(angle - memory.last_heading)) * _time(weights, situation)
    value = jnp.minimum(weights["per_radian"] * turned, weights["limit"])
    known = jnp.ones_like(memory.has_heading)
    return jnp.where(memory.has_heading, value, 0.0), memory.replace(last_heading=angle, has_heading=known)


def idle(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges each step from the `patience`-th consecutive one slower than `speed`."""
    steps = jnp.where(_speed(situation) < weights["speed"], memory.idle_steps + 1, 0)
    value = jnp.where(steps >= weights["patience"], -weights["penalty"], 0.0)
    return value, memory.replace(idle_steps=steps)


def reverse(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges each step driven backwards faster than `speed`."""
    return jnp.where(situation.ego_velocity[0] < -weights["speed"], -weights["penalty"], 0.0), memory


def brake(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges losing more than `drop` m/s in one step when faster than `speed` before."""
    now, before = _speed(situation), memory.last_speed
    hard = (before > weights["speed"]) & (before - now > weights["drop"])
    return jnp.where(hard, -weights["penalty"], 0.0), memory.replace(last_speed=now)


def step(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Adds the same `amount` in every step."""
    return weights["amount"], memory


def progress(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for each metre gained along the centreline; metres lost are charged."""
    return weights["per_metre"] * situation.ego_progress, memory


def track_speed(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for each m/s along the centreline in every step."""
    return weights["per_mps"] * situation.ego_progress / situation.dt, memory


def lateral_rate(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges speed across the centreline, per m/s, either way."""
    return -weights["per_mps"] * jnp.abs(situation.ego_offset_rate), memory


def offset(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges distance from the centreline, per metre, on either side."""
    return -weights["per_metre"] * jnp.abs(situation.ego_offset), memory


def steer(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges the steering command, per radian, either way."""
    return -weights["per_radian"] * jnp.abs(situation.ego_steer), memory


def steer_rate(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges changes of the steering command, per radian, from the second step on."""
    change = jnp.abs(situation.ego_steer - memory.last_steer)
    value = jnp.where(memory.has_steer, -weights["per_radian"] * change, 0.0)
    known = jnp.ones_like(memory.has_steer)
    return value, memory.replace(last_steer=situation.ego_steer, has_steer=known)


def collision(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Charges each step in which the car hits something."""
    return jnp.where(situation.collided, -weights["penalty"], 0.0), memory


def target_offset(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for having the target off the centreline: all of `amount` from `scale` metres on."""
    share = jnp.clip(jnp.abs(situation.target_offset) / weights["scale"], 0.0, 1.0)
    return weights["amount"] * share, memory


def target_wall(weights: Weights, situation: Situation, memory: Memory) -> tuple[jax.Array, Memory]:
    """Pays for having the target near a wall: all of `amount` at it, nothing `scale` metres away."""
    share = jnp.clip(1.0 - situation.target_wall_distance / weights["scale"], 0.0, 1.0)
    return weights["amount"] * share, memory


COMPONENTS: dict[str, Component] = {
    "terminal": Component(
        {
            "target_crash": 200.0,
            "self_crash": -20.0,
            "collision": 0.0,
            "timeout": -100.0,
            "idle_stop": -5.0,
            "target_finish": -20.0,
        },
        terminal,
    ),
    "pressure": Component(
        {
            "bonus": 0.001,
            "interval": 1.0,
            "streak_bonus": 0.0,
            "streak_limit": 40.0,
            "distance": 1.30,
            "speed": 0.30,
            "bearing": 1.57,
        },
        pressure,
    ),
    "distance": Component(
        {
            "near": 0.002,
            "near_distance": 1.0,
            "far": 0.002,
            "far_distance": 2.5,
            "gradient": 0.0,
            "gradient_limit": 0.002,
            "time_scaled": False,
        },
        distance,
    ),
    "heading": Component({"amount": 0.001}, heading),
    "speed": Component({"per_mps": 0.0005, "limit": 0.60}, speed),
    "pinch": Component(
        {
            "amplitude": 0.004,
            "forward": 1.20,
            "lateral": 0.35,
            "sigma": 0.55,
            "potential": True,
            "peak": 1.0,
            "floor": -0.5,
            "power": 2.0,
        },
        pinch,
    ),
    "clearance": Component(
        {"per_metre": 0.003, "low": 0.30, "high": 3.20, "limit": 0.015, "time_scaled": False}, clearance
    ),
    "turn": Component({"per_radian": 0.006, "limit": 0.015, "time_scaled": False}, turn),
    "idle": Component({"penalty": 0.0005, "speed": 0.12, "patience": 25.0}, idle),
    "reverse": Component({"penalty": 0.001, "speed": 0.02}, reverse),
    "brake": Component({"penalty": 0.0005, "speed": 0.40, "drop": 0.25}, brake),
    "step": Component({"amount": -0.001}, step),
    "progress": Component({"per_metre": 1.0}, progress),
    "track_speed": Component({"per_mps": 1.0}, track_speed),
    "lateral_rate": Component({"per_mps": 0.01}, lateral_rate),
    "offset": Component({"per_metre": 0.02}, offset),
    "steer": Component({"per_radian": 0.1}, steer),
    "steer_rate": Component({"per_radian": 0.01}, steer_rate),
    "collision": Component({"penalty": 10.0}, collision),
    "target_offset": Component({"amount": 1.0, "scale": 1.0}, target_offset),
    "target_wall": Component({"amount": 1.0, "scale": 1.0}, target_wall),
}


def wrap(angle: jax.Array) -> jax.Array:
    """Maps an angle (rad) to [-pi, pi]; small angles come back unrounded."""
    return angle - 2.0 * jnp.pi * jnp.round(angle / (2.0 * jnp.pi))


def _speed(situation: Situation) -> jax.Array:
    return jnp.hypot(situation.ego_velocity[0], situation.ego_velocity[1])


def _bearing(situation: Situation) -> tuple[jax.Array, jax.Array]:
    """Returns the distance to the target and its bearing off the own heading, in [-pi, pi]."""
    away = situation.target_pose[:2] - situation.ego_pose[:2]
    error = wrap(jnp.arctan2(away[1], away[0]) - situation.ego_pose[2])
    return jnp.hypot(away[0], away[1]), error


def _time(weights: Weights, situation: Situation) -> jax.Array:
    return jnp.where(weights["time_scaled"], situation.dt, 1.0)
