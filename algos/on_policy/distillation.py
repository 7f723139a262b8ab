"""Kickstarting: a distillation loss in addition to the RL objective (Schmitt et al. 2018).

See docs/reference/trainer.md 9.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_given
from algos.nets.distributions import Distribution, broadcast_distribution, kl_divergence
from algos.types import Agent, PyTree, actor_observation

LOSSES: dict[str, Callable] = {
    # Minus the teacher's entropy, a constant, so that the loss is 0 for equal policies.
    "cross_entropy": lambda teacher, student: kl_divergence(teacher, student),
    "reverse_kl": lambda teacher, student: kl_divergence(student, teacher),
}


class Teacher(NamedTuple):
    """Trained policy to imitate.

    Attributes:
      agent: an agent with `teach`, for the student's observations.
      state: its state, as returned by `Agent.policy_state`.
    """

    agent: Agent
    state: PyTree


class TeacherTargets(NamedTuple):
    """Action distributions and values of a teacher, for decisions with any axes."""

    distribution: Distribution
    value: jax.Array


def with_teacher(agent: Agent, teacher: Teacher) -> Agent:
    """Adds a teacher to an agent: its state holds the teacher's, its carry is the pair of both carries.

    The teacher's recurrent state advances on the student's observations, so that its distribution is
    available at every decision.
    """

    def init_with(key, state):
        return agent.init(key).replace(teacher=jax.tree.map(jnp.asarray, state))

    def initial_carry(batch_shape):
        return agent.initial_carry(batch_shape), teacher.agent.initial_carry(batch_shape)

    def watch(state, obs, carry, reset, mask):
        # A frozen copy of the student has no teacher.
        if state.teacher is None:
            return carry
        return teacher.agent.greedy(state.teacher, actor_observation(obs), carry, reset, mask)[1]

    def act(state, key, obs, carry, reset, mask):
        action, own, extras = agent.act(state, key, obs, carry[0], reset, mask)
        return action, (own, watch(state, obs, carry[1], reset, mask)), extras

    def greedy(state, obs, carry, reset, mask):
        action, own = agent.greedy(state, obs, carry[0], reset, mask)
        return action, (own, carry[1])

    def value(state, obs, carry, reset, mask):
        return require_given("value", agent.value)(state, obs, carry[0], reset, mask)

    return agent._replace(
        init=lambda key: init_with(key, teacher.state),
        frozen=teacher.state,
        init_with=init_with,
        initial_carry=initial_carry,
        act=act,
        greedy=greedy,
        value=None if agent.value is None else value,
        policy_state=lambda state: agent.policy_state(state).replace(teacher=None),
        acting_state=lambda state: agent.rollout_policy(state).replace(teacher=None),
    )


def evaluate_teacher(
    teacher: Teacher, state: PyTree, obs: jax.Array, carry: PyTree, reset: jax.Array, mask: jax.Array | None
) -> TeacherTargets:
    """Evaluates the teacher's distributions and values on T decisions of S rows.

    Args:
      teacher: the teacher.
      state: the teacher's state, from the student's state.
      obs: `[T, S, F]` flat, not normalised.
      carry: `[S, ...]` the teacher's recurrent state before the first decision.
      reset: `[T, S]` bool.
      mask: `[T, S, n]` bool, or None.
    """
    teach = require_given("teach", teacher.agent.teach)
    distribution, value = teach(state, obs, carry, reset, mask)
    return TeacherTargets(broadcast_distribution(distribution), value)


def imitation_loss(
    kind: str, lesson: TeacherTargets, distribution: Distribution, value: jax.Array, value_weight: jax.Array
) -> jax.Array:
    """Imitation loss per decision: KL divergence of the policies plus squared error of the values.

    Args:
      kind: a key of `LOSSES`.
      lesson: the teacher's distributions and values.
      distribution: the student's distributions.
      value: the student's values.
      value_weight: weight of half the squared difference of the values; both must have the same units.

    Raises:
      ValueError: if the distributions are of different families.
    """
    families = type(lesson.distribution).__name__, type(distribution).__name__
    if families[0] != families[1]:
        raise ValueError(f"squash: the teacher acts with a {families[0]}, the learner with a {families[1]}")
    return LOSSES[kind](lesson.distribution, distribution) + 0.5 * value_weight * jnp.square(
        value - lesson.value
    )
