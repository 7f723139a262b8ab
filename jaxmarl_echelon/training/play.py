"""One decision of all roles, shared by rollouts and evaluations."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jaxmarl_echelon.training.controllers import Choice, Controller
from jaxmarl_echelon.training.types import View

PyTree = Any


class Decisions(NamedTuple):
    """Decisions of all roles in E environments, by role name.

    Attributes:
      memories: controller memories after the decision.
      actions: `[E, A, ...]` in the environment's spaces.
      choices: a learner's `controllers.Choice`, otherwise None.
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
    """Calls every role's controller once.

    Args:
      controllers: by role name.
      policies: policy states by name.
      keys: one key per role, in the sorted order of role names.
      memories: controller memories by role name.
      view: environment states, parameters and time steps.
      reset: `[E]` bool; an episode begins with this decision.
    """
    result = Decisions({}, {}, {})
    for key, (role, controller) in zip(keys, sorted(controllers.items()), strict=True):
        result.memories[role], result.actions[role], result.choices[role] = controller.act(
            key, policies.get(controller.policy), memories[role], view, reset
        )
    return result
