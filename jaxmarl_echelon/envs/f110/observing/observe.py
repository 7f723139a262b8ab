"""Flat observations of the F110 environments, with features in [-1, 1]; see docs/reference/f110.md 9."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.base import ObservationPart

NEIGHBOUR_FEATURES = 7
DRIVER_FEATURES = 4
# Of the steering angle and the speed.
ACTION_UNITS = ("rad", "m/s")


class ObservationScales(struct.PyTreeNode):
    """Divisors of the gaplock observation.

    Attributes:
      lidar_range: metres at which a beam reads 1.
      speed_scale: m/s, and rad/s for the yaw rate, at which a velocity reads 1.
      position_scale: metres at which a relative position or a distance reads 1.
    """

    lidar_range: jax.Array | float = 12.0
    speed_scale: jax.Array | float = 1.0
    position_scale: jax.Array | float = 12.0


class RacingScales(struct.PyTreeNode):
    """Divisors of the racing observation; units in order: metres, m/s, rad/s, rad, metres, metres."""

    lidar_range: jax.Array | float = 12.0
    speed_scale: jax.Array | float = 1.0
    yaw_rate_scale: jax.Array | float = 3.0
    steer_scale: jax.Array | float = 0.46
    offset_scale: jax.Array | float = 1.5
    position_scale: jax.Array | float = 12.0


def gaplock_layout(beams: int, observe_time: bool = False, spawn_points: int = 0) -> dict[str, slice]:
    """Returns the slice of each part of the gaplock observation, in order and without holes.

    With `spawn_points`, their number, the last part is that of `task_features`.
    """
    sizes = {"lidar": beams, "ego_velocity": 3, "target_velocity": 3, "relative_pose": 5}
    sizes |= {"time": 1} if observe_time else {}
    return _slices(sizes | ({"task": spawn_points + DRIVER_FEATURES} if spawn_points else {}))


def racing_layout(beams: int, lookahead: int, neighbours: int) -> dict[str, slice]:
    """Returns the slice of each part of the racing observation, in order and without holes."""
    return _slices(
        {
            "lidar": beams,
            "ego_velocity": 3,
            "steer": 1,
            "offset": 1,
            "heading_error": 2,
            "lookahead": 2 * lookahead,
            "neighbours": NEIGHBOUR_FEATURES * neighbours,
        }
    )


def gaplock_parts(
    beams: int, scales: ObservationScales, observe_time: bool, spawn_points: int = 0
) -> dict[str, ObservationPart]:
    """Returns the parts of the gaplock observation with their units and scales; see `gaplock_layout`."""
    speed, position = float(scales.speed_scale), float(scales.position_scale)
    velocity = ("m/s", "m/s", "rad/s"), (speed,)
    facts = {
        "lidar": (("m",), (float(scales.lidar_range),)),
        "ego_velocity": velocity,
        "target_velocity": velocity,
        "relative_pose": (("m", "m", "", "", "m"), (position, position, 1.0, 1.0, position)),
        "task": (
            ("",) * (spawn_points + 2) + ("beams", "m/s"),
            (1.0,) * (spawn_points + 2) + (position, speed),
        ),
    }
    layout = gaplock_layout(beams, observe_time, spawn_points)
    return {name: ObservationPart(where, *facts.get(name, ())) for name, where in layout.items()}


def racing_parts(
    beams: int, scales: RacingScales, lookahead: int, neighbours: int
) -> dict[str, ObservationPart]:
    """Returns the parts of the racing observation with their units and scales."""
    speed, position = float(scales.speed_scale), float(scales.position_scale)
    facts = {
        "lidar": (("m",), (float(scales.lidar_range),)),
        "ego_velocity": (("m/s", "m/s", "rad/s"), (speed, speed, float(scales.yaw_rate_scale))),
        "steer": (("rad",), (float(scales.steer_scale),)),
        "offset": (("m",), (float(scales.offset_scale),)),
        "lookahead": (("m",), (position,)),
        "neighbours": (
            ("m", "m", "", "", "m/s", "m/s", "") * neighbours,
            (position, position, 1.0, 1.0, speed, speed, 1.0) * neighbours,
        ),
    }
    layout = racing_layout(beams, lookahead, neighbours)
    return {name: ObservationPart(where, *facts.get(name, ())) for name, where in layout.items()}


def gaplock_observation(
    scan: jax.Array,
    ego_pose: jax.Array,
    ego_velocity: jax.Array,
    target_pose: jax.Array,
    target_velocity: jax.Array,
    has_target: jax.Array | bool,
    scales: ObservationScales,
    time_left: jax.Array | None = None,
    task: jax.Array | None = None,
) -> jax.Array:
    """Returns the attacker's observation: scan, both velocities, and the target's pose in the ego frame.

    Args:
      scan: `[B]` ranges in metres, right-hand beam first.
      ego_pose: `[3]` x, y (m) and heading (rad).
      ego_velocity: `[3]` vx, vy (m/s, body frame) and yaw rate (rad/s).
      target_pose: `[3]` of the target, like `ego_pose`.
      target_velocity: `[3]` of the target, in the target's own body frame.
      has_target: bool; without a target its eight features are 0.
      scales: divisors.
      time_left: remaining fraction of the episode, appended as one more feature if given.
      task: `task_features`, appended if given.

    Returns:
      `[B + 11]` and what is appended: the parts of `gaplock_layout`. `relative_pose` is forward, left, sine
      and cosine of the heading difference, distance.
    """
    offset = target_pose[:2] - ego_pose[:2]
    turn = target_pose[2] - ego_pose[2]
    relative = jnp.concatenate(
        [
            jnp.clip(rotate_vectors(offset, -ego_pose[2]) / scales.position_scale, -1.0, 1.0),
            jnp.stack([jnp.sin(turn), jnp.cos(turn)]),
            jnp.clip(jnp.hypot(offset[0], offset[1]) / scales.position_scale, 0.0, 1.0)[None],
        ]
    )
    target = jnp.concatenate([jnp.clip(target_velocity / scales.speed_scale, -1.0, 1.0), relative])
    parts = [
        jnp.clip(scan / scales.lidar_range, 0.0, 1.0),
        jnp.clip(ego_velocity / scales.speed_scale, -1.0, 1.0),
        jnp.where(has_target, target, 0.0),
    ]
    if time_left is not None:
        parts.append(jnp.clip(jnp.asarray(time_left, scan.dtype), 0.0, 1.0)[None])
    if task is not None:
        parts.append(jnp.clip(task.astype(scan.dtype), 0.0, 1.0))
    return jnp.concatenate(parts)


def task_features(spawn: jax.Array, spawn_points: int, driver, scales: ObservationScales) -> jax.Array:
    """Returns what sets an episode's task: its spawn point and the driver, `[spawn_points + 4]`.

    Args:
      spawn: int32, the episode's spawn point, shown as one of `spawn_points` ones.
      spawn_points: their number (static).
      driver: `FTGParams`; whether it aims at the farthest beam, its gain, its bubble's radius (beams) and
        its top speed (m/s) are shown.
      scales: divisors of the radius (`position_scale`) and of the speed.
    """
    shown = (
        driver.farthest,
        driver.steering_gain,
        driver.bubble_radius / scales.position_scale,
        driver.max_speed / scales.speed_scale,
    )
    place = jnp.arange(spawn_points) == spawn
    return jnp.concatenate([place.astype(jnp.float32), jnp.stack([jnp.float32(x) for x in shown])])


def racing_observation(
    scan: jax.Array,
    ego_pose: jax.Array,
    ego_velocity: jax.Array,
    ego_steer: jax.Array,
    offset: jax.Array,
    heading_error: jax.Array,
    lookahead: jax.Array,
    others_pose: jax.Array,
    others_velocity: jax.Array,
    others_valid: jax.Array,
    scales: RacingScales,
    neighbours: int = 2,
) -> jax.Array:
    """Returns a racing car's observation: scan, own motion, the centreline ahead, its nearest opponents.

    Args:
      scan: `[B]` ranges in metres, right-hand beam first.
      ego_pose: `[3]` x, y (m) and heading (rad).
      ego_velocity: `[3]` vx, vy (m/s, body frame) and yaw rate (rad/s).
      ego_steer: steering angle in rad.
      offset: lateral distance to the centreline in metres, positive on its left.
      heading_error: own heading minus the centreline's tangent, in rad.
      lookahead: `[K, 2]` centreline points ahead, world frame, metres.
      others_pose: `[M, 3]` of the other cars.
      others_velocity: `[M, 3]` of the other cars, each in its own body frame.
      others_valid: `[M]` bool; cars that exist and are in the race.
      scales: divisors.
      neighbours: number of nearest cars in the observation (static).

    Returns:
      `[B + 7 + 2 K + 7 neighbours]`: the parts of `racing_layout`. The heading error is shown as sine
      and cosine; each neighbour as forward, left, sine and cosine of the heading difference,
      relative velocity forward and left (ego frame), and 1; absent neighbours are all 0.
    """
    speeds = jnp.stack([scales.speed_scale, scales.speed_scale, scales.yaw_rate_scale])
    points = rotate_vectors(lookahead - ego_pose[:2], -ego_pose[2]) / scales.position_scale
    nearest = _nearest(ego_pose, ego_velocity, others_pose, others_velocity, others_valid, scales, neighbours)
    return jnp.concatenate(
        [
            jnp.clip(scan / scales.lidar_range, 0.0, 1.0),
            jnp.clip(ego_velocity / speeds, -1.0, 1.0),
            jnp.clip(ego_steer / scales.steer_scale, -1.0, 1.0)[None],
            jnp.clip(offset / scales.offset_scale, -1.0, 1.0)[None],
            jnp.stack([jnp.sin(heading_error), jnp.cos(heading_error)]),
            jnp.clip(points, -1.0, 1.0).ravel(),
            nearest.ravel(),
        ]
    )


def rotate_vectors(vector: jax.Array, angle: jax.Array) -> jax.Array:
    """Rotates vectors `[..., 2]` counter-clockwise by `angle` (rad)."""
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    x, y = vector[..., 0], vector[..., 1]
    return jnp.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)


def _nearest(
    ego_pose: jax.Array,
    ego_velocity: jax.Array,
    poses: jax.Array,
    velocities: jax.Array,
    valid: jax.Array,
    scales: RacingScales,
    neighbours: int,
) -> jax.Array:
    """Returns `[neighbours, 7]` features of the nearest valid cars, nearest first."""
    missing = max(neighbours - poses.shape[0], 0)
    poses = jnp.pad(poses, ((0, missing), (0, 0)))
    velocities = jnp.pad(velocities, ((0, missing), (0, 0)))
    valid = jnp.pad(valid, (0, missing))
    offset = rotate_vectors(poses[:, :2] - ego_pose[:2], -ego_pose[2])
    turn = poses[:, 2] - ego_pose[2]
    relative = rotate_vectors(velocities[:, :2], turn) - ego_velocity[:2]
    features = jnp.concatenate(
        [
            jnp.clip(offset / scales.position_scale, -1.0, 1.0),
            jnp.stack([jnp.sin(turn), jnp.cos(turn)], axis=-1),
            jnp.clip(relative / scales.speed_scale, -1.0, 1.0),
            jnp.ones_like(turn)[:, None],
        ],
        axis=-1,
    )
    distance = jnp.where(valid, jnp.hypot(offset[:, 0], offset[:, 1]), jnp.inf)
    order = jax.lax.top_k(-distance, neighbours)[1]
    return jnp.where(valid[:, None], features, 0.0)[order]


def _slices(sizes: dict[str, int]) -> dict[str, slice]:
    slices, start = {}, 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices
