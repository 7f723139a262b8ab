"""Driven bodies: the intelligent driver model along fixed routes, with leaders, gates and lights.

Axes: R points per route, G gates per body, K pieces of a corridor, F bodies of a group. Reference:
docs/reference/drive.md 7.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import ROUTE_POINTS
from jaxmarl_echelon.envs.drive.state import DT, RouteProgress
from jaxmarl_echelon.envs.drive.traffic import signals
from physics.angles import wrap_angle
from physics.bicycle import Motion
from physics.car_following import idm_acceleration

LOOKAHEAD = (20.0, 40.0)
LOOKAHEAD_TIME = 5.0
MARGIN = 0.1
PIECES = 16
DEFAULT_LIMIT = 10.0
STOPPED = 0.5
STOP_REACH = 3.0
TOLERANCE = 0.05  # m by which a waiting body's front may have crossed the line
LEAST_SPEED = 1.5  # m/s assumed for slower bodies when their arrival is estimated
CLEARANCE = 4.0  # s; bodies with priority go first even if they arrive up to this much later
SOON = 8.0  # s; bodies that arrive later are ignored
MOST_STEP = 5.0  # m that an arc may move in a step
CLEAR = 1e4  # m, and s; stands for no leader and no gate


class BodyGroup(struct.PyTreeNode):
    """Consecutive slots of driven bodies.

    Attributes:
      first, count: first slot and number of slots; static.
    """

    first: int
    count: int

    def of(self, values):
        """Returns the group's part of leaves `[N, ...]`."""
        return jax.tree.map(lambda x: x[self.first : self.first + self.count], values)

    def put(self, values, part):
        """Returns leaves `[N, ...]` with the group's part replaced."""
        end = self.first + self.count
        return jax.tree.map(
            lambda x, new: jnp.concatenate([x[: self.first], new.astype(x.dtype), x[end:]]), values, part
        )

    @property
    def slots(self) -> jax.Array:
        """The slots `[F]`."""
        return jnp.arange(self.first, self.first + self.count)


def _interpolate_route(
    bank: SceneBank, scene: jax.Array, slots: jax.Array, arc: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Interpolates routes at arcs `[F, ...]` of the bodies in `slots [F]`.

    Returns:
      x, y, heading and speed limit, `[F, ...]`.
    """
    shape = (slots.shape[0],) + (1,) * (arc.ndim - 1)
    slots, spacing = slots.reshape(shape), bank.route_spacing[scene][slots].reshape(shape)
    place = arc / jnp.where(spacing > 0, spacing, 1.0)
    index = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, ROUTE_POINTS - 2)
    slots = jnp.broadcast_to(slots, arc.shape)
    here = bank.route.at[scene, slots, index].get(mode="promise_in_bounds")
    ahead = bank.route.at[scene, slots, index + 1].get(mode="promise_in_bounds")
    part = (place - index)[..., None]
    point = here[..., :2] + part * (ahead - here)[..., :2]
    heading = here[..., 2] + jnp.clip(part[..., 0], 0.0, 1.0) * (ahead - here)[..., 2]
    return point[..., 0], point[..., 1], heading, here[..., 3]


def project_onto_routes(bank: SceneBank, scene: jax.Array, motion: Motion) -> jax.Array:
    """Arcs `[N]` of the bodies' projections onto their routes at the nearest route point, m."""
    route, spacing = bank.route[scene], bank.route_spacing[scene]
    squared = (route[..., 0] - motion.x[:, None]) ** 2 + (route[..., 1] - motion.y[:, None]) ** 2
    index = jnp.argmin(squared, axis=-1)
    point = jnp.take_along_axis(route, index[:, None, None], axis=1)[:, 0]
    along = (motion.x - point[:, 0]) * jnp.cos(point[:, 2]) + (motion.y - point[:, 1]) * jnp.sin(point[:, 2])
    return jnp.where(spacing > 0, jnp.maximum(index * spacing + along, 0.0), 0.0)


def follow_routes(
    bank: SceneBank,
    scene: jax.Array,
    sample: jax.Array,
    group: BodyGroup,
    motion: Motion,
    solid: jax.Array,
    traffic: RouteProgress,
) -> tuple[Motion, RouteProgress]:
    """Moves a group one step along its routes, from the poses of all bodies before the step.

    Args:
      bank: the scenes.
      scene: int32.
      sample: int32 sample of the recording, for lights.
      group: the bodies to move; results for bodies without a route are meaningless.
      motion: of all bodies, leaves `[N]`.
      solid: `[N]` bool; visible to drivers.
      traffic: route progress of all bodies, leaves `[N]`.

    Returns:
      motion and traffic of the group, leaves `[F]`.
    """
    own, progress = group.of(motion), group.of(traffic)
    half = group.of(bank.size[scene])[:, 0] / 2
    speed = jnp.maximum(own.speed, 0.0)
    gap, leader = _leader(bank, scene, group, motion, solid, progress.arc + half, speed)
    gates = _approaches(bank, scene, motion, solid, traffic)
    held = group.of(_held(bank, scene, sample, gates))
    limit = _interpolate_route(bank, scene, group.slots, progress.arc)[3]
    desired = jnp.where(limit > 0, limit, DEFAULT_LIMIT)
    given = jnp.minimum(
        idm_acceleration(jnp, speed, desired, gap, leader), idm_acceleration(jnp, speed, desired, held, 0.0)
    )
    after = jnp.maximum(speed + given * DT, 0.0)
    arc = progress.arc + (speed + after) / 2 * DT
    x, y, heading, _ = _interpolate_route(bank, scene, group.slots, arc)
    served = group.of(gates.served) & (arc + half <= group.of(gates.line) + TOLERANCE)
    return Motion(x, y, wrap_angle(heading), after), progress.replace(arc=arc, served=served)


def track_route_arcs(
    bank: SceneBank, scene: jax.Array, group: BodyGroup, motion: Motion, arc: jax.Array
) -> jax.Array:
    """Route arcs `[F]` of bodies that do not follow their routes exactly, such as learners.

    Moves the last arc by the body's displacement along the route's heading, at most `MOST_STEP` m.
    """
    x, y, heading, _ = _interpolate_route(bank, scene, group.slots, arc)
    along = (motion.x - x) * jnp.cos(heading) + (motion.y - y) * jnp.sin(heading)
    return jnp.maximum(arc + jnp.clip(along, -MOST_STEP, MOST_STEP), 0.0)


def _leader(bank, scene, group: BodyGroup, motion: Motion, solid, front, speed):
    """Gap `[F]` from the bumper to the first body in the corridor ahead, and that body's speed along it."""
    reach = jnp.clip(LOOKAHEAD_TIME * speed, *LOOKAHEAD)
    piece = reach / PIECES
    middle = (jnp.arange(PIECES) + 0.5) * piece[:, None]
    x, y, heading, _ = _interpolate_route(bank, scene, group.slots, front[:, None] + middle)
    cos, sin = jnp.cos(heading)[..., None], jnp.sin(heading)[..., None]
    size = bank.size[scene]
    c, s = jnp.cos(motion.heading), jnp.sin(motion.heading)
    straight, across = jnp.abs(cos * c + sin * s), jnp.abs(cos * s - sin * c)
    length, width = size[:, 0] / 2 + MARGIN, size[:, 1] / 2 + MARGIN
    dx, dy = motion.x - x[..., None], motion.y - y[..., None]
    along, left = dx * cos + dy * sin, dy * cos - dx * sin
    deep = length * straight + width * across
    half = piece[:, None, None] / 2
    inside = jnp.abs(left) <= group.of(size)[:, 1, None, None] / 2 + length * across + width * straight
    inside &= jnp.abs(along) <= half + deep
    inside &= solid & (jnp.arange(solid.shape[0]) != group.slots[:, None])[:, None]
    gap = jnp.where(inside, middle[..., None] + jnp.maximum(along - deep, -half), CLEAR).reshape(
        front.shape[0], -1
    )
    advance = jnp.maximum(motion.speed * (cos * c + sin * s), 0.0).reshape(gap.shape)
    nearest = jnp.min(gap, axis=-1)
    # The slowest of equally near bodies.
    leader = jnp.min(jnp.where(gap <= nearest[:, None], advance, CLEAR), axis=-1)
    return nearest, leader


class _Approach(NamedTuple):
    """Approach of bodies `[N]` to their next gates, and the junctions that they occupy.

    Attributes:
      coming: bool; the body has a gate ahead.
      line: arc of the gate, m.
      gap: from the body's front to the gate, m.
      junction: behind the gate, -1 without.
      light: at the gate, -1 without.
      main: bool; the route through the gate has priority.
      served: bool; the body has stopped for the gate's stop sign.
      must_stop: bool; the gate has a stop sign that has not been served.
      time: until the gate is reached, s.
      inside: `[N, G]` bool; the body is in the junction behind a gate.
    """

    coming: jax.Array
    line: jax.Array
    gap: jax.Array
    junction: jax.Array
    light: jax.Array
    main: jax.Array
    served: jax.Array
    must_stop: jax.Array
    time: jax.Array
    inside: jax.Array


def _approaches(bank, scene, motion: Motion, solid, traffic: RouteProgress) -> _Approach:
    half, speed = bank.size[scene][:, 0] / 2, jnp.maximum(motion.speed, 0.0)
    front, rear = traffic.arc + half, traffic.arc - half
    lines = bank.gate_arc[scene]
    ahead = lines >= front[:, None] - TOLERANCE
    chosen = ahead & (jnp.cumsum(ahead, axis=-1) == 1) & solid[:, None] & jnp.isfinite(lines)

    def pick(table, empty):
        found = jnp.sum(jnp.where(chosen, table[scene], 0), axis=-1)
        return jnp.where(coming, found, jnp.asarray(empty, found.dtype))

    coming = jnp.any(chosen, axis=-1)
    line = jnp.where(coming, jnp.sum(jnp.where(chosen, lines, 0.0), axis=-1), CLEAR)
    gap = line - front
    sign = pick(bank.gate_stop.astype(jnp.int32), 0) > 0
    served = coming & (traffic.served | ((speed < STOPPED) & (gap < STOP_REACH)))
    must_stop = sign & ~served
    return _Approach(
        coming=coming,
        line=line,
        gap=gap,
        junction=pick(bank.gate_junction.astype(jnp.int32), -1),
        light=pick(bank.gate_light.astype(jnp.int32), -1),
        main=pick(bank.gate_main.astype(jnp.int32), 0) > 0,
        served=served,
        must_stop=must_stop,
        time=jnp.where(must_stop, CLEAR, gap / jnp.maximum(speed, LEAST_SPEED)),
        inside=~ahead & (rear[:, None] < bank.gate_end[scene]) & solid[:, None],
    )


def _held(bank, scene, sample, gates: _Approach) -> jax.Array:
    """Distance `[N]` to the gate at which a body waits; a large number if it need not wait.

    A body waits at unserved stop signs and red lights, for bodies in the junction on conflicting routes, for
    approaching bodies with priority, and for nearer approaching bodies of equal priority;
    docs/reference/drive.md 7.4.
    """
    slots, junction = jnp.arange(gates.gap.shape[0]), gates.junction
    mine, other = gates.time[:, None], gates.time[None]
    first = (other < mine) | ((other == mine) & (slots[None] < slots[:, None]))
    same = gates.main[None] == gates.main[:, None]
    ranked = jnp.where(same, first, gates.main[None] & (other < mine + CLEARANCE))
    comes = (junction[None] == junction[:, None]) & ranked & (other < SOON)
    behind = bank.gate_junction[scene].astype(jnp.int32)
    within = jnp.any((behind[None] == junction[:, None, None]) & gates.inside[None], axis=-1)
    blocked = jnp.any(bank.conflict[scene] & (comes | within), axis=-1) & (junction >= 0)
    stops = signals.find_red_lights(bank, scene, sample)[jnp.maximum(gates.light, 0)]
    waits = blocked | gates.must_stop | ((gates.light >= 0) & stops)
    return jnp.where(gates.coming & waits, jnp.maximum(gates.gap, 0.0), CLEAR)
