"""Observations of learners: own state, nearby bodies and roads. Reference: docs/reference/drive.md 10."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import CELL, CYCLIST, PEDESTRIAN, VIEW_CELL
from jaxmarl_echelon.envs.drive.conditioning import scale_conditioned_weight
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import COMPACT, PUFFER_PARTNERS, ObservationConfig
from jaxmarl_echelon.envs.drive.state import DriveState
from jaxmarl_echelon.envs.drive.traffic import signals
from jaxmarl_echelon.envs.drive.traffic.road_contacts import look_up_segments
from physics.bicycle import JerkState, Motion
from physics.sparse_batch import compute_where, cond_any

ACCELERATION_SCALE, LATERAL_SCALE, STEERING_SCALE = 5.0, 4.0, 0.55


def observe_learners(view: ObservationConfig, bank: SceneBank, state: DriveState, steps: int) -> jax.Array:
    """Observations `[A, view.size]` of a state; zeros for learners that are not alive.

    Args:
      view: configuration of the observations.
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


class VisibleBodies(NamedTuple):
    """Data on an episode's bodies from which observations are gathered.

    Attributes:
      scene: int32.
      x, y: `[N]` m.
      shown: `[N]` bool; the body is present and not a ghost.
      ghost: `[A]` bool; learners that see no other body.
      rows: `[N, F]` features of bodies before they are turned into a learner's frame.
    """

    scene: jax.Array
    x: jax.Array
    y: jax.Array
    shown: jax.Array
    ghost: jax.Array
    rows: jax.Array


def _sight(view: ObservationConfig, bank: SceneBank, state: DriveState) -> VisibleBodies:
    agents, motion = state.alive.shape[0], state.motion
    size, kind = bank.size[state.scene], bank.type[state.scene]
    if view.layout == COMPACT:
        columns = *motion, size[:, 0], size[:, 1], kind.astype(jnp.float32)
        rows = jnp.stack(columns, axis=-1)
    else:
        rows = features.puffer_body_table(motion, size)
    shown = state.present.at[:agents].set(state.present[:agents] & ~state.ghost)
    return VisibleBodies(state.scene, motion.x, motion.y, shown, state.ghost, rows)


def _written(
    view: ObservationConfig, bank: SceneBank, sight: VisibleBodies, ego: jax.Array, own: Motion, slot
) -> jax.Array:
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


def _around(
    view: ObservationConfig, bank: SceneBank, sight: VisibleBodies, own: Motion, slots: jax.Array
) -> list[jax.Array]:
    """Features of nearby bodies and roads for learners `[A]`, `[A, rows, F]` each."""
    if view.layout == COMPACT:
        return [_partners(view, sight, own, slots), *_roads(view, bank, sight.scene, own)]
    return [_partners_in_order(view, sight, own, slots), _spiral(bank, sight.scene, own)]


def _ego(view: ObservationConfig, bank: SceneBank, state: DriveState, own: Motion, steps: int) -> jax.Array:
    agents = state.alive.shape[0]
    size, kind = bank.size[state.scene][:agents], bank.type[state.scene][:agents]
    write = features.compact_ego_features if view.layout == COMPACT else features.puffer_ego_features
    columns = write(own, state.goal, size, state.condition, state.ghost)
    if view.jerk:
        drive: JerkState = state.memory
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
        light = signals.find_next_lights(bank, state.scene, view.lights + state.step, own, size[:, 0])
        columns += [light.gap / signals.REACH, light.red, light.found]
    columns += [scale_conditioned_weight(name, state.drawn[name]) for name in view.condition]
    return jnp.stack([jnp.asarray(column, jnp.float32) for column in columns], axis=-1)


def select_nearest_bodies(
    sight: VisibleBodies, own: Motion, slots: jax.Array, rows: int, reach: float
) -> tuple[jax.Array, jax.Array]:
    """Slots `[A, rows]` of the visible bodies nearest to learners, nearest first, and whether they exist.

    Equally near bodies are ordered by slot.
    """
    squared, seen = _seen(sight, own, slots, reach)
    found, index = jax.lax.top_k(jnp.where(seen, -squared, -jnp.inf), min(rows, squared.shape[-1]))
    return _padded(index, rows), _padded(found > -jnp.inf, rows)


def select_bodies_by_slot(
    sight: VisibleBodies, own: Motion, slots: jax.Array, rows: int, reach: float
) -> tuple[jax.Array, jax.Array]:
    """Slots `[A, rows]` of the visible bodies with the lowest slots, and whether they exist."""
    seen = _seen(sight, own, slots, reach)[1]
    bodies = seen.shape[-1]
    index = jnp.sort(jnp.where(seen, jnp.arange(bodies), bodies), axis=-1)[:, :rows]
    return _padded(jnp.minimum(index, bodies - 1), rows), _padded(index < bodies, rows)


def _seen(sight: VisibleBodies, own: Motion, slots: jax.Array, reach: float) -> tuple[jax.Array, jax.Array]:
    """Squared distances `[A, N]` from learners in `slots` to bodies, and whether the bodies are visible."""
    squared = (sight.x - own.x[:, None]) ** 2 + (sight.y - own.y[:, None]) ** 2
    apart = slots[:, None] != jnp.arange(sight.x.shape[0])
    return squared, sight.shown & ~sight.ghost[slots][:, None] & apart & (squared <= reach**2)


def _padded(values: jax.Array, rows: int) -> jax.Array:
    return jnp.pad(values, ((0, 0), (0, rows - values.shape[-1])))


def _partners(view: ObservationConfig, sight: VisibleBodies, own: Motion, slots: jax.Array) -> jax.Array:
    index, there = select_nearest_bodies(sight, own, slots, view.partners, view.reach)
    rows = sight.rows.at[index].get(mode="promise_in_bounds")
    other = Motion(*jnp.moveaxis(rows[..., :4], -1, 0))
    return features.compact_partner_rows(own, other, rows[..., 4:6], rows[..., 6], there)


def _partners_in_order(
    view: ObservationConfig, sight: VisibleBodies, own: Motion, slots: jax.Array
) -> jax.Array:
    """Rows of all other bodies in reach in the order of their slots, packed to the front."""
    index, there = select_bodies_by_slot(sight, own, slots, PUFFER_PARTNERS, view.reach)
    return features.turn_puffer_rows(own, sight.rows.at[index].get(mode="promise_in_bounds"), there)


def _roads(view: ObservationConfig, bank: SceneBank, scene: jax.Array, own: Motion) -> list[jax.Array]:
    parts = []
    for table, rows in ((bank.view_lanes, view.lanes), (bank.view_edges, view.edges)):
        if rows:
            found = look_up_segments(bank, table[..., :rows], scene, own.x, own.y, VIEW_CELL)
            parts.append(features.compact_road_rows(own, found.segments, found.there))
    return parts


def _spiral(bank: SceneBank, scene: jax.Array, own: Motion) -> jax.Array:
    """Rows of the segments that PufferDrive shows; none outside its grid.

    The original rounds towards 0, so the first cells extend one cell beyond the lower borders.
    """
    place = jnp.trunc((jnp.stack([own.x, own.y], axis=-1) - bank.origin[scene]) / CELL).astype(jnp.int32)
    last = bank.cells[scene] - 1
    inside = jnp.all((place >= 0) & (place <= last), axis=-1)
    column, row = jnp.moveaxis(jnp.clip(place, 0, last), -1, 0)
    index = bank.spiral.at[scene, row, column].get(mode="promise_in_bounds").astype(jnp.int32)
    rows = bank.spiral_row.at[scene, jnp.maximum(index, 0)].get(mode="promise_in_bounds")
    return features.turn_puffer_rows(own, rows, (index >= 0) & inside[:, None])
