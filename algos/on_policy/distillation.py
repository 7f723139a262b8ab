"""Imitation of a teacher, a policy or a script, in addition to the RL objective.

See docs/reference/trainer.md 9.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_given
from algos.nets.distributions import (
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    broadcast_distribution,
    kl_divergence,
)
from algos.nets.normalize import masked_mean_or_zero
from algos.on_policy.losses import weight_decisions
from algos.types import Agent, Hyper, Metrics, PyTree, actor_observation

LOSSES: dict[str, Callable] = {
    # Minus the teacher's entropy, a constant, so that the loss is 0 for equal policies.
    "cross_entropy": lambda teacher, student: kl_divergence(teacher, student),
    "reverse_kl": lambda teacher, student: kl_divergence(student, teacher),
}
# A tanh reaches its bounds only at infinity: actions of scripts are imitated up to this magnitude.
SQUASHED_LIMIT = 0.99
# Above every surprise of a legal option, and below that of one that a mask forbids.
FORBIDDEN = 1e30


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


def action_imitation_loss(distribution: Distribution, action: jax.Array) -> jax.Array:
    """Imitation loss per decision of a script: the negative log-likelihood of its action.

    The loss stays finite: squashed actions are clipped to a magnitude of at most `SQUASHED_LIMIT`, and where
    the mask forbids one of the script's choices the loss is 0. See docs/reference/trainer.md 9.

    Args:
      distribution: the student's distributions `[...]`.
      action: the script's actions `[..., D]` in the learner's units, continuous ones in [-1, 1].
    """
    if isinstance(distribution, SquashedGaussian):
        action = jnp.clip(action, -SQUASHED_LIMIT, SQUASHED_LIMIT)
    surprise = -distribution.log_prob(action)
    if isinstance(distribution, MultiCategorical):
        return jnp.where(surprise < FORBIDDEN, surprise, 0.0)
    return surprise


def add_imitation_loss(
    loss: jax.Array,
    samples: Metrics,
    imitation: jax.Array,
    learning: jax.Array,
    acting: jax.Array | None,
    hyper: Hyper,
) -> tuple[jax.Array, Metrics]:
    """Adds the weighted mean of imitation losses to the loss of a minibatch, and their values to its metrics.

    Args:
      loss, samples: the loss and its unreduced quantities, as `clipped_loss` returns them.
      imitation: losses per sample.
      learning: bool; the sample is learnt from.
      acting: weights of the decisions among the samples, as for `total_loss`.
      hyper: `teacher_coefficient`.
    """
    imitation = weight_decisions(imitation, acting)
    loss = loss + hyper["teacher_coefficient"] * masked_mean_or_zero(imitation, learning)
    return loss, samples | {"imitation_loss": imitation}
