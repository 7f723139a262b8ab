"""New goals along the lane graph. Reference: docs/reference/drive.md 8.6."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import LANE
from physics.bicycle import Motion
from physics.segments import MatchedLane, segments_between

MOST_LANES = 24
_BISECTIONS = 14
_FAR = 1e6


def draw_new_goals(
    key: jax.Array,
    bank: SceneBank,
    scene: jax.Array,
    motion: Motion,
    lane: MatchedLane,
    radius: jax.Array,
    distance: jax.Array,
) -> jax.Array:
    """Draws goals `[A, 2]` ahead of bodies.

    Walks `distance` m along the lane graph from the body's lane, with uniformly drawn successors; a walk that
    reaches a dead end stops at the lane's last point. Without a lane, or if the result lies within twice the
    goal radius, the goal is the end of the lane segment ahead of the body (or of any, if none is ahead) whose
    straight distance is nearest to `distance`.

    Args:
      key: typed key.
      bank: the scenes.
      scene: int32.
      motion: of the bodies, leaves `[A]`.
      lane: matched lanes; `index` counts segments of the scene.
      radius: of goals, `[A]` m.
      distance: `[A]` m.
    """
    number, arc = _place_on_lane(bank, scene, motion, lane)
    point = walk_lane_graph(key, bank, scene, number, arc, distance)
    near = jnp.hypot(point[:, 0] - motion.x, point[:, 1] - motion.y) <= 2 * radius
    other = _straight(bank, scene, motion, distance)
    return jnp.where((lane.found & ~near)[:, None], point, other)


def _place_on_lane(
    bank: SceneBank, scene: jax.Array, motion: Motion, lane: MatchedLane
) -> tuple[jax.Array, jax.Array]:
    """Returns the lanes `[A]` of matched bodies and the arcs along them, m."""
    ends = bank.segment[scene][lane.index]
    part = segments_between(ends[:, :2], ends[:, 2:])
    along = (motion.x - part.x) * part.cos + (motion.y - part.y) * part.sin + part.half
    arc = bank.segment_arc[scene][lane.index] + jnp.clip(along, 0.0, 2 * part.half)
    return jnp.maximum(bank.segment_lane[scene][lane.index], 0).astype(jnp.int32), arc


def walk_lane_graph(
    key: jax.Array,
    bank: SceneBank,
    scene: jax.Array,
    lane: jax.Array,
    arc: jax.Array,
    distance: jax.Array,
) -> jax.Array:
    """Walks `distance` m along the lane graph from arcs of lanes `[A]`; returns the end points `[A, 2]`."""
    length, following = bank.lane_length[scene], bank.lane_next[scene].astype(jnp.int32)

    def pass_on(carry, key):
        lane, target = carry
        options = following[lane]
        there = options >= 0
        chosen = jax.random.categorical(key, jnp.where(there, 0.0, -jnp.inf))
        onward = jnp.take_along_axis(options, chosen[:, None], axis=1)[:, 0]
        left = target - length[lane]
        moves = (left > 0) & jnp.any(there, axis=-1)
        return (jnp.where(moves, onward, lane), jnp.where(moves, left, target)), None

    (lane, target), _ = jax.lax.scan(pass_on, (lane, arc + distance), jax.random.split(key, MOST_LANES))
    return _point(bank, scene, lane, jnp.minimum(target, length[lane]))


def _point(bank: SceneBank, scene: jax.Array, lane: jax.Array, arc: jax.Array) -> jax.Array:
    """Returns the point at an arc of a lane; bisects for the last segment that starts no later."""
    start = bank.segment_arc[scene]
    low = jnp.maximum(bank.lane_first[scene][lane], 0).astype(jnp.int32)
    high = jnp.maximum(bank.lane_last[scene][lane], 0).astype(jnp.int32)

    def halve(_, ends):
        low, high = ends
        middle = (low + high + 1) // 2
        before = start[middle] <= arc
        return jnp.where(before, middle, low), jnp.where(before, high, middle - 1)

    index, _ = jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high))
    ends = bank.segment[scene][index]
    part = segments_between(ends[:, :2], ends[:, 2:])
    left = jnp.clip(arc - start[index], 0.0, 2 * part.half)
    return ends[:, :2] + left[:, None] * jnp.stack([part.cos, part.sin], axis=-1)


def _straight(bank: SceneBank, scene: jax.Array, motion: Motion, distance: jax.Array) -> jax.Array:
    """Ends `[A, 2]` of lane segments at about a straight distance, ahead of the bodies if possible."""
    points = bank.segment[scene][:, 2:]
    dx, dy = points[:, 0] - motion.x[:, None], points[:, 1] - motion.y[:, None]
    behind = dx * jnp.cos(motion.heading)[:, None] + dy * jnp.sin(motion.heading)[:, None] <= 0
    error = jnp.abs(jnp.hypot(dx, dy) - distance[:, None]) + jnp.where(behind, _FAR, 0.0)
    error = jnp.where(bank.segment_kind[scene] == LANE, error, jnp.inf)
    return points[jnp.argmin(error, axis=-1)]
