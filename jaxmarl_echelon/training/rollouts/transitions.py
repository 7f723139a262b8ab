"""Transitions of off-policy learners, one decision at a time, including those with pending rewards.

See docs/reference/trainer.md 12.6.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.masks import select_rows
from algos.types import Context, PyTree, Transition
from jaxmarl_echelon.envs.base import Environment, TimeStep
from jaxmarl_echelon.training.acting.controllers import action_spec
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec, StepRecord

# Lowest score of a success, for replays that store successful episodes.
GOOD = 0.5


class Pending(NamedTuple):
    """Incomplete transition per agent, to which further rewards may be credited.

    Attributes:
      obs: `[E, A, ...]` observation acted on.
      action: `[E, A, D]` in the learner's own units.
      reward: `[E, A]` accumulated so far, discounted to the decision.
      waits: `[E, A]` bool; a transition is pending.
      discount: `[E, A]` discount of the next rewards, relative to the decision's own reward.
    """

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    waits: jax.Array
    discount: jax.Array


def empty_pending(collector: RolloutSpec, time: TimeStep) -> dict[str, Pending]:
    """Returns an empty `Pending` per role of the step learners; empty without delayed rewards.

    Learners of whole teams have none: some agent of the team acts until the episode is over
    (`EnvSpec.ends_with_team`), and its rewards are the team's.
    """
    if not collector.env.spec.late:
        return {}
    return {
        role: Pending(
            obs=jax.tree.map(jnp.zeros_like, now.obs[role]),
            action=jnp.zeros((*alive.shape, action_spec(collector.env.spec.role(role).action).dimensions)),
            reward=jnp.zeros(alive.shape, jnp.float32),
            waits=jnp.zeros(alive.shape, bool),
            discount=jnp.ones(alive.shape, jnp.float32),
        )
        for learner in collector.learning("step")
        if learner not in collector.teams
        for role in collector.seats(learner)
        for now, alive in [collector.part(role, (time, time.alive[role]))]
    }


def settle_pending(
    pending: Pending,
    transition: Transition,
    out: jax.Array,
    gamma: jax.Array | float = 1.0,
    cut_while_out: jax.Array | None = None,
) -> tuple[Pending, Transition]:
    """Adds delayed rewards to pending transitions and completes those whose agents act next or end.

    A transition that is truncated while its agent is out is dropped: the value of what was still to come is
    unknown, because no decision is ever taken from such an observation.

    Args:
      pending: pending transitions.
      transition: transition of this step; `alive` where an agent acted, `reward` for all agents.
      out: `[E, A]` bool; the agent does not act in the state after this step.
      gamma: discount per step of an agent that is out; 1 where discounts count decisions.
      cut_while_out: as in `BatchTransition`, also of agents that are out since this step; None for none.

    Returns:
      the new pending transitions, and the complete ones of this step, at most one per agent. After n further
      steps the discount of a complete transition contains gamma^n; learners apply one more gamma.
    """
    acted, waited = transition.alive, pending.waits & ~transition.alive

    def older(old, new):
        return select_rows(waited, old, new)

    elapsed = jnp.where(waited, pending.discount, 1.0)
    reward = elapsed * transition.reward + jnp.where(waited, pending.reward, 0.0)
    obs, action = older(pending.obs, transition.obs), older(pending.action, transition.action)
    begun, goes_on = acted | waited, out & ~transition.boundary
    waits = begun & goes_on
    open_ended = waited if cut_while_out is None else waited | cut_while_out
    unknown = open_ended & out & transition.boundary & (transition.discount > 0)
    complete = transition.replace(
        obs=obs,
        action=action,
        reward=reward,
        discount=elapsed * transition.discount,
        alive=begun & ~goes_on & ~unknown,
        waits=waits,
    )
    return Pending(obs, action, reward, waits, gamma * elapsed), complete


def make_transition(env: Environment, role: str, moment: StepRecord, action: jax.Array) -> Transition:
    """Builds the transition of a role's decision, for its learner's replay.

    `action` is in the learner's own units.
    """
    before, after, transition = moment.before, moment.after, moment.transition
    alive, over = transition.acted[role], transition.reset_next[:, None]
    cut = alive & after.truncated[role] & ~after.terminated[role]
    if role in transition.cut_while_out:
        cut = cut & ~transition.cut_while_out[role]
    score = env.spec.scores(transition.finished.results, role)
    success = jnp.zeros(alive.shape, bool) if score is None else score >= GOOD
    return Transition(
        obs=before.obs[role],
        action=action,
        reward=after.reward[role],
        discount=jnp.where(after.terminated[role], 0.0, 1.0),
        next_obs=after.obs[role],
        boundary=after.terminated[role] | after.truncated[role] | over,
        success=jnp.broadcast_to(success if success.ndim == 2 else success[:, None], alive.shape)
        & transition.finished.mask[:, None],
        alive=alive,
        context=Context(
            alive,
            before.action_mask.get(role),
            before.critic_obs.get(role),
            before.restarts(role, moment.reset),
            alive | transition.waited[role] if role in transition.waited else None,
        ),
        next_context=Context(
            (after.alive[role] & ~over) | cut,
            after.action_mask.get(role),
            after.critic_obs.get(role),
            after.restarts(role, jnp.zeros_like(moment.reset)),
        ),
    )
