"""On-policy learners as `Agent`s: acting, one update per rollout, and construction from settings."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.nets.actor_critic import PolicyFunctions
from algos.nets.distributions import Distribution
from algos.nets.encoders import encoded_blocks
from algos.nets.networks import flatten_features
from algos.nets.normalize import (
    centre_rewards,
    explained_variance,
    init_reward_scale,
    update_reward_scale,
)
from algos.nets.observations import init_statistics, merge_statistics, normalize_observations
from algos.on_policy.sample_epochs import hide_unseen_observations, samples_from_rollout
from algos.on_policy.settings import OnPolicyState, RolloutSettings
from algos.on_policy.traced_settings import apply_schedules
from algos.optim.optimizers import global_norm, latest_params
from algos.optim.small_batches import step_on_few_rows
from algos.types import (
    ActionSpec,
    Agent,
    Asymmetric,
    Block,
    Metrics,
    ObservationSpec,
    PyTree,
    Rollout,
    actor_observation,
)


def sample_action(
    state: OnPolicyState, key: jax.Array, distribution: Distribution, value: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Samples an action of a policy; records its log-probability and the value."""
    del state
    action = distribution.sample(key)
    return action, {"log_prob": distribution.log_prob(action), "value": value}


class OnPolicyMethod(NamedTuple):
    """Algorithm-specific functions of an on-policy learner.

    Attributes:
      init: `(params) -> optimizer`, the optimiser's state before the first step.
      learn: `(state, key, batch, hyper) -> (params, optimizer, metrics)`, all gradient steps on a rollout.
      prepare: `(config, state, rollout, hyper) -> batch` from a rollout with flat observations; the batch
        has at least `value`, `target` and `alive`.
      acting: `(optimizer, params) -> params` to act with.
      decide: `(state, key, distribution, value) -> (action, extras)`, acts to learn; `distribution` and
        `value` are what the networks return, `extras` those of `Rollout`.
    """

    init: Callable
    learn: Callable
    prepare: Callable = samples_from_rollout
    acting: Callable = latest_params
    decide: Callable = sample_action


class RolloutLearner(RolloutSettings):
    """Settings that build the agent that they describe."""

    def networks(self, observation: ObservationSpec, action: ActionSpec) -> PolicyFunctions:
        """Builds the networks for flat observations."""
        raise NotImplementedError

    def method(self, policy: PolicyFunctions, **run) -> OnPolicyMethod:
        """Builds the learning method with these networks; `run` is as for `make`."""
        raise NotImplementedError

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        blocks: Sequence[Block] = (),
        critic_shape: tuple[int, ...] | None = None,
        samples: int | None = None,
        team: int = 1,
        member: int | None = None,
        shards: int = 1,
        updates: int | None = None,
        **run,
    ) -> Agent:
        """Builds the agent as a bundle of pure functions.

        Args:
          observation_shape: shape of one observation; it is flattened for the networks.
          action: the action space.
          blocks: blocks of the flattened observation, for encoders.
          critic_shape: shape of the critic's own observation, which is flattened too; None for the same.
          samples: parallel agents, E * A; needed only to normalise or centre rewards.
          team: agents that are learnt from together, for learners of teams.
          member: place in its team of the only agent that is acted for; None for whole teams.
          shards: number of shards of the parallel agents; see `algos.collectives`.
          updates: updates of the run, the default length of schedules.
          run: further arguments for `method`.

        Raises:
          ValueError: for incompatible settings.
        """
        observation = ObservationSpec(observation_shape, tuple(blocks), critic_shape, team, member)
        total_updates = self.total_updates or updates
        rows = None if samples is None else self.rows(samples) // shards
        policy = self.networks(observation, action)
        self.require_run(samples, total_updates)
        method = self.method(policy, **run)
        mine = None if samples is None else samples // shards
        agent = make_rollout_agent(self, policy, method, observation, mine, total_updates)
        return step_on_few_rows(agent, rows)


def make_rollout_agent(
    config: RolloutSettings,
    policy: PolicyFunctions,
    method: OnPolicyMethod,
    observation: ObservationSpec,
    samples: int | None,
    total_updates: int | None,
) -> Agent:
    """Combines networks and a method into an agent; see `RolloutLearner.make`.

    `samples` counts the parallel agents of one shard.
    """

    def evaluate(state, obs, carry, reset, mask):
        seen = normalize_observations(state.observations, flatten_observations(observation, obs))
        return policy.step(acting_params(method, state), seen, carry, reset, mask)

    def act(state, key, obs, carry, reset, mask):
        carry, distribution, value = evaluate(state, obs, carry, reset, mask)
        action, extras = method.decide(state, key, distribution, value)
        return action, carry, extras

    def update(state, key, rollout):
        rollout = rollout.replace(obs=flatten_observations(observation, rollout.obs))
        return update_from_rollout(config, method, state, key, rollout)

    def greedy(state, obs, carry, reset, mask):
        carry, distribution, _ = evaluate(policy_state(state), obs, carry, reset, mask)
        return distribution.mode(), carry

    def teach(state, obs, carry, reset, mask):
        seen = normalize_observations(state.observations, obs)
        return policy.sequence(acting_params(method, policy_state(state)), seen, carry, reset, mask)

    return Agent(
        init=lambda key: initial_on_policy_state(
            config, policy, method, observation, samples, total_updates, key
        ),
        initial_carry=policy.initial_carry,
        act=act,
        greedy=greedy,
        value=lambda state, obs, carry, reset, mask: evaluate(state, obs, carry, reset, mask)[2],
        update=update,
        policy_state=policy_state,
        acting_state=lambda state: acting_state(method, state),
        # Teachers are evaluated on the actor's observations.
        teach=teach if observation.critic is None else None,
        hyper=lambda: config.initial_hyper(total_updates),
        asymmetric=observation.critic is not None,
        local=mark_local_arrays,
    )


def policy_state(state: OnPolicyState) -> OnPolicyState:
    """Reduces a state to its policy; see `Agent.policy_state`."""
    params = state.params if state.average is None else None
    return state.replace(params=params, optimizer=None, rewards=None, centre=None)


def acting_state(method: OnPolicyMethod, state: OnPolicyState) -> OnPolicyState:
    """Policy that acts in rollouts, in place of the mean that evaluations use; see `Agent.acting_state`."""
    average = None if state.average is None else acting_params(method, state)
    return policy_state(state.replace(average=average))


def mark_local_arrays(state: OnPolicyState) -> OnPolicyState:
    """Marks the arrays of single environments: running reward sums and means; see `Agent.local`."""
    marks = jax.tree.map(lambda _x: False, state)
    rewards = None if state.rewards is None else marks.rewards.replace(sums=True)
    return marks.replace(rewards=rewards, centre=None if state.centre is None else True)


def flatten_observations(observation: ObservationSpec, obs: PyTree) -> jax.Array | Asymmetric:
    """Flattens the features of observations to one axis; missing critic observations become None."""
    actor = flatten_features(actor_observation(obs), observation.shape)
    if observation.critic is None:
        return actor
    critic = obs.critic if isinstance(obs, Asymmetric) else None
    return Asymmetric(actor, None if critic is None else flatten_features(critic, observation.critic))


def initial_on_policy_state(
    config: RolloutSettings,
    policy: PolicyFunctions,
    method: OnPolicyMethod,
    observation: ObservationSpec,
    samples: int | None,
    total_updates: int | None,
    key: jax.Array,
) -> OnPolicyState:
    """Returns the state before the first update."""
    params = policy.init(key)
    optimizer = method.init(params)
    # Copies, as a state is donated whole.
    average = jax.tree.map(jnp.copy, method.acting(optimizer, params))
    statistics = init_statistics(observation.size, encoded_blocks(config.encoder, observation.blocks))
    if observation.critic is not None:
        statistics = Asymmetric(statistics, init_statistics(math.prod(observation.critic)))
    agents = samples or 0  # not used where it is unknown, see `RolloutSettings.require_run`
    return OnPolicyState(
        params=params,
        optimizer=optimizer,
        observations=statistics if config.normalize_observation else None,
        rewards=init_reward_scale(agents) if config.normalize_reward else None,
        hyper=config.initial_hyper(total_updates),
        updates=jnp.zeros((), jnp.int32),
        centre=jnp.zeros(agents) if config.reward_centering else None,
        average=average if config.policy_average or method.acting is not latest_params else None,
    )


def acting_params(method: OnPolicyMethod, state: OnPolicyState) -> PyTree:
    """Parameters to act with; in a state without optimiser the average, if there is one."""
    if state.optimizer is not None:
        return method.acting(state.optimizer, state.params)
    return state.params if state.average is None else state.average


def update_policy_average(average: PyTree, latest: PyTree, share: float, updates: jax.Array) -> PyTree:
    """Updates a running mean of parameters: the plain mean at first, then an exponential one.

    Args:
      average: mean of the parameters after the first `updates` updates; ignored if `updates` is 0.
      latest: the parameters after this update.
      share: largest weight of the past in the mean.
      updates: number of updates before this one.
    """
    kept = jnp.minimum(share, updates / (updates + 1.0))
    return jax.tree.map(lambda old, new: new + kept * (old - new), average, latest)


def update_from_rollout(
    config: RolloutSettings, method: OnPolicyMethod, state: OnPolicyState, key: jax.Array, rollout: Rollout
) -> tuple[OnPolicyState, Metrics]:
    """Runs one update on a rollout with flat observations; returns `(state, metrics)`.

    The statistics of observations are updated last, so that acting and learning use the same
    normalisation and the first gradient is that of the policy which acted.
    """
    hyper = apply_schedules(config, state.hyper, state.updates)
    if state.centre is not None:
        centre, reward = centre_rewards(
            state.centre, rollout.reward, rollout.has_value_target, config.reward_centering, rollout.skip
        )
        state, rollout = state.replace(centre=centre), rollout.replace(reward=reward)
    if state.rewards is not None:
        rewards = update_reward_scale(
            state.rewards,
            rollout.reward,
            rollout.boundary,
            rollout.has_value_target,
            hyper["gamma"],
            skip=rollout.skip,
            last_skip=rollout.last_skip,
        )
        state = state.replace(rewards=rewards)
    # Open decisions are seen, too: their values end the returns of those before.
    seen = hide_unseen_observations(rollout).without_open_decisions()
    batch = method.prepare(config, state, seen, hyper)
    params, optimizer, metrics = method.learn(state, key, batch, hyper)
    observations = merge_statistics(state.observations, rollout.obs, rollout.alive)
    metrics["explained_variance"] = explained_variance(batch.value, batch.target, batch.alive)
    # Losses are computed before the last step: only this norm shows a last step that diverges.
    metrics["parameter_norm"] = global_norm(params)
    metrics |= {name: hyper[name] for name in config.scheduled_names()}
    if state.average is not None:
        latest = method.acting(optimizer, params)
        state = state.replace(
            average=update_policy_average(state.average, latest, config.policy_average, state.updates)
        )
    state = state.replace(
        params=params, optimizer=optimizer, observations=observations, updates=state.updates + 1
    )
    return state, metrics
