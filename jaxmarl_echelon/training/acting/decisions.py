"""One decision of all roles, or of the seat that is due in turn games, shared by rollouts and evaluations."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import TimeStep
from jaxmarl_echelon.training.acting.controllers import Choice, Controller
from jaxmarl_echelon.training.acting.state import View

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


class Due(NamedTuple):
    """The seat that is due in each of E environments, as if it were the only agent of its role.

    Attributes:
      view: for controllers, its time step with A = 1.
      reset: `[E]` bool; it is the seat's first ply of the game.
    """

    view: View
    reset: jax.Array

    @property
    def seat(self) -> jax.Array:
        """`[E]` int32."""
        return self.view.seat


def show_due_seat(view: View, length: jax.Array, seats: int) -> Due:
    """The view of only the seats that are due, in games of N seats after `length [E]` plies."""
    seat = length % seats
    return Due(View(view.env, view.params, take_seat(view.time, seat), seat), length < seats)


def take_seat(time: TimeStep, seat: jax.Array) -> TimeStep:
    """Time steps `[E]` with one agent per role, that at index `seat [E]`."""

    def one(x):
        return jnp.take_along_axis(x, seat.reshape((-1,) + (1,) * (x.ndim - 1)), axis=1)

    fields = ("obs", "reward", "terminated", "truncated", "alive", "action_mask", "present", "critic_obs")
    return time.replace(**{name: jax.tree.map(one, getattr(time, name)) for name in fields}, begins={})


def repeat_for_seats(memory: PyTree, seats: int) -> PyTree:
    """Memories `[E, N, ...]`, one for each of N seats, from one `[E, ...]`."""
    return jax.tree.map(lambda x: jnp.repeat(x[:, None], seats, axis=1), memory)


def act_in_turn(
    controller: Controller, key: jax.Array, policy: PyTree, memories: PyTree, now: Due, place: jax.Array
) -> tuple[PyTree, jax.Array, Choice | None]:
    """Lets a controller decide for the seat that is due; no other seat's memory advances.

    Args:
      controller: of one seat.
      key: typed random key.
      policy: state of its policy.
      memories: `[E, N, ...]`, one for each seat.
      now: the seats that are due.
      place: int32, index along the second axis of the memory that belongs to the seat that is due.

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
    now: Due,
    place: jax.Array,
    seats: int,
) -> Decisions:
    """As `decide`, for the seat that is due; `now`, `place` and the memories are as for `act_in_turn`."""
    result = Decisions({}, {}, {})
    for key, (role, controller) in zip(keys, sorted(controllers.items()), strict=True):
        result.memories[role], action, result.choices[role] = act_in_turn(
            controller, key, policies.get(controller.policy), memories[role], now, place
        )
        result.actions[role] = for_all_seats(action, seats)
    return result


def for_all_seats(action: jax.Array, seats: int) -> jax.Array:
    """Actions `[E, N, ...]` of all seats, of which only that of the seat that is due counts."""
    return jnp.broadcast_to(action, (action.shape[0], seats, *action.shape[2:]))
