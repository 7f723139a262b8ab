"""Features of observations, as arrays in each learner's frame. Reference: docs/reference/drive.md 10."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.codes import BIKE_LANE, CYCLIST, EDGE, LANE, PEDESTRIAN
from jaxmarl_echelon.envs.drive.state import RoadCondition
from physics.bicycle import Motion
from physics.segments import RoadSegments

GOAL_SCALE, GOAL_MOST = 100.0, 2.0
SPEED_SCALE = 20.0
LENGTH_SCALE, WIDTH_SCALE = 10.0, 5.0
OFFSET_SCALE = 4.0
POSITION_SCALE = 50.0
HALF_SCALE = 10.0
PUFFER_GOAL, PUFFER_POSITION, PUFFER_SPEED = 0.005, 0.02, 100.0
PUFFER_WIDTH, PUFFER_LENGTH, PUFFER_HALF, PUFFER_THICKNESS = 15.0, 30.0, 100.0, 0.001
# Codes of road segments in the observations of the original.
PUFFER_LANE, PUFFER_LINE, PUFFER_EDGE = 0.0, 1.0, 2.0
PUFFER_EMPTY = 1e30  # every number of a row that stands for an empty place


def _turn_into_frame(x, y, cos, sin, point_x, point_y) -> tuple[jax.Array, jax.Array]:
    """Coordinates ahead of and to the left of a pose; all arguments broadcast."""
    dx, dy = point_x - x, point_y - y
    return dx * cos + dy * sin, dy * cos - dx * sin


def compact_ego_features(
    motion: Motion, goal: jax.Array, size: jax.Array, condition: RoadCondition, ghost: jax.Array
) -> list[jax.Array]:
    """The first twelve ego features of the `compact` layout, `[A]` each."""
    cos, sin = jnp.cos(motion.heading), jnp.sin(motion.heading)
    goal_x, goal_y = _turn_into_frame(motion.x, motion.y, cos, sin, goal[:, 0], goal[:, 1])
    lane = condition.lane
    return [
        jnp.clip(goal_x / GOAL_SCALE, -GOAL_MOST, GOAL_MOST),
        jnp.clip(goal_y / GOAL_SCALE, -GOAL_MOST, GOAL_MOST),
        motion.speed / SPEED_SCALE,
        size[:, 0] / LENGTH_SCALE,
        size[:, 1] / WIDTH_SCALE,
        condition.colliding,
        condition.offroad,
        ghost,
        jnp.clip(lane.offset / OFFSET_SCALE, -1.0, 1.0),
        jnp.where(lane.found, jnp.cos(lane.angle), 0.0),
        jnp.where(lane.found, jnp.sin(lane.angle), 0.0),
        lane.found,
    ]


def puffer_ego_features(
    motion: Motion, goal: jax.Array, size: jax.Array, condition: RoadCondition, ghost: jax.Array
) -> list[jax.Array]:
    """The seven ego features of PufferDrive, `[A]` each."""
    cos, sin = jnp.cos(motion.heading), jnp.sin(motion.heading)
    goal_x, goal_y = _turn_into_frame(motion.x, motion.y, cos, sin, goal[:, 0], goal[:, 1])
    return [
        goal_x * PUFFER_GOAL,
        goal_y * PUFFER_GOAL,
        jnp.abs(motion.speed) / PUFFER_SPEED,
        size[:, 1] / PUFFER_WIDTH,
        size[:, 0] / PUFFER_LENGTH,
        condition.colliding | condition.offroad,
        ghost,
    ]


def compact_partner_rows(
    motion: Motion, other: Motion, size: jax.Array, kind: jax.Array, there: jax.Array
) -> jax.Array:
    """Rows `[A, P, 9]` of other bodies, leaves `[A, P]`; zeros where `there` is False."""
    x, y, cos, sin = _seen_from(motion, other)
    row = [
        x / POSITION_SCALE,
        y / POSITION_SCALE,
        cos,
        sin,
        other.speed / SPEED_SCALE,
        size[..., 0] / LENGTH_SCALE,
        size[..., 1] / WIDTH_SCALE,
        (kind == CYCLIST).astype(jnp.float32),
        (kind == PEDESTRIAN).astype(jnp.float32),
    ]
    return jnp.where(there[..., None], jnp.stack(row, axis=-1), 0.0)


def puffer_partner_rows(motion: Motion, other: Motion, size: jax.Array, there: jax.Array) -> jax.Array:
    """Rows `[A, P, 7]` of other bodies in PufferDrive's order and scales; leaves of `other` `[A, P]`."""
    return _seen_where(motion, puffer_body_table(other, size), there)


def puffer_body_table(motion: Motion, size: jax.Array) -> jax.Array:
    """Inputs of `turn_puffer_rows` for bodies `[...]` with sizes `[..., 2]`: a `puffer_table` `[..., 7]`."""
    return puffer_table(
        jnp,
        (motion.x, motion.y),
        (jnp.cos(motion.heading), jnp.sin(motion.heading)),
        (size[..., 1] / PUFFER_WIDTH, size[..., 0] / PUFFER_LENGTH, jnp.abs(motion.speed) / PUFFER_SPEED),
    )


def puffer_segment_table(xp, segments: RoadSegments, kind) -> jax.Array:
    """Inputs of `turn_puffer_rows` for road segments `[...]`: a `puffer_table` `[..., 7]`.

    Bike lanes count as lanes.

    Args:
      xp: the array library, `numpy` or `jax.numpy`.
      segments: `[...]`.
      kind: `[...]` of `codes`.
    """
    code = xp.where(kind == EDGE, PUFFER_EDGE, PUFFER_LINE)
    code = xp.where((kind == LANE) | (kind == BIKE_LANE), PUFFER_LANE, code)
    thickness = xp.full_like(segments.x, PUFFER_THICKNESS)
    rest = segments.half / PUFFER_HALF, thickness, code
    return puffer_table(xp, (segments.x, segments.y), (segments.cos, segments.sin), rest)


def puffer_table(xp, place, direction, rest) -> jax.Array:
    """Rows `[..., 7]`: x and y in m, two numbers, cosine and sine, and a number.

    Args:
      xp: the array library, `numpy` or `jax.numpy`.
      place: x and y, `[...]` each.
      direction: cosine and sine.
      rest: the third, fourth and last column.
    """
    third, fourth, last = rest
    return xp.stack([*place, third, fourth, *direction, last], axis=-1)


def append_empty_row(xp, rows) -> jax.Array:
    """Appends a row for an empty place to rows `[..., K, 7]`."""
    return xp.concatenate([rows, xp.full_like(rows[..., :1, :], PUFFER_EMPTY)], axis=-2)


def gather_rows(table: jax.Array, index: jax.Array) -> jax.Array:
    """Gathers rows `[A, K, 7]` of tables `[..., 7]` by their flat index `[A, K]`."""
    return table.reshape(-1, 7).at[index].get(mode="promise_in_bounds")


def turn_puffer_rows(motion: Motion, rows: jax.Array) -> jax.Array:
    """Rows `[A, K, 7]` in the frames of learners `[A]` from rows `[A, K + 2, 7]` of a `puffer_table`.

    The first and the last row are placeholders, because one number before and after each row is read; empty
    rows become zeros. x is turned with the number after it and y with the one before it, as are cosine and
    sine: the same products for all columns, for several rows at once. Row by row this takes four times as
    long on a CPU, because seven numbers do not fill its vector registers.
    """
    agents, count = rows.shape[0], rows.shape[1] - 2
    together = next(size for size in (8, 9, 1) if count % size == 0)
    flat = rows.reshape(agents, -1)
    cos, sin = jnp.cos(motion.heading), jnp.sin(motion.heading)
    none, one, scale = jnp.zeros_like(cos), jnp.ones_like(cos), PUFFER_POSITION

    def per_column(*values):
        return jnp.tile(jnp.stack(values, axis=-1), (1, together))[:, None]

    def shifted(by):
        part = flat[:, 7 + by : 7 + by + 7 * count]
        return part.reshape(agents, count // together, 7 * together)

    own, behind, before = shifted(0), shifted(1), shifted(-1)
    x, y, rest = motion.x, motion.y, (none,) * 5
    turned = (own - per_column(x, y, *rest)) * per_column(scale * cos, scale * cos, one, one, cos, cos, one)
    turned += (behind - per_column(y, none, *rest)) * per_column(scale * sin, *rest[:3], sin, none, none)
    turned += (before - per_column(none, x, *rest)) * per_column(
        none, -scale * sin, none, none, none, -sin, none
    )
    return jnp.where(own == PUFFER_EMPTY, 0.0, turned).reshape(agents, count, 7)


def _seen_from(motion: Motion, other: Motion) -> tuple[jax.Array, ...]:
    """Position, and cosine and sine of the heading, of other bodies `[A, P]` in the learners' frames."""
    cos, sin = jnp.cos(motion.heading)[:, None], jnp.sin(motion.heading)[:, None]
    x, y = _turn_into_frame(motion.x[:, None], motion.y[:, None], cos, sin, other.x, other.y)
    turn = other.heading - motion.heading[:, None]
    return x, y, jnp.cos(turn), jnp.sin(turn)


def compact_road_rows(motion: Motion, segments: RoadSegments, there: jax.Array) -> jax.Array:
    """Rows `[A, K, 5]` of road segments."""
    x, y, cos, sin = _road_from(motion, segments)
    row = [x / POSITION_SCALE, y / POSITION_SCALE, segments.half / HALF_SCALE, cos, sin]
    return jnp.where(there[..., None], jnp.stack(row, axis=-1), 0.0)


def puffer_road_rows(motion: Motion, segments: RoadSegments, kind: jax.Array, there: jax.Array) -> jax.Array:
    """Rows `[A, K, 7]` of road segments in PufferDrive's order and scales."""
    return _seen_where(motion, puffer_segment_table(jnp, segments, kind), there)


def _seen_where(motion: Motion, rows: jax.Array, there: jax.Array) -> jax.Array:
    rows = jnp.where(there[..., None], rows, PUFFER_EMPTY)
    return turn_puffer_rows(motion, jnp.pad(rows, ((0, 0), (1, 1), (0, 0))))


def _road_from(motion: Motion, segments: RoadSegments) -> tuple[jax.Array, ...]:
    cos, sin = jnp.cos(motion.heading)[:, None], jnp.sin(motion.heading)[:, None]
    x, y = _turn_into_frame(motion.x[:, None], motion.y[:, None], cos, sin, segments.x, segments.y)
    along = segments.cos * cos + segments.sin * sin
    return x, y, along, segments.sin * cos - segments.cos * sin
