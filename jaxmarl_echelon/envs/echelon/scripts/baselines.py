"""Scripted policies of the mech battles, by name and team."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.echelon.battle.state import TEAMS
from jaxmarl_echelon.envs.echelon.scripts.heuristic import heuristic

BASELINES = ("random", "standing", "heuristic")


def scripts(env, play: Callable[..., ScriptedPolicy] = heuristic) -> dict[str, ScriptedPolicy]:
    """Returns the scripts as `NAME_blue` and `NAME_red`; `play(env, side, moves=...)` makes the first two.

    `heuristic` goes for the zone and shoots, `standing` stays where it starts and shoots, `random`
    draws uniform actions, `none` does nothing.
    """
    found = {}
    for side, team in enumerate(TEAMS):
        role = env.spec.role(team)
        found |= {
            f"heuristic_{team}": play(env, side),
            f"standing_{team}": play(env, side, moves=False),
            f"random_{team}": random(role),
            f"none_{team}": nothing(role),
        }
    return found


def random(role) -> ScriptedPolicy:
    """Draws every action uniformly from the role's action space."""

    def act(key, memory, state, params):
        return memory, jax.vmap(role.action.sample)(jax.random.split(key, role.size))

    return ScriptedPolicy(tuple, act)


def nothing(role) -> ScriptedPolicy:
    """Does nothing at all."""
    shape = (role.size, *role.action.shape)
    return ScriptedPolicy(tuple, lambda key, memory, state, params: (memory, jnp.zeros(shape)))
