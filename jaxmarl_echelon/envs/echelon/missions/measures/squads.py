"""Sums over the mechs of each team, which stand one after the other: all of blue, then all of red."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors

Teams = tuple[int, int]


def team_of(teams: Teams) -> np.ndarray:
    """`[M]` int32: 0 for blue, 1 for red."""
    return np.repeat(np.arange(2, dtype=np.int32), teams)


def add(values: jax.Array, teams: Teams) -> jax.Array:
    """Sums `[..., K]` of `[..., M]`; of flags int32 counts."""
    kind = jnp.int32 if values.dtype == bool else None
    parts = values[..., : teams[0]], values[..., teams[0] :]
    return jnp.stack([jnp.sum(part, axis=-1, dtype=kind) for part in parts], axis=-1)


def any_of(flags: jax.Array, teams: Teams) -> jax.Array:
    """Whether any mech of each team has a flag: `[..., K]` of `[..., M]`."""
    return jnp.stack([flags[..., : teams[0]].any(-1), flags[..., teams[0] :].any(-1)], axis=-1)


def unite(bits: jax.Array, teams: Teams) -> tuple[jax.Array, jax.Array]:
    """Bits `[K, W]` that any mech of each team has set, and those that exactly one has, of `[M, W]` words."""
    some, once = [], []
    for part in (bits[: teams[0]], bits[teams[0] :]):
        seen = several = jnp.zeros(bits.shape[-1], bits.dtype)
        for row in part:
            several, seen = several | (seen & row), seen | row
        some.append(seen)
        once.append(seen & ~several)
    return jnp.stack(some), jnp.stack(once)


def centre(position: jax.Array, alive: jax.Array, teams: Teams) -> jax.Array:
    """Mean `[K, 2]` of the living mechs' x and y; 0 without any."""
    planar = jnp.where(alive[:, None], position[:, :2], 0.0).T
    return (add(planar, teams) / jnp.maximum(add(alive, teams), 1)).T


def spread(position: jax.Array, alive: jax.Array, teams: Teams) -> tuple[jax.Array, jax.Array]:
    """Planar distances `[M]` to the centre of one's living squad, and the mean `[K]` over the living."""
    middle = centre(position, alive, teams)[team_of(teams)]
    apart = vectors.length(position[:, :2] - middle)
    mean = add(jnp.where(alive, apart, 0.0), teams) / jnp.maximum(add(alive, teams), 1)
    return apart, mean
