"""Constants of a substep: terrain, chassis and relations between mechs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams, Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CHASSIS, ChassisTable
from physics.voxels import Terrain


class Scene(NamedTuple):
    """Surroundings of the mechs.

    Attributes:
      terrain: as it was when the substep began.
      chassis: rows of the chassis table per mech.
      classes: `[M]` int32.
      team: `[M]` int32; static.
      enemies: `[M, M]` bool, of two teams; static.
      packmates: `[M, M]` bool, of one pack; True on the diagonal.
      gravity: voxels/s^2.
    """

    terrain: Terrain
    chassis: ChassisTable
    classes: jax.Array
    team: np.ndarray
    enemies: np.ndarray
    packmates: jax.Array
    gravity: jax.Array


def chassis_of(params: EchelonParams) -> ChassisTable:
    """Returns the rows of the chassis table per mech, `[M, ...]`."""
    return ChassisTable(*(jnp.asarray(column)[params.classes] for column in CHASSIS))


def scene_of(terrain: Terrain, team: np.ndarray, params: EchelonParams) -> Scene:
    """Builds the scene of mechs with teams `team` `[M]` on a terrain."""
    enemies = team[:, None] != team
    return Scene(
        terrain=terrain,
        chassis=chassis_of(params),
        classes=params.classes,
        team=team,
        enemies=enemies,
        packmates=~enemies & (params.pack[:, None] == params.pack),
        gravity=params.gravity,
    )


def pack_gap(mechs: Mechs, packmates: jax.Array) -> jax.Array:
    """Returns the distance `[M]` to the centre of a mech's other living packmates; 0 without any."""
    others = packmates & ~np.eye(len(packmates), dtype=bool) & mechs.alive
    count = jnp.sum(others, axis=1)
    offset = mechs.position - mechs.position[:, None]
    centre = (
        vectors.sum_pairwise(jnp.where(others[..., None], offset, 0.0), 1) / jnp.maximum(count, 1)[:, None]
    )
    return vectors.vector_length(centre)
