"""What learners see: themselves, the bodies around them and the road. Source: spec drive 0, 1.3."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import CELL, CYCLIST, PEDESTRIAN, VIEW_CELL
from jaxmarl_echelon.envs.drive.conditioning import scaled
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import COMPACT, PUFFER_PARTNERS, View
from jaxmarl_echelon.envs.drive.state import DriveState
from jaxmarl_echelon.envs.drive.traffic import signals
from jaxmarl_echelon.envs.drive.traffic.road_contacts import listed
from physics.bicycle import Drive, Motion
from physics.sparse_batch import compute_where, cond_any

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
    ego, sight = _ego(view, bank, state, own, steps), _sight(view, bank, state)
    slots = jnp.arange(agents)
    if view.share is None:
        flat = _joined(ego, _around(view, bank, sight, own, slots))
        return jnp.where(state.alive[:, None], flat, 0.0)
    write = partial(_written, view)
    empty = jnp.zeros(view.size, jnp.float32)

    def one(alive, ego, own, slot):
        return compute_where(write, alive, empty, bank, sight, ego, own, slot, share=view.share)

    return jax.vmap(one)(state.alive, ego, own, slots)


class Sight(NamedTuple):
    """Of one episode, what learners see of its bodies.

    Attributes:
      scene: int32.
      x, y: `[N]` m.
      shown: `[N]` bool; the body is there, and no ghost.
      ghost: `[A]` bool; learners that see nobody.
      rows: `[N, F]` what is gathered of bodies.
    """

    scene: jax.Array
    x: jax.Array
    y: jax.Array
    shown: jax.Array
    ghost: jax.Array
    rows: jax.Array


def _sight(view: View, bank: SceneBank, state: DriveState) -> Sight:
    agents, motion = state.alive.shape[0], state.motion
    size, kind = bank.size[state.scene], bank.type[state.scene]
    if view.layout == COMPACT:
        columns = *motion, size[:, 0], size[:, 1], kind.astype(jnp.float32)
        rows = jnp.stack(columns, axis=-1)
    else:
        rows = features.puffer_bodies(motion, size)
    shown = state.present.at[:agents].set(state.present[:agents] & ~state.ghost)
    return Sight(state.scene, motion.x, motion.y, shown, state.ghost, rows)


def _written(view: View, bank: SceneBank, sight: Sight, ego: jax.Array, own: Motion, slot) -> jax.Array:
    """The observation `[view.size]` of one learner, for `compute_where`."""
    own, slot = jax.tree.map(lambda x: x[None], (own, slot))
    shapes = jax.eval_shape(partial(_around, view), bank, sight, own, slot)

    def nothing(*_):
        return [jnp.zeros(part.shape, part.dtype) for part in shapes]

    # A branch that is always taken: without it XLA computes the parts anew for every number where it joins
    # them on a CPU, which takes several times as long.
    parts = cond_any(slot[0] >= 0, partial(_around, view), nothing, bank, sight, own, slot)
    return _joined(ego[None], parts)[0]


def _joined(ego: jax.Array, parts: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([ego, *(part.reshape(ego.shape[0], -1) for part in parts)], axis=-1)


def _around(view: View, bank: SceneBank, sight: Sight, own: Motion, slots: jax.Array) -> list[jax.Array]:
    """What learners `[A]` see of bodies and roads, `[A, rows, F]` each."""
    if view.layout == COMPACT:
        return [_partners(view, sight, own, slots), *_roads(view, bank, sight.scene, own)]
    return [_partners_in_order(view, sight, own, slots), _spiral(bank, sight.scene, own)]


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


def nearest(
    sight: Sight, own: Motion, slots: jax.Array, rows: int, reach: float
) -> tuple[jax.Array, jax.Array]:
    """Slots `[A, rows]` of the nearest bodies that learners see, nearest first, and whether they are there.

    Equally near ones come in the order of their slots.
    """
    squared, seen = _seen(sight, own, slots, reach)
    found, index = jax.lax.top_k(jnp.where(seen, -squared, -jnp.inf), min(rows, squared.shape[-1]))
    return _padded(index, rows), _padded(found > -jnp.inf, rows)


def in_order(
    sight: Sight, own: Motion, slots: jax.Array, rows: int, reach: float
) -> tuple[jax.Array, jax.Array]:
    """Slots `[A, rows]` of the first bodies that learners see, and whether they are there."""
    seen = _seen(sight, own, slots, reach)[1]
    bodies = seen.shape[-1]
    index = jnp.sort(jnp.where(seen, jnp.arange(bodies), bodies), axis=-1)[:, :rows]
    return _padded(jnp.minimum(index, bodies - 1), rows), _padded(index < bodies, rows)


def _seen(sight: Sight, own: Motion, slots: jax.Array, reach: float) -> tuple[jax.Array, jax.Array]:
    """Squared distances `[A, N]` from learners in `slots` to bodies, and whether they see them."""
    squared = (sight.x - own.x[:, None]) ** 2 + (sight.y - own.y[:, None]) ** 2
    apart = slots[:, None] != jnp.arange(sight.x.shape[0])
    return squared, sight.shown & ~sight.ghost[slots][:, None] & apart & (squared <= reach**2)


def _padded(values: jax.Array, rows: int) -> jax.Array:
    return jnp.pad(values, ((0, 0), (0, rows - values.shape[-1])))


def _partners(view: View, sight: Sight, own: Motion, slots: jax.Array) -> jax.Array:
    index, there = nearest(sight, own, slots, view.partners, view.reach)
    rows = sight.rows.at[index].get(mode="promise_in_bounds")
    other = Motion(*jnp.moveaxis(rows[..., :4], -1, 0))
    return features.partners_compact(own, other, rows[..., 4:6], rows[..., 6], there)


def _partners_in_order(view: View, sight: Sight, own: Motion, slots: jax.Array) -> jax.Array:
    """All other bodies in reach in the order of their slots, packed to the front."""
    index, there = in_order(sight, own, slots, PUFFER_PARTNERS, view.reach)
    return features.seen_puffer(own, sight.rows.at[index].get(mode="promise_in_bounds"), there)


def _roads(view: View, bank: SceneBank, scene: jax.Array, own: Motion) -> list[jax.Array]:
    parts = []
    for table, rows in ((bank.view_lanes, view.lanes), (bank.view_edges, view.edges)):
        if rows:
            found = listed(bank, table[..., :rows], scene, own.x, own.y, VIEW_CELL)
            parts.append(features.roads_compact(own, found.segments, found.there))
    return parts


def _spiral(bank: SceneBank, scene: jax.Array, own: Motion) -> jax.Array:
    """The segments that PufferDrive shows; none outside its grid.

    The original rounds towards 0, so that the first cells reach one cell beyond the lower borders.
    """
    place = jnp.trunc((jnp.stack([own.x, own.y], axis=-1) - bank.origin[scene]) / CELL).astype(jnp.int32)
    last = bank.cells[scene] - 1
    inside = jnp.all((place >= 0) & (place <= last), axis=-1)
    column, row = jnp.moveaxis(jnp.clip(place, 0, last), -1, 0)
    index = bank.spiral.at[scene, row, column].get(mode="promise_in_bounds").astype(jnp.int32)
    rows = bank.spiral_row.at[scene, jnp.maximum(index, 0)].get(mode="promise_in_bounds")
    return features.seen_puffer(own, rows, (index >= 0) & inside[:, None])
