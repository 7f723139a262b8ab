"""Observations of mechs: the blocks of `layout.ObservationLayout`, from each mech's perspective.

All mechs of both teams share one layout, so that one policy can play all of them. Velocities and the
vectors to contacts and to the zone use the layout's frame; the local map and the direction of hits always
rotate with the mech. Reference: docs/reference/echelon.md 12.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon import zone as zone_lib
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams, EchelonState
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    AMS_PERIOD,
    AMS_SLOT,
    CLASSES,
    GAUSS,
    KINETIC_SLOT,
    LASER,
    LASER_SLOT,
    MAX_STABILITY,
    MISSILE,
    MISSILE_SLOT,
    PAINTER,
    PAINTER_SLOT,
    STRETCH,
    SUPPRESSION,
    WEAPON,
)
from jaxmarl_echelon.envs.echelon.observing import contacts as contacts_lib
from jaxmarl_echelon.envs.echelon.observing.contacts import (
    MechSides,
    body_components,
    turn_to_body,
    unit_bearing,
)
from jaxmarl_echelon.envs.echelon.observing.layout import BODY, LOCAL_MAP, SORTS, ObservationLayout

TARGETED_RANGE = 8.0
CRITICAL_HEAT = 0.85
QUALITY_SCALE = 1.5
VELOCITY_SCALE = 10.0
_OFFSETS = np.stack(np.meshgrid(*[np.arange(LOCAL_MAP) - LOCAL_MAP // 2] * 2, indexing="ij"), axis=-1).astype(
    np.float32
)


class Senses(NamedTuple):
    """Sensor readings after a decision.

    Attributes:
      sight: `[M, M]` bool; neither terrain nor smoke in between.
      visible: `[M, M]` bool; viewer (first) notices the target.
      quality: `[M]` sensor quality.
      jam: `[M]` jamming level.
      acoustic: `[M, 4]` noise per quadrant.
    """

    sight: jax.Array
    visible: jax.Array
    quality: jax.Array
    jam: jax.Array
    acoustic: jax.Array


class ObjectiveStatus(NamedTuple):
    """State of the objective, as shown to each mech.

    Attributes:
      zone: `[3]` x, y and radius, or `[M, 3]` for a zone per mech.
      inside: `[M]` bool.
      control: `[M]` lead of the own team in the zone, in [-1, 1].
      score: `[M]` own score as a share of the winning score.
      enemy_score: `[M]` the enemies' share.
    """

    zone: jax.Array
    inside: jax.Array
    control: jax.Array
    score: jax.Array
    enemy_score: jax.Array


class Place(struct.PyTreeNode):
    """The map of an episode.

    Attributes:
      zone: `[3]` x, y and radius.
      occupancy: `[N, Y, X]` bool; columns of every terrain with an obstacle near the ground.
      telemetry: `[16, 16]` coarse obstacle map of this terrain.
      index: int32, index of this terrain.
      size: voxels along x, y and z; static.
    """

    zone: jax.Array
    occupancy: jax.Array
    telemetry: jax.Array
    index: jax.Array
    size: tuple[int, int, int]


def observe_mechs(
    layout: ObservationLayout,
    state: EchelonState,
    params: EchelonParams,
    sides: MechSides,
    chassis,
    senses: Senses,
    place: Place,
    standing: ObjectiveStatus | None = None,
    further: Mapping[str, jax.Array] = MappingProxyType({}),
    dead_see: tuple[str, ...] = (),
    marks: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Builds the observations of all mechs; dead mechs see 0 except in the blocks `dead_see`.

    Args:
      layout: of the flat vector.
      state: the episode; its `contacts` are ignored.
      params: the episode's parameters.
      sides: teams, packs and classes.
      chassis: rows of the chassis table per mech.
      senses: sensor readings.
      place: the map.
      standing: state of the objective; None for the map's zone and the scores of `state`.
      further: additional blocks `[M, ...]` of the layout.
      dead_see: names of the blocks that dead mechs still see.
      marks: `[M, M, N]` further fields of contacts, of viewer and target, as in the layout.

    Returns:
      flat observations `[M, layout.size]` and the contacts `[M, K]` that they show.
    """
    mechs = state.battle.mechs
    offset = mechs.position[None] - mechs.position[:, None]
    shown = senses.visible & mechs.alive[None] & mechs.alive[:, None]
    contacts = contacts_lib.assign_contact_slots(
        shown, offset, mechs.hp / chassis.hp, sides, state.sort, state.hostile_only
    )
    span = float(max(place.size))
    size = sides.team.shape[0]
    blocks = {
        "contacts": contacts_lib.contact_features(
            contacts, mechs, chassis, sides, span, params.gravity, layout.frame, marks
        ),
        "pack": pack_board(state.messages, mechs.alive, sides, layout["pack"].shape[0]),
        "local_map": local_map(mechs.position, mechs.yaw, place),
        "telemetry": jnp.broadcast_to(place.telemetry, (size, *place.telemetry.shape)),
        "acoustic": senses.acoustic,
        "self": _observe_self(
            state, params, sides, chassis, senses, offset, place, standing, layout.frame == BODY
        ),
    }
    blocks |= further
    left = {name: x if name in dead_see else jnp.zeros_like(x) for name, x in blocks.items()}
    return jnp.where(mechs.alive[:, None], layout.join(blocks), layout.join(left)), contacts


def pack_board(messages: jax.Array, alive: jax.Array, sides: MechSides, rows: int) -> jax.Array:
    """Returns the last messages of each mech's packmates, `[M, rows, 8]`: one row per place in the pack.

    The mech's own message is included; rows of dead mechs and unused rows are 0.
    """
    mates = sides.packmates
    index = jnp.arange(mates.shape[0])
    place = jnp.sum(mates & (index[None] < index[:, None]), axis=1)
    sender = (mates & alive[None])[:, None] & (place == jnp.arange(rows)[:, None])
    said = messages[jnp.argmax(sender, axis=-1)]
    return jnp.where(jnp.any(sender, axis=-1)[..., None], said, 0.0)


def local_map(position: jax.Array, yaw: jax.Array, place: Place) -> jax.Array:
    """Returns the obstacles around each mech, `[M, 11, 11]`: rows ahead, columns to the left.

    Coordinates are truncated towards 0, so that points just outside the low borders read the map's
    first row and column; farther outside, all cells are obstacles.
    """
    ahead, left = jnp.asarray(_OFFSETS[..., 0]), jnp.asarray(_OFFSETS[..., 1])
    cos, sin = jnp.cos(yaw)[:, None, None], jnp.sin(yaw)[:, None, None]
    x = jnp.trunc(position[:, 0, None, None] + cos * ahead - sin * left).astype(jnp.int32)
    y = jnp.trunc(position[:, 1, None, None] + sin * ahead + cos * left).astype(jnp.int32)
    width, depth, _ = place.size
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < depth)
    found = place.occupancy[place.index, jnp.clip(y, 0, depth - 1), jnp.clip(x, 0, width - 1)]
    return (found | ~inside).astype(jnp.float32)


def _observe_self(
    state,
    params,
    sides: MechSides,
    chassis,
    senses: Senses,
    offset,
    place: Place,
    standing: ObjectiveStatus | None = None,
    turned: bool = False,
) -> jax.Array:
    """Returns the block `self`: state of each mech, of the zone and of the game, `[M, F]`."""
    mechs, tally = state.battle.mechs, state.battle.tally
    foes = ~sides.friends & mechs.alive[None]
    near = jnp.sum(offset**2, axis=-1) <= TARGETED_RANGE**2
    heat = mechs.heat / chassis.heat_capacity
    shutdown = is_shut_down(mechs, chassis)
    projectiles = state.battle.projectiles
    chased = (projectiles.kind == MISSILE)[..., None] & (
        projectiles.target[..., None] == jnp.arange(foes.shape[0])
    )
    # In the last substep of a lengthened cooldown the original's timer holds only a rounding error.
    cooldown = jnp.maximum(mechs.cooldown - jnp.asarray(STRETCH)[sides.classes], 0)
    velocity = turn_to_body(mechs.velocity, mechs.yaw) if turned else mechs.velocity
    condition = (
        jnp.any(foes & near & senses.sight, axis=1),
        tally.hit,
        mechs.painted > 0,
        shutdown,
        heat > CRITICAL_HEAT,
        mechs.hp / chassis.hp,
        jnp.clip(heat, 0.0, 2.0),
        jnp.clip(1.0 - heat, 0.0, 1.0),
        1.0 - mechs.stability / MAX_STABILITY,
        *body_components(tally.hit_direction, mechs.yaw),
        jnp.any(chased, axis=(0, 1)),
        senses.quality / QUALITY_SCALE,
        senses.jam,
        mechs.ecm,
        mechs.eccm,
        mechs.suppressed / SUPPRESSION,
        cooldown[:, AMS_SLOT] / AMS_PERIOD,
        *(jnp.where(shutdown[:, None], 0.0, velocity) / VELOCITY_SCALE).T,
        *(
            cooldown[:, slot] / WEAPON.cooldown[weapon]
            for slot, weapon in (
                (LASER_SLOT, LASER),
                (MISSILE_SLOT, MISSILE),
                (KINETIC_SLOT, GAUSS),
                (PAINTER_SLOT, PAINTER),
            )
        ),
    )
    columns = jnp.stack([jnp.asarray(column, jnp.float32) for column in condition], axis=-1)
    standing = _standing(state, params, sides, chassis, place) if standing is None else standing
    game = _game(state, params, standing, float(max(place.size[:2])), turned)
    heading = jnp.stack([jnp.sin(mechs.yaw), jnp.cos(mechs.yaw)], axis=-1)
    parts = [jax.nn.one_hot(sides.classes, len(CLASSES)), columns, game, heading]
    if turned:
        offset = jnp.stack(_zone_offset(mechs.position, standing.zone), axis=-1)
        parts.append(unit_bearing(turn_to_body(offset, mechs.yaw)))
    return jnp.concatenate(parts, axis=-1, dtype=jnp.float32)


def _standing(state, params, sides: MechSides, chassis, place: Place) -> ObjectiveStatus:
    mechs = state.battle.mechs
    hold = zone_lib.compute_zone_hold(mechs.position, mechs.alive, chassis.tonnage, sides.team, place.zone)
    score = jnp.clip(state.score / params.zone_seconds, 0.0, 1.0)
    control = jnp.where(sides.team == 0, hold.margin, -hold.margin)
    return ObjectiveStatus(place.zone, hold.inside, control, score[sides.team], score[1 - sides.team])


def _zone_offset(position: jax.Array, zone: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns x, y and z `[M]` from mechs to the centre of the zone, which lies on the ground."""
    return zone[..., 0] - position[:, 0], zone[..., 1] - position[:, 1], -position[:, 2]


def _game(state, params, standing: ObjectiveStatus, span: float, turned: bool) -> jax.Array:
    """Returns features of zone, scores, time and order of contacts, `[M, 9 + 4]`."""
    mechs, zone = state.battle.mechs, standing.zone
    size = mechs.position.shape[0]
    offset = _zone_offset(mechs.position, zone)
    if turned:
        offset = body_components(jnp.stack(offset, axis=-1), mechs.yaw)
    columns = (
        standing.inside,
        *(part / span for part in offset),
        jnp.broadcast_to(zone[..., 2] / span, size),
        standing.control,
        standing.score,
        standing.enemy_score,
        jnp.full(size, state.decision / params.max_decisions),
        *jax.nn.one_hot(state.sort, len(SORTS), axis=0),
        state.hostile_only,
    )
    return jnp.stack([jnp.asarray(column, jnp.float32) for column in columns], axis=-1)


def place_of(bank, index: jax.Array) -> Place:
    """Returns the map features of terrain `index` of a `terrain.bank.TerrainBank`."""
    _, planes, depth, width = bank.voxels.material.shape
    return Place(bank.zone[index], bank.occupancy, bank.telemetry[index], index, (width, depth, planes))
