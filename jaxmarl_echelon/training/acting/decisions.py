"""One decision of all roles, or of the acting seat in turn-based games, for rollouts and evaluations."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_given
from algos.masks import expand_mask
from algos.types import PyTree
from jaxmarl_echelon.envs.base import TimeStep
from jaxmarl_echelon.training.acting.controllers import Controller, RecordedDecision
from jaxmarl_echelon.training.acting.state import ControllerView


class Decisions(NamedTuple):
    """Decisions of all roles in E environments, by role name.

    Attributes:
      memories: controller memories after the decision.
      actions: `[E, A, ...]` in the environment's spaces.
      choices: `controllers.RecordedDecision` of learners, otherwise None.
    """

    memories: dict[str, PyTree]
    actions: dict[str, jax.Array]
    choices: dict[str, RecordedDecision | None]


def find_policy(controller: Controller, policies: Mapping[str, PyTree]) -> PyTree:
    """Returns the state of the policy that a controller acts with; None for one without a policy."""
    return None if controller.policy is None else policies.get(controller.policy)


def decide_for_roles(
    controllers: Mapping[str, Controller],
    policies: Mapping[str, PyTree],
    keys: jax.Array,
    memories: Mapping[str, PyTree],
    view: ControllerView,
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
            key, find_policy(controller, policies), memories[role], view, reset
        )
    return result


class ActingSeat(NamedTuple):
    """Acting seat of a turn-based game in each of E environments, as if it were its role's only agent.

    Attributes:
      view: view for controllers, with A = 1 in its time step.
      reset: `[E]` bool; this is the seat's first ply of the game.
      held: `[E]` bool; the next game has not begun yet, so that no seat acts. None: all have begun.
    """

    view: ControllerView
    reset: jax.Array
    held: jax.Array | None = None

    @property
    def seat(self) -> jax.Array:
        """Index of the acting seat, `[E]` int32."""
        return require_given("seat", self.view.seat)


def show_due_seat(view: ControllerView, length: jax.Array, seats: int) -> ActingSeat:
    """Restricts a view to the acting seats, in games of N seats after `length [E]` plies."""
    seat = length % seats
    return ActingSeat(
        ControllerView(view.env, view.params, select_seat(view.time, seat), seat), length < seats
    )


def select_seat(time: TimeStep, seat: jax.Array) -> TimeStep:
    """Selects the agent at index `seat [E]` of time steps `[E]`; the result has one agent per role."""

    def one(x):
        return jnp.take_along_axis(x, expand_mask(seat, x.ndim), axis=1)

    fields = ("obs", "reward", "terminated", "truncated", "alive", "action_mask", "present", "critic_obs")
    return time.replace(**{name: jax.tree.map(one, getattr(time, name)) for name in fields}, begins={})


def repeat_for_seats(memory: PyTree, seats: int) -> PyTree:
    """Repeats memories `[E, ...]` for each of N seats: `[E, N, ...]`."""
    return jax.tree.map(lambda x: jnp.repeat(x[:, None], seats, axis=1), memory)


def act_in_turn(
    controller: Controller,
    key: jax.Array,
    policy: PyTree,
    memories: PyTree,
    now: ActingSeat,
    place: jax.Array,
) -> tuple[PyTree, jax.Array, RecordedDecision | None]:
    """Calls a controller for the acting seat; the memories of other seats do not change.

    Args:
      controller: of one seat.
      key: typed random key.
      policy: state of its policy.
      memories: `[E, N, ...]`, one for each seat.
      now: the acting seats.
      place: int32, index of the acting seat's memory along the second axis.

    Returns:
      the memories, the action `[E, 1, ...]` and a learner's choice.
    """
    own = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, place, 1, keepdims=False), memories)
    own, action, choice = controller.act(key, policy, own, now.view, now.reset)
    memories = jax.tree.map(
        lambda x, new: jax.lax.dynamic_update_index_in_dim(x, new, place, 1), memories, own
    )
    return memories, action, choice


def decide_in_turn(
    controllers: Mapping[str, Controller],
    policies: Mapping[str, PyTree],
    keys: jax.Array,
    memories: Mapping[str, PyTree],
    now: ActingSeat,
    place: jax.Array,
    seats: int,
) -> Decisions:
    """Calls every role's controller for the acting seat; see `decide_for_roles` and `act_in_turn`."""
    result = Decisions({}, {}, {})
    for key, (role, controller) in zip(keys, sorted(controllers.items()), strict=True):
        result.memories[role], action, result.choices[role] = act_in_turn(
            controller, key, find_policy(controller, policies), memories[role], now, place
        )
        result.actions[role] = for_all_seats(action, seats)
    return result


def for_all_seats(action: jax.Array, seats: int) -> jax.Array:
    """Repeats the acting seat's action for all seats, `[E, N, ...]`; only the acting seat's is used."""
    return jnp.broadcast_to(action, (action.shape[0], seats, *action.shape[2:]))
