"""Smoke clouds: creation, lifetime, and the lines of sight that they block.

Reference: docs/reference/echelon.md 10.4.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import CLOUDS_PER_MECH, Smoke
from jaxmarl_echelon.envs.echelon.battle.unit_tables import SMOKE, SMOKE_LIFE, WEAPON
from physics.line_of_sight import passes_smoke_cloud
from physics.sparse_batch import compute_where

_SHARE = 1 / 8


def no_smoke(mechs: int) -> Smoke:
    """Returns empty cloud slots for `mechs` mechs."""
    shape = (mechs, CLOUDS_PER_MECH)
    return Smoke(position=jnp.zeros((*shape, 3)), left=jnp.zeros(shape, jnp.int32))


def age_smoke(smoke: Smoke) -> Smoke:
    """Advances the clouds by one substep."""
    return smoke.replace(left=jnp.maximum(smoke.left - 1, 0))


def create_clouds(smoke: Smoke, fires: jax.Array, centre: jax.Array) -> Smoke:
    """Creates a cloud at `centre` `[M, 3]` for each mech that `fires` `[M]`, replacing its oldest one."""
    oldest = vectors.argmin_and_min(smoke.left, -1)[0][:, None] == np.arange(CLOUDS_PER_MECH)
    here = oldest & fires[:, None]
    return Smoke(
        position=jnp.where(here[..., None], centre[:, None], smoke.position),
        left=jnp.where(here, SMOKE_LIFE, smoke.left),
    )


def find_smoke_blocked(smoke: Smoke, start: jax.Array, end: jax.Array, where: jax.Array) -> jax.Array:
    """Returns bool `[S]`: the segment passes through smoke; False for segments not selected by `where`."""
    there = smoke.left.ravel() > 0

    def through(position, start, end, there, where):
        return where & passes_smoke_cloud(
            start, end, position.reshape(-1, 3), there, WEAPON.splash_radius[SMOKE]
        )

    operands = smoke.position, start, end, there, where
    return compute_where(through, there.any() & where.any(), jnp.zeros_like(where), *operands, share=_SHARE)
