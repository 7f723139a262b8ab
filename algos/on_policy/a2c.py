"""Synchronous advantage actor-critic (Mnih et al. 2016, section 4): one gradient step per rollout."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from algos import collectives
from algos.checks import require_choice
from algos.defaults import FROM_FILE, take_defaults_from
from algos.metrics import STEPS
from algos.nets.actor_critic import PolicyFunctions, make_actor_critic, with_observation_decoder
from algos.on_policy.agent import OnPolicyMethod, RolloutLearner
from algos.on_policy.losses import total_loss
from algos.on_policy.minibatches import sum_alive
from algos.on_policy.sample_epochs import SampleBatch
from algos.on_policy.settings import OnPolicySettings, OnPolicyState
from algos.optim.optimizers import Optimizer, clip_scale, global_norm, make_optimizer
from algos.types import ActionSpec, Hyper, Metrics, ObservationSpec, PyTree

OPTIMIZERS = ("rmsprop", "adam")


@take_defaults_from("algo/a2c")
@dataclass(frozen=True)
class A2CConfig(OnPolicySettings, RolloutLearner):
    """Settings of A2C: those of `OnPolicySettings`, with `normalize_advantage` "batch" or "none".

    Attributes:
      optimizer: "rmsprop" or "adam".
      rmsprop_decay, rmsprop_eps: hyper-parameters of RMSprop.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = OnPolicySettings.TRACED | {
        "rmsprop_decay": (0.0, 1.0 - 1e-7),
        "rmsprop_eps": (1e-12, 1.0),
    }

    optimizer: str = FROM_FILE
    rmsprop_decay: float = FROM_FILE
    rmsprop_eps: float = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        require_choice("optimizer", self.optimizer, OPTIMIZERS)

    def networks(self, observation: ObservationSpec, action: ActionSpec) -> PolicyFunctions:
        """Builds the actor and the critic; see `RolloutLearner.networks`."""
        return make_actor_critic(self, observation, action)

    def method(self, policy: PolicyFunctions, **run) -> OnPolicyMethod:
        """Returns the method with one policy-gradient step per rollout."""
        del run
        optimizer = make_optimizer(self.optimizer)
        return OnPolicyMethod(optimizer.init, partial(learn_from_batch, policy, optimizer))


def learn_from_batch(
    policy: PolicyFunctions,
    optimizer: Optimizer,
    state: OnPolicyState,
    key: jax.Array,
    batch: SampleBatch,
    hyper: Hyper,
) -> tuple[PyTree, PyTree, Metrics]:
    """Takes one gradient step on a batch `[N]`; returns `(params, optimizer, metrics)`.

    Without a sample to learn from no step is taken, and the metrics are NaN.
    """
    del key
    policy = with_observation_decoder(policy, state.observations)
    grads, samples = jax.grad(a2c_loss, argnums=1, has_aux=True)(policy, state.params, batch, hyper)
    grads, sums, count = collectives.average_gradients(grads, *sum_alive(samples, batch.alive))
    norm = global_norm(grads)
    scale = clip_scale(norm, hyper["max_grad_norm"])
    params, after = optimizer.step(grads, state.optimizer, state.params, hyper, scale, count > 0)
    means = {name: total / jnp.maximum(count, 1.0) for name, total in sums.items()}
    metrics = {
        name: jnp.where(count > 0, x, jnp.nan) for name, x in (means | {"gradient_norm": norm}).items()
    }
    return params, after, metrics | {STEPS: (count > 0).astype(jnp.float32)}


def a2c_loss(
    policy: PolicyFunctions, params: PyTree, batch: SampleBatch, hyper: Hyper
) -> tuple[jax.Array, Metrics]:
    """Policy-gradient loss plus half the squared error of the values and the entropy bonus.

    Args:
      policy: the networks.
      params: their parameters.
      batch: samples `[N]`, with advantages already normalised.
      hyper: `value_coefficient`, `entropy_coefficient`.

    Returns:
      the loss and unreduced `[N]` quantities for metrics.
    """
    distribution, value = policy.apply(params, batch.obs, batch.mask)
    policy_loss = -distribution.log_prob(batch.action) * batch.advantage
    value_loss = 0.5 * jnp.square(value - batch.target)
    return total_loss(policy_loss, value_loss, distribution, batch.alive, hyper, batch.acting)
