"""Actions: their layout, and how they become commands.

An action has 26 numbers in [-1, 1]: the nine of `tables.ACTIONS` (throttles, and triggers that
fire above 0), a score per contact slot, a score per order of contacts, a switch that leaves friends
out of the contacts, and a message to the pack. Source: spec section 4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle.state import MESSAGE, NOBODY
from jaxmarl_echelon.envs.echelon.battle.unit_tables import ACTIONS
from jaxmarl_echelon.envs.echelon.observing.layout import CONTACTS, SORTS

TARGET = slice(len(ACTIONS), len(ACTIONS) + CONTACTS)
SORT = slice(TARGET.stop, TARGET.stop + len(SORTS))
HOSTILE_ONLY = SORT.stop
SAY = slice(HOSTILE_ONLY + 1, HOSTILE_ONLY + 1 + MESSAGE)
SIZE = SAY.stop
# Missions add a report of the own status, from -1 (red) to 1 (green).
STATUS = SIZE


class Orders(NamedTuple):
    """Actions of M mechs, read.

    Attributes:
      commands: as the actions, finite and within [-1, 1]; 0 for mechs that do not act.
      focus: `[M]` int32 mech to aim at, or NOBODY.
      sort: `[M]` int32 index into `layout.SORTS`.
      hostile_only: `[M]` bool.
      messages: `[M, 8]`.
    """

    commands: jax.Array
    focus: jax.Array
    sort: jax.Array
    hostile_only: jax.Array
    messages: jax.Array


def read(actions: jax.Array, contacts: jax.Array, alive: jax.Array, team: jax.Array) -> Orders:
    """Reads the actions of all mechs; what is not a number counts as 0, the dead do nothing.

    The focus is what the contact slot with the highest score holds, if that score is positive
    and it is a living enemy.

    Args:
      actions: `[M, 26 or more]`.
      contacts: `[M, K]` int32 of the observation that was acted on.
      alive: `[M]` bool.
      team: `[M]` int32.
    """
    sound = jnp.isfinite(actions) & alive[:, None]
    commands = jnp.clip(jnp.where(sound, actions, 0.0), -1.0, 1.0)
    scores = commands[:, TARGET]
    slot = jnp.argmax(scores, axis=1)[:, None]
    aim = jnp.take_along_axis(contacts, slot, axis=1)[:, 0]
    held = jnp.maximum(aim, 0)
    valid = (jnp.max(scores, axis=1) > 0) & (aim != NOBODY) & alive[held] & (team[held] != team)
    return Orders(
        commands=commands,
        focus=jnp.where(valid, aim, NOBODY).astype(jnp.int32),
        sort=jnp.argmax(commands[:, SORT], axis=1).astype(jnp.int32),
        hostile_only=commands[:, HOSTILE_ONLY] > 0,
        messages=commands[:, SAY],
    )
