"""Contacts of bodies with each other and with the road, by look-ups in the bank's tables.

The tables list for every square of the plane all segments that a body in it can touch or match, so that
results equal those of a search over all segments. Reference: docs/reference/drive.md 3.4 to 3.6, 4.2.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import BIKE_LANE, CELL, CYCLIST, PEDESTRIAN
from jaxmarl_echelon.envs.drive.state import RoadCondition
from physics import boxes
from physics.bicycle import Motion
from physics.segments import MatchedLane, RoadSegments, match_lane, segments_between, segments_meet_box
from physics.sparse_batch import compute_where

FAR = 1e4
TIE = 1e-4


class ListedSegments(struct.PyTreeNode):
    """Segments of a list.

    Attributes:
      segments: `[..., K]`.
      there: bool `[..., K]`; the list has an entry here.
      index: int32 `[..., K]` in the scene; 0 without an entry.
    """

    segments: RoadSegments
    there: jax.Array
    index: jax.Array


def look_up_segments(
    bank: SceneBank, table: jax.Array, scene: jax.Array, x: jax.Array, y: jax.Array, side: float
) -> ListedSegments:
    """Returns the segments that a table `[S, Y, X, K]` of squares of `side` m lists for points `[...]`."""
    count = -(-bank.cells[scene] // round(side / CELL))
    origin = bank.origin[scene]
    column = jnp.clip(jnp.floor((x - origin[0]) / side).astype(jnp.int32), 0, count[0] - 1)
    row = jnp.clip(jnp.floor((y - origin[1]) / side).astype(jnp.int32), 0, count[1] - 1)
    index = table.at[scene, row, column].get(mode="promise_in_bounds").astype(jnp.int32)
    return _gather_segments(bank, scene, index)


def _gather_segments(bank: SceneBank, scene: jax.Array, index: jax.Array) -> ListedSegments:
    """Returns segments `[..., K]` by their index in the scene; negative indices mark missing entries."""
    safe = jnp.maximum(index, 0)
    ends = bank.segment.at[scene, safe].get(mode="promise_in_bounds")
    return ListedSegments(segments_between(ends[..., :2], ends[..., 2:]), index >= 0, safe)


def _look_up_lanes(
    bank: SceneBank, scene: jax.Array, motion: Motion, rides: jax.Array | None
) -> ListedSegments:
    """Lane segments near bodies `[A]` that they may drive on.

    `rides` `[A]` bool marks cyclists, which may use bike lanes; None if no lane is for bicycles only.
    """
    lanes = look_up_segments(bank, bank.near_lanes, scene, motion.x, motion.y, CELL)
    if rides is None:
        return lanes
    kind = bank.segment_kind.at[scene, lanes.index].get(mode="promise_in_bounds")
    return lanes.replace(there=lanes.there & ((kind != BIKE_LANE) | rides[:, None]))


def find_lanes(bank: SceneBank, scene: jax.Array, motion: Motion, rides: jax.Array | None) -> MatchedLane:
    """Matched lanes of bodies `[A]`; `index` counts segments of the scene."""
    lanes = _look_up_lanes(bank, scene, motion, rides)
    lane = match_lane(
        lanes.segments, lanes.there, motion.x, motion.y, jnp.cos(motion.heading), jnp.sin(motion.heading)
    )
    chosen = jnp.arange(lanes.index.shape[-1]) == lane.index[..., None]
    index = jnp.sum(jnp.where(chosen, lanes.index, 0), axis=-1)
    return lane.replace(index=jnp.where(lane.found, index, 0).astype(jnp.int32))


def touches_road_edge(
    bank: SceneBank, scene: jax.Array, motion: Motion, size: jax.Array, kind: jax.Array, signed: bool
) -> jax.Array:
    """Returns whether bodies `[A]` touch a road edge; pedestrians never count as off-road.

    Args:
      bank: the scenes, with `nearest_edges` if `signed`.
      scene: int32.
      motion: of the bodies.
      size: `[A, 2]`.
      kind: `[A]` int8 type of body.
      signed: whether a corner on the wrong side of its nearest edge counts as well.
    """
    edges = look_up_segments(bank, bank.near_edges, scene, motion.x, motion.y, CELL)
    cos, sin = jnp.cos(motion.heading)[:, None], jnp.sin(motion.heading)[:, None]
    hit = segments_meet_box(edges.segments, motion.x[:, None], motion.y[:, None], cos, sin, size[:, None])
    out = jnp.any(hit & edges.there, axis=-1)
    if signed:
        assert bank.nearest_edges is not None, "the signed test needs the nearest edges"
        nearest = look_up_segments(bank, bank.nearest_edges, scene, motion.x, motion.y, CELL)
        out = out | _beyond(nearest, motion, size)
    return out & (kind != PEDESTRIAN)


def _beyond(edges: ListedSegments, motion: Motion, size: jax.Array) -> jax.Array:
    pose = jnp.stack([motion.x, motion.y, motion.heading], axis=-1)
    corners = jax.vmap(boxes.corners_of_box)(pose, size[:, 0], size[:, 1])
    parts = jax.tree.map(lambda x: x[:, None], edges.segments)
    side = road_edge_distance(parts, edges.there[:, None], corners)
    return jnp.any(side > 0, axis=-1)


def road_edge_distance(edges: RoadSegments, there: jax.Array, point: jax.Array) -> jax.Array:
    """Signed distance of points `[..., 2]` to the nearest of the edges `[..., K]`, positive on its right.

    Where two edges are equally near, at their common vertex, the edge with the larger perpendicular distance
    to the point decides, which is correct for bends in both directions. Without an edge the distance is a
    large negative number. Reference: docs/reference/drive.md 3.6.
    """
    dx, dy = point[..., 0, None] - edges.x, point[..., 1, None] - edges.y
    along = dx * edges.cos + dy * edges.sin
    left = dy * edges.cos - dx * edges.sin
    beyond = jnp.maximum(jnp.abs(along) - edges.half, 0.0)
    distance = jnp.where(there, jnp.sqrt(left**2 + beyond**2), FAR)
    nearest = jnp.min(distance, axis=-1, keepdims=True)
    squarely = jnp.where(there & (distance <= nearest + TIE), jnp.abs(left), -1.0)
    chosen = jnp.arange(distance.shape[-1]) == jnp.argmax(squarely, axis=-1)[..., None]
    right = jnp.sum(jnp.where(chosen, left, 0.0), axis=-1) < 0
    nearest = nearest[..., 0]
    return jnp.where(right & (nearest < FAR), nearest, -nearest)


class Boxes(NamedTuple):
    """The boxes of all bodies, every leaf `[N]`.

    Attributes:
      x, y, cos, sin: centre and direction.
      length, width: m.
      solid: bool; takes part in collisions.
    """

    x: jax.Array
    y: jax.Array
    cos: jax.Array
    sin: jax.Array
    length: jax.Array
    width: jax.Array
    solid: jax.Array


def boxes_of(motion: Motion, size: jax.Array, solid: jax.Array) -> Boxes:
    """Boxes of bodies `[N]` with sizes `[N, 2]`."""
    cos, sin = jnp.cos(motion.heading), jnp.sin(motion.heading)
    return Boxes(motion.x, motion.y, cos, sin, size[:, 0], size[:, 1], solid)


def find_touching_bodies(bodies: Boxes, slots: jax.Array) -> jax.Array:
    """Whether each of the bodies in `slots`, int32 `[A]`, touches another solid one, bool `[A]`."""
    own = jax.tree.map(lambda x: x[slots][:, None], bodies)
    meets = boxes.overlap_turned(own[:4], own[4:6], bodies[:4], bodies[4:6])
    other = slots[:, None] != jnp.arange(bodies.solid.shape[0])
    return jnp.any(meets & other & bodies.solid & own.solid, axis=-1)


def compute_road_condition(
    bank: SceneBank,
    scene: jax.Array,
    motion: Motion,
    solid: jax.Array,
    agents: int,
    *,
    signed: bool,
    bikes: bool,
) -> RoadCondition:
    """Returns the contacts and lanes of the first `agents` bodies.

    Args:
      bank: the scenes.
      scene: int32.
      motion: of all bodies, leaves `[N]`.
      solid: `[N]` bool; takes part in collisions.
      agents: A.
      signed: see `touches_road_edge`.
      bikes: whether some lanes are for bicycles only.
    """
    bodies, slots = boxes_of(motion, bank.size[scene], solid), jnp.arange(agents)
    own = jax.tree.map(lambda x: x[:agents], motion)
    return _condition_of(bank, scene, bodies, own, slots, signed=signed, bikes=bikes)


def compute_active_road_condition(
    bank: SceneBank,
    scene: jax.Array,
    motion: Motion,
    solid: jax.Array,
    active: jax.Array,
    share: float,
    *,
    signed: bool,
    bikes: bool,
) -> RoadCondition:
    """Returns the road condition of the `active` `[A]` among the first bodies, `share` of a batch at a time.

    The others count as neither colliding nor off-road, and as without a lane.
    """
    find = partial(_condition_of, signed=signed, bikes=bikes)
    agents = active.shape[0]
    shared = scene, boxes_of(motion, bank.size[scene], solid)

    def alone(place, shared, bank, own, slot):
        scene, bodies = jax.tree.map(lambda x: x[place], shared)
        own = jax.tree.map(lambda x: x[None], own)
        return jax.tree.map(lambda x: x[0], find(bank, scene, bodies, own, slot[None]))

    def one(active, own, slot):
        stacked = jax.tree.map(lambda x: x[None], shared)
        shapes = jax.eval_shape(alone, jnp.int32(0), stacked, bank, own, slot)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return compute_where(alone, active, nothing, bank, own, slot, share=share, shared=shared)

    return jax.vmap(one)(active, jax.tree.map(lambda x: x[:agents], motion), jnp.arange(agents))


def _condition_of(
    bank, scene, bodies: Boxes, own: Motion, slots, *, signed: bool, bikes: bool
) -> RoadCondition:
    size, kind = bank.size[scene, slots], bank.type[scene, slots]
    return RoadCondition(
        find_touching_bodies(bodies, slots),
        touches_road_edge(bank, scene, own, size, kind, signed),
        find_lanes(bank, scene, own, kind == CYCLIST if bikes else None),
    )
