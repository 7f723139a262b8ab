"""Scripted policies of driving, by name."""

import jax

from jaxmarl_echelon.envs.base import Role, ScriptedPolicy
from jaxmarl_echelon.envs.drive.commands import IDM, REPLAY, Actions

BASELINES = ("idle", "random", "replay", "idm")


def make_drive_scripts(actions: Actions, role: Role) -> dict[str, ScriptedPolicy]:
    """Returns the scripted policies by name.

    `idle` neither accelerates nor steers, `random` draws uniform actions, `replay` makes the environment move
    learners along their recordings, and `idm` along their routes by the intelligent driver model. The last
    two have no actions that a learner could take.
    """

    def always(action: jax.Array) -> ScriptedPolicy:
        return ScriptedPolicy(tuple, lambda _key, memory, _state, _params: (memory, action))

    def delegate(mover: int) -> ScriptedPolicy:
        return always(actions.delegate_to(mover, role.size))._replace(teaches=False)

    def draw(key, memory, _state, _params):
        return memory, jax.vmap(role.action.sample)(jax.random.split(key, role.size))

    return {
        "idle": always(actions.idle(role.size)),
        "random": ScriptedPolicy(tuple, draw),
        "replay": delegate(REPLAY),
        "idm": delegate(IDM),
    }
