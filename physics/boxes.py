"""Oriented boxes in the plane: corners, overlap, contact with a distance field, and rays.

A pose is `[x, y, yaw]` of the box's centre (m, rad); a size is `[length, width]` (m), the length along yaw.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def corners_of_box(pose: jax.Array, length: float | jax.Array, width: float | jax.Array) -> jax.Array:
    """Returns the corners [4, 2] of a box at `pose` [3]: rear left, rear right, front right, front left."""
    return _placed(pose, length / 2, width / 2, np.array([-1, -1, 1, 1]), np.array([1, -1, -1, 1]))


def box_corners(pose: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns the corners `[..., 4, 2]` of boxes, counter-clockwise from the front left, in NumPy.

    Args:
      pose: x, y, heading, `[..., 3]`.
      size: length and width, `[..., 2]`.
    """
    cos, sin = np.cos(pose[..., 2, None]), np.sin(pose[..., 2, None])
    along = size[..., :1] / 2 * np.array([1, -1, -1, 1])
    across = size[..., 1:] / 2 * np.array([1, 1, -1, -1])
    x, y = pose[..., :1] + cos * along - sin * across, pose[..., 1:2] + sin * along + cos * across
    return np.stack([x, y], axis=-1)


def boxes_overlap(
    pose_a: jax.Array, size_a: jax.Array, pose_b: jax.Array, size_b: jax.Array, xp: Any = jnp
) -> jax.Array:
    """Tells whether two boxes share a point, by the separating axis theorem; touching counts.

    Args:
      pose_a, pose_b: poses [3, ...].
      size_a, size_b: sizes [2, ...].
      xp: the array library, `jax.numpy` or `numpy`.

    Returns:
      bool [...].
    """
    a, b = ((pose[0], pose[1], xp.cos(pose[2]), xp.sin(pose[2])) for pose in (pose_a, pose_b))
    return overlap_turned(a, size_a, b, size_b, xp)


def overlap_turned(
    place_a: Sequence[jax.Array],
    size_a: jax.Array,
    place_b: Sequence[jax.Array],
    size_b: jax.Array,
    xp: Any = jnp,
) -> jax.Array:
    """`boxes_overlap` of boxes whose directions are known: places are x, y, and cosine and sine of the yaw.

    For many pairs of few boxes: cosines are then computed once per box.
    """
    x_a, y_a, cos_a, sin_a = place_a
    x_b, y_b, cos_b, sin_b = place_b
    dx, dy = x_b - x_a, y_b - y_a
    long_a, wide_a = size_a[0] / 2, size_a[1] / 2
    long_b, wide_b = size_b[0] / 2, size_b[1] / 2
    cos_ab = xp.abs(cos_a * cos_b + sin_a * sin_b)
    sin_ab = xp.abs(cos_a * sin_b - sin_a * cos_b)
    return (
        (xp.abs(dx * cos_a + dy * sin_a) <= long_a + long_b * cos_ab + wide_b * sin_ab)
        & (xp.abs(dy * cos_a - dx * sin_a) <= wide_a + long_b * sin_ab + wide_b * cos_ab)
        & (xp.abs(dx * cos_b + dy * sin_b) <= long_b + long_a * cos_ab + wide_a * sin_ab)
        & (xp.abs(dy * cos_b - dx * sin_b) <= wide_b + long_a * sin_ab + wide_a * cos_ab)
    )


def boundary_intervals(length: float, width: float, spacing: float) -> tuple[int, int]:
    """Returns the numbers of pieces of a box's long and wide sides for which none exceeds `spacing` (m).

    Runs on the host: the counts fix the shapes of `boundary_points` and `box_clearance`.

    Raises:
      ValueError: if `spacing` is not positive.
    """
    if not spacing > 0:
        raise ValueError(f"spacing={spacing}: must be positive (metres)")
    # Rounding can put a whole quotient slightly above its value; it must not gain a piece.
    return tuple(max(1, math.ceil(side / spacing - 1e-9)) for side in (length, width))


def boundary_points(pose: jax.Array, size: jax.Array, intervals: tuple[int, int] = (7, 5)) -> jax.Array:
    """Returns evenly spaced points on a box's boundary, its corners among them.

    Args:
      pose: pose [3].
      size: size [2].
      intervals: static number of pieces (n, m) of each long and each wide side.

    Returns:
      Points [2 (n + m), 2].
    """
    along, across = (np.linspace(-1, 1, n + 1) for n in intervals)
    # Each side contributes its first point and leaves its last to the next side.
    u = np.concatenate([along[:-1], np.ones(len(across) - 1), along[:0:-1], -np.ones(len(across) - 1)])
    w = np.concatenate([-np.ones(len(along) - 1), across[:-1], np.ones(len(along) - 1), across[:0:-1]])
    return _placed(pose, size[0] / 2, size[1] / 2, u, w)


def box_clearance(
    pose: jax.Array,
    size: jax.Array,
    distance_at: Callable[[jax.Array], jax.Array],
    intervals: tuple[int, int] = (7, 5),
) -> jax.Array:
    """Returns the smallest distance that a field reports on a box's boundary: contact where it is <= 0.

    With a field that is 0 on occupied cells contact is never reported falsely. A cell is found if it holds a
    corner of the box, or if an edge crosses it for at least the spacing h of the points. Where h is at most
    the side of a cell, the only contact that is missed is a cell's corner that reaches into an edge by less
    than h/2. The default intervals give h <= 0.05 m for boxes up to 0.35 m x 0.25 m; see
    `boundary_intervals`. An obstacle smaller than the box is found while it crosses the boundary, not once
    it lies inside.

    Args:
      pose: pose [3].
      size: size [2].
      distance_at: field, points [..., 2] -> distance [...], m.
      intervals: see `boundary_points`.

    Returns:
      Distance [], m.
    """
    return jnp.min(distance_at(boundary_points(pose, size, intervals)))


def ray_box_distances(
    scanner: jax.Array,
    angles: jax.Array,
    pose: jax.Array,
    length: float | jax.Array,
    width: float | jax.Array,
) -> jax.Array:
    """Returns the distances at which rays first cross a box's boundary (slab method).

    Args:
      scanner: pose [3] that all rays start at.
      angles: directions of the rays [B] relative to the scanner's heading, rad. For constants their sines
        are computed at compile time.
      pose: pose of the box [3].
      length, width: size of the box, m.

    Returns:
      Distances [B], m; inf where the box is missed. From inside the box, the distance to the exit.
    """
    cos_box, sin_box = jnp.cos(pose[2]), jnp.sin(pose[2])
    cos_ray, sin_ray = jnp.cos(angles), jnp.sin(angles)
    turn = scanner[2] - pose[2]
    cos_turn, sin_turn = jnp.cos(turn), jnp.sin(turn)
    dx, dy = scanner[0] - pose[0], scanner[1] - pose[1]
    near_x, far_x = _slab(dx * cos_box + dy * sin_box, cos_turn * cos_ray - sin_turn * sin_ray, length / 2)
    near_y, far_y = _slab(dy * cos_box - dx * sin_box, sin_turn * cos_ray + cos_turn * sin_ray, width / 2)
    near, far = jnp.maximum(near_x, near_y), jnp.minimum(far_x, far_y)
    hit = (near <= far) & (far >= 0)
    return jnp.where(hit, jnp.where(near >= 0, near, far), jnp.inf)


def side_distances(
    angles: jax.Array, half_length: float | jax.Array, half_width: float | jax.Array
) -> jax.Array:
    """Returns the distance from a box's centre to its boundary along beams.

    Args:
      angles: directions of the beams relative to the box [B], rad.
      half_length, half_width: half the box's size, m.

    Returns:
      Distances [B], m.
    """
    return jnp.minimum(
        half_length / _off_zero(jnp.abs(jnp.cos(angles))), half_width / _off_zero(jnp.abs(jnp.sin(angles)))
    )


def _placed(
    pose: jax.Array, half_length: jax.Array, half_width: jax.Array, u: np.ndarray, w: np.ndarray
) -> jax.Array:
    """Returns world points [P, 2] at box coordinates u, w [P] (1 is half the length, half the width)."""
    cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
    along, across = half_length * u.astype(pose.dtype), half_width * w.astype(pose.dtype)
    return jnp.stack([pose[0] + cos * along - sin * across, pose[1] + sin * along + cos * across], axis=-1)


def _off_zero(d: jax.Array) -> jax.Array:
    # Small enough for a ray that is parallel to a side, large enough that a quotient stays finite in float32.
    tiny = 1e-12
    return jnp.where(jnp.abs(d) < tiny, tiny, d)


def _slab(start: jax.Array, direction: jax.Array, half: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the distances at which a ray enters and leaves the strip |position| <= half."""
    per_direction = 1 / _off_zero(direction)
    one, other = (-half - start) * per_direction, (half - start) * per_direction
    return jnp.minimum(one, other), jnp.maximum(one, other)
