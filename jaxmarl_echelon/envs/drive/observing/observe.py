"""What learners see: themselves, the bodies around them and the road. Source: spec drive 0, 1.3."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive import signals
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import CELL, CYCLIST, PEDESTRIAN, VIEW_CELL
from jaxmarl_echelon.envs.drive.conditioning import scaled
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import COMPACT, PUFFER_PARTNERS, View
from jaxmarl_echelon.envs.drive.roads import listed
from jaxmarl_echelon.envs.drive.types import DriveState
from physics.bicycle import Drive, Motion

ACCELERATION_SCALE, LATERAL_SCALE, STEERING_SCALE = 5.0, 4.0, 0.55


def observe(view: View, bank: SceneBank, state: DriveState, steps: int) -> jax.Array:
    """Observations `[A, view.size]` of a state; those of learners that are out are 0.

    Args:
      view: what is shown.
      bank: the scenes.
      state: of the episode.
      steps: decisions of an episode.
    """
    agents = state.alive.shape[0]
    own = jax.tree.map(lambda x: x[:agents], state.motion)
    parts = [_ego(view, bank, state, own, steps)]
    if view.layout == COMPACT:
        parts += [_partners(view, bank, state, own), *_roads(view, bank, state, own)]
    else:
        parts += [_partners_in_order(view, bank, state, own), _spiral(bank, state, own)]
    flat = jnp.concatenate([part.reshape(agents, -1) for part in parts], axis=-1)
    return jnp.where(state.alive[:, None], flat, 0.0)


def _ego(view: View, bank: SceneBank, state: DriveState, own: Motion, steps: int) -> jax.Array:
    agents = state.alive.shape[0]
    size, kind = bank.size[state.scene][:agents], bank.type[state.scene][:agents]
    write = features.ego_compact if view.layout == COMPACT else features.ego_puffer
    columns = write(own, state.goal, size, state.condition, state.ghost)
    if view.jerk:
        drive: Drive = state.memory
        columns += [
            drive.steering / STEERING_SCALE,
            drive.longitudinal / ACCELERATION_SCALE,
            drive.lateral / LATERAL_SCALE,
        ]
    if view.time:
        columns.append(jnp.full(agents, 1 - state.step / steps))
    if view.types:
        columns += [kind == CYCLIST, kind == PEDESTRIAN]
    if view.lights is not None:
        light = signals.ahead(bank, state.scene, view.lights + state.step, own, size[:, 0])
        columns += [light.gap / signals.REACH, light.red, light.found]
    columns += [scaled(name, state.drawn[name]) for name in view.condition]
    return jnp.stack([jnp.asarray(column, jnp.float32) for column in columns], axis=-1)


def nearest(state: DriveState, own: Motion, rows: int, reach: float) -> tuple[jax.Array, jax.Array]:
    """Slots `[A, rows]` of the nearest bodies that learners see, nearest first, and whether they are there.

    Equally near ones come in the order of their slots. Ranks are counted instead of sorted: a sort of so few
    is several times slower on a CPU.
    """
    agents = state.alive.shape[0]
    motion, slots = state.motion, jnp.arange(state.present.shape[0])
    squared = (motion.x - own.x[:, None]) ** 2 + (motion.y - own.y[:, None]) ** 2
    seen = state.present.at[:agents].set(state.present[:agents] & ~state.ghost)
    seen = seen & ~state.ghost[:, None] & (slots[:agents, None] != slots) & (squared <= reach**2)
    squared = jnp.where(seen, squared, jnp.inf)
    before = (squared[:, None, :] < squared[:, :, None]) | (
        (squared[:, None, :] == squared[:, :, None]) & (slots < slots[:, None])
    )
    rank = jnp.sum(before, axis=-1)
    chosen = seen[:, None, :] & (rank[:, None, :] == jnp.arange(rows)[:, None])
    return jnp.sum(jnp.where(chosen, slots, 0), axis=-1), jnp.any(chosen, axis=-1)


def _partners(view: View, bank: SceneBank, state: DriveState, own: Motion) -> jax.Array:
    index, there = nearest(state, own, view.partners, view.reach)
    size, kind = bank.size[state.scene], bank.type[state.scene]
    table = jnp.stack([*state.motion, size[:, 0], size[:, 1], kind.astype(jnp.float32)], axis=-1)
    rows = table[index]
    other = Motion(*jnp.moveaxis(rows[..., :4], -1, 0))
    return features.partners_compact(own, other, rows[..., 4:6], rows[..., 6], there)


def _partners_in_order(view: View, bank: SceneBank, state: DriveState, own: Motion) -> jax.Array:
    """All other bodies in reach in the order of their slots, packed to the front."""
    agents, bodies = state.alive.shape[0], state.present.shape[0]
    slots = jnp.arange(bodies)
    squared = (state.motion.x - own.x[:, None]) ** 2 + (state.motion.y - own.y[:, None]) ** 2
    seen = state.present.at[:agents].set(state.present[:agents] & ~state.ghost)
    seen = seen & ~state.ghost[:, None] & (slots[:agents, None] != slots) & (squared <= view.reach**2)
    place = jnp.cumsum(seen, axis=-1) - 1
    rows = jnp.arange(PUFFER_PARTNERS)
    chosen = seen[:, None] & (place[:, None] == rows[:, None])
    index, there = jnp.sum(jnp.where(chosen, slots, 0), axis=-1), jnp.any(chosen, axis=-1)
    other = jax.tree.map(lambda x: x[index], state.motion)
    return features.partners_puffer(own, other, bank.size[state.scene][index], there)


def _roads(view: View, bank: SceneBank, state: DriveState, own: Motion) -> list[jax.Array]:
    parts = []
    for table, rows in ((bank.view_lanes, view.lanes), (bank.view_edges, view.edges)):
        if rows:
            found = listed(bank, table[..., :rows], state.scene, own.x, own.y, VIEW_CELL)
            parts.append(features.roads_compact(own, found.segments, found.there))
    return parts


def _spiral(bank: SceneBank, state: DriveState, own: Motion) -> jax.Array:
    found = listed(bank, bank.spiral, state.scene, own.x, own.y, CELL)
    kind = bank.segment_kind[state.scene, found.index]
    return features.roads_puffer(own, found.segments, kind, found.there)
