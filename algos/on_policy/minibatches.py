"""Gradient steps over the minibatches of a rollout: accumulation, clipping, and the KL stop."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from algos import collectives
from algos.metrics import STEPS
from algos.nets.actor_critic import select_critic
from algos.nets.normalize import masked_mean_or_zero
from algos.optim.optimizers import Optimizer, clip_scale, global_norm
from algos.types import Hyper, Metrics, PyTree


class EpochSettings(Protocol):
    """Settings of epochs over minibatches: those of PPO, or of another learner that does as PPO does."""

    @property
    def epochs(self) -> int:
        """Passes over a rollout."""
        ...

    @property
    def num_minibatches(self) -> int:
        """Minibatches per pass."""
        ...

    @property
    def accumulation(self) -> int:
        """Minibatches whose gradients make one step."""
        ...

    @property
    def separate_clipping(self) -> bool:
        """Whether the gradients of actor and critic are clipped apart."""
        ...

    @property
    def kl_stop(self) -> str | None:
        """As in `PPOSettings`; None for learners without a policy, whose losses have no `approx_kl`."""
        ...


class MinibatchCarry(NamedTuple):
    """Carry of the scan over minibatches.

    Attributes:
      params: parameters of the networks.
      optimizer: state of the optimiser.
      stopped: bool scalar; the KL divergence exceeded its bound, and nothing changes for the rest of the
        update.
      memory: values and advantages refreshed by earlier minibatches; `()` if none are refreshed.
    """

    params: PyTree
    optimizer: PyTree
    stopped: jax.Array
    memory: PyTree


class StepStatistics(NamedTuple):
    """Statistics of gradient steps, stacked over the steps.

    Attributes:
      sums: quantities of the loss by name, summed over the alive samples of a step.
      alive: number of alive samples per step.
      evaluated: bool per step, False after the KL stop and where no sample was alive.
      stopped: bool per step, `MinibatchCarry.stopped` after the step.
      norm: gradient norm per step, of actor and critic together.
    """

    sums: Metrics
    alive: jax.Array
    evaluated: jax.Array
    stopped: jax.Array
    norm: jax.Array

    def mean(self, name: str) -> jax.Array:
        """Mean of a quantity of the loss over the alive samples of all evaluated steps; NaN without any."""
        total, count = (jnp.where(self.evaluated, x, 0.0).sum() for x in (self.sums[name], self.alive))
        return jnp.where(count > 0, total / jnp.maximum(count, 1.0), jnp.nan)

    def metrics(self) -> Metrics:
        """Means over all evaluated steps, their number, and the fraction of steps after the KL stop.

        The step whose divergence is too large is evaluated and not taken. Means are NaN without any step.
        """
        metrics = {name: self.mean(name) for name in self.sums}
        number = self.evaluated.sum(dtype=jnp.float32)
        norm = masked_mean_or_zero(self.norm, self.evaluated)
        metrics |= {STEPS: number, "gradient_norm": jnp.where(number > 0, norm, jnp.nan)}
        metrics["skipped_minibatches"] = self.stopped.mean(dtype=jnp.float32)
        return metrics


def run_minibatch_epoch(
    config: EpochSettings,
    optimizer: Optimizer,
    gradient: Callable,
    progress: MinibatchCarry,
    minibatches: PyTree,
    hyper: Hyper,
    unroll: int = 1,
) -> tuple[MinibatchCarry, StepStatistics]:
    """Runs one epoch: an optimiser step after every `accumulation` minibatches.

    Args:
      config: the settings.
      optimizer: the optimiser.
      gradient: `(params, memory, minibatch) -> (grads, sums, alive, memory)` of this shard; `sums` and
        `alive` as in `StepStatistics`.
      progress: carry from the previous epoch.
      minibatches: arguments of `gradient`, leading axis `[minibatches]`.
      hyper: `max_grad_norm`, `target_kl` and the hyper-parameters of the optimiser.
      unroll: steps per iteration of the compiled loop.
    """

    def step(progress, minibatch):
        params, state, stopped, memory = progress
        *mine, memory = gradient(params, memory, minibatch)
        grads, sums, count = collectives.average_gradients(*mine)
        norm = global_norm(grads)
        evaluated = ~stopped & (count > 0)
        if config.kl_stop == "minibatch":
            kl = sums["approx_kl"] / jnp.maximum(count, 1.0)
            stopped = stopped | (kl > hyper["target_kl"])
        if config.separate_clipping:
            grads, scale = clip_apart(grads, hyper["max_grad_norm"]), jnp.float32(1.0)
        else:
            scale = clip_scale(norm, hyper["max_grad_norm"])
        params, state = optimizer.step(grads, state, params, hyper, scale, evaluated & ~stopped)
        return MinibatchCarry(params, state, stopped, memory), StepStatistics(
            sums, count, evaluated, stopped, norm
        )

    if config.accumulation > 1:
        minibatches = jax.tree.map(lambda x: x.reshape((-1, config.accumulation) + x.shape[1:]), minibatches)
        gradient = accumulate_gradients(gradient)
    loop = partial(jax.lax.scan, step, unroll=unroll)
    progress, steps = collectives.run_in_order(loop, progress, minibatches)
    if config.kl_stop == "epoch":
        stopped = progress.stopped | (steps.mean("approx_kl") > hyper["target_kl"])
        progress = progress._replace(stopped=stopped)
    return progress, steps


def clip_apart(grads: PyTree, max_norm: jax.Array) -> PyTree:
    """Scales the gradients of actor and critic to norms of at most `max_norm` each, as two optimisers do."""
    mine = select_critic(grads)

    def scale_of(whose: bool) -> jax.Array:
        pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(grads), strict=True)
        return clip_scale(global_norm([grad for own, grad in pairs if own == whose]), max_norm)

    scales = {whose: scale_of(whose) for whose in (False, True)}
    return jax.tree.map(lambda own, grad: scales[own] * grad, mine, grads)


def sum_alive(samples: Metrics, alive: jax.Array) -> tuple[Metrics, jax.Array]:
    """Sums quantities over the alive samples; returns the sums and the number of samples, float32."""
    sums = {name: jnp.where(alive, x, 0.0).sum() for name, x in samples.items()}
    return sums, alive.sum(dtype=jnp.float32)


def accumulate_gradients(gradient: Callable) -> Callable:
    """Wraps `gradient` to several minibatches: the mean gradient, weighted by their alive samples."""

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
