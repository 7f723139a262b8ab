"""Maximum-entropy actor-critic (Haarnoja et al. 2018b), shared by SAC and TQC.

See docs/reference/trainer.md 10.3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.checks import require_given, require_range
from algos.defaults import FROM_FILE
from algos.nets.distributions import SquashedGaussian
from algos.nets.networks import NetworkFunctions
from algos.off_policy.learning import (
    OffPolicyMethod,
    OffPolicyState,
    bellman_target,
    optimize_part,
    update_targets,
)
from algos.off_policy.networks import make_actor, make_ensemble
from algos.off_policy.replay.rings import Sample
from algos.off_policy.settings import ActorCriticSettings
from algos.optim.optimizers import make_adam
from algos.types import ActionSpec, Metrics, ObservationSpec, PyTree


@dataclass(frozen=True)
class SoftSettings(ActorCriticSettings):
    """Settings of maximum-entropy learners, in addition to those of `ActorCriticSettings`.

    Attributes:
      initial_std: initial standard deviation of actions before squashing.
      log_std_min, log_std_max: clipping range of the log-deviation.
      alpha: initial temperature, the weight of a nat of entropy relative to (scaled) reward.
      alpha_learning_rate: learning rate of the temperature's logarithm; None for `learning_rate`, 0 for a
        fixed temperature.
      target_entropy: target of the temperature's adaptation, in nats; None for minus the number of action
        dimensions.
    """

    BETWEEN: ClassVar[bool] = True
    TRACED: ClassVar[dict[str, tuple[float, float]]] = ActorCriticSettings.TRACED | {
        "log_std_min": (-20.0, 0.0),
        "log_std_max": (0.0, 5.0),
        "alpha_learning_rate": (0.0, 1.0),
        "target_entropy": (-math.inf, math.inf),
    }
    OPTIONAL: ClassVar[tuple[str, ...]] = (
        *ActorCriticSettings.OPTIONAL,
        "alpha_learning_rate",
        "target_entropy",
    )

    initial_std: float = FROM_FILE
    log_std_min: float = FROM_FILE
    log_std_max: float = FROM_FILE
    alpha: float = FROM_FILE
    alpha_learning_rate: float | None = FROM_FILE
    target_entropy: float | None = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        require_range("alpha", self.alpha, 1e-8, math.inf)
        require_range("initial_std", self.initial_std, math.exp(self.log_std_min), math.exp(self.log_std_max))


class SoftNetworks(NamedTuple):
    """Networks of a maximum-entropy learner, and its reductions of the critics' estimates.

    Attributes:
      actor: `[..., F]` to `(mean, log_std)`.
      critics: `[..., F]` and `[..., D]` to `[n, ..., q]`.
      truncate: `(targets [n, B, q]) -> target`, the target from the estimates of all target critics.
      value: `(predictions [n, B, q]) -> [B]`, the value that the actor maximises.
    """

    actor: NetworkFunctions
    critics: NetworkFunctions
    truncate: Callable
    value: Callable


def make_soft_method(
    config: SoftSettings,
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    outputs: int,
    truncate: Callable,
    critic_loss: Callable,
    value: Callable,
) -> OffPolicyMethod:
    """Builds the method of a maximum-entropy learner.

    Args:
      config: the settings.
      observation: shape and blocks of observations.
      action: the action space.
      outputs: estimates q of every critic.
      truncate, value: see `SoftNetworks`.
      critic_loss: see `OffPolicyMethod`.

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    actor = make_actor(config, observation, action, math.log(config.initial_std))
    critics = make_ensemble(config, observation, action, outputs)
    soft = SoftNetworks(actor, critics, truncate, value)

    def init(key):
        key_actor, key_critic = jax.random.split(key)
        log_alpha = jnp.float32(math.log(config.alpha))
        return {"actor": actor.init(key_actor), "critic": critics.init(key_critic), "log_alpha": log_alpha}

    def explore(state, key, obs, carry, _reset, _mask):
        return current_policy(soft, state, obs).sample(key), carry

    def greedy(state, obs, carry, _reset, _mask):
        return current_policy(soft, state, obs).mode(), carry

    return OffPolicyMethod(
        init=init,
        hyper={"target_entropy": -float(action.dimensions)},
        targets=("critic",),
        explore=explore,
        greedy=greedy,
        target=partial(soft_target, soft),
        predict=lambda params, batch: critics.apply(params, batch.obs, batch.action),
        critic_loss=critic_loss,
        improve=partial(step_actor_and_temperature, soft),
    )


def actor_distribution(
    soft: SoftNetworks, state: OffPolicyState, params: PyTree, obs: jax.Array
) -> SquashedGaussian:
    """Action distribution with these parameters of the actor."""
    mean, log_std = soft.actor.apply(params, obs)
    return SquashedGaussian(mean, jnp.clip(log_std, state.hyper["log_std_min"], state.hyper["log_std_max"]))


def current_policy(soft: SoftNetworks, state: OffPolicyState, obs: jax.Array) -> SquashedGaussian:
    """Action distribution with the actor's current parameters."""
    return actor_distribution(soft, state, state.params["actor"], obs)


def soft_target(soft: SoftNetworks, state: OffPolicyState, key: jax.Array, batch: Sample):
    """Soft Bellman targets: reward plus discounted value and entropy of the next state."""
    if batch.between is not None:
        key, key_between = jax.random.split(key)
        batch = add_entropy(soft, state, key_between, batch)
    action, log_prob = current_policy(soft, state, batch.next_obs).sample_and_log_prob(key)
    next_value = soft.critics.apply(state.targets["critic"], batch.next_obs, action)
    bonus = jnp.exp(state.params["log_alpha"]) * log_prob
    return soft.truncate(bellman_target(batch, next_value - bonus[:, None]))


def add_entropy(soft: SoftNetworks, state: OffPolicyState, key: jax.Array, batch: Sample) -> Sample:
    """Adds the entropy bonus of the intermediate states to a batch's rewards.

    The entropy is that of the current policy, estimated with a new action in each state, as in the n-step
    targets of Schulman, Chen and Abbeel (2017): the log-probabilities of the replay's actions under the
    current policy have no lower bound.
    """
    between = require_given("between", batch.between)
    log_prob = current_policy(soft, state, between.obs).sample_and_log_prob(key)[1]
    factor = between.factor
    bonus = jnp.where(factor > 0, -factor * log_prob, 0.0).sum(-1)
    return batch.replace(reward=batch.reward + jnp.exp(state.params["log_alpha"]) * bonus)


def step_actor_and_temperature(
    soft: SoftNetworks, state: OffPolicyState, key: jax.Array, batch: Sample
) -> tuple[OffPolicyState, Metrics]:
    """Takes a step of the actor and of the temperature, then updates the targets."""
    alpha = jnp.exp(state.params["log_alpha"])

    def loss(params):
        action, log_prob = actor_distribution(soft, state, params, batch.obs).sample_and_log_prob(key)
        value = soft.value(soft.critics.apply(state.params["critic"], batch.obs, action))
        return (alpha * log_prob - value).mean(), -log_prob.mean()

    mine = jax.value_and_grad(loss, has_aux=True)(state.params["actor"])
    (actor_loss, entropy), grads = collectives.mean_over_shards(mine)
    state = optimize_part(make_adam(), state, "actor", grads, "actor_learning_rate")
    slope = entropy - state.hyper["target_entropy"]
    state = optimize_part(make_adam(), state, "log_alpha", slope, "alpha_learning_rate")
    return update_targets(state), {"actor_loss": actor_loss, "entropy": entropy, "alpha": alpha}
