"""Soft actor-critic with an automatic temperature (Haarnoja et al. 2018b), and what TQC shares with it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from algos.checks import require_range
from algos.nets.distributions import SquashedGaussian
from algos.nets.encoders import make_encoder
from algos.nets.networks import LOG_STD_RANGE, PRECISIONS, Actor, Network, PolicyHead, policy_bias
from algos.off_policy.agent import (
    Method,
    OffPolicyConfig,
    bellman,
    descend,
    follow,
    squared_loss,
)
from algos.types import ActionSpec, ObservationSpec


@dataclass(frozen=True)
class SoftConfig(OffPolicyConfig):
    """Settings of learners that maximise reward and entropy, besides those of `OffPolicyConfig`.

    Attributes:
      initial_std: initial standard deviation of actions before squashing.
      log_std_min, log_std_max: range that the logarithm of the deviation is clipped to.
      alpha: initial temperature, what a nat of entropy is worth in (scaled) reward.
      alpha_learning_rate: of the temperature's logarithm; None for `learning_rate`, 0 to keep it fixed.
      target_entropy: entropy that the temperature steers to, in nats; None for minus the number of
        action dimensions.
    """

    BETWEEN: ClassVar[bool] = True
    TRACED: ClassVar[dict[str, tuple[float, float]]] = OffPolicyConfig.TRACED | {
        "log_std_min": (-20.0, 0.0),
        "log_std_max": (0.0, 5.0),
        "alpha_learning_rate": (0.0, 1.0),
        "target_entropy": (-math.inf, math.inf),
    }
    OPTIONAL: ClassVar[tuple[str, ...]] = (*OffPolicyConfig.OPTIONAL, "alpha_learning_rate", "target_entropy")

    initial_std: float = 1.0
    log_std_min: float = LOG_STD_RANGE[0]
    log_std_max: float = LOG_STD_RANGE[1]
    alpha: float = 1.0
    alpha_learning_rate: float | None = None
    target_entropy: float | None = None

    def __post_init__(self):
        super().__post_init__()
        require_range("alpha", self.alpha, 1e-8, math.inf)
        require_range("initial_std", self.initial_std, math.exp(self.log_std_min), math.exp(self.log_std_max))


@dataclass(frozen=True)
class SACConfig(SoftConfig):
    """Settings of SAC; see `OffPolicyConfig` and `SoftConfig`."""

    NAME: ClassVar[str] = "sac"

    def method(self, observation: ObservationSpec, action: ActionSpec) -> Method:
        """SAC: the least of the critics' values, half the squared error."""
        return make_soft_method(
            self,
            observation,
            action,
            outputs=1,
            truncate=lambda target: target[..., 0].min(0),
            critic_loss=squared_loss,
            value=lambda prediction: prediction[..., 0].min(0),
        )


def make_gaussian_actor(config: SoftConfig, observation: ObservationSpec, action: ActionSpec) -> Network:
    """An actor that maps observations to `(mean, log_std)`, `[..., D]` each, before squashing.

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    dtype = PRECISIONS[config.compute_dtype]
    head = PolicyHead(
        size=action.dimensions,
        log_std=math.log(config.initial_std),
        state_dependent_std=True,
        mean_bias=policy_bias(config.initial_action, action, squash=True),
    )
    encoder = make_encoder(config.encoder, observation.blocks, dtype)
    actor = Actor(head, config.widths, config.activation, dtype, encoder)
    return Network(lambda key: actor.init(key, jnp.zeros((observation.size,))), actor.apply)


def make_soft_method(
    config: SoftConfig,
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    outputs: int,
    truncate: Callable,
    critic_loss: Callable,
    value: Callable,
) -> Method:
    """A learner of the maximum-entropy family.

    Args:
      config: the settings.
      observation: what is seen.
      action: the action space.
      outputs: estimates q of every critic.
      truncate: `(targets [n, B, q]) -> target`, which of the critics' targets count.
      critic_loss: as in `Method`.
      value: `(predictions [n, B, q]) -> [B]`, what the actor maximises.

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    actor = make_gaussian_actor(config, observation, action)
    critics = config.critics(observation, action, outputs)

    def init(key):
        key_actor, key_critic = jax.random.split(key)
        log_alpha = jnp.float32(math.log(config.alpha))
        return {"actor": actor.init(key_actor), "critic": critics.init(key_critic), "log_alpha": log_alpha}

    def policy(state, params, obs):
        mean, log_std = actor.apply(params, obs)
        limits = state.hyper["log_std_min"], state.hyper["log_std_max"]
        return SquashedGaussian(mean, jnp.clip(log_std, *limits))

    def acting(state, obs):
        return policy(state, state.params["actor"], obs)

    def with_entropy(state, key, batch):
        """The batch with the entropy of the states on the way among its rewards, as for one decision.

        It is that of the present policy, of a fresh action in each state, as in the n-step targets of
        Schulman, Chen and Abbeel (2017): actions of the replay may be so unlikely by now that their
        log-probabilities have no bound.
        """
        log_prob = acting(state, batch.between.obs).sample_and_log_prob(key)[1]
        factor = batch.between.factor
        bonus = jnp.where(factor > 0, -factor * log_prob, 0.0).sum(-1)
        return batch.replace(reward=batch.reward + jnp.exp(state.params["log_alpha"]) * bonus)

    def target(state, key, batch):
        if batch.between is not None:
            key, key_between = jax.random.split(key)
            batch = with_entropy(state, key_between, batch)
        action, log_prob = acting(state, batch.next_obs).sample_and_log_prob(key)
        next_value = critics.apply(state.targets["critic"], batch.next_obs, action)
        bonus = jnp.exp(state.params["log_alpha"]) * log_prob
        return truncate(bellman(batch, next_value - bonus[:, None]))

    def improve(state, key, batch):
        alpha = jnp.exp(state.params["log_alpha"])

        def loss(params):
            action, log_prob = policy(state, params, batch.obs).sample_and_log_prob(key)
            worth = value(critics.apply(state.params["critic"], batch.obs, action))
            return (alpha * log_prob - worth).mean(), -log_prob.mean()

        (actor_loss, entropy), grads = jax.value_and_grad(loss, has_aux=True)(state.params["actor"])
        state = descend(state, "actor", grads, "actor_learning_rate")
        slope = entropy - state.hyper["target_entropy"]
        state = descend(state, "log_alpha", slope, "alpha_learning_rate")
        return follow(state), {"actor_loss": actor_loss, "entropy": entropy, "alpha": alpha}

    return Method(
        init=init,
        hyper={"target_entropy": -float(action.dimensions)},
        targets=("critic",),
        explore=lambda state, key, obs: acting(state, obs).sample(key),
        greedy=lambda state, obs: acting(state, obs).mode(),
        target=target,
        predict=critics.apply,
        critic_loss=critic_loss,
        improve=improve,
    )
