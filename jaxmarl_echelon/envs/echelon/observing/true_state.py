"""Privileged observations for critics: the true state of all mechs, seen or not, from each perspective.

A centralised critic may know in training what actors cannot (Lowe et al. 2017, "Multi-agent actor-critic for
mixed cooperative-competitive environments"). Reference: docs/reference/echelon.md 12.5.
"""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES, MAX_STABILITY
from jaxmarl_echelon.envs.echelon.observing.contacts import MechSides, turn_to_body
from jaxmarl_echelon.envs.settings import read_choice

MECH_FIELDS = (
    "alive", "friendly", "ahead", "left", "up", "sin_heading", "cos_heading",
    "velocity_ahead", "velocity_left", "hp", "heat", "stability", *CLASSES,
)  # fmt: skip
# What critics observe: what their actor does, or the true state besides.
OWN, STATE = "own", "state"
CRITICS = (OWN, STATE)
_VELOCITY_SCALE = 10.0


def read_critic(name: str, value) -> str:
    """Reads the setting `critic`; raises ValueError for others than `CRITICS`."""
    return read_choice(name, value, CRITICS)


def true_state_size(mechs: int, further: int = 0) -> int:
    """Returns the length of `observe_true_state` for M mechs and further numbers."""
    return mechs * len(MECH_FIELDS) + further


def observe_true_state(
    mechs: Mechs, chassis, sides: MechSides, span: float, further: jax.Array | None = None
) -> jax.Array:
    """Returns the fields `MECH_FIELDS` of all mechs for each mech, float32 `[M, M * F + N]`.

    Rows of dead mechs and of empty slots are 0, except for `friendly`. Mechs keep their order.

    Args:
      mechs: all mechs.
      chassis: rows of the chassis table per mech.
      sides: teams, packs and classes.
      span: distance that maps to 1, voxels.
      further: `[M, N]` numbers that follow.
    """
    yaw = mechs.yaw[:, None]
    offset = turn_to_body(mechs.position[None] - mechs.position[:, None], yaw) / span
    velocity = turn_to_body(jnp.broadcast_to(mechs.velocity[None], offset.shape), yaw) / _VELOCITY_SCALE
    turned = mechs.yaw[None] - yaw
    size = turned.shape
    kinds = jax.nn.one_hot(sides.classes, len(CLASSES)).T
    columns = (
        *jnp.moveaxis(offset, -1, 0),
        jnp.sin(turned),
        jnp.cos(turned),
        velocity[..., 0],
        velocity[..., 1],
        mechs.hp / chassis.hp,
        mechs.heat / chassis.heat_capacity,
        mechs.stability / MAX_STABILITY,
        *kinds,
    )
    shown = [jnp.where(mechs.alive, jnp.broadcast_to(column, size), 0.0) for column in columns]
    marks = jnp.broadcast_to(mechs.alive, size), sides.friends
    rows = jnp.stack([*(jnp.asarray(mark, jnp.float32) for mark in marks), *shown], axis=-1)
    flat = rows.reshape(size[0], -1)
    return flat if further is None else jnp.concatenate([flat, further], axis=-1, dtype=jnp.float32)
