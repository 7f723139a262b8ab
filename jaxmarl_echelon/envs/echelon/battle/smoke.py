"""Clouds of smoke: where they start, how long they last, which lines of sight they block.

Source: spec sections 2.3 and 3.5.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import CLOUDS_PER_MECH, Smoke
from jaxmarl_echelon.envs.echelon.battle.unit_tables import SMOKE, SMOKE_LIFE, WEAPON
from physics.line_of_sight import in_smoke
from physics.sparse_batch import compute_where

_SHARE = 1 / 8


def no_smoke(mechs: int) -> Smoke:
    """No clouds."""
    shape = (mechs, CLOUDS_PER_MECH)
    return Smoke(position=jnp.zeros((*shape, 3)), left=jnp.zeros(shape, jnp.int32))


def age_smoke(smoke: Smoke) -> Smoke:
    """One substep of the clouds."""
    return smoke.replace(left=jnp.maximum(smoke.left - 1, 0))


def puff(smoke: Smoke, fires: jax.Array, centre: jax.Array) -> Smoke:
    """Starts a cloud of each mech that `fires` `[M]` at `centre` `[M, 3]`, in place of its oldest one."""
    oldest = vectors.lowest(smoke.left, -1)[0][:, None] == np.arange(CLOUDS_PER_MECH)
    here = oldest & fires[:, None]
    return Smoke(
        position=jnp.where(here[..., None], centre[:, None], smoke.position),
        left=jnp.where(here, SMOKE_LIFE, smoke.left),
    )


def smoked(smoke: Smoke, start: jax.Array, end: jax.Array, where: jax.Array) -> jax.Array:
    """Which of the segments `[S]` that are asked for (`where` `[S]` bool) lead through smoke, bool `[S]`."""
    there = smoke.left.ravel() > 0

    def through(position, start, end, there, where):
        return where & in_smoke(start, end, position.reshape(-1, 3), there, WEAPON.splash_radius[SMOKE])

    operands = smoke.position, start, end, there, where
    return compute_where(through, there.any() & where.any(), jnp.zeros_like(where), *operands, share=_SHARE)
