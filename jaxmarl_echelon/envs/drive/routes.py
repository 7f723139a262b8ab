"""Bodies on rails: the intelligent driver model along routes, with leaders, stop signs, gates and lights.

Source: spec drive 1.7. R points per route, G gates per body, K pieces of a corridor.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import LIGHTS, ROUTE_POINTS
from jaxmarl_echelon.envs.drive.types import DT, Traffic
from physics.bicycle import Motion, wrap
from physics.car_following import acceleration

LOOKAHEAD = (20.0, 40.0)
LOOKAHEAD_TIME = 5.0
MARGIN = 0.1
PIECES = 16
DEFAULT_LIMIT = 10.0
STOPPED = 0.5
STOP_REACH = 3.0
RED = tuple(LIGHTS.index(name) for name in ("stop", "arrow_stop", "flashing_stop"))
CLEAR = 1e4  # m; farther than any leader


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
    size = group.of(bank.size[scene])
    front = progress.arc + size[:, 0] / 2
    speed = jnp.maximum(own.speed, 0.0)
    gap, leader = _leader(bank, scene, group, motion, solid, front, speed)
    halt, served, line = _gate(bank, scene, sample, group, motion, solid, front, speed, progress.served)
    nearer = halt < gap
    gap, leader = jnp.where(nearer, halt, gap), jnp.where(nearer, 0.0, leader)
    limit = pose_at(bank, scene, group.slots, progress.arc)[3]
    desired = jnp.where(limit > 0, limit, DEFAULT_LIMIT)
    after = jnp.maximum(speed + acceleration(jnp, speed, desired, gap, leader) * DT, 0.0)
    arc = progress.arc + (speed + after) / 2 * DT
    x, y, heading, _ = pose_at(bank, scene, group.slots, arc)
    served = served & (arc + size[:, 0] / 2 <= line)
    return Motion(x, y, wrap(heading), after), progress.replace(arc=arc, served=served)


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


def _gate(bank, scene, sample, group: Group, motion: Motion, solid, front, speed, served):
    """Distance `[F]` to the line where to wait, whether the sign there is served, and the line's arc."""
    lines = group.of(bank.gate_arc[scene])
    pending = lines >= front[:, None]
    chosen = pending & (jnp.cumsum(pending, axis=-1) == 1)
    found = jnp.any(chosen, axis=-1)

    def pick(values):
        return jnp.sum(jnp.where(chosen, group.of(values[scene]), 0), axis=-1)

    line = jnp.where(found, jnp.sum(jnp.where(chosen, lines, 0.0), axis=-1), CLEAR)
    junction, light = pick(bank.gate_junction), pick(bank.gate_light)
    sign = found & (pick(bank.gate_stop.astype(jnp.int32)) > 0)
    distance = line - front
    served = served | (sign & (speed < STOPPED) & (distance <= STOP_REACH))
    wait = sign & ~served
    wait |= found & (junction >= 0) & _occupied(bank, scene, group, motion, solid, junction)
    wait |= found & (light >= 0) & _red(bank, scene, sample, light)
    return jnp.where(wait, distance, CLEAR), served & found, line


def _occupied(bank, scene, group: Group, motion: Motion, solid, junction) -> jax.Array:
    """Whether a body whose route conflicts with one's own is in one's next junction, bool `[F]`."""
    place = bank.junction[scene][jnp.maximum(junction, 0)]
    squared = (motion.x - place[:, :1]) ** 2 + (motion.y - place[:, 1:2]) ** 2
    inside = solid & (squared <= place[:, 2:] ** 2)
    return jnp.any(inside & group.of(bank.conflict[scene]), axis=-1)


def _red(bank, scene, sample, light) -> jax.Array:
    states = bank.light[scene, jnp.clip(sample, 0, bank.light.shape[1] - 1)]
    state = states[jnp.maximum(light, 0)]
    return jnp.any(state[:, None] == jnp.array(RED, state.dtype), axis=-1)
