"""Twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger 2018).

See docs/reference/trainer.md 10.4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.defaults import FROM_FILE, take_defaults_from
from algos.nets.networks import NetworkFunctions
from algos.off_policy.agent import ReplayLearner
from algos.off_policy.learning import (
    OffPolicyMethod,
    OffPolicyState,
    bellman_target,
    optimize_part,
    squared_loss,
    update_targets,
)
from algos.off_policy.networks import make_actor, make_ensemble
from algos.off_policy.replay.rings import Sample
from algos.off_policy.settings import ActorCriticSettings
from algos.optim.optimizers import make_adam
from algos.types import ActionSpec, Metrics, ObservationSpec


@take_defaults_from("algo/td3")
@dataclass(frozen=True)
class TD3Config(ActorCriticSettings, ReplayLearner):
    """Settings of TD3, in addition to `ActorCriticSettings`; noise in units of half the action range.

    Attributes:
      policy_delay: critic steps per step of the actor and of the targets.
      exploration_noise: standard deviation of the noise on actions while learning.
      target_noise: standard deviation of the noise on the target's actions.
      target_noise_clip: bound on that noise.
    """

    NAME: ClassVar[str] = "td3"
    TRACED: ClassVar[dict[str, tuple[float, float]]] = ActorCriticSettings.TRACED | {
        "exploration_noise": (0.0, math.inf),
        "target_noise": (0.0, math.inf),
        "target_noise_clip": (0.0, math.inf),
    }
    COUNTS: ClassVar[tuple[str, ...]] = (*ActorCriticSettings.COUNTS, "policy_delay")

    policy_delay: int = FROM_FILE
    exploration_noise: float = FROM_FILE
    target_noise: float = FROM_FILE
    target_noise_clip: float = FROM_FILE

    def method(self, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
        """Returns TD3's method: the minimum of the critics' values at a noisy action of the target actor."""
        return make_td3_method(self, observation, action)


class TD3Networks(NamedTuple):
    """Networks of TD3.

    Attributes:
      act: `(params, obs) -> action` in (-1, 1).
      critics: `[..., F]` and `[..., D]` to `[n, ..., 1]`.
    """

    act: Callable
    critics: NetworkFunctions


def make_td3_method(config: TD3Config, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
    """Builds the networks and losses of TD3.

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    actor = make_actor(config, observation, action)
    critics = make_ensemble(config, observation, action)
    networks = TD3Networks(lambda params, obs: jnp.tanh(actor.apply(params, obs)[0]), critics)

    def init(key):
        key_actor, key_critic = jax.random.split(key)
        return {"actor": actor.init(key_actor), "critic": critics.init(key_critic)}

    def greedy(state, obs, carry, _reset, _mask):
        return networks.act(state.params["actor"], obs), carry

    def explore(state, key, obs, carry, reset, mask):
        action, carry = greedy(state, obs, carry, reset, mask)
        return add_action_noise(key, action, state.hyper["exploration_noise"], jnp.inf), carry

    return OffPolicyMethod(
        init=init,
        hyper={},
        targets=("actor", "critic"),
        explore=explore,
        greedy=greedy,
        target=partial(smoothed_target, networks),
        predict=lambda params, batch: critics.apply(params, batch.obs, batch.action),
        critic_loss=squared_loss,
        improve=partial(delayed_actor_step, networks),
        explores=True,
    )


def smoothed_target(networks: TD3Networks, state: OffPolicyState, key: jax.Array, batch: Sample) -> jax.Array:
    """Targets `[B]`: the minimum of the target critics at a noisy action of the target actor."""
    action = networks.act(state.targets["actor"], batch.next_obs)
    action = add_action_noise(key, action, state.hyper["target_noise"], state.hyper["target_noise_clip"])
    next_value = networks.critics.apply(state.targets["critic"], batch.next_obs, action)
    return bellman_target(batch, next_value)[..., 0].min(0)


def delayed_actor_step(
    networks: TD3Networks, state: OffPolicyState, key: jax.Array, batch: Sample
) -> tuple[OffPolicyState, Metrics]:
    """Takes a step of the actor and of the targets after every `policy_delay` critic steps.

    `actor_steps` counts the actor's steps, over which its loss is a mean.
    """
    del key
    due = (state.updates + 1) % state.hyper["policy_delay"] == 0
    step, skip = partial(actor_step, networks), lambda state, _batch: (state, jnp.float32(0.0))
    state, loss = collectives.run_in_order(partial(jax.lax.cond, due, step, skip), state, batch)
    return state, {"actor_loss": loss, "actor_steps": due.astype(jnp.float32)}


def actor_step(
    networks: TD3Networks, state: OffPolicyState, batch: Sample
) -> tuple[OffPolicyState, jax.Array]:
    """Steps the actor on the first critic's value and updates the targets; returns state and loss."""
    first = jax.tree.map(lambda x: x[:1], state.params["critic"])

    def loss(params):
        return -networks.critics.apply(first, batch.obs, networks.act(params, batch.obs)).mean()

    value, grads = collectives.mean_over_shards(jax.value_and_grad(loss)(state.params["actor"]))
    state = update_targets(optimize_part(make_adam(), state, "actor", grads, "actor_learning_rate"))
    return state, value


def add_action_noise(
    key: jax.Array, action: jax.Array, std: jax.Array, limit: jax.Array | float
) -> jax.Array:
    """Adds Gaussian noise, itself clipped to `[-limit, limit]`, and clips the action to [-1, 1]."""
    noise = jnp.clip(std * jax.random.normal(key, action.shape), -limit, limit)
    return jnp.clip(action + noise, -1.0, 1.0)
