"""PQN of teams: Q(lambda) on the sum of the agents' values (value decomposition, Sunehag et al. 2018).

See docs/reference/trainer.md 10.8.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from algos.checks import require_given
from algos.defaults import take_defaults_from
from algos.nets.actor_critic import PolicyFunctions, with_inputs
from algos.nets.observations import compress_observations
from algos.on_policy.agent import OnPolicyMethod
from algos.on_policy.pqn import PQNConfig, ValueBatch, arrange_rows
from algos.on_policy.returns import gae
from algos.on_policy.sample_epochs import keep_where, learning_rewards
from algos.on_policy.settings import OnPolicyState
from algos.teams import TeamLearnerSettings, combine_team_rewards, make_inputs_with_ids
from algos.types import ActionSpec, Hyper, ObservationSpec, Rollout


@take_defaults_from("algo/pqn_vdn")
@dataclass(frozen=True)
class PQNVDNConfig(TeamLearnerSettings, PQNConfig):
    """Settings of PQN of teams: those of `TeamLearnerSettings` and of `PQNConfig`."""

    NAME: ClassVar[str] = "pqn_vdn"

    def __post_init__(self):
        super().__post_init__()
        self.require_team_reward()

    def networks(self, observation: ObservationSpec, action: ActionSpec) -> PolicyFunctions:
        """Builds the network of the agents' action values."""
        see, size = make_inputs_with_ids(self.agent_ids, self.encoder, observation)
        if see is None:
            return super().networks(observation, action)
        return with_inputs(super().networks(observation._replace(shape=(size,)), action), see)

    def method(self, policy: PolicyFunctions, **run) -> OnPolicyMethod:
        """Returns epochs of minibatches on the squared errors of the sums of the taken actions' values."""
        return super().method(policy, **run)._replace(prepare=team_value_targets)


def team_value_targets(
    config: PQNVDNConfig, state: OnPolicyState, rollout: Rollout, hyper: Hyper
) -> ValueBatch:
    """Computes the returns of the teams of a rollout and arranges it in rows of whole teams.

    The returns are those of `value_targets` with the team's reward, and with the sum of the values of the
    agents that act as the value of a state.
    """
    acts, boundary = rollout.alive, rollout.boundary
    known = acts | _passing(rollout)
    value = jnp.where(known & jnp.isfinite(rollout.extras["value"]), rollout.extras["value"], 0.0)
    last = require_given("last_alive", rollout.last_alive)
    last_value = jnp.where(last, require_given("last_value", rollout.last_value), 0.0)
    # Who goes on within its trajectory, and who is cut: the return ends where one is cut before the others.
    goes_on = jnp.concatenate([known[1:], last[None]]) & ~boundary
    cut = acts & boundary & (rollout.discount > 0)
    following = jnp.where(goes_on, jnp.concatenate([value[1:], last_value[None]]), 0.0)
    following = jnp.where(cut, require_given("bootstrap", rollout.bootstrap), following)
    alive, team_value = acts.any(-1), value.sum(-1)
    reward = learning_rewards(state, rollout, hyper)
    _, target = gae(
        combine_team_rewards(config.team_reward, reward, rollout.paid),
        team_value,
        last_value.sum(-1),
        jnp.ones(alive.shape),
        cut.any(-1) | ~goes_on.any(-1),
        following.sum(-1),
        hyper["gamma"],
        hyper["gae_lambda"],
        alive=alive,
    )
    obs = compress_observations(state.observations, rollout.obs)
    steps = ValueBatch(
        obs=jax.tree.map(partial(keep_where, acts), obs),
        action=keep_where(acts, rollout.action),
        value=keep_where(alive, team_value),
        target=keep_where(alive, target),
        alive=alive,
        reset=rollout.reset,
        carry=(),
        idle=jnp.broadcast_to(~alive.any(0), alive.shape),
        acts=acts,
    )
    return arrange_rows(config, steps, rollout.carry)


def _passing(rollout: Rollout) -> jax.Array:
    """Mask `[T, E, A]` of decisions that are not learnt from, but whose values the decisions before need.

    Those in whose step an environment became non-finite: their agents acted before and are not out.
    """
    out = jnp.zeros(rollout.alive.shape, bool) if rollout.out is None else rollout.out
    goes_on = (rollout.alive & ~rollout.boundary)[:-1]
    return jnp.concatenate([jnp.zeros_like(out[:1]), goes_on]) & ~out
