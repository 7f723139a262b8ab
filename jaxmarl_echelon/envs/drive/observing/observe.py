"""Observations of learners: own state, nearby bodies and roads. Reference: docs/reference/drive.md 10."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import CELL, CYCLIST, PEDESTRIAN, VIEW_CELL
from jaxmarl_echelon.envs.drive.conditioning import scale_conditioned_weight
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import COMPACT, PUFFER_PARTNERS, ObservationConfig
from jaxmarl_echelon.envs.drive.state import DriveState
from jaxmarl_echelon.envs.drive.traffic import signals
from jaxmarl_echelon.envs.drive.traffic.road_contacts import look_up_segments
from physics.bicycle import JerkState, Motion
from physics.sparse_batch import PyTree, compute_first, compute_where

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
        return compute_where(write, alive, empty, bank, ego, own, slot, share=view.share, shared=sight)

    return jax.vmap(one)(state.alive, ego, own, slots)


class VisibleBodies(NamedTuple):
    """Data on an episode's bodies from which observations are gathered.

    Attributes:
      scene: int32.
      x, y: `[N]` m.
      shown: `[N]` bool; the body is present and not a ghost.
      ghost: `[A]` bool; learners that see no other body.
      rows: `[P, N, F]` features of bodies in P episodes before they are turned into a learner's frame; with
        the original's layout `N + 1` rows, the last of which stands for an empty place.
      place: int32 index of the own episode among the P.
    """

    scene: jax.Array
    x: jax.Array
    y: jax.Array
    shown: jax.Array
    ghost: jax.Array
    rows: jax.Array
    place: jax.Array


def _sight(view: ObservationConfig, bank: SceneBank, state: DriveState) -> VisibleBodies:
    agents, motion = state.alive.shape[0], state.motion
    size, kind = bank.size[state.scene], bank.type[state.scene]
    if view.layout == COMPACT:
        columns = *motion, size[:, 0], size[:, 1], kind.astype(jnp.float32)
        rows = jnp.stack(columns, axis=-1)
    else:
        rows = features.append_empty_row(jnp, features.puffer_body_table(motion, size))
    shown = state.present.at[:agents].set(state.present[:agents] & ~state.ghost)
    return VisibleBodies(state.scene, motion.x, motion.y, shown, state.ghost, rows[None], jnp.int32(0))


def _written(
    view: ObservationConfig, place, sights: VisibleBodies, bank: SceneBank, ego: jax.Array, own: Motion, slot
):
    """Returns the observation `[view.size]` of one learner, for `compute_where`.

    On a CPU XLA would compute each part again for every number of the joined observation, and look up each
    number of a row again where it turns rows: both take several times as long as parts written to memory.
    """
    sight = jax.tree.map(lambda x: x[place], sights)._replace(rows=sights.rows[:, 0], place=place)

    # Without the axis of one learner, which would have XLA choose other layouts and copy.
    def look_up(bank, sight, own, slot):
        return _first(_looked_up(view, bank, sight, *_only_one((own, slot))))

    def turn(own, looked_up):
        return _first(_turned(view, *_only_one((own, looked_up))))

    looked_up = compute_first(slot >= 0, look_up, bank, sight, own, slot)
    parts = compute_first(slot >= 0, turn, own, looked_up)
    return jnp.concatenate([ego, *(part.reshape(-1) for part in parts)])


def _only_one(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[0], tree)


def _joined(ego: jax.Array, parts: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([ego, *(part.reshape(ego.shape[0], -1) for part in parts)], axis=-1)


def _around(
    view: ObservationConfig, bank: SceneBank, sight: VisibleBodies, own: Motion, slots: jax.Array
) -> list[jax.Array]:
    """Features of nearby bodies and roads for learners `[A]`, `[A, rows, F]` each."""
    return _turned(view, own, _looked_up(view, bank, sight, own, slots))


def _looked_up(
    view: ObservationConfig, bank: SceneBank, sight: VisibleBodies, own: Motion, slots: jax.Array
) -> list:
    """Gathers the inputs of `_turned` for bodies and roads."""
    if view.layout == COMPACT:
        return [_partners(view, sight, own, slots), *_roads(view, bank, sight.scene, own)]
    return [_partners_in_order(view, sight, own, slots), _spiral_rows(bank, sight.scene, own)]


def _turned(view: ObservationConfig, own: Motion, looked_up: list) -> list[jax.Array]:
    """Turns the features of bodies and roads into the frames of learners `[A]`."""
    if view.layout == COMPACT:
        return looked_up
    return [features.turn_puffer_rows(own, rows) for rows in looked_up]


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
    index = _packed(seen, rows)[:, 1:-1]
    return jnp.minimum(index, seen.shape[-1] - 1), index < seen.shape[-1]


def _packed(seen: jax.Array, rows: int) -> jax.Array:
    """Slots `[A, rows + 2]` of the first bodies `seen` `[A, N]`, from the second place on; N if none is left.

    The first and the last place are placeholders.
    """
    bodies = seen.shape[-1]
    # Ranks by a product and one write per body: a sort takes three times as long on a CPU.
    upto = jnp.matmul(seen.astype(jnp.float32), np.triu(np.ones((bodies, bodies), np.float32)))
    place = jnp.where(seen, upto.astype(jnp.int32), rows + 2)
    slots = np.arange(bodies, dtype=np.int32)
    return jax.vmap(lambda at: jnp.full(rows + 2, bodies, jnp.int32).at[at].set(slots, mode="drop"))(place)


def _seen(sight: VisibleBodies, own: Motion, slots: jax.Array, reach: float) -> tuple[jax.Array, jax.Array]:
    """Squared distances `[A, N]` from learners in `slots` to bodies, and whether the bodies are visible."""
    squared = (sight.x - own.x[:, None]) ** 2 + (sight.y - own.y[:, None]) ** 2
    apart = slots[:, None] != jnp.arange(sight.x.shape[0])
    return squared, sight.shown & ~sight.ghost[slots][:, None] & apart & (squared <= reach**2)


def _padded(values: jax.Array, rows: int) -> jax.Array:
    return jnp.pad(values, ((0, 0), (0, rows - values.shape[-1])))


def _partners(view: ObservationConfig, sight: VisibleBodies, own: Motion, slots: jax.Array) -> jax.Array:
    index, there = select_nearest_bodies(sight, own, slots, view.partners, view.reach)
    rows = sight.rows.at[sight.place, index].get(mode="promise_in_bounds")
    other = Motion(*jnp.moveaxis(rows[..., :4], -1, 0))
    return features.compact_partner_rows(own, other, rows[..., 4:6], rows[..., 6], there)


def _partners_in_order(view: ObservationConfig, sight: VisibleBodies, own: Motion, slots: jax.Array):
    """Rows of all other bodies in reach in the order of their slots, packed to the front."""
    empty = sight.rows.shape[1] - 1
    index = _packed(_seen(sight, own, slots, view.reach)[1], PUFFER_PARTNERS)
    index = jnp.minimum(index, empty) + sight.place * (empty + 1)
    return features.gather_rows(sight.rows, index)


def _roads(view: ObservationConfig, bank: SceneBank, scene: jax.Array, own: Motion) -> list[jax.Array]:
    parts = []
    for table, rows in ((bank.view_lanes, view.lanes), (bank.view_edges, view.edges)):
        if rows:
            found = look_up_segments(bank, table[..., :rows], scene, own.x, own.y, VIEW_CELL)
            parts.append(features.compact_road_rows(own, found.segments, found.there))
    return parts


def _spiral(bank: SceneBank, scene: jax.Array, own: Motion) -> jax.Array:
    """Rows `[A, 200, 7]` of the segments that PufferDrive shows, in the frames of learners."""
    return features.turn_puffer_rows(own, _spiral_rows(bank, scene, own))


def _spiral_rows(bank: SceneBank, scene: jax.Array, own: Motion) -> jax.Array:
    """Rows `[A, 202, 7]` of the segments that PufferDrive shows, and two more; none outside its grid.

    The original rounds towards 0, so the first cells extend one cell beyond the lower borders.
    """
    place = jnp.trunc((jnp.stack([own.x, own.y], axis=-1) - bank.origin[scene]) / CELL).astype(jnp.int32)
    last = bank.cells[scene] - 1
    inside = jnp.all((place >= 0) & (place <= last), axis=-1)
    column, row = jnp.moveaxis(jnp.clip(place, 0, last), -1, 0)
    index = bank.spiral.at[scene, row, column].get(mode="promise_in_bounds").astype(jnp.int32)
    nothing = bank.spiral_row.shape[1] - 1
    index = jnp.where((index >= 0) & inside[:, None], index, nothing)
    return features.gather_rows(bank.spiral_row, scene * (nothing + 1) + index)
