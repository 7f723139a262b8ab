"""Ends of JaxMARL's environments: their time limits, and their true ends.

JaxMARL (0.2) reports ends and time limits alike in `dones`; their difference is found in states, where each
family of environments has its clock. Games whose limit is a rule end truly when it is reached.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algos.types import PyTree

Flags = Mapping[str, jax.Array]


class Ends(NamedTuple):
    """Ends of the episodes of a family of environments.

    Attributes:
      limit: `(env) -> int`, the most steps of an episode.
      ended: `(env, state, dones) -> Flags`: agents whose trajectory has truly ended in this state.
      outcome: `(env, state, over) -> int32`, an index into `outcomes`, or -1 while the episode
        runs; None without outcomes.
      outcomes: their labels; the first is a success.
      late: whether agents out of the game receive the rewards of their team.
      ends_with_team: whether an episode is over once a team has no agent left.
    """

    limit: Callable[[Any], int]
    ended: Callable[[Any, PyTree, Flags], Flags]
    outcome: Callable[[Any, PyTree, jax.Array], jax.Array] | None = None
    outcomes: tuple[str, ...] = ()
    late: bool = False
    ends_with_team: bool = False


def find_ends(name: str) -> Ends:
    """Returns how the environment with this registered name ends; raises StopIteration without `has_ends`."""
    return next(ends for beginning, ends in FAMILIES.items() if name.startswith(beginning))


def has_ends(name: str) -> bool:
    """Tells whether the ends of the environment with this registered name are known."""
    return name.startswith(tuple(FAMILIES))


def _never(_env, _state, dones: Flags) -> Flags:
    return {agent: jnp.zeros_like(done) for agent, done in dones.items()}


def _always(_env, _state, dones: Flags) -> Flags:
    return dones


def _rounds(env) -> int:
    return env.num_inner_steps * env.num_outer_steps


def _hanabi_limit(env) -> int:
    # Every step plays, discards or spends a token. Cards leave a finite deck, tokens come from discards and
    # complete colours, and a last round follows.
    return 2 * env.deck_size + env.max_info_tokens + env.num_colors + env.num_agents


def _jaxnav_ended(env, state: PyTree, dones: Flags) -> Flags:
    early = state.goal_reached | state.move_term | state.term | (state.step < env.max_steps)
    own = {agent: dones[agent] & early[place] for place, agent in enumerate(env.agents)}
    return own | {"__all__": dones["__all__"] & jnp.all(early)}


def _battle(env, state: PyTree) -> tuple[jax.Array, jax.Array]:
    """Returns whether allies and whether enemies are left in SMAX, bool."""
    # Environments with scripted enemies keep the memories of these beside the battle.
    units = getattr(state, "state", state)
    return jnp.any(units.unit_alive[: env.num_allies]), jnp.any(units.unit_alive[env.num_allies :])


def _smax_ended(env, state: PyTree, dones: Flags) -> Flags:
    allies, enemies = _battle(env, state)
    return dict(dones) | {"__all__": ~(allies & enemies)}


def _smax_outcome(env, state: PyTree, over: jax.Array) -> jax.Array:
    allies, enemies = _battle(env, state)
    decided = jnp.where(allies, jnp.where(enemies, 3, 0), jnp.where(enemies, 1, 2))
    return jnp.where(over, decided, -1).astype(jnp.int32)


def _late_clock(env) -> int:
    # Their clock is read before it advances: episodes are one step longer than the setting says.
    return env.max_steps + 1


SMAX = Ends(
    _late_clock,
    _smax_ended,
    _smax_outcome,
    ("won", "lost", "draw", "time_limit"),
    late=True,
    ends_with_team=True,
)
FAMILIES = {
    "MPE_": Ends(_late_clock, _never),
    "SMAX": SMAX,
    "HeuristicEnemySMAX": SMAX,
    "switch_riddle": Ends(lambda env: env.max_steps, _always),
    "overcooked": Ends(lambda env: env.max_steps, _never),
    "coin_game": Ends(_rounds, _never),
    "hanabi": Ends(_hanabi_limit, _always),
    "jaxnav": Ends(lambda env: env.max_steps, _jaxnav_ended),
}
