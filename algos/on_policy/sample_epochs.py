"""Training on single samples of a rollout: advantages, targets and PPO's epochs of shuffled minibatches."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.checks import require_minibatches
from algos.masks import expand_mask
from algos.nets.actor_critic import PolicyFunctions, with_observation_decoder
from algos.nets.normalize import scale_reward, standardize
from algos.nets.observations import Entities, compress_observations
from algos.on_policy.distillation import action_imitation_loss, add_imitation_loss
from algos.on_policy.losses import acting_weights, clipped_loss
from algos.on_policy.minibatches import EpochSettings, MinibatchCarry, run_minibatch_epoch, sum_alive
from algos.on_policy.ppo_settings import PPOSettings
from algos.on_policy.returns import gae_of_rollout
from algos.on_policy.settings import OnPolicySettings, OnPolicyState
from algos.optim.optimizers import Optimizer
from algos.optim.packing import pack_moments, unpack_moments
from algos.types import Asymmetric, Hyper, Metrics, PyTree, Rollout

# Enough independent work per iteration for XLA's CPU executor to use a second core.
MINIBATCH_UNROLL = 4
# Most bits of a row's index that leave enough random ones beside it.
INDEX_BITS = 16


class SampleBatch(NamedTuple):
    """Samples to learn from, leading axes `[N]`.

    `alive` marks the rows that are learnt from: of agents that act, and of agents that are out (only their
    values are learnt). Other rows hold zeros. `acting` has the weights of the decisions among them
    (`losses.acting_weights`); None if all are decisions. `idle` marks rows of agents with no learnt row in
    the rollout (unfilled slots). `taught` has the actions of a scripted teacher; None without one.
    Observations are in the form of `algos.nets.observations.compress_observations`.
    """

    obs: jax.Array | Entities | Asymmetric
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    alive: jax.Array
    mask: jax.Array | None
    idle: jax.Array | None = None
    acting: jax.Array | None = None
    taught: jax.Array | None = None


def samples_from_rollout(
    config: OnPolicySettings, state: OnPolicyState, rollout: Rollout, hyper: Hyper
) -> SampleBatch:
    """Computes advantages and targets of a rollout and flattens its samples to `[T * E * A]`.

    Rows that are not learnt from are replaced by zeros, before any arithmetic of the losses.
    """
    alive, valued = rollout.alive, rollout.has_value_target
    reward = learning_rewards(state, rollout, hyper)
    advantage, target = gae_of_rollout(rollout, reward, hyper["gamma"], hyper["gae_lambda"])
    advantage = advantage if rollout.advantage is None else rollout.advantage
    if config.normalize_advantage == "batch":
        advantage = standardize(advantage, alive)

    clean = partial(keep_where, alive)
    batch = SampleBatch(
        obs=jax.tree.map(partial(keep_where, valued), compress_observations(state.observations, rollout.obs)),
        action=clean(rollout.action),
        log_prob=clean(rollout.extras["log_prob"]),
        value=keep_where(valued, rollout.extras["value"]),
        advantage=clean(advantage),
        target=keep_where(valued, target),
        alive=valued,
        mask=None if rollout.mask is None else clean(rollout.mask, True),
        idle=jnp.broadcast_to(~valued.any(0), alive.shape),
        acting=None if rollout.out is None else acting_weights(alive, valued),
        taught=None if rollout.taught is None else clean(rollout.taught),
    )
    return jax.tree.map(lambda x: x.reshape((alive.size,) + x.shape[alive.ndim :]), batch)


def learning_rewards(state: OnPolicyState, rollout: Rollout, hyper: Hyper) -> jax.Array:
    """Rewards `[T, E, A]` in the units of the values: normalised, scaled and clamped."""
    reward = rollout.reward if state.rewards is None else scale_reward(state.rewards, rollout.reward)
    return jnp.clip(reward * hyper["reward_scale"], -hyper["reward_clamp"], hyper["reward_clamp"])


def hide_unseen_observations(rollout: Rollout) -> Rollout:
    """Returns the rollout with zeros for observations that no network reads, which may be non-finite.

    Networks read those of agents that act, wait for their turn (memories take them in) or are out.
    """
    return rollout.replace(obs=jax.tree.map(partial(keep_where, rollout.paid), rollout.obs))


def keep_where(alive: jax.Array, x: jax.Array, fill: float = 0) -> jax.Array:
    """Selects `x` `[*alive.shape, ...]` where `alive`, and `fill` elsewhere."""
    return jnp.where(expand_mask(alive, x.ndim), x, jnp.asarray(fill, x.dtype))


def learn_samples(
    config: PPOSettings,
    policy: PolicyFunctions,
    optimizer: Optimizer,
    state: OnPolicyState,
    key: jax.Array,
    batch: SampleBatch,
    hyper: Hyper,
) -> tuple[PyTree, PyTree, Metrics]:
    """Runs all epochs over shuffled single samples `[N]`; returns `(params, optimizer, metrics)`."""
    require_minibatches(config.num_minibatches, batch.alive.size)
    if config.teacher is not None and batch.taught is None:
        raise ValueError(f"teacher={config.teacher}: must be loaded before the agent learns")
    policy = with_observation_decoder(policy, state.observations)

    def enter(rows):
        return rows, entering_advantages(config, batch, rows)

    def gradient(params, memory, chosen):
        rows, advantage = chosen
        # A minibatch is gathered as its turn comes: a shuffled copy would be as large as the whole batch.
        minibatch = jax.tree.map(lambda x: x[rows], batch._replace(idle=None, advantage=None))
        minibatch = minibatch._replace(advantage=advantage)
        grads, samples = jax.grad(ppo_loss, argnums=1, has_aux=True)(policy, params, minibatch, hyper)
        return grads, *sum_alive(samples, minibatch.alive), memory

    idle = jnp.zeros(batch.alive.shape, bool) if batch.idle is None else batch.idle
    return run_epochs(config, optimizer, state, key, idle, gradient, enter, hyper)


def run_epochs(
    config: EpochSettings,
    optimizer: Optimizer,
    state: OnPolicyState,
    key: jax.Array,
    idle: jax.Array,
    gradient: Callable,
    enter: Callable,
    hyper: Hyper,
) -> tuple[PyTree, PyTree, Metrics]:
    """Runs all epochs over minibatches of shuffled rows; returns `(params, optimizer, metrics)`.

    Args:
      config: the settings.
      optimizer: the optimiser.
      state: the learner before the update.
      key: key of this update.
      idle: `[N]` bool, rows of agents that do not take part.
      gradient: see `run_minibatch_epoch`.
      enter: `(rows [minibatches, m]) -> minibatches` that enter the gradient in an epoch.
      hyper: traced hyper-parameters.
    """

    def epoch(progress, key):
        rows = split_minibatches(shuffle_rows(key, idle), config.num_minibatches)
        return run_minibatch_epoch(
            config, optimizer, gradient, progress, enter(rows), hyper, MINIBATCH_UNROLL
        )

    progress = MinibatchCarry(state.params, pack_moments(state.optimizer), jnp.zeros((), bool), ())
    # An epoch's order is drawn as it begins: memory does not grow with the number of epochs.
    keys = jax.random.split(collectives.fold_shard_into_key(key), config.epochs)
    progress, steps = collectives.run_in_order(partial(jax.lax.scan, epoch), progress, keys)
    return progress.params, unpack_moments(progress.optimizer), steps.metrics()


def shuffle_rows(key: jax.Array, idle: jax.Array) -> jax.Array:
    """Returns a random order `[N]` of the rows, with `idle` rows last.

    Idle rows then fill the last minibatches, which contribute nothing, and the others have more learnt rows.
    """
    bits = jax.random.bits(key, idle.shape)
    place = max(idle.shape[0] - 1, 1).bit_length()
    if place > INDEX_BITS:
        return jnp.argsort(jnp.where(idle, ~jnp.zeros_like(bits), bits))
    # Random bits above the row's index: a CPU sorts one array six times as fast as an array and its indices.
    # Rows with equal random bits keep their order, which matters only where a minibatch ends.
    last = jnp.uint32(2 ** (32 - place) - 1)
    drawn = jnp.where(idle, last, jnp.minimum(bits >> place, last - 1))
    ordered = jnp.sort((drawn << place) | jnp.arange(idle.shape[0], dtype=bits.dtype))
    return (ordered & jnp.uint32(2**place - 1)).astype(jnp.int32)


def entering_advantages(config: PPOSettings, batch: SampleBatch, rows: jax.Array) -> jax.Array:
    """Advantages `[minibatches, m]` of minibatches of `rows`, as they enter the loss.

    Standardising all minibatches at once takes one collective for an epoch instead of one for each.
    """
    advantage = batch.advantage[rows]
    if config.normalize_advantage != "minibatch":
        return advantage
    decides = batch.alive if batch.acting is None else batch.acting > 0
    return jax.vmap(standardize)(advantage, decides[rows])


def ppo_loss(
    policy: PolicyFunctions, params: PyTree, batch: SampleBatch, hyper: Hyper
) -> tuple[jax.Array, Metrics]:
    """PPO's loss on samples `[N]`, with the imitation loss of their `taught` actions, if there are any.

    See `clipped_loss` for `hyper` and the results, and `add_imitation_loss`.

    Args:
      policy: the networks.
      params: their parameters.
      batch: samples `[N]`, with advantages already normalised.
      hyper: traced hyper-parameters.
    """
    distribution, value = policy.apply(params, batch.obs, batch.mask)
    loss, samples = clipped_loss(
        distribution,
        value,
        distribution.log_prob(batch.action) - batch.log_prob,
        advantage=batch.advantage,
        old_value=batch.value,
        target=batch.target,
        alive=batch.alive,
        hyper=hyper,
        acting=batch.acting,
    )
    if batch.taught is None:
        return loss, samples
    imitation = action_imitation_loss(distribution, batch.taught)
    return add_imitation_loss(loss, samples, imitation, batch.alive, batch.acting, hyper)


def split_minibatches(x: jax.Array, parts: int) -> jax.Array:
    """Cuts the first axis into `parts` equal parts: `[N, ...]` to `[parts, N / parts, ...]`."""
    return x.reshape((parts, x.shape[0] // parts) + x.shape[1:])
