"""Layout of actions, and their translation into commands.

An action has 26 numbers in [-1, 1]: the nine of `unit_tables.ACTIONS` (throttles, and triggers that
fire above 0), a score per contact slot, a score per sort order of contacts, a switch that removes
friends from the contacts, and a message to the pack. Reference: docs/reference/echelon.md 3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle.state import MESSAGE, NO_MECH
from jaxmarl_echelon.envs.echelon.battle.unit_tables import ACTIONS
from jaxmarl_echelon.envs.echelon.observing.layout import CONTACTS, SORTS

TARGET = slice(len(ACTIONS), len(ACTIONS) + CONTACTS)
SORT = slice(TARGET.stop, TARGET.stop + len(SORTS))
HOSTILE_ONLY = SORT.stop
SAY = slice(HOSTILE_ONLY + 1, HOSTILE_ONLY + 1 + MESSAGE)
ACTION_SIZE = SAY.stop
# Missions add a status report of the mech, from -1 (red) to 1 (green).
STATUS_REPORT = ACTION_SIZE


class ParsedActions(NamedTuple):
    """Parsed actions of M mechs.

    Attributes:
      commands: the actions, finite and within [-1, 1]; 0 for dead mechs.
      focus: `[M]` int32 preferred target, or -1.
      sort: `[M]` int32 index into `layout.SORTS`.
      hostile_only: `[M]` bool.
      messages: `[M, 8]`.
    """

    commands: jax.Array
    focus: jax.Array
    sort: jax.Array
    hostile_only: jax.Array
    messages: jax.Array


def parse_actions(
    actions: jax.Array, contacts: jax.Array, alive: jax.Array, team: jax.Array
) -> ParsedActions:
    """Parses the actions of all mechs; non-finite numbers and actions of the dead count as 0.

    The focus is the mech in the contact slot with the highest score, if that score is positive
    and the mech is a living enemy.

    Args:
      actions: `[M, 26 or more]`.
      contacts: `[M, K]` int32 contacts of the observation that led to the actions.
      alive: `[M]` bool.
      team: `[M]` int32.
    """
    sound = jnp.isfinite(actions) & alive[:, None]
    commands = jnp.clip(jnp.where(sound, actions, 0.0), -1.0, 1.0)
    scores = commands[:, TARGET]
    slot = jnp.argmax(scores, axis=1)[:, None]
    aim = jnp.take_along_axis(contacts, slot, axis=1)[:, 0]
    held = jnp.maximum(aim, 0)
    valid = (jnp.max(scores, axis=1) > 0) & (aim != NO_MECH) & alive[held] & (team[held] != team)
    return ParsedActions(
        commands=commands,
        focus=jnp.where(valid, aim, NO_MECH).astype(jnp.int32),
        sort=jnp.argmax(commands[:, SORT], axis=1).astype(jnp.int32),
        hostile_only=commands[:, HOSTILE_ONLY] > 0,
        messages=commands[:, SAY],
    )
