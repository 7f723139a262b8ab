"""Contacts: selection and features of other mechs in an observation.

Reference: docs/reference/echelon.md 12.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES, GAUSS, MAX_STABILITY, WEAPON
from jaxmarl_echelon.envs.echelon.observing.layout import BODY, CONTACTS, RESERVED_FRIENDS, WORLD

# Orders of contacts, as in `layout.SORTS`.
CLOSEST, BIGGEST, MOST_DAMAGED = range(3)
# Size of each class in the sort order "biggest", in the order of `CLASSES`.
_BIGNESS = np.array([1.0, 1.0, 2.0, 3.0], np.float32)
_VELOCITY_SCALE = 10.0
_SLOW = 0.5
# Leading columns of `_appearance` that depend on the frame; distance below which there is no direction.
_HEADING, _HERE = 2, 1e-6


class MechSides(NamedTuple):
    """Team, pack and class of each mech; constant during an episode.

    Attributes:
      team: `[M]` int32, 0 for blue and 1 for red.
      pack: `[M]` int32, numbered within a team.
      classes: `[M]` int32 index into `unit_tables.CLASSES`.
    """

    team: jax.Array
    pack: jax.Array
    classes: jax.Array

    @property
    def friends(self) -> jax.Array:
        """Bool `[M, M]`: of the same team, True on the diagonal."""
        return self.team[:, None] == self.team[None]

    @property
    def packmates(self) -> jax.Array:
        """Bool `[M, M]`: of the same pack, True on the diagonal."""
        return self.friends & (self.pack[:, None] == self.pack[None])


def assign_contact_slots(
    visible: jax.Array,
    offset: jax.Array,
    hp: jax.Array,
    sides: MechSides,
    sort: jax.Array,
    hostile_only: jax.Array,
) -> jax.Array:
    """Assigns visible mechs to each viewer's contact slots.

    The first three friends come first, then the enemies, then the other friends. Each group is ordered
    by `sort`, then by distance; `hostile_only` removes friends.

    Args:
      visible: `[M, M]` bool, viewer and target.
      offset: `[M, M, 3]` from viewer to target.
      hp: `[M]` remaining share of the hit points.
      sides: teams, packs and classes.
      sort: `[M]` int32 index into `layout.SORTS`.
      hostile_only: `[M]` bool.

    Returns:
      `[M, K]` int32 mechs, -1 in free slots.
    """
    size = sides.team.shape[0]
    friends = sides.friends
    shown = visible & ~jnp.eye(size, dtype=bool) & ~(friends & hostile_only[:, None])
    near = jnp.sum(offset**2, axis=-1)
    orders = jnp.stack([jnp.zeros(size), -jnp.asarray(_BIGNESS)[sides.classes], hp])
    rank = _rank(orders[sort], near, shown, friends)
    count = jnp.sum(shown & friends, axis=1, keepdims=True), jnp.sum(shown & ~friends, axis=1, keepdims=True)
    of_friend = jnp.where(rank < RESERVED_FRIENDS, rank, count[1] + rank)
    of_enemy = jnp.minimum(count[0], RESERVED_FRIENDS) + rank
    slot = jnp.where(shown, jnp.where(friends, of_friend, of_enemy), CONTACTS)
    taken = slot[:, None, :] == jnp.arange(CONTACTS)[:, None]
    return jnp.where(jnp.any(taken, axis=-1), jnp.argmax(taken, axis=-1), NO_MECH).astype(jnp.int32)


def _rank(first: jax.Array, second: jax.Array, shown: jax.Array, friends: jax.Array) -> jax.Array:
    """Returns `[M, M]` ranks: the number of shown mechs of the same relation that come before each.

    Pairs are compared by both keys and then by index; for a few dozen mechs this is cheaper than
    sorting.
    """
    index = jnp.arange(first.shape[-1])
    ahead = index[:, None] > index
    tie = second[:, :, None] == second[:, None, :]
    ahead = (second[:, :, None] > second[:, None, :]) | (tie & ahead)
    ahead = (first[:, :, None] > first[:, None, :]) | ((first[:, :, None] == first[:, None, :]) & ahead)
    rivals = shown[:, None, :] & (friends[:, :, None] == friends[:, None, :])
    return jnp.sum(ahead & rivals, axis=-1)


def contact_features(
    contacts: jax.Array,
    mechs: Mechs,
    chassis,
    sides: MechSides,
    span: float,
    gravity: jax.Array,
    frame: str = WORLD,
    marks: jax.Array | None = None,
) -> jax.Array:
    """Returns the fields of the contacts in a layout, `[M, K, F]`; 0 for free slots.

    Args:
      contacts: `[M, K]` from `assign_contact_slots`.
      mechs: all mechs.
      chassis: rows of the chassis table per mech (`unit_tables.ChassisTable`).
      sides: teams, packs and classes.
      span: longest side of the map, voxels.
      gravity: voxels/s^2.
      frame: of the vectors, one of `layout.FRAMES`.
      marks: `[M, M, N]` further fields, of viewer and target.
    """
    used = contacts != NO_MECH
    other = jnp.maximum(contacts, 0)
    seen = _appearance(mechs, chassis, sides.classes)[other]
    offset = mechs.position[other] - mechs.position[:, None]
    velocity = mechs.velocity[other]
    relative = velocity - mechs.velocity[:, None]
    friend = sides.team[other] == sides.team[:, None]
    painter = jnp.maximum(mechs.painter, 0)[other]
    painted = (mechs.painted[other] > 0) & (mechs.painter[other] != NO_MECH)
    painted &= jnp.take_along_axis(sides.packmates, painter, axis=1)
    relation = jnp.stack([friend, ~friend, jnp.zeros_like(friend)], axis=-1)
    shown, drift, heading = offset, relative, seen[..., :_HEADING]
    further = []
    if frame == BODY:
        yaw = mechs.yaw[:, None]
        shown, drift = (turn_to_body(vector, yaw) for vector in (offset, relative))
        turned = mechs.yaw[other] - yaw
        heading = jnp.stack([jnp.sin(turned), jnp.cos(turned)], axis=-1)
        further.append(unit_bearing(shown))
    if marks is not None:
        further.append(jnp.take_along_axis(marks, other[..., None], axis=1))
    parts = (
        shown / span,
        drift / _VELOCITY_SCALE,
        heading,
        seen[..., _HEADING : -len(CLASSES)],
        relation,
        seen[..., -len(CLASSES) :],
        jnp.stack([painted, used], axis=-1),
        _motion(offset, relative, velocity, gravity),
        *further,
    )
    return jnp.where(used[..., None], jnp.concatenate(parts, axis=-1, dtype=jnp.float32), 0.0)


def body_components(vector: jax.Array, yaw: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns components ahead, to the left and up of world vectors `[..., 3]`; `yaw [...]` in rad."""
    cos, sin = jnp.cos(yaw), jnp.sin(yaw)
    x, y, z = vector[..., 0], vector[..., 1], vector[..., 2]
    return x * cos + y * sin, y * cos - x * sin, z


def turn_to_body(vector: jax.Array, yaw: jax.Array) -> jax.Array:
    """Rotates world vectors `[..., 3]` into the frame ahead, to the left and up; `yaw [...]` in rad."""
    return jnp.stack(body_components(vector, yaw), axis=-1)


def unit_bearing(vector: jax.Array) -> jax.Array:
    """Returns sine and cosine `[..., 2]` of the planar direction of body vectors; 0 and 1 at no distance."""
    planar = jnp.hypot(vector[..., 0], vector[..., 1])
    here = planar < _HERE
    sin, cos = (vector[..., axis] / jnp.where(here, 1.0, planar) for axis in (1, 0))
    return jnp.stack([jnp.where(here, 0.0, sin), jnp.where(here, 1.0, cos)], axis=-1)


def _appearance(mechs: Mechs, chassis, classes: jax.Array) -> jax.Array:
    """Returns the features that do not depend on the viewer: heading, condition, class; `[M, 7 + 4]`."""
    columns = (
        jnp.sin(mechs.yaw),
        jnp.cos(mechs.yaw),
        mechs.hp / chassis.hp,
        jnp.clip(mechs.heat / chassis.heat_capacity, 0.0, 2.0),
        mechs.stability / MAX_STABILITY,
        mechs.fallen > 0,
        mechs.leg_hp <= 0,
    )
    return jnp.concatenate([jnp.stack(columns, axis=-1), jax.nn.one_hot(classes, len(CLASSES))], axis=-1)


def _motion(offset: jax.Array, relative: jax.Array, velocity: jax.Array, gravity: jax.Array) -> jax.Array:
    """Returns pitch of a gauss shot, closing rate and share of crossing motion, `[..., 3]`."""
    planar = jnp.hypot(offset[..., 0], offset[..., 1])
    drop = 0.5 * gravity * (planar / WEAPON.speed[GAUSS]) ** 2
    pitch = jnp.clip(jnp.arctan2(offset[..., 2] + drop, planar) / (jnp.pi / 4.0), -1.0, 1.0)
    line = offset / jnp.maximum(_length(offset), 1e-6)[..., None]
    closing = jnp.clip(-jnp.sum(relative * line, axis=-1) / _VELOCITY_SCALE, -1.0, 1.0)
    speed = _length(velocity)
    along = jnp.abs(jnp.sum(velocity * line, axis=-1)) / jnp.maximum(speed, 1e-6)
    crossing = jnp.where(speed > _SLOW, 1.0 - along, 0.0)
    return jnp.stack([pitch, closing, crossing], axis=-1)


def _length(vector: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(vector**2, axis=-1))
