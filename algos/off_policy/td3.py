"""Twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger 2018)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from algos.nets.encoders import make_encoder
from algos.nets.networks import PRECISIONS, Actor, Network, PolicyHead, policy_bias
from algos.off_policy.agent import (
    Method,
    OffPolicyConfig,
    OffPolicyState,
    bellman,
    descend,
    follow,
    squared_loss,
)
from algos.types import ActionSpec, ObservationSpec


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Settings of TD3, besides those of `OffPolicyConfig`; noise in units of half the action range.

    Attributes:
      policy_delay: steps of the critics per step of the actor and of the targets.
      exploration_noise: standard deviation of the noise on actions while learning.
      target_noise: standard deviation of the noise on the target's actions.
      target_noise_clip: bound on that noise.
    """

    NAME: ClassVar[str] = "td3"
    TRACED: ClassVar[dict[str, tuple[float, float]]] = OffPolicyConfig.TRACED | {
        "exploration_noise": (0.0, math.inf),
        "target_noise": (0.0, math.inf),
        "target_noise_clip": (0.0, math.inf),
    }
    COUNTS: ClassVar[tuple[str, ...]] = (*OffPolicyConfig.COUNTS, "policy_delay")

    policy_delay: int = 2
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5

    def method(self, observation: ObservationSpec, action: ActionSpec) -> Method:
        """TD3: the least of the critics' values at a disturbed action of the target actor."""
        return make_td3_method(self, observation, action)


def make_deterministic_actor(
    config: OffPolicyConfig, observation: ObservationSpec, action: ActionSpec
) -> Network:
    """An actor that maps observations to actions `[..., D]` in (-1, 1).

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    dtype = PRECISIONS[config.compute_dtype]
    bias = policy_bias(config.initial_action, action, squash=True)
    encoder = make_encoder(config.encoder, observation.blocks, dtype)
    head = PolicyHead(action.dimensions, mean_bias=bias)
    actor = Actor(head, config.widths, config.activation, dtype, encoder)
    return Network(
        init=lambda key: actor.init(key, jnp.zeros((observation.size,))),
        apply=lambda params, obs: jnp.tanh(actor.apply(params, obs)[0]),
    )


def make_td3_method(config: TD3Config, observation: ObservationSpec, action: ActionSpec) -> Method:
    """The networks and losses of TD3.

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    actor = make_deterministic_actor(config, observation, action)
    critics = config.critics(observation, action)

    def init(key):
        key_actor, key_critic = jax.random.split(key)
        return {"actor": actor.init(key_actor), "critic": critics.init(key_critic)}

    def greedy(state, obs):
        return actor.apply(state.params["actor"], obs)

    def explore(state, key, obs):
        action = greedy(state, obs)
        return disturb(key, action, state.hyper["exploration_noise"], jnp.inf)

    def target(state, key, batch):
        action = actor.apply(state.targets["actor"], batch.next_obs)
        action = disturb(key, action, state.hyper["target_noise"], state.hyper["target_noise_clip"])
        next_value = critics.apply(state.targets["critic"], batch.next_obs, action)
        return bellman(batch, next_value)[..., 0].min(0)

    def improve(state, key, batch):
        due = (state.updates + 1) % state.hyper["policy_delay"] == 0
        state, loss = jax.lax.cond(due, step, lambda state, batch: (state, jnp.float32(0.0)), state, batch)
        return state, {"actor_loss": loss}

    def step(state: OffPolicyState, batch):
        first = jax.tree.map(lambda x: x[:1], state.params["critic"])

        def loss(params):
            return -critics.apply(first, batch.obs, actor.apply(params, batch.obs)).mean()

        value, grads = jax.value_and_grad(loss)(state.params["actor"])
        state = follow(descend(state, "actor", grads, "actor_learning_rate"))
        # The steps left out count as 0 in the mean over all steps; this makes up for them.
        return state, value * state.hyper["policy_delay"]

    return Method(
        init=init,
        hyper={},
        targets=("actor", "critic"),
        explore=explore,
        greedy=greedy,
        target=target,
        predict=critics.apply,
        critic_loss=squared_loss,
        improve=improve,
    )


def disturb(key: jax.Array, action: jax.Array, std: jax.Array, limit: jax.Array | float) -> jax.Array:
    """Adds Gaussian noise, itself clipped to `[-limit, limit]`, and clips the action to [-1, 1]."""
    noise = jnp.clip(std * jax.random.normal(key, action.shape), -limit, limit)
    return jnp.clip(action + noise, -1.0, 1.0)
