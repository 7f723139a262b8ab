"""Contacts: which of the other mechs an observation shows, and what of each.

Source: spec section 5.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import NOBODY, Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES, GAUSS, MAX_STABILITY, WEAPON
from jaxmarl_echelon.envs.echelon.observing.layout import CONTACTS, RESERVED_FRIENDS

# Orders of contacts, as in `layout.SORTS`.
CLOSEST, BIGGEST, MOST_DAMAGED = range(3)
# How big the sort order "biggest" takes a class to be, in the order of `CLASSES`.
_BIGNESS = np.array([1.0, 1.0, 2.0, 3.0], np.float32)
_VELOCITY_SCALE = 10.0
_SLOW = 0.5


class Sides(NamedTuple):
    """Who belongs together; the same for a whole episode.

    Attributes:
      team: `[M]` int32, 0 for blue and 1 for red.
      pack: `[M]` int32, numbered within a team.
      classes: `[M]` int32 index into `tables.CLASSES`.
    """

    team: jax.Array
    pack: jax.Array
    classes: jax.Array

    @property
    def friends(self) -> jax.Array:
        """`[M, M]` bool; of the same team, oneself included."""
        return self.team[:, None] == self.team[None]

    @property
    def packmates(self) -> jax.Array:
        """`[M, M]` bool; of the same pack, oneself included."""
        return self.friends & (self.pack[:, None] == self.pack[None])


def choose(
    visible: jax.Array,
    offset: jax.Array,
    hp: jax.Array,
    sides: Sides,
    sort: jax.Array,
    hostile_only: jax.Array,
) -> jax.Array:
    """Fills each mech's contact slots.

    The first three friends come first, then the enemies, then the other friends. Within each,
    `sort` decides, and among equals distance; `hostile_only` leaves friends out.

    Args:
      visible: `[M, M]` bool, viewer and seen.
      offset: `[M, M, 3]` from viewer to seen.
      hp: `[M]` share of the hit points that is left.
      sides: who belongs together.
      sort: `[M]` int32 index into `layout.SORTS`.
      hostile_only: `[M]` bool.

    Returns:
      `[M, K]` int32 mechs, NOBODY in free slots.
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
    return jnp.where(jnp.any(taken, axis=-1), jnp.argmax(taken, axis=-1), NOBODY).astype(jnp.int32)


def _rank(first: jax.Array, second: jax.Array, shown: jax.Array, friends: jax.Array) -> jax.Array:
    """Returns how many shown mechs of the same relation come before each, `[M, M]`.

    Pairs are compared by both keys and then by index, which for a few dozen mechs costs less
    than sorting.
    """
    index = jnp.arange(first.shape[-1])
    ahead = index[:, None] > index
    tie = second[:, :, None] == second[:, None, :]
    ahead = (second[:, :, None] > second[:, None, :]) | (tie & ahead)
    ahead = (first[:, :, None] > first[:, None, :]) | ((first[:, :, None] == first[:, None, :]) & ahead)
    rivals = shown[:, None, :] & (friends[:, :, None] == friends[:, None, :])
    return jnp.sum(ahead & rivals, axis=-1)


def features(
    contacts: jax.Array,
    mechs: Mechs,
    chassis,
    sides: Sides,
    span: float,
    gravity: jax.Array,
) -> jax.Array:
    """Describes the contacts in the fields of `layout.CONTACT_FIELDS`, `[M, K, F]`; free slots are 0.

    Args:
      contacts: `[M, K]` from `choose`.
      mechs: all mechs.
      chassis: rows of the chassis table per mech (`tables.ChassisTable`).
      sides: who belongs together.
      span: longest side of the map, voxels.
      gravity: voxels/s^2.
    """
    used = contacts != NOBODY
    other = jnp.maximum(contacts, 0)
    seen = _appearance(mechs, chassis, sides.classes)[other]
    offset = mechs.position[other] - mechs.position[:, None]
    velocity = mechs.velocity[other]
    relative = velocity - mechs.velocity[:, None]
    friend = sides.team[other] == sides.team[:, None]
    painter = jnp.maximum(mechs.painter, 0)[other]
    painted = (mechs.painted[other] > 0) & (mechs.painter[other] != NOBODY)
    painted &= jnp.take_along_axis(sides.packmates, painter, axis=1)
    relation = jnp.stack([friend, ~friend, jnp.zeros_like(friend)], axis=-1)
    marks = jnp.stack([painted, used], axis=-1)
    parts = (
        offset / span,
        relative / _VELOCITY_SCALE,
        seen[..., : -len(CLASSES)],
        relation,
        seen[..., -len(CLASSES) :],
        marks,
        _motion(offset, relative, velocity, gravity),
    )
    return jnp.where(used[..., None], jnp.concatenate(parts, axis=-1, dtype=jnp.float32), 0.0)


def _appearance(mechs: Mechs, chassis, classes: jax.Array) -> jax.Array:
    """What a mech looks like to anybody: heading, condition and class, `[M, 7 + 4]`."""
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
    """Pitch of a gauss shot, closing rate and how much the contact crosses the line of sight, `[..., 3]`."""
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
