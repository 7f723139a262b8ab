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
from physics.segments import Segments

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

    Equally near ones come in the order of their slots.
    """
    squared, seen = _seen(state, own, reach)
    found, index = jax.lax.top_k(jnp.where(seen, -squared, -jnp.inf), min(rows, squared.shape[-1]))
    return _padded(index, rows), _padded(found > -jnp.inf, rows)


def in_order(state: DriveState, own: Motion, rows: int, reach: float) -> tuple[jax.Array, jax.Array]:
    """Slots `[A, rows]` of the first bodies that learners see, and whether they are there."""
    seen = _seen(state, own, reach)[1]
    bodies = seen.shape[-1]
    index = jnp.sort(jnp.where(seen, jnp.arange(bodies), bodies), axis=-1)[:, :rows]
    return _padded(jnp.minimum(index, bodies - 1), rows), _padded(index < bodies, rows)


def _seen(state: DriveState, own: Motion, reach: float) -> tuple[jax.Array, jax.Array]:
    """Squared distances `[A, N]` from learners to bodies, and whether they see them."""
    agents, slots = state.alive.shape[0], jnp.arange(state.present.shape[0])
    squared = (state.motion.x - own.x[:, None]) ** 2 + (state.motion.y - own.y[:, None]) ** 2
    there = state.present.at[:agents].set(state.present[:agents] & ~state.ghost)
    apart = slots[:agents, None] != slots
    return squared, there & ~state.ghost[:, None] & apart & (squared <= reach**2)


def _padded(values: jax.Array, rows: int) -> jax.Array:
    return jnp.pad(values, ((0, 0), (0, rows - values.shape[-1])))


def _rows_of(bank: SceneBank, state: DriveState, index: jax.Array) -> tuple[Motion, jax.Array, jax.Array]:
    """Motion, sizes `[..., 2]` and types `[...]` of bodies in slots `[...]`."""
    size, kind = bank.size[state.scene], bank.type[state.scene]
    table = jnp.stack([*state.motion, size[:, 0], size[:, 1], kind.astype(jnp.float32)], axis=-1)
    rows = table.at[index].get(mode="promise_in_bounds")
    return Motion(*jnp.moveaxis(rows[..., :4], -1, 0)), rows[..., 4:6], rows[..., 6]


def _partners(view: View, bank: SceneBank, state: DriveState, own: Motion) -> jax.Array:
    index, there = nearest(state, own, view.partners, view.reach)
    return features.partners_compact(own, *_rows_of(bank, state, index), there)


def _partners_in_order(view: View, bank: SceneBank, state: DriveState, own: Motion) -> jax.Array:
    """All other bodies in reach in the order of their slots, packed to the front."""
    index, there = in_order(state, own, PUFFER_PARTNERS, view.reach)
    other, size, _ = _rows_of(bank, state, index)
    return features.partners_puffer(own, other, size, there)


def _roads(view: View, bank: SceneBank, state: DriveState, own: Motion) -> list[jax.Array]:
    parts = []
    for table, rows in ((bank.view_lanes, view.lanes), (bank.view_edges, view.edges)):
        if rows:
            found = listed(bank, table[..., :rows], state.scene, own.x, own.y, VIEW_CELL)
            parts.append(features.roads_compact(own, found.segments, found.there))
    return parts


def _spiral(bank: SceneBank, state: DriveState, own: Motion) -> jax.Array:
    """The segments that PufferDrive shows; none outside its grid.

    The original rounds towards 0, so that the first cells reach one cell beyond the lower borders.
    """
    scene = state.scene
    place = jnp.trunc((jnp.stack([own.x, own.y], axis=-1) - bank.origin[scene]) / CELL).astype(jnp.int32)
    last = bank.cells[scene] - 1
    inside = jnp.all((place >= 0) & (place <= last), axis=-1)
    column, row = jnp.moveaxis(jnp.clip(place, 0, last), -1, 0)
    index = bank.spiral.at[scene, row, column].get(mode="promise_in_bounds").astype(jnp.int32)
    rows = bank.spiral_row.at[scene, jnp.maximum(index, 0)].get(mode="promise_in_bounds")
    *parts, kind = jnp.moveaxis(rows, -1, 0)
    return features.roads_puffer(own, Segments(*parts), kind, (index >= 0) & inside[:, None])
