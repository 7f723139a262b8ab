"""How environments are played: every role decides, for rollouts and for evaluations alike."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jaxmarl_echelon.training.controllers import Choice, Controller
from jaxmarl_echelon.training.types import View

PyTree = Any


class Decisions(NamedTuple):
    """What all roles decided in E environments, by role name.

    Attributes:
      memories: of the controllers, after the decision.
      actions: `[E, A, ...]` in the environment's spaces.
      choices: of learners what they want back, see `controllers.Choice`; None of others.
    """

    memories: dict[str, PyTree]
    actions: dict[str, jax.Array]
    choices: dict[str, Choice | None]


def decide(
    controllers: Mapping[str, Controller],
    policies: Mapping[str, PyTree],
    keys: jax.Array,
    memories: Mapping[str, PyTree],
    view: View,
    reset: jax.Array,
) -> Decisions:
    """Lets every role decide once.

    Args:
      controllers: who acts for each role.
      policies: states of the policies that they act with, by name.
      keys: a key per role, in the order of their names.
      memories: of the controllers.
      view: what they look at.
      reset: `[E]` bool; an episode begins with this decision.
    """
    result = Decisions({}, {}, {})
    for key, (role, controller) in zip(keys, sorted(controllers.items()), strict=True):
        result.memories[role], result.actions[role], result.choices[role] = controller.act(
            key, policies.get(controller.policy), memories[role], view, reset
        )
    return result
