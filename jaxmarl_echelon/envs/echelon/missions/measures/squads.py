"""Reductions over the mechs of each team; mechs are ordered: all of blue, then all of red."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors

TeamSizes = tuple[int, int]


def team_numbers(teams: TeamSizes) -> np.ndarray:
    """Returns the team of each mech, int32 `[M]`: 0 for blue, 1 for red."""
    return np.repeat(np.arange(2, dtype=np.int32), teams)


def sum_by_team(values: jax.Array, teams: TeamSizes) -> jax.Array:
    """Returns sums `[..., K]` over teams of `[..., M]`; int32 counts for flags."""
    kind = jnp.int32 if values.dtype == bool else None
    parts = values[..., : teams[0]], values[..., teams[0] :]
    return jnp.stack([jnp.sum(part, axis=-1, dtype=kind) for part in parts], axis=-1)


def any_by_team(flags: jax.Array, teams: TeamSizes) -> jax.Array:
    """Returns bool `[..., K]`: any mech of the team has the flag `[..., M]`."""
    return jnp.stack([flags[..., : teams[0]].any(-1), flags[..., teams[0] :].any(-1)], axis=-1)


def pack_bits(flags: jax.Array) -> jax.Array:
    """Returns flags `[..., N]` as the bits of uint32 words `[..., ceil(N / 32)]`, lowest bit first."""
    padded = jnp.pad(flags, [(0, 0)] * (flags.ndim - 1) + [(0, -flags.shape[-1] % 32)])
    bits = padded.reshape(*flags.shape[:-1], -1, 32).astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)
    return jnp.sum(bits, axis=-1, dtype=jnp.uint32)


def unite_bits(bits: jax.Array, teams: TeamSizes) -> tuple[jax.Array, jax.Array]:
    """Returns bits `[K, W]` set by any mech of each team, and bits set by exactly one, for words `[M, W]`."""
    some, once = [], []
    for part in (bits[: teams[0]], bits[teams[0] :]):
        seen = several = jnp.zeros(bits.shape[-1], bits.dtype)
        for row in part:
            several, seen = several | (seen & row), seen | row
        some.append(seen)
        once.append(seen & ~several)
    return jnp.stack(some), jnp.stack(once)


def squad_centres(position: jax.Array, alive: jax.Array, teams: TeamSizes) -> jax.Array:
    """Returns the mean x and y `[K, 2]` of each team's living mechs; 0 without any."""
    planar = jnp.where(alive[:, None], position[:, :2], 0.0).T
    return (sum_by_team(planar, teams) / jnp.maximum(sum_by_team(alive, teams), 1)).T


def squad_spread(position: jax.Array, alive: jax.Array, teams: TeamSizes) -> tuple[jax.Array, jax.Array]:
    """Returns planar distances `[M]` to the centre of the living squad, and their mean `[K]`."""
    middle = squad_centres(position, alive, teams)[team_numbers(teams)]
    apart = vectors.vector_length(position[:, :2] - middle)
    mean = sum_by_team(jnp.where(alive, apart, 0.0), teams) / jnp.maximum(sum_by_team(alive, teams), 1)
    return apart, mean
