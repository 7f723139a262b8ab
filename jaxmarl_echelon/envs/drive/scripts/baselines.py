"""Scripted policies of driving, by name."""

import jax

from jaxmarl_echelon.envs.base import Role, ScriptedPolicy
from jaxmarl_echelon.envs.drive.commands import IDM, REPLAY, Actions

BASELINES = ("idle", "random", "replay", "idm")


def scripts(actions: Actions, role: Role) -> dict[str, ScriptedPolicy]:
    """The scripts.

    `idle` neither accelerates nor steers, `random` draws uniform actions, `replay` lets the environment move
    learners along their recording, `idm` along their routes by the intelligent driver model.
    """

    def always(action: jax.Array) -> ScriptedPolicy:
        return ScriptedPolicy(tuple, lambda key, memory, state, params: (memory, action))

    def draw(key, memory, state, params):
        return memory, jax.vmap(role.action.sample)(jax.random.split(key, role.size))

    return {
        "idle": always(actions.idle(role.size)),
        "random": ScriptedPolicy(tuple, draw),
        "replay": always(actions.handed_over(REPLAY, role.size)),
        "idm": always(actions.handed_over(IDM, role.size)),
    }
