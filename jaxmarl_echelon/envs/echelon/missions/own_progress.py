"""Observable progress of the own mission, in the mech's own frame.

What a policy needs in order to learn from the mission's success: how far its mission is, who tracks it, which
cells near by its squad has not entered, and what has been done to each enemy that it sees.
Reference: docs/reference/echelon.md 15.7.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.unit_tables import SUPPRESSION
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.measures.facts import AREA, CAPTURE
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import ScenarioGround
from jaxmarl_echelon.envs.echelon.missions.state import CONFIRMATION, MissionState, Order
from jaxmarl_echelon.envs.echelon.missions.verbs.suppress import TARGET_TIME
from jaxmarl_echelon.envs.echelon.observing.contacts import turn_to_body, unit_bearing

PROGRESS_FIELDS = (
    "potential", "stage_time", "follow_on", "captured", "engaged", "living", "tracked",
    "squad_ahead", "squad_left", "squad_spread",
    "uncovered_sin", "uncovered_cos", "uncovered_distance",
)  # fmt: skip
# Further fields of contacts.
MARK_FIELDS = ("tracking", "found", "tracks_me", "suppression", "suppressed", "under_fire", "in_area")
# Numbers of both missions, own then enemy's, for critics.
BOTH_FIELDS = (
    "potential", "success", "capture", "captured",
    "enemy_potential", "enemy_success", "enemy_capture", "enemy_captured",
)  # fmt: skip
# Points of the map of cells to enter, along each side.
NEAR_CELLS = 7
_SPREAD_SCALE = 30.0
_FAR = 1e9
_WORD = 32
_GRID = np.stack(np.meshgrid(*[np.arange(NEAR_CELLS) - NEAR_CELLS // 2] * 2, indexing="ij"), axis=-1)


def progress_blocks() -> dict[str, tuple[tuple[int, ...], str, tuple[str, ...]]]:
    """Returns shape, kind and fields of the blocks `progress` and `uncovered`, for a layout."""
    return {
        "progress": ((len(PROGRESS_FIELDS),), "vector", PROGRESS_FIELDS),
        "uncovered": ((NEAR_CELLS, NEAR_CELLS), "map", ()),
    }


def observe_progress(
    state: MissionState, order: Order, ground: ScenarioGround, limit: jax.Array, teams: squads.TeamSizes
) -> dict[str, jax.Array]:
    """Returns the blocks `progress` `[M, F]` and `uncovered` `[M, 7, 7]`: rows ahead, columns to the left.

    A point of `uncovered` is 1 in a reachable coverage cell that the own squad has not entered.

    Args:
      state: after the decision.
      order: `[K]` present orders of the teams.
      ground: terrain data of scenarios.
      limit: time limit in decisions.
      teams: mechs of blue and of red.
    """
    team = squads.team_numbers(teams)
    mechs, ours, mine = state.echelon.battle.mechs, state.by_team, state.by_mech
    seen, _ = squads.unite_bits(mine.visited, teams)
    left = (ground.open_cells[state.echelon.battle.map_index] & ~seen)[team]
    nearest, distance = _nearest_uncovered(mechs.position, left, ground)
    centre = squads.squad_centres(mechs.position, mechs.alive, teams)[team] - mechs.position[:, :2]
    squad = _turned(centre, mechs.yaw)
    _, spread = squads.squad_spread(mechs.position, mechs.alive, teams)
    living = squads.sum_by_team(mechs.alive, teams) / jnp.maximum(state.scenario.strength, 1)
    span = float(ground.columns * ground.cell)
    by_team = (
        state.potential,
        ours.elapsed / limit,
        order.went,
        ours.captured,
        ours.engaged,
        living,
    )
    columns = (
        *(jnp.asarray(value, jnp.float32)[team] for value in by_team),
        (mine.timer >= CONFIRMATION).any(0),
        squad[:, 0] / span,
        squad[:, 1] / span,
        spread[team] / _SPREAD_SCALE,
        *unit_bearing(_turned(nearest - mechs.position[:, :2], mechs.yaw)).T,
        distance / span,
    )
    progress = jnp.stack([jnp.asarray(column, jnp.float32) for column in columns], axis=-1)
    return {"progress": progress, "uncovered": _uncovered_near(mechs.position, mechs.yaw, left, ground)}


def mark_contacts(state: MissionState, order: Order, teams: squads.TeamSizes) -> jax.Array:
    """Returns the fields `MARK_FIELDS` of each target for each viewer, `[M, M, N]`.

    `tracking` is the viewer's own track as a share of a confirmed one, `found` a track that its squad has
    confirmed at some time, `tracks_me` a confirmed track of the viewer by the target; `suppression` is the
    share of the time under fire that counts as full, `suppressed` what is left of the effect of the last hit;
    `in_area` means near the viewer's objective.
    """
    team = squads.team_numbers(teams)
    mechs, mine = state.echelon.battle.mechs, state.by_mech
    found = squads.any_by_team(mine.confirmed.T, teams).T[team]
    zone = order.zone[team]
    away = vectors.vector_length(mechs.position[None, :, :2] - zone[:, None, :2])
    under_fire = (mechs.suppressed > 0) | (mechs.fallen > 0) | (mine.hurt > 0)
    size = mine.timer.shape
    columns = (
        mine.timer / CONFIRMATION,
        found,
        mine.timer.T >= CONFIRMATION,
        jnp.broadcast_to(jnp.minimum(mine.pinned / TARGET_TIME, 1.0), size),
        jnp.broadcast_to(mechs.suppressed / SUPPRESSION, size),
        jnp.broadcast_to(under_fire, size),
        away < zone[:, None, 2] + AREA,
    )
    return jnp.stack([jnp.asarray(column, jnp.float32) for column in columns], axis=-1)


def both_missions(state: MissionState, teams: squads.TeamSizes) -> jax.Array:
    """Returns the progress of the own and the enemies' mission for each mech, `[M, N]`: `BOTH_FIELDS`."""
    ours = state.by_team
    capture = jnp.clip(ours.capture / CAPTURE, 0.0, 1.0)
    by_team = jnp.stack([state.potential, state.success, capture, ours.captured], axis=-1)
    team = squads.team_numbers(teams)
    return jnp.concatenate([by_team[team], by_team[1 - team]], axis=-1)


def _turned(planar: jax.Array, yaw: jax.Array) -> jax.Array:
    return turn_to_body(jnp.pad(planar, ((0, 0), (0, 1))), yaw)


def _nearest_uncovered(
    position: jax.Array, left: jax.Array, ground: ScenarioGround
) -> tuple[jax.Array, jax.Array]:
    """Returns the centre `[M, 2]` of the nearest cell of the bits `left [M, W]`, and its distance `[M]`.

    The mech's own position and 0 where no cell is left.
    """
    number = np.arange(left.shape[-1] * _WORD)
    free = (left[:, number // _WORD] >> (number % _WORD).astype(np.uint32)) & 1 == 1
    centre = (np.stack([number % ground.columns, number // ground.columns], -1) + 0.5) * ground.cell
    gap = vectors.vector_length(centre.astype(np.float32) - position[:, None, :2])
    chosen, distance = vectors.argmin_and_min(jnp.where(free, gap, jnp.float32(_FAR)), 1)
    some = free.any(1)
    nearest = jnp.where(some[:, None], jnp.asarray(centre, jnp.float32)[chosen], position[:, :2])
    return nearest, jnp.where(some, distance, 0.0)


def _uncovered_near(
    position: jax.Array, yaw: jax.Array, left: jax.Array, ground: ScenarioGround
) -> jax.Array:
    """Returns `[M, 7, 7]`: 1 where a point of the grid, one cell apart, lies in a cell of the bits `left`."""
    ahead, side = (jnp.asarray(_GRID[..., axis] * ground.cell, jnp.float32) for axis in (0, 1))
    cos, sin = jnp.cos(yaw)[:, None, None], jnp.sin(yaw)[:, None, None]
    x = position[:, 0, None, None] + cos * ahead - sin * side
    y = position[:, 1, None, None] + sin * ahead + cos * side
    column, row = (jnp.floor(value / ground.cell).astype(jnp.int32) for value in (x, y))
    number = row * ground.columns + column
    inside = (column >= 0) & (column < ground.columns) & (row >= 0) & (number < left.shape[-1] * _WORD)
    number = jnp.clip(number, 0, left.shape[-1] * _WORD - 1)
    words = jnp.take_along_axis(left, (number // _WORD).reshape(left.shape[0], -1), axis=1)
    bit = (words.reshape(number.shape) >> (number % _WORD).astype(jnp.uint32)) & 1
    return (inside & (bit == 1)).astype(jnp.float32)
