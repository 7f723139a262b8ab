"""Bodies on rails: the intelligent driver model along routes, with leaders, stop signs, gates and lights.

Source: spec drive 1.7. R points per route, G gates per body, K pieces of a corridor.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import ROUTE_POINTS
from jaxmarl_echelon.envs.drive.state import DT, Traffic
from jaxmarl_echelon.envs.drive.traffic import signals
from physics.bicycle import Motion, wrap
from physics.car_following import acceleration

LOOKAHEAD = (20.0, 40.0)
LOOKAHEAD_TIME = 5.0
MARGIN = 0.1
PIECES = 16
DEFAULT_LIMIT = 10.0
STOPPED = 0.5
STOP_REACH = 3.0
TOLERANCE = 0.05  # m by which a front may be over the line and still wait
LEAST_SPEED = 1.5  # m/s at which those that stand count as coming
CLEARANCE = 4.0  # s by which a way that has priority must be free
SOON = 8.0  # s; who comes later is not waited for
MOST_STEP = 5.0  # m that an arc may move in a step
CLEAR = 1e4  # m; farther than any leader, and s


class Group(NamedTuple):
    """Consecutive bodies that are driven.

    Attributes:
      first, count: of their slots; static.
    """

    first: int
    count: int

    def of(self, values):
        """Their part of leaves `[N, ...]`."""
        return jax.tree.map(lambda x: x[self.first : self.first + self.count], values)

    def put(self, values, part):
        """Leaves `[N, ...]` with their part replaced."""
        end = self.first + self.count
        return jax.tree.map(
            lambda x, new: jnp.concatenate([x[: self.first], new.astype(x.dtype), x[end:]]), values, part
        )

    @property
    def slots(self) -> jax.Array:
        """Their slots."""
        return jnp.arange(self.first, self.first + self.count)


def pose_at(
    bank: SceneBank, scene: jax.Array, slots: jax.Array, arc: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Points of routes at arcs `[F, ...]` of the bodies in `slots [F]`.

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


def nearest_arc(bank: SceneBank, scene: jax.Array, motion: Motion) -> jax.Array:
    """Arcs of the route points `[N]` nearest to bodies, moved on by what is left along the route, m."""
    route, spacing = bank.route[scene], bank.route_spacing[scene]
    squared = (route[..., 0] - motion.x[:, None]) ** 2 + (route[..., 1] - motion.y[:, None]) ** 2
    index = jnp.argmin(squared, axis=-1)
    point = jnp.take_along_axis(route, index[:, None, None], axis=1)[:, 0]
    along = (motion.x - point[:, 0]) * jnp.cos(point[:, 2]) + (motion.y - point[:, 1]) * jnp.sin(point[:, 2])
    return jnp.where(spacing > 0, jnp.maximum(index * spacing + along, 0.0), 0.0)


def follow(
    bank: SceneBank,
    scene: jax.Array,
    sample: jax.Array,
    group: Group,
    motion: Motion,
    solid: jax.Array,
    traffic: Traffic,
) -> tuple[Motion, Traffic]:
    """One step of a group along its routes, from the poses of all bodies before the step.

    Args:
      bank: the scenes.
      scene: int32.
      sample: int32 sample of the recording, for lights.
      group: who is driven; others in it than those with a route move anyhow.
      motion: of all bodies, leaves `[N]`.
      solid: `[N]` bool; is seen by drivers.
      traffic: of all bodies, leaves `[N]`.

    Returns:
      motion and traffic of the group, leaves `[F]`.
    """
    own, progress = group.of(motion), group.of(traffic)
    half = group.of(bank.size[scene])[:, 0] / 2
    speed = jnp.maximum(own.speed, 0.0)
    gap, leader = _leader(bank, scene, group, motion, solid, progress.arc + half, speed)
    gates = _approaches(bank, scene, motion, solid, traffic)
    held = group.of(_held(bank, scene, sample, gates))
    limit = pose_at(bank, scene, group.slots, progress.arc)[3]
    desired = jnp.where(limit > 0, limit, DEFAULT_LIMIT)
    given = jnp.minimum(
        acceleration(jnp, speed, desired, gap, leader), acceleration(jnp, speed, desired, held, 0.0)
    )
    after = jnp.maximum(speed + given * DT, 0.0)
    arc = progress.arc + (speed + after) / 2 * DT
    x, y, heading, _ = pose_at(bank, scene, group.slots, arc)
    served = group.of(gates.served) & (arc + half <= group.of(gates.line) + TOLERANCE)
    return Motion(x, y, wrap(heading), after), progress.replace(arc=arc, served=served)


def track(bank: SceneBank, scene: jax.Array, group: Group, motion: Motion, arc: jax.Array) -> jax.Array:
    """Arcs `[F]` of bodies that drive freely: the last ones, moved on by what is ahead along the route."""
    x, y, heading, _ = pose_at(bank, scene, group.slots, arc)
    along = (motion.x - x) * jnp.cos(heading) + (motion.y - y) * jnp.sin(heading)
    return jnp.maximum(arc + jnp.clip(along, -MOST_STEP, MOST_STEP), 0.0)


def _leader(bank, scene, group: Group, motion: Motion, solid, front, speed):
    """Gap `[F]` from the bumper to the first body in the corridor ahead, and its speed in that direction."""
    reach = jnp.clip(LOOKAHEAD_TIME * speed, *LOOKAHEAD)
    piece = reach / PIECES
    middle = (jnp.arange(PIECES) + 0.5) * piece[:, None]
    x, y, heading, _ = pose_at(bank, scene, group.slots, front[:, None] + middle)
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
    # Of bodies at the same distance the slowest.
    leader = jnp.min(jnp.where(gap <= nearest[:, None], advance, CLEAR), axis=-1)
    return nearest, leader


class _Approach(NamedTuple):
    """How bodies `[N]` approach their next gates, and which junctions they are in.

    Attributes:
      coming: bool; there is a gate ahead.
      line: arc of the gate, m.
      gap: from the front to it, m.
      junction: behind it, -1 without.
      light: at it, -1 without.
      main: bool; the way through it has priority.
      served: bool; the sign there has been obeyed.
      must_stop: bool; a sign there has not been.
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


def _approaches(bank, scene, motion: Motion, solid, traffic: Traffic) -> _Approach:
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
    """Distance `[N]` to the gate at which a body waits; a large number if at none.

    It waits at signs and lights, for those in the junction whose ways conflict with its own, for those that
    come with priority, and for those without less priority that are nearer.
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
    stops = signals.red(bank, scene, sample)[jnp.maximum(gates.light, 0)]
    waits = blocked | gates.must_stop | ((gates.light >= 0) & stops)
    return jnp.where(gates.coming & waits, jnp.maximum(gates.gap, 0.0), CLEAR)
