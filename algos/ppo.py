"""Proximal policy optimisation (Schulman et al. 2017) for feed-forward networks."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.checks import require_choice, require_count, require_minibatches, require_range
from algos.networks import ActorCriticConfig, Policy, flatten, make_actor_critic
from algos.normalize import (
    Moments,
    RewardScale,
    explained_variance,
    init_moments,
    init_reward_scale,
    masked_mean,
    merge_moments,
    normalize,
    scale_reward,
    standardize,
    update_reward_scale,
)
from algos.optimizers import SCHEDULES, AdamState, adam, anneal, clip_scale, global_norm, init_adam
from algos.returns import gae
from algos.types import ActionSpec, Agent, Rollout

PyTree = Any

# Gives XLA's CPU executor enough independent work to keep a second core busy.
MINIBATCH_UNROLL = 4
ANNEALED = ("learning_rate", "entropy_coefficient", "clip")
OPTIONAL = ("value_clip", "max_grad_norm", "target_kl")
TRACED = {
    "learning_rate": (0.0, 1.0),
    "learning_rate_end": (0.0, 1.0),
    "gamma": (0.0, 1.0),
    "gae_lambda": (0.0, 1.0),
    "clip": (1e-6, math.inf),
    "clip_end": (0.0, math.inf),
    "value_clip": (1e-6, math.inf),
    "entropy_coefficient": (0.0, math.inf),
    "entropy_coefficient_end": (0.0, math.inf),
    "value_coefficient": (0.0, math.inf),
    "max_grad_norm": (1e-6, math.inf),
    "target_kl": (1e-9, math.inf),
    "reward_scale": (1e-9, math.inf),
    "adam_eps": (1e-12, 1.0),
    "adam_beta1": (0.0, 1.0 - 1e-7),
    "adam_beta2": (0.0, 1.0 - 1e-7),
}


@dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO, besides those of its networks.

    The numbers named in `TRACED` (and `total_updates`) only start the learner: they live in
    `state.hyper`, where they can be changed, restored or vmapped over without recompiling.

    Attributes:
      horizon: decisions T per rollout.
      epochs: passes over a rollout.
      num_minibatches: gradient steps per pass; must divide T * E * A.
      learning_rate, entropy_coefficient, clip: with their schedules ("constant", "linear",
        "cosine") and the values `*_end` reached after `total_updates`.
      total_updates: length of the schedules; None for the length of the run.
      gamma, gae_lambda: discount and trace decay per decision.
      value_clip: distance the new value may move from the rollout's; None for no clipping.
      value_coefficient: weight of the value loss.
      max_grad_norm: bound on the global gradient norm; None for none.
      target_kl: divergence after which an update's remaining minibatches are skipped; None for never.
      normalize_advantage: "minibatch", "batch" or "none".
      normalize_observation, normalize_reward: running normalisation.
      reward_scale: constant factor on rewards, after their normalisation.
      adam_eps, adam_beta1, adam_beta2: of Adam.
    """

    horizon: int = 128
    epochs: int = 4
    num_minibatches: int = 8
    learning_rate: float = 3e-4
    learning_rate_end: float = 0.0
    learning_rate_schedule: str = "constant"
    clip: float = 0.2
    clip_end: float = 0.0
    clip_schedule: str = "constant"
    entropy_coefficient: float = 0.0
    entropy_coefficient_end: float = 0.0
    entropy_coefficient_schedule: str = "constant"
    total_updates: int | None = None
    gamma: float = 0.99
    gae_lambda: float = 0.95
    value_clip: float | None = None
    value_coefficient: float = 0.5
    max_grad_norm: float | None = 0.5
    target_kl: float | None = None
    normalize_advantage: str = "minibatch"
    normalize_observation: bool = True
    normalize_reward: bool = False
    reward_scale: float = 1.0
    adam_eps: float = 1e-5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999

    def __post_init__(self):
        super().__post_init__()
        for key in ("horizon", "epochs", "num_minibatches"):
            require_count(key, getattr(self, key))
        if self.total_updates is not None:
            require_count("total_updates", self.total_updates)
        for key, (low, high) in TRACED.items():
            if getattr(self, key) is not None or key not in OPTIONAL:
                require_range(key, getattr(self, key), low, high)
        for key in ANNEALED:
            require_choice(f"{key}_schedule", getattr(self, f"{key}_schedule"), SCHEDULES)
        require_choice("normalize_advantage", self.normalize_advantage, ("minibatch", "batch", "none"))

    def make(
        self, observation_shape: tuple[int, ...], action: ActionSpec, samples: int, updates: int
    ) -> Agent:
        """Builds the agent for a run of `updates` updates with `samples` = E * A agents side by side."""
        return make_ppo(self, observation_shape, action, samples=samples, updates=updates)


@struct.dataclass
class PPOState:
    """Everything PPO learns and remembers.

    Attributes:
      params: parameters of the networks.
      optimizer: state of Adam.
      observations: moments of the flat observations, or None.
      rewards: scale of the rewards, or None.
      hyper: traced hyper-parameters by name.
      updates: int32 scalar, updates done.
    """

    params: PyTree
    optimizer: AdamState
    observations: Moments | None
    rewards: RewardScale | None
    hyper: dict[str, jax.Array]
    updates: jax.Array


class Batch(NamedTuple):
    """Samples to learn from, leading axes `[N]`; rows that are not alive hold zeros."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    alive: jax.Array
    mask: jax.Array | None


def make_ppo(
    config: PPOConfig,
    observation_shape: tuple[int, ...],
    action: ActionSpec,
    *,
    samples: int | None = None,
    updates: int | None = None,
) -> Agent:
    """Builds PPO as a bundle of pure functions.

    Args:
      config: the settings.
      observation_shape: shape of one observation; it is flattened for the networks.
      action: the action space.
      samples: agents side by side, E * A; needed only to normalise rewards.
      updates: length of the run, for schedules without a length of their own.

    Raises:
      ValueError: for settings that do not fit together.
    """
    if samples is not None:
        require_minibatches(config.num_minibatches, samples * config.horizon)
    elif config.normalize_reward:
        raise ValueError("normalize_reward=True: make_ppo needs samples, the number of agents side by side")
    total_updates = config.total_updates or updates
    if total_updates is None and any(getattr(config, f"{key}_schedule") != "constant" for key in ANNEALED):
        raise ValueError("total_updates=None: must be given with a schedule that is not constant")
    size = math.prod(observation_shape)
    policy = make_actor_critic(config, size, action)

    def init(key):
        params = policy.init(key)
        hyper = {key: math.inf if (x := getattr(config, key)) is None else x for key in TRACED}
        hyper["total_updates"] = total_updates or 1
        return PPOState(
            params=params,
            optimizer=init_adam(params),
            observations=init_moments((size,)) if config.normalize_observation else None,
            rewards=init_reward_scale(samples) if config.normalize_reward else None,
            hyper={key: jnp.asarray(x, jnp.float32) for key, x in hyper.items()},
            updates=jnp.zeros((), jnp.int32),
        )

    def evaluate(state, obs, mask):
        flat = flatten(obs, observation_shape)
        return policy.apply(state.params, observe(state, flat), mask)

    def act(state, key, obs, carry, reset, mask):
        distribution, value = evaluate(state, obs, mask)
        action = distribution.sample(key)
        return action, carry, {"log_prob": distribution.log_prob(action), "value": value}

    def update(state, key, rollout):
        flat = rollout.replace(obs=flatten(rollout.obs, observation_shape))
        return ppo_update(config, policy, state, key, flat)

    return Agent(
        init=init,
        initial_carry=lambda batch_shape: (),
        act=act,
        greedy=lambda state, obs, carry, reset, mask: (evaluate(state, obs, mask)[0].mode(), carry),
        value=lambda state, obs, carry, reset, mask: evaluate(state, obs, mask)[1],
        update=update,
    )


def observe(state: PPOState, flat: jax.Array) -> jax.Array:
    """What the networks see of flat observations `[..., F]`: normalised, if the learner does that."""
    return flat if state.observations is None else normalize(state.observations, flat)


def ppo_update(
    config: PPOConfig, policy: Policy, state: PPOState, key: jax.Array, rollout: Rollout
) -> tuple[PPOState, dict[str, jax.Array]]:
    """Learns from one rollout with flat observations; returns `(state, metrics)`.

    The statistics of observations are updated last, so that rollout and learning see the same
    normalisation and the first minibatch's probability ratios are 1.
    """
    require_minibatches(config.num_minibatches, rollout.alive.size)
    hyper = annealed(config, state.hyper, state.updates)
    if state.rewards is not None:
        rewards = update_reward_scale(
            state.rewards, rollout.reward, rollout.boundary, rollout.alive, hyper["gamma"]
        )
        state = state.replace(rewards=rewards)
    batch = prepare(config, state, rollout, hyper)
    params, optimizer, metrics = learn(config, policy, state, key, batch, hyper)
    observations = state.observations
    if observations is not None:
        observations = merge_moments(observations, rollout.obs, rollout.alive)
    metrics["explained_variance"] = explained_variance(batch.value, batch.target, batch.alive)
    metrics |= {name: hyper[name] for name in ANNEALED}
    state = state.replace(
        params=params, optimizer=optimizer, observations=observations, updates=state.updates + 1
    )
    return state, metrics


def annealed(config: PPOConfig, hyper: dict[str, jax.Array], updates: jax.Array) -> dict[str, jax.Array]:
    """The hyper-parameters of this update: those with a schedule at their current value."""
    progress = updates / hyper["total_updates"]
    current = {
        key: anneal(getattr(config, f"{key}_schedule"), hyper[key], hyper[f"{key}_end"], progress)
        for key in ANNEALED
    }
    return hyper | current


def prepare(config: PPOConfig, state: PPOState, rollout: Rollout, hyper: dict[str, jax.Array]) -> Batch:
    """Advantages, targets and normalised observations of a rollout, flattened to `[T * E * A]`.

    Everything that is not alive is replaced here, before any arithmetic of the losses.
    """
    alive = rollout.alive
    reward = rollout.reward if state.rewards is None else scale_reward(state.rewards, rollout.reward)
    advantage, target = gae(
        reward * hyper["reward_scale"],
        rollout.value,
        rollout.last_value,
        rollout.discount,
        rollout.boundary,
        rollout.bootstrap,
        hyper["gamma"],
        hyper["gae_lambda"],
        alive=alive,
    )
    if config.normalize_advantage == "batch":
        advantage = standardize(advantage, alive)

    def clean(x, fill=0):
        return jnp.where(alive.reshape(alive.shape + (1,) * (x.ndim - alive.ndim)), x, fill)

    batch = Batch(
        obs=clean(observe(state, rollout.obs)),
        action=clean(rollout.action),
        log_prob=clean(rollout.log_prob),
        value=clean(rollout.value),
        advantage=clean(advantage),
        target=clean(target),
        alive=alive,
        mask=None if rollout.mask is None else clean(rollout.mask, True),
    )
    return jax.tree.map(lambda x: x.reshape((alive.size,) + x.shape[alive.ndim :]), batch)


def learn(
    config: PPOConfig,
    policy: Policy,
    state: PPOState,
    key: jax.Array,
    batch: Batch,
    hyper: dict[str, jax.Array],
) -> tuple[PyTree, AdamState, dict[str, jax.Array]]:
    """Runs all epochs over a batch `[N]`; returns `(params, optimizer, metrics)`."""

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


def ppo_loss(
    policy: Policy, params: PyTree, batch: Batch, hyper: dict[str, jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
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
    samples = {
        "policy_loss": surrogate_loss(ratio, batch.advantage, hyper["clip"]),
        "value_loss": value_loss(value, batch.value, batch.target, hyper["value_clip"]),
        "entropy": distribution.entropy(),
        "approx_kl": ratio - 1.0 - log_ratio,
        "clip_fraction": (jnp.abs(ratio - 1.0) > hyper["clip"]).astype(jnp.float32),
    }
    total = (
        samples["policy_loss"]
        + hyper["value_coefficient"] * samples["value_loss"]
        - hyper["entropy_coefficient"] * samples["entropy"]
    )
    if (std := distribution.std) is not None:
        samples["action_std"] = jnp.broadcast_to(std.mean(-1), ratio.shape)
    return masked_mean(total, batch.alive), samples


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
