"""Scripted policies of the mech battles, by name and team."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.echelon.battle.state import TEAMS
from jaxmarl_echelon.envs.echelon.scripts.heuristic import make_heuristic

BASELINES = ("random", "standing", "heuristic")


def make_battle_scripts(
    env, play: Callable[..., ScriptedPolicy] = make_heuristic
) -> dict[str, ScriptedPolicy]:
    """Returns the scripts as `NAME_blue` and `NAME_red`; `play(env, side, moves=...)` builds the first two.

    `make_heuristic` moves to the zone and shoots, `standing` stays at its start and shoots,
    `make_random_policy` draws uniform actions, `none` sends zeros.
    """
    found = {}
    for side, team in enumerate(TEAMS):
        role = env.spec.role(team)
        found |= {
            f"heuristic_{team}": play(env, side),
            f"standing_{team}": play(env, side, moves=False),
            f"random_{team}": make_random_policy(role),
            f"none_{team}": make_idle_policy(role),
        }
    return found


def make_random_policy(role) -> ScriptedPolicy:
    """Returns a policy that draws actions uniformly from the role's action space."""

    def act(key, memory, state, params):
        return memory, jax.vmap(role.action.sample)(jax.random.split(key, role.size))

    return ScriptedPolicy(tuple, act)


def make_idle_policy(role) -> ScriptedPolicy:
    """Returns a policy whose actions are all 0."""
    shape = (role.size, *role.action.shape)
    return ScriptedPolicy(tuple, lambda key, memory, state, params: (memory, jnp.zeros(shape)))
