"""Scripted policies of the mech battles, by name and team."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import EnvSpec, ScriptedPolicy
from jaxmarl_echelon.envs.echelon.battle.state import TEAMS

BASELINES = ("random", "standing", "heuristic")


def make_battle_scripts(spec: EnvSpec, play: Callable[..., ScriptedPolicy]) -> dict[str, ScriptedPolicy]:
    """Returns the scripts as `NAME_blue` and `NAME_red`; `play(side, moves=...)` builds the first two.

    `heuristic` moves to the zone and shoots, `standing` stays at its start and shoots,
    `random` draws uniform actions, `none` sends zeros.
    """
    found = {}
    for side, team in enumerate(TEAMS):
        role = spec.role(team)
        found |= {
            f"heuristic_{team}": play(side),
            f"standing_{team}": play(side, moves=False),
            f"random_{team}": make_random_policy(role),
            f"none_{team}": make_idle_policy(role),
        }
    return found


def make_random_policy(role) -> ScriptedPolicy:
    """Returns a policy that draws actions uniformly from the role's action space."""

    def act(key, memory, _state, _params):
        return memory, jax.vmap(role.action.sample)(jax.random.split(key, role.size))

    return ScriptedPolicy(tuple, act)


def make_idle_policy(role) -> ScriptedPolicy:
    """Returns a policy whose actions are all 0."""
    shape = (role.size, *role.action.shape)
    return ScriptedPolicy(tuple, lambda _key, memory, _state, _params: (memory, jnp.zeros(shape)))
