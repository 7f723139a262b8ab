"""Proximal policy optimisation (Schulman et al. 2017) for feed-forward networks."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from algos.checks import require_minibatches
from algos.networks import Policy
from algos.normalize import masked_mean, standardize
from algos.on_policy import Batch, Hyper, Method, Metrics, OnPolicyConfig, OnPolicyState, total_loss
from algos.optimizers import AdamState, adam, clip_scale, global_norm, init_adam
from algos.types import ActionSpec, Agent

PyTree = Any

# Gives XLA's CPU executor enough independent work to keep a second core busy.
MINIBATCH_UNROLL = 4


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO, besides those of `OnPolicyConfig`.

    Attributes:
      epochs: passes over a rollout.
      num_minibatches: gradient steps per pass; must divide T * E * A.
      clip: bound on the probability ratios, with its schedule.
      value_clip: distance the new value may move from the rollout's; None for no clipping.
      target_kl: divergence after which an update's remaining minibatches are skipped; None for never.
      normalize_advantage: "minibatch", "batch" or "none".
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = OnPolicyConfig.TRACED | {
        "clip": (1e-6, math.inf),
        "clip_end": (0.0, math.inf),
        "value_clip": (1e-6, math.inf),
        "target_kl": (1e-9, math.inf),
    }
    ANNEALED: ClassVar[tuple[str, ...]] = (*OnPolicyConfig.ANNEALED, "clip")
    OPTIONAL: ClassVar[tuple[str, ...]] = (*OnPolicyConfig.OPTIONAL, "value_clip", "target_kl")
    COUNTS: ClassVar[tuple[str, ...]] = ("horizon", "epochs", "num_minibatches")
    ADVANTAGES: ClassVar[tuple[str, ...]] = ("minibatch", "batch", "none")

    epochs: int = 4
    num_minibatches: int = 8
    clip: float = 0.2
    clip_end: float = 0.0
    clip_schedule: str = "constant"
    value_clip: float | None = None
    target_kl: float | None = None
    normalize_advantage: str = "minibatch"

    def method(self, policy: Policy) -> Method:
        """Epochs of minibatches on the clipped surrogate, with Adam."""
        return Method(init_adam, partial(learn, self, policy))

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        samples: int | None = None,
        updates: int | None = None,
        **run,
    ) -> Agent:
        """Builds the agent; see `OnPolicyConfig.make`."""
        if samples is not None:
            require_minibatches(self.num_minibatches, samples * self.horizon)
        return super().make(observation_shape, action, samples=samples, updates=updates, **run)


def learn(
    config: PPOConfig,
    policy: Policy,
    state: OnPolicyState,
    key: jax.Array,
    batch: Batch,
    hyper: Hyper,
) -> tuple[PyTree, AdamState, Metrics]:
    """Runs all epochs over a batch `[N]`; returns `(params, optimizer, metrics)`."""
    require_minibatches(config.num_minibatches, batch.alive.size)

    def step(carry, minibatch):
        params, optimizer, stopped = carry
        grads, samples = jax.grad(ppo_loss, argnums=1, has_aux=True)(policy, params, minibatch, hyper)
        kl = masked_mean(samples["approx_kl"], minibatch.alive)
        norm = global_norm(grads)
        evaluated = ~stopped & jnp.any(minibatch.alive)
        stopped = stopped | (kl > hyper["target_kl"])
        params, optimizer = adam(
            grads,
            optimizer,
            params,
            learning_rate=hyper["learning_rate"],
            beta1=hyper["adam_beta1"],
            beta2=hyper["adam_beta2"],
            eps=hyper["adam_eps"],
            scale=clip_scale(norm, hyper["max_grad_norm"]),
            apply=evaluated & ~stopped,
        )
        return (params, optimizer, stopped), (samples, minibatch.alive, evaluated, stopped, norm)

    def epoch(carry, order):
        shuffled = jax.tree.map(lambda x: split(x[order], config.num_minibatches), batch)
        if config.normalize_advantage == "minibatch":
            advantage = jax.vmap(standardize)(shuffled.advantage, shuffled.alive)
            shuffled = shuffled._replace(advantage=advantage)
        return jax.lax.scan(step, carry, shuffled, unroll=MINIBATCH_UNROLL)

    carry = (state.params, state.optimizer, jnp.zeros((), bool))
    orders = jnp.argsort(jax.random.bits(key, (config.epochs, batch.alive.size)), axis=-1)
    carry, (samples, alive, evaluated, stopped, norm) = jax.lax.scan(epoch, carry, orders)
    counted = alive & evaluated[..., None]
    metrics = {name: masked_mean(x, counted) for name, x in samples.items()}
    metrics["gradient_norm"] = masked_mean(norm, evaluated)
    metrics["skipped_minibatches"] = stopped.mean(dtype=jnp.float32)
    return *carry[:2], metrics


def ppo_loss(policy: Policy, params: PyTree, batch: Batch, hyper: Hyper) -> tuple[jax.Array, Metrics]:
    """Clipped surrogate, value loss and entropy bonus, averaged over the alive samples.

    Args:
      policy: the networks.
      params: their parameters.
      batch: samples `[N]`, advantages as they enter the loss.
      hyper: `clip`, `value_clip`, `value_coefficient`, `entropy_coefficient`.

    Returns:
      the loss and unreduced `[N]` quantities for metrics.
    """
    distribution, value = policy.apply(params, batch.obs, batch.mask)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    loss, samples = total_loss(
        surrogate_loss(ratio, batch.advantage, hyper["clip"]),
        value_loss(value, batch.value, batch.target, hyper["value_clip"]),
        distribution,
        batch.alive,
        hyper,
    )
    samples["approx_kl"] = ratio - 1.0 - log_ratio
    samples["clip_fraction"] = (jnp.abs(ratio - 1.0) > hyper["clip"]).astype(jnp.float32)
    return loss, samples


def surrogate_loss(ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """PPO's clipped objective per sample, negated (eq. 7 of the paper)."""
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def value_loss(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip: jax.Array | float
) -> jax.Array:
    """Half the squared error per sample, the worse of the value and of it clipped around the old one."""
    clipped = old_value + jnp.clip(value - old_value, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target))


def split(x: jax.Array, parts: int) -> jax.Array:
    """Cuts the first axis into `parts` equal parts: `[N, ...]` to `[parts, N / parts, ...]`."""
    return x.reshape((parts, x.shape[0] // parts) + x.shape[1:])
