"""What PPO minimises, and its way through the minibatches of a rollout."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_minibatches
from algos.nets.networks import Policy
from algos.nets.normalize import masked_mean, standardize
from algos.on_policy.agent import Batch, Hyper, Metrics, OnPolicyState, total_loss
from algos.optim.optimizers import Optimizer, clip_scale
from algos.optim.packing import packed
from algos.optim.products import is_short

if TYPE_CHECKING:
    from algos.on_policy.ppo import PPOConfig

PyTree = Any

# Gives XLA's CPU executor enough independent work to keep a second core busy.
MINIBATCH_UNROLL = 4


class Progress(NamedTuple):
    """What passes from minibatch to minibatch.

    Attributes:
      params: parameters of the networks.
      optimizer: state of the optimiser.
      stopped: bool scalar; the policy moved too far, nothing changes any more in this update.
      memory: what the choice of minibatches has learnt of the rollout, `()` for nothing.
    """

    params: PyTree
    optimizer: PyTree
    stopped: jax.Array
    memory: PyTree


class Steps(NamedTuple):
    """What gradient steps leave behind, stacked over them.

    Attributes:
      sums: quantities of the loss by name, summed over the alive samples of a step.
      count: alive samples per step.
      evaluated: bool per step, False where it came too late or had nothing to learn from.
      stopped: bool per step, `Progress.stopped` after it.
      norm: norm of the gradient per step.
    """

    sums: Metrics
    count: jax.Array
    evaluated: jax.Array
    stopped: jax.Array
    norm: jax.Array

    def mean(self, name: str) -> jax.Array:
        """Mean of a quantity of the loss over all samples that were learnt from."""
        total, count = (jnp.where(self.evaluated, x, 0.0).sum() for x in (self.sums[name], self.count))
        return total / jnp.maximum(count, 1.0)

    def metrics(self) -> Metrics:
        """Means over everything that was learnt from."""
        metrics = {name: self.mean(name) for name in self.sums}
        metrics["gradient_norm"] = masked_mean(self.norm, self.evaluated)
        metrics["skipped_minibatches"] = self.stopped.mean(dtype=jnp.float32)
        return metrics


def descend(
    config: "PPOConfig",
    optimizer: Optimizer,
    gradient: Callable,
    progress: Progress,
    minibatches: PyTree,
    hyper: Hyper,
    unroll: int = 1,
) -> tuple[Progress, Steps]:
    """One pass: a step of the optimiser after every `accumulation` minibatches.

    Args:
      config: the settings.
      optimizer: takes the steps.
      gradient: `(params, memory, minibatch) -> (grads, sums, count, memory)`, the middle two as in `Steps`.
      progress: where the update stands.
      minibatches: whatever `gradient` wants, leading axis `[minibatches]`.
      hyper: what the optimiser wants, `max_grad_norm` and `target_kl`.
      unroll: steps per iteration of the compiled loop.
    """

    def step(progress, minibatch):
        params, state, stopped, memory = progress
        grads, sums, count, memory = gradient(params, memory, minibatch)
        kl = sums["approx_kl"] / jnp.maximum(count, 1.0)
        norm = optimizer.norm(grads)
        evaluated = ~stopped & (count > 0)
        if config.kl_stop == "minibatch":
            stopped = stopped | (kl > hyper["target_kl"])
        scale = clip_scale(norm, hyper["max_grad_norm"])
        params, state = optimizer.step(grads, state, params, hyper, scale, evaluated & ~stopped)
        return Progress(params, state, stopped, memory), Steps(sums, count, evaluated, stopped, norm)

    if config.accumulation > 1:
        minibatches = jax.tree.map(lambda x: x.reshape((-1, config.accumulation) + x.shape[1:]), minibatches)
        gradient = accumulated(gradient)
    progress, steps = jax.lax.scan(step, progress, minibatches, unroll=unroll)
    if config.kl_stop == "epoch":
        stopped = progress.stopped | (steps.mean("approx_kl") > hyper["target_kl"])
        progress = progress._replace(stopped=stopped)
    return progress, steps


def summed(samples: Metrics, alive: jax.Array) -> tuple[Metrics, jax.Array]:
    """Sums of quantities over the alive samples, and the number of these, float32."""
    sums = {name: jnp.where(alive, x, 0.0).sum() for name, x in samples.items()}
    return sums, alive.sum(dtype=jnp.float32)


def accumulated(gradient: Callable) -> Callable:
    """The gradient over several minibatches as if they were one: each counts with its alive samples."""

    def over_group(params, memory, group):
        def add(carry, minibatch):
            total, count, memory = carry
            grads, sums, number, memory = gradient(params, memory, minibatch)
            total = jax.tree.map(lambda t, g: t + number * g, total, grads)
            return (total, count + number, memory), sums

        start = (jax.tree.map(jnp.zeros_like, params), jnp.zeros(()), memory)
        (total, count, memory), sums = jax.lax.scan(add, start, group)
        grads = jax.tree.map(lambda t: t / jnp.maximum(count, 1.0), total)
        return grads, jax.tree.map(jnp.sum, sums), count, memory

    return over_group


def learn_samples(
    config: "PPOConfig",
    policy: Policy,
    optimizer: Optimizer,
    state: OnPolicyState,
    key: jax.Array,
    batch: Batch,
    hyper: Hyper,
) -> tuple[PyTree, PyTree, Metrics]:
    """All epochs over shuffled single samples `[N]`; returns `(params, optimizer, metrics)`."""
    require_minibatches(config.num_minibatches, batch.alive.size)
    if is_short(batch.alive.size // config.num_minibatches):
        optimizer = packed(optimizer)

    def gradient(params, memory, minibatch):
        grads, samples = jax.grad(ppo_loss, argnums=1, has_aux=True)(policy, params, minibatch, hyper)
        return grads, *summed(samples, minibatch.alive), memory

    def epoch(progress, order):
        shuffled = jax.tree.map(lambda x: split(x[order], config.num_minibatches), batch)
        if config.normalize_advantage == "minibatch":
            advantage = jax.vmap(standardize)(shuffled.advantage, shuffled.alive)
            shuffled = shuffled._replace(advantage=advantage)
        return descend(config, optimizer, gradient, progress, shuffled, hyper, MINIBATCH_UNROLL)

    progress = Progress(state.params, state.optimizer, jnp.zeros((), bool), ())
    orders = jnp.argsort(jax.random.bits(key, (config.epochs, batch.alive.size)), axis=-1)
    progress, steps = jax.lax.scan(epoch, progress, orders)
    return progress.params, progress.optimizer, steps.metrics()


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
    return clipped_loss(distribution, value, log_ratio, batch.advantage, batch, hyper)


def clipped_loss(
    distribution: Any,
    value: jax.Array,
    log_ratio: jax.Array,
    advantage: jax.Array,
    batch: Any,
    hyper: Hyper,
) -> tuple[jax.Array, Metrics]:
    """The loss from what the networks make of samples of any axes.

    Args:
      distribution: of the actions now.
      value: the critic's estimate now.
      log_ratio: logarithm of the action's probability now over that when it was taken.
      advantage: as it enters the loss.
      batch: has `value` (where the new value is clipped around), `target` and `alive`.
      hyper: as for `ppo_loss`.

    Returns:
      the loss and its unreduced quantities.
    """
    ratio = jnp.exp(log_ratio)
    loss, samples = total_loss(
        surrogate_loss(ratio, advantage, hyper["clip"]),
        value_loss(value, batch.value, batch.target, hyper["value_clip"]),
        distribution,
        batch.alive,
        hyper,
    )
    # Not `ratio - 1`, which would leave nothing but rounding of policies that have hardly moved.
    samples["approx_kl"] = jnp.expm1(log_ratio) - log_ratio
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
