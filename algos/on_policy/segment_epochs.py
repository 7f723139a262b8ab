"""Training on segments: rows of consecutive decisions, evaluated from the recurrent state before them.

PPO's epochs over minibatches of whole segments, with advantages that may be refreshed between minibatches.
See docs/reference/trainer.md 2.3 and 4.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.checks import require_given
from algos.nets.actor_critic import PolicyFunctions, with_observation_decoder
from algos.nets.normalize import mean_and_variance, standardize
from algos.nets.observations import compress_observations
from algos.on_policy.distillation import (
    Teacher,
    TeacherTargets,
    action_imitation_loss,
    add_imitation_loss,
    evaluate_teacher,
    imitation_loss,
)
from algos.on_policy.losses import acting_weights, clipped_loss
from algos.on_policy.minibatches import MinibatchCarry, run_minibatch_epoch, sum_alive
from algos.on_policy.ppo_settings import PPOSettings
from algos.on_policy.returns import vtrace_gae
from algos.on_policy.sample_epochs import keep_where, learning_rewards
from algos.on_policy.segment_sampling import choose_rows, importance_exponent, partition_rows, shard_offset
from algos.on_policy.settings import OnPolicyState
from algos.optim.optimizers import Optimizer
from algos.optim.packing import pack_moments, unpack_moments
from algos.types import Hyper, Metrics, PyTree, Rollout, actor_observation


class SegmentBatch(NamedTuple):
    """A rollout as S rows of T decisions, with axes `[T, S]`.

    Attributes:
      rollout: `[T, S]`, except `carry` before and `last_value`, `last_skip` after each row, `[S]`.
        Observations are in the form of `algos.nets.observations.compress_observations`, rewards in the units
        of the values; steps that are not learnt from hold zeros.
      advantage, target: as computed after the rollout.
      learning: bool, `Rollout.has_value_target` and past the burn-in.
      lesson: distributions and values of a teacher that is a policy, or None.
      acting: weights of the decisions among the learnt steps, see `losses.acting_weights`; None if all are
        decisions.
    """

    rollout: Rollout
    advantage: jax.Array
    target: jax.Array
    learning: jax.Array
    lesson: TeacherTargets | None = None
    acting: jax.Array | None = None

    @property
    def value(self) -> jax.Array:
        """Values that the critic estimated during the rollout."""
        return self.rollout.extras["value"]

    @property
    def alive(self) -> jax.Array:
        """Mask of the steps in which the agent acted, or was out and has a value."""
        return self.rollout.has_value_target

    @property
    def decision_mask(self) -> jax.Array:
        """Mask of the decisions that are learnt from."""
        return self.learning if self.acting is None else self.acting > 0

    def take(self, rows: jax.Array) -> "SegmentBatch":
        """Selects the segments `rows`."""
        inside = self._replace(rollout=self.rollout.replace(carry=(), last_value=None, last_skip=None))
        picked = jax.tree.map(lambda x: x[:, rows], inside)
        of_rows = self.rollout.carry, self.rollout.last_value, self.rollout.last_skip
        carry, last_value, last_skip = jax.tree.map(lambda x: x[rows], of_rows)
        rollout = picked.rollout.replace(carry=carry, last_value=last_value, last_skip=last_skip)
        return picked._replace(rollout=rollout)


class MinibatchChoice(NamedTuple):
    """Inputs of the draw of a minibatch of segments.

    Attributes:
      key: random key of the draw.
      part: this minibatch's part of the partition, int32 `[m]`.
      moments: mean and variance of its advantages on all shards; None if not known in advance.
    """

    key: jax.Array
    part: jax.Array
    moments: tuple[jax.Array, jax.Array] | None = None


class RefreshedEstimates(NamedTuple):
    """Latest values, importance ratios, advantages and targets of all segments, `[T, S]` each."""

    value: jax.Array
    ratio: jax.Array
    advantage: jax.Array
    target: jax.Array


def segments_from_rollout(
    config: PPOSettings,
    state: OnPolicyState,
    rollout: Rollout,
    hyper: Hyper,
    teacher: Teacher | None = None,
) -> SegmentBatch:
    """Splits a rollout `[k * T, E, A]` with flat observations into segments; evaluates the teacher on them.

    The k * E * A rows are ordered by segment, environment and agent. Steps that are not learnt from are
    replaced by zeros, before any arithmetic of the losses.
    """
    given = rollout.taught if config.scripted else teacher
    if config.teacher is not None and given is None:
        raise ValueError(f"teacher={config.teacher}: must be loaded before the agent learns")
    number = config.segments_per_agent
    rows = reshape_to_segments(state, rollout, hyper, number)
    taught = None
    if teacher is not None:
        own, watched = rows.carry
        rows = rows.replace(carry=own)
        seen = split_into_segments(actor_observation(rollout.obs), number)
        taught = evaluate_teacher(teacher, state.teacher, seen, watched, rows.reset, rows.mask)
    past_burn_in = (jnp.arange(rows.alive.shape[0]) >= config.burn_in)[:, None]
    value = rows.extras["value"]
    advantage, target = segment_advantages(config, rows, value, jnp.ones_like(value), hyper)
    learning = rows.has_value_target & past_burn_in
    acting = None if rows.out is None else acting_weights(rows.alive & past_burn_in, learning)
    return SegmentBatch(rows, advantage, target, learning, taught, acting)


def reshape_to_segments(state: OnPolicyState, rollout: Rollout, hyper: Hyper, number: int) -> Rollout:
    """Reshapes a rollout to axes `[T, S]`; see `SegmentBatch.rollout`.

    `number` is as for `split_into_segments`.
    """
    alive, value = rollout.alive, rollout.extras["value"]
    within = rollout.replace(
        obs=compress_observations(state.observations, rollout.obs),
        action=keep_where(alive, rollout.action),
        extras={
            "log_prob": keep_where(alive, rollout.extras["log_prob"]),
            "value": jnp.where(alive | jnp.isfinite(value), value, 0.0),
        },
        reward=keep_where(rollout.paid, learning_rewards(state, rollout, hyper)),
        bootstrap=keep_where(rollout.paid, require_given("bootstrap", rollout.bootstrap)),
        mask=None if rollout.mask is None else keep_where(alive, rollout.mask, True),
        taught=None if rollout.taught is None else keep_where(alive, rollout.taught),
        carry=(),
        last_value=None,
        last_skip=None,
    )
    within = jax.tree.map(lambda x: split_into_segments(x, number), within)
    length, segments = within.alive.shape
    last_value = require_given("last_value", rollout.last_value)
    following = jnp.concatenate([value[length::length], last_value[None]])
    # The observations, and therefore the carry, of an agent that is dead at the start of a row may be
    # non-finite.
    carry = jax.tree.map(
        lambda x: jnp.where(jnp.isfinite(x), x, 0.0).reshape((segments,) + x.shape[3:]), rollout.carry
    )
    waits = None
    if rollout.skip is not None:
        last_skip = require_given("last_skip", rollout.last_skip)
        waits = jnp.concatenate([rollout.skip[length::length], last_skip[None]]).reshape(-1)
    rows = within.replace(carry=carry, last_value=following.reshape(-1), last_skip=waits)
    # The rewards of a decision whose agent waits into its next segment are incomplete in this one.
    return rows.without_open_decisions()


def split_into_segments(x: jax.Array, number: int) -> jax.Array:
    """Splits the time axis of `[k * T, E, A, ...]` into k = `number` parts: `[T, k * E * A, ...]`."""
    length, agents = x.shape[0] // number, x.shape[1] * x.shape[2]
    x = x.reshape((number, length, agents) + x.shape[3:])
    return jnp.moveaxis(x, 0, 1).reshape((length, number * agents) + x.shape[3:])


def segment_advantages(
    config: PPOSettings, rows: Rollout, value: jax.Array, ratio: jax.Array, hyper: Hyper
) -> tuple[jax.Array, jax.Array]:
    """Advantages and targets `[T, S]` of rows with these values and importance ratios; see `vtrace_gae`.

    Precomputed advantages of the rows are kept.
    """
    advantage, target = vtrace_gae(
        rows.reward,
        value,
        require_given("last_value", rows.last_value),
        rows.discount,
        rows.boundary,
        require_given("bootstrap", rows.bootstrap),
        ratio,
        hyper["gamma"],
        hyper["gae_lambda"],
        hyper["vtrace_rho"],
        hyper["vtrace_c"],
        rows.alive,
        config.bootstrap_last,
        skip=rows.skip,
        last_skip=rows.last_skip,
        out=rows.out,
    )
    return advantage if rows.advantage is None else rows.advantage, target


def _refresh_advantages(
    config: PPOSettings, segments: SegmentBatch, memory: RefreshedEstimates, hyper: Hyper
) -> RefreshedEstimates:
    """Recomputes advantages and targets from the latest values and ratios."""
    advantage, target = segment_advantages(config, segments.rollout, memory.value, memory.ratio, hyper)
    return memory._replace(advantage=advantage, target=target)


def learn_segments(
    config: PPOSettings,
    policy: PolicyFunctions,
    optimizer: Optimizer,
    state: OnPolicyState,
    key: jax.Array,
    segments: SegmentBatch,
    hyper: Hyper,
) -> tuple[PyTree, PyTree, Metrics]:
    """Runs all epochs over segments; returns `(params, optimizer, metrics)`."""
    policy = with_observation_decoder(policy, state.observations)
    rows = segments.learning.shape[1]
    plan = config.plan(rows // config.segments_per_agent * collectives.num_shards())
    minibatches = require_given("plan", plan).minibatches
    progress = state.updates / hyper["total_updates"]
    hyper = hyper | {
        "beta": importance_exponent(hyper["priority_beta"], progress, hyper["priority_beta_rate"]),
        "offset": shard_offset(segments.learning),
    }

    def gradient(params, memory, choice):
        return segment_gradient(config, policy, segments, params, memory, choice, hyper)

    def epoch(progress, key):
        key_partition, key_draw = jax.random.split(key)
        if config.recompute_advantage == "epoch":
            progress = progress._replace(memory=_refresh_advantages(config, segments, progress.memory, hyper))
        parts = partition_rows(key_partition, rows, minibatches, ~segments.alive.any(0))
        choices = MinibatchChoice(jax.random.split(key_draw, minibatches), parts)
        choices = with_advantage_moments(config, segments, progress.memory, choices, hyper)
        return run_minibatch_epoch(config, optimizer, gradient, progress, choices, hyper)

    ones = jnp.ones_like(segments.value)
    memory = RefreshedEstimates(segments.value, ones, segments.advantage, segments.target)
    start = MinibatchCarry(state.params, pack_moments(state.optimizer), jnp.zeros((), bool), memory)
    keys = jax.random.split(collectives.fold_shard_into_key(key), config.epochs)
    progress, steps = collectives.run_in_order(partial(jax.lax.scan, epoch), start, keys)
    return progress.params, unpack_moments(progress.optimizer), steps.metrics()


def with_advantage_moments(
    config: PPOSettings,
    segments: SegmentBatch,
    memory: RefreshedEstimates,
    choices: MinibatchChoice,
    hyper: Hyper,
) -> MinibatchChoice:
    """Adds the moments of advantages to the choices of an epoch, if they are used and known in advance.

    This takes one collective for all minibatches instead of one for each; with one shard, nothing is added.
    """
    known = config.recompute_advantage != "minibatch" and config.policy_advantage == "fixed"
    if collectives.num_shards() == 1 or config.normalize_advantage == "none" or not known:
        return choices

    if config.normalize_advantage == "batch":
        every = mean_and_variance(memory.advantage, segments.decision_mask)
        return choices._replace(moments=jax.tree.map(lambda x: jnp.repeat(x, len(choices.part)), every))

    def chosen(choice):
        rows, _ = choose_segments(config, segments, memory, choice, hyper)
        return memory.advantage[:, rows], segments.decision_mask[:, rows]

    return choices._replace(moments=jax.vmap(mean_and_variance)(*jax.lax.map(chosen, choices)))


def choose_segments(
    config: PPOSettings,
    segments: SegmentBatch,
    memory: RefreshedEstimates,
    choice: MinibatchChoice,
    hyper: Hyper,
) -> tuple[jax.Array, jax.Array]:
    """Draws the rows of a minibatch and their importance weights, `[m]` each; see `choose_rows`."""
    return choose_rows(
        choice.key,
        config.sampling,
        choice.part,
        memory.advantage,
        segments.learning,
        alpha=hyper["priority_alpha"],
        beta=hyper["beta"],
        offset=hyper["offset"],
    )


def segment_gradient(
    config: PPOSettings,
    policy: PolicyFunctions,
    segments: SegmentBatch,
    params: PyTree,
    memory: RefreshedEstimates,
    choice: MinibatchChoice,
    hyper: Hyper,
) -> tuple[PyTree, Metrics, jax.Array, RefreshedEstimates]:
    """Draws a minibatch of segments and computes its gradient; see `run_minibatch_epoch` for the results.

    Args:
      config, policy, segments, hyper: as for `learn_segments`, with `beta` and `offset` of `choose_rows`.
      params: parameters of the networks.
      memory: as refreshed by earlier minibatches.
      choice: inputs of the draw.
    """
    if config.recompute_advantage == "minibatch":
        memory = _refresh_advantages(config, segments, memory, hyper)
    chosen, weight = choose_segments(config, segments, memory, choice, hyper)
    minibatch = segments.take(chosen)
    known = jax.tree.map(lambda x: x[:, chosen], memory)
    if config.normalize_advantage == "batch":
        advantage = standardize(memory.advantage, segments.decision_mask, choice.moments)
        known = known._replace(advantage=advantage[:, chosen])

    def loss(params):
        return segment_loss(config, policy, params, minibatch, known, weight, hyper, choice.moments)

    grads, (samples, ratio, value) = jax.grad(loss, has_aux=True)(params)
    if config.refreshes:
        # Of rows that are not learnt from, the rollout's value is the next value of the row before.
        value = jnp.where(minibatch.rollout.paid, value, known.value)
        memory = memory._replace(
            value=memory.value.at[:, chosen].set(value), ratio=memory.ratio.at[:, chosen].set(ratio)
        )
    return grads, *sum_alive(samples, minibatch.learning), memory


def segment_loss(
    config: PPOSettings,
    policy: PolicyFunctions,
    params: PyTree,
    minibatch: SegmentBatch,
    known: RefreshedEstimates,
    weight: jax.Array,
    hyper: Hyper,
    moments: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, tuple[Metrics, jax.Array, jax.Array]]:
    """PPO's loss on m segments, including the imitation loss.

    Args:
      config, policy, hyper: as for `learn_segments`.
      params: parameters of the networks.
      minibatch: m segments.
      known: latest values, advantages and targets of the segments.
      weight: `[m]` importance weights of their advantages.
      moments: moments of the advantages, as in `MinibatchChoice`.

    Returns:
      the loss, and `(quantities for metrics, ratios, values)`, `[T, m]` each.
    """
    rows = minibatch.rollout
    distribution, value = policy.sequence(params, rows.obs, rows.carry, rows.reset, rows.mask)
    log_ratio = distribution.log_prob(rows.action) - rows.extras["log_prob"]
    ratio = jnp.exp(jax.lax.stop_gradient(log_ratio))
    advantage = known.advantage
    if config.policy_advantage == "vtrace":
        advantage, _ = segment_advantages(config, rows, known.value, ratio, hyper)
    if config.normalize_advantage == "minibatch":
        advantage = standardize(advantage, minibatch.decision_mask, moments)
    total, samples = clipped_loss(
        distribution,
        value,
        log_ratio,
        advantage=advantage * weight,
        old_value=known.value if config.value_clip_center == "refreshed" else rows.extras["value"],
        target=known.target,
        alive=minibatch.learning,
        hyper=hyper,
        acting=minibatch.acting,
    )
    if config.teacher is not None:
        if config.scripted:
            imitation = action_imitation_loss(distribution, require_given("taught", rows.taught))
        else:
            values = hyper["teacher_value_weight"]
            lesson = require_given("lesson", minibatch.lesson)
            imitation = imitation_loss(config.teacher_loss, lesson, distribution, value, values)
        total, samples = add_imitation_loss(
            total, samples, imitation, minibatch.learning, minibatch.acting, hyper
        )
    return total, (samples, ratio, jax.lax.stop_gradient(value))
