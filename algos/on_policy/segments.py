"""PPO on segments: whole rows of consecutive decisions, evaluated from the recurrent state before them."""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from algos.nets.networks import Policy
from algos.nets.normalize import masked_mean, standardize
from algos.nets.observations import Entities, observe
from algos.on_policy.agent import Hyper, Metrics, OnPolicyState, keep, learning_rewards
from algos.on_policy.minibatches import Progress, clipped_loss, descend, summed
from algos.on_policy.returns import vtrace_gae
from algos.on_policy.sampling import choose, importance_exponent, partition
from algos.on_policy.teacher import Lesson, Teacher, imitation_loss, lesson
from algos.optim.optimizers import Optimizer
from algos.types import Rollout

if TYPE_CHECKING:
    from algos.on_policy.ppo import PPOConfig

PyTree = Any


class Segments(NamedTuple):
    """A rollout as S rows of T decisions: axes `[T, S]`, but for `carry` and `last_value` `[S]`.

    Attributes:
      obs, action, log_prob, value, reward, reset, discount, boundary, bootstrap, alive, mask: as in
        `Rollout`; observations are as networks see them, rewards in the units of the values.
      carry: recurrent state before each row.
      last_value: value of the observation after each row.
      advantage, target: as after the rollout.
      learning: bool, alive and past the burn-in.
      lesson: what the teacher makes of it, or None.
    """

    obs: jax.Array | Entities
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    reset: jax.Array
    discount: jax.Array
    boundary: jax.Array
    bootstrap: jax.Array
    alive: jax.Array
    mask: jax.Array | None
    carry: PyTree
    last_value: jax.Array
    advantage: jax.Array
    target: jax.Array
    learning: jax.Array
    lesson: Lesson | None = None

    def take(self, rows: jax.Array) -> "Segments":
        """The segments `rows`."""
        picked = jax.tree.map(lambda x: x[:, rows], self._replace(carry=(), last_value=None))
        carry, last_value = jax.tree.map(lambda x: x[rows], (self.carry, self.last_value))
        return picked._replace(carry=carry, last_value=last_value)


class Memory(NamedTuple):
    """What the minibatches so far found out, `[T, S]`: values, importance ratios, advantages, targets."""

    value: jax.Array
    ratio: jax.Array
    advantage: jax.Array
    target: jax.Array


def prepare(
    config: "PPOConfig",
    state: OnPolicyState,
    rollout: Rollout,
    hyper: Hyper,
    teacher: Teacher | None = None,
) -> Segments:
    """Cuts a rollout `[k * T, E, A]` with flat observations into segments, and has the teacher look at them.

    The k * E * A rows are ordered by segment, environment and agent. What is not alive is replaced before
    any arithmetic of the losses.
    """
    if config.teacher is not None and teacher is None:
        raise ValueError(f"teacher={config.teacher}: must be loaded before the agent learns")
    number, alive = config.segments_per_agent, rollout.alive
    agents = alive.shape[1] * alive.shape[2]
    length = alive.shape[0] // number

    def rows(x):
        x = x.reshape((number, length, agents) + x.shape[3:])
        return jnp.moveaxis(x, 0, 1).reshape((length, number * agents) + x.shape[3:])

    fields = {
        "obs": jax.tree.map(partial(keep, alive), observe(state.observations, rollout.obs)),
        "action": keep(alive, rollout.action),
        "log_prob": keep(alive, rollout.log_prob),
        "value": jnp.where(alive | jnp.isfinite(rollout.value), rollout.value, 0.0),
        "reward": keep(alive, learning_rewards(state, rollout, hyper)),
        "reset": rollout.reset,
        "discount": rollout.discount,
        "boundary": rollout.boundary,
        "bootstrap": keep(alive, rollout.bootstrap),
        "alive": alive,
        "mask": None if rollout.mask is None else keep(alive, rollout.mask, True),
    }
    fields = jax.tree.map(rows, fields)
    following = jnp.concatenate([rollout.value[length::length], rollout.last_value[None]])
    past_burn_in = (jnp.arange(length) >= config.burn_in)[:, None]
    # An agent that is dead as its row begins may have seen, and remember, anything.
    carry = jax.tree.map(
        lambda x: jnp.where(jnp.isfinite(x), x, 0.0).reshape((number * agents,) + x.shape[3:]),
        rollout.carry,
    )
    taught = None
    if teacher is not None:
        carry, watched = carry
        seen = rows(keep(alive, rollout.obs))
        taught = lesson(teacher, state.teacher, seen, watched, fields["reset"], fields["mask"])
    segments = Segments(
        **fields,
        carry=carry,
        last_value=following.reshape(-1),
        advantage=None,
        target=None,
        learning=fields["alive"] & past_burn_in,
        lesson=taught,
    )
    advantage, target = trace(config, segments, segments.value, jnp.ones_like(segments.value), hyper)
    return segments._replace(advantage=advantage, target=target)


def trace(config: "PPOConfig", segments: Segments, value: jax.Array, ratio: jax.Array, hyper: Hyper):
    """Advantages and targets `[T, S]` of rows, given values and importance ratios; see `vtrace_gae`."""
    return vtrace_gae(
        segments.reward,
        value,
        segments.last_value,
        segments.discount,
        segments.boundary,
        segments.bootstrap,
        ratio,
        hyper["gamma"],
        hyper["gae_lambda"],
        hyper["vtrace_rho"],
        hyper["vtrace_c"],
        segments.alive,
        config.bootstrap_last,
    )


def refresh(config: "PPOConfig", segments: Segments, memory: Memory, hyper: Hyper) -> Memory:
    """Advantages and targets from the latest values and ratios."""
    advantage, target = trace(config, segments, memory.value, memory.ratio, hyper)
    return memory._replace(advantage=advantage, target=target)


def learn_segments(
    config: "PPOConfig",
    policy: Policy,
    optimizer: Optimizer,
    state: OnPolicyState,
    key: jax.Array,
    segments: Segments,
    hyper: Hyper,
) -> tuple[PyTree, PyTree, Metrics]:
    """All epochs over segments; returns `(params, optimizer, metrics)`."""
    rows = segments.alive.shape[1]
    plan = config.plan(rows // config.segments_per_agent)
    progress = state.updates / hyper["total_updates"]
    hyper = hyper | {
        "beta": importance_exponent(hyper["priority_beta"], progress, hyper["priority_beta_rate"])
    }

    def gradient(params, memory, choice):
        return segment_gradient(config, policy, segments, params, memory, choice, hyper)

    def epoch(progress, key):
        key_partition, key_draw = jax.random.split(key)
        if config.recompute_advantage == "epoch":
            progress = progress._replace(memory=refresh(config, segments, progress.memory, hyper))
        parts = partition(key_partition, rows, plan.minibatches)
        keys = jax.random.split(key_draw, plan.minibatches)
        return descend(config, optimizer, gradient, progress, (keys, parts), hyper)

    ones = jnp.ones_like(segments.value)
    memory = Memory(segments.value, ones, segments.advantage, segments.target)
    start = Progress(state.params, state.optimizer, jnp.zeros((), bool), memory)
    progress, steps = jax.lax.scan(epoch, start, jax.random.split(key, config.epochs))
    return progress.params, progress.optimizer, steps.metrics()


def segment_gradient(
    config: "PPOConfig",
    policy: Policy,
    segments: Segments,
    params: PyTree,
    memory: Memory,
    choice: tuple[jax.Array, jax.Array],
    hyper: Hyper,
) -> tuple[PyTree, Metrics, jax.Array, Memory]:
    """Chooses a minibatch of segments; see `descend` for the results.

    Args:
      config, policy, segments, hyper: as for `learn_segments`, with `beta` of the importance weights.
      params: parameters of the networks.
      memory: what the minibatches so far found out.
      choice: a key and this minibatch's part of the partition.
    """
    if config.recompute_advantage == "minibatch":
        memory = refresh(config, segments, memory, hyper)
    key, part = choice
    chosen, weight = choose(
        key,
        config.sampling,
        part,
        memory.advantage,
        segments.learning,
        alpha=hyper["priority_alpha"],
        beta=hyper["beta"],
    )
    minibatch = segments.take(chosen)
    known = jax.tree.map(lambda x: x[:, chosen], memory)
    if config.normalize_advantage == "batch":
        known = known._replace(advantage=standardize(memory.advantage, segments.learning)[:, chosen])

    def loss(params):
        distribution, value = policy.sequence(
            params, minibatch.obs, minibatch.carry, minibatch.reset, minibatch.mask
        )
        log_ratio = distribution.log_prob(minibatch.action) - minibatch.log_prob
        ratio = jnp.exp(jax.lax.stop_gradient(log_ratio))
        advantage = known.advantage
        if config.policy_advantage == "vtrace":
            advantage, _ = trace(config, minibatch, known.value, ratio, hyper)
        if config.normalize_advantage == "minibatch":
            advantage = standardize(advantage, minibatch.learning)
        centre = known.value if config.value_clip_center == "refreshed" else minibatch.value
        batch = minibatch._replace(value=centre, target=known.target, alive=minibatch.learning)
        total, samples = clipped_loss(distribution, value, log_ratio, advantage * weight, batch, hyper)
        if config.teacher is not None:
            values = hyper["teacher_value_weight"]
            loss = imitation_loss(config.teacher_loss, minibatch.lesson, distribution, value, values)
            total += hyper["teacher_coefficient"] * masked_mean(loss, minibatch.learning)
            samples["imitation_loss"] = loss
        return total, (samples, ratio, jax.lax.stop_gradient(value))

    grads, (samples, ratio, value) = jax.grad(loss, has_aux=True)(params)
    if config.refreshes:
        memory = memory._replace(
            value=memory.value.at[:, chosen].set(value), ratio=memory.ratio.at[:, chosen].set(ratio)
        )
    return grads, *summed(samples, minibatch.learning), memory
