"""What learners of whole rollouts share: settings, state, advantages and the agent around them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.checks import require_choice, require_count, require_range
from algos.nets.encoders import blocks_apart
from algos.nets.networks import ActorCriticConfig, Policy, flatten, make_actor_critic
from algos.nets.normalize import (
    RewardScale,
    centre_rewards,
    explained_variance,
    init_reward_scale,
    masked_mean,
    scale_reward,
    standardize,
    update_reward_scale,
)
from algos.nets.observations import Entities, Statistics, init_statistics, merge_statistics, observe
from algos.on_policy.returns import gae
from algos.optim.optimizers import SCHEDULES, anneal, global_norm
from algos.types import ActionSpec, Agent, Block, ObservationSpec, Rollout

PyTree = Any
Metrics = dict[str, jax.Array]
Hyper = dict[str, jax.Array]


@dataclass(frozen=True)
class OnPolicyConfig(ActorCriticConfig):
    """Settings that all learners of rollouts have, besides those of their networks.

    The numbers named in `TRACED` (and `total_updates`) only start the learner: they live in
    `state.hyper`, where they can be changed, restored or vmapped over without recompiling.

    Attributes:
      horizon: decisions T per rollout.
      learning_rate, entropy_coefficient: with their schedules ("constant", "linear", "cosine") and
        the values `*_end` reached after `total_updates`.
      total_updates: length of the schedules; None for the length of the run.
      gamma, gae_lambda: discount and trace decay per decision.
      value_coefficient: weight of the value loss.
      max_grad_norm: bound on the global gradient norm; None for none.
      normalize_advantage: one of `ADVANTAGES`; "batch" standardises over the whole rollout.
      normalize_observation, normalize_reward: running normalisation.
      reward_centering: rate of the running mean that is subtracted from each agent's rewards; 0 for none.
      reward_scale: constant factor on rewards, after their normalisation.
      reward_clamp: bound on what remains of a reward; None for none.
      adam_eps, adam_beta1, adam_beta2: of Adam.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "learning_rate": (0.0, 1.0),
        "learning_rate_end": (0.0, 1.0),
        "gamma": (0.0, 1.0),
        "gae_lambda": (0.0, 1.0),
        "entropy_coefficient": (0.0, math.inf),
        "entropy_coefficient_end": (0.0, math.inf),
        "value_coefficient": (0.0, math.inf),
        "max_grad_norm": (1e-6, math.inf),
        "reward_scale": (1e-9, math.inf),
        "reward_clamp": (1e-9, math.inf),
        "adam_eps": (1e-12, 1.0),
        "adam_beta1": (0.0, 1.0 - 1e-7),
        "adam_beta2": (0.0, 1.0 - 1e-7),
    }
    ANNEALED: ClassVar[tuple[str, ...]] = ("learning_rate", "entropy_coefficient")
    OPTIONAL: ClassVar[tuple[str, ...]] = ("max_grad_norm", "reward_clamp")
    COUNTS: ClassVar[tuple[str, ...]] = ("horizon",)
    ADVANTAGES: ClassVar[tuple[str, ...]] = ("batch", "none")

    horizon: int = 128
    learning_rate: float = 3e-4
    learning_rate_end: float = 0.0
    learning_rate_schedule: str = "constant"
    entropy_coefficient: float = 0.0
    entropy_coefficient_end: float = 0.0
    entropy_coefficient_schedule: str = "constant"
    total_updates: int | None = None
    gamma: float = 0.99
    gae_lambda: float = 0.95
    value_coefficient: float = 0.5
    max_grad_norm: float | None = 0.5
    normalize_advantage: str = "none"
    normalize_observation: bool = True
    normalize_reward: bool = False
    reward_scale: float = 1.0
    reward_clamp: float | None = None
    reward_centering: float = 0.0
    adam_eps: float = 1e-5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999

    def __post_init__(self):
        super().__post_init__()
        for key in self.COUNTS:
            require_count(key, getattr(self, key))
        if self.total_updates is not None:
            require_count("total_updates", self.total_updates)
        require_range("reward_centering", self.reward_centering, 0.0, 1.0)
        for key, (low, high) in self.traced().items():
            if getattr(self, key) is not None or key not in self.OPTIONAL:
                require_range(key, getattr(self, key), low, high)
        for key in self.annealed():
            require_choice(f"{key}_schedule", getattr(self, f"{key}_schedule"), SCHEDULES)
        require_choice("normalize_advantage", self.normalize_advantage, self.ADVANTAGES)

    def traced(self) -> dict[str, tuple[float, float]]:
        """Names and bounds of the numbers that these settings put into the learner's state."""
        return self.TRACED

    def annealed(self) -> tuple[str, ...]:
        """Names of the traced numbers that have a schedule."""
        return self.ANNEALED

    def adjustable(self) -> tuple[str, ...]:
        """Names of the settings that live in the learner's state; a run may continue with other ones."""
        return (*self.traced(), "total_updates")

    def networks(self, observation: ObservationSpec, action: ActionSpec) -> Policy:
        """The policy for these observations, flat."""
        return make_actor_critic(self, observation, action)

    def method(self, policy: Policy) -> "Method":
        """How this learner learns with these networks."""
        raise NotImplementedError

    def rows(self, samples: int) -> int:
        """Samples that go through the networks at once, of rollouts with so many agents side by side."""
        return samples * self.horizon

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        blocks: Sequence[Block] = (),
        samples: int | None = None,
        updates: int | None = None,
        **run,
    ) -> Agent:
        """Builds the agent as a bundle of pure functions.

        Args:
          observation_shape: shape of one observation; it is flattened for the networks.
          action: the action space.
          blocks: of the flattened observation, for encoders.
          samples: agents side by side, E * A; needed only to normalise or centre rewards.
          updates: length of the run, for schedules without a length of their own.
          run: what else is known of the run; not needed here.

        Raises:
          ValueError: for settings that do not fit together.
        """
        del run
        observation = ObservationSpec(observation_shape, tuple(blocks))
        policy = self.networks(observation, action)
        return make_agent(self, policy, self.method(policy), observation, samples, updates)


@struct.dataclass
class OnPolicyState:
    """Everything a learner of rollouts learns and remembers.

    Attributes:
      params: parameters of the networks.
      optimizer: state of the optimiser.
      observations: statistics of the observations, or None.
      rewards: scale of the rewards, or None.
      hyper: traced hyper-parameters by name.
      updates: int32 scalar, updates done.
      centre: `[E * A]` running means of the rewards, or None.
      teacher: state of the policy that is imitated, or None.
    """

    params: PyTree
    optimizer: PyTree
    observations: Statistics
    rewards: RewardScale | None
    hyper: Hyper
    updates: jax.Array
    centre: jax.Array | None = None
    teacher: PyTree = None


class Batch(NamedTuple):
    """Samples to learn from, leading axes `[N]`; rows that are not alive hold zeros."""

    obs: jax.Array | Entities
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    alive: jax.Array
    mask: jax.Array | None


def make_agent(
    config: OnPolicyConfig,
    policy: Policy,
    method: "Method",
    observation: ObservationSpec,
    samples: int | None,
    updates: int | None,
) -> Agent:
    """Puts networks and a method together; see `OnPolicyConfig.make`."""
    for key in ("normalize_reward", "reward_centering"):
        if getattr(config, key) and samples is None:
            raise ValueError(
                f"{key}={getattr(config, key)}: needs samples, the number of agents side by side"
            )
    total_updates = config.total_updates or updates
    schedules = [getattr(config, f"{key}_schedule") for key in config.annealed()]
    if total_updates is None and set(schedules) != {"constant"}:
        raise ValueError("total_updates=None: must be given with a schedule that is not constant")

    def hyper():
        values = {key: math.inf if (x := getattr(config, key)) is None else x for key in config.traced()}
        values["total_updates"] = total_updates or 1
        return {key: jnp.asarray(x, jnp.float32) for key, x in values.items()}

    def init(key):
        params = policy.init(key)
        statistics = init_statistics(observation.size, blocks_apart(config.encoder, observation.blocks))
        return OnPolicyState(
            params=params,
            optimizer=method.init(params),
            observations=statistics if config.normalize_observation else None,
            rewards=init_reward_scale(samples) if config.normalize_reward else None,
            hyper=hyper(),
            updates=jnp.zeros((), jnp.int32),
            centre=jnp.zeros(samples) if config.reward_centering else None,
        )

    def evaluate(state, obs, carry, reset, mask):
        seen = observe(state.observations, flatten(obs, observation.shape))
        return policy.step(acting_params(method, state), seen, carry, reset, mask)

    def act(state, key, obs, carry, reset, mask):
        carry, distribution, value = evaluate(state, obs, carry, reset, mask)
        action = distribution.sample(key)
        return action, carry, {"log_prob": distribution.log_prob(action), "value": value}

    def update(state, key, rollout):
        flat = rollout.replace(obs=flatten(rollout.obs, observation.shape))
        return learn_from(config, method, state, key, flat)

    def greedy(state, obs, carry, reset, mask):
        carry, distribution, _ = evaluate(state, obs, carry, reset, mask)
        return distribution.mode(), carry

    def teach(state, flat, carry, reset, mask):
        seen = observe(state.observations, flat)
        return policy.sequence(acting_params(method, state), seen, carry, reset, mask)

    return Agent(
        init=init,
        initial_carry=policy.initial_carry,
        act=act,
        greedy=greedy,
        value=lambda state, obs, carry, reset, mask: evaluate(state, obs, carry, reset, mask)[2],
        update=update,
        policy_state=lambda state: state.replace(
            params=acting_params(method, state), optimizer=None, rewards=None, centre=None
        ),
        teach=teach,
        rows=None if samples is None else config.rows(samples),
        hyper=hyper,
    )


def acting_params(method: "Method", state: OnPolicyState) -> PyTree:
    """The parameters to act with; those of a state without its optimiser are these already."""
    return state.params if state.optimizer is None else method.acting(state.optimizer, state.params)


def learn_from(
    config: OnPolicyConfig, method: "Method", state: OnPolicyState, key: jax.Array, rollout: Rollout
) -> tuple[OnPolicyState, Metrics]:
    """Learns from one rollout with flat observations; returns `(state, metrics)`.

    The statistics of observations are updated last, so that rollout and learning see the same
    normalisation and the first gradient is that of the policy which acted.
    """
    hyper = annealed(config, state.hyper, state.updates)
    if state.centre is not None:
        centre, reward = centre_rewards(state.centre, rollout.reward, rollout.alive, config.reward_centering)
        state, rollout = state.replace(centre=centre), rollout.replace(reward=reward)
    if state.rewards is not None:
        rewards = update_reward_scale(
            state.rewards, rollout.reward, rollout.boundary, rollout.alive, hyper["gamma"]
        )
        state = state.replace(rewards=rewards)
    batch = method.prepare(config, state, rollout, hyper)
    params, optimizer, metrics = method.learn(state, key, batch, hyper)
    observations = merge_statistics(state.observations, rollout.obs, rollout.alive)
    metrics["explained_variance"] = explained_variance(batch.value, batch.target, batch.alive)
    # Losses are those of the parameters before the last step: what that step broke shows here alone.
    metrics["parameter_norm"] = global_norm(params)
    metrics |= {name: hyper[name] for name in config.annealed()}
    state = state.replace(
        params=params, optimizer=optimizer, observations=observations, updates=state.updates + 1
    )
    return state, metrics


def annealed(config: OnPolicyConfig, hyper: Hyper, updates: jax.Array) -> Hyper:
    """The hyper-parameters of this update: those with a schedule at their current value."""
    progress = updates / hyper["total_updates"]
    current = {
        key: anneal(getattr(config, f"{key}_schedule"), hyper[key], hyper[f"{key}_end"], progress)
        for key in config.annealed()
    }
    return hyper | current


def prepare(config: OnPolicyConfig, state: OnPolicyState, rollout: Rollout, hyper: Hyper) -> Batch:
    """Advantages, targets and normalised observations of a rollout, flattened to `[T * E * A]`.

    Everything that is not alive is replaced here, before any arithmetic of the losses.
    """
    alive = rollout.alive
    advantage, target = gae(
        learning_rewards(state, rollout, hyper),
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

    clean = partial(keep, alive)
    batch = Batch(
        obs=jax.tree.map(clean, observe(state.observations, rollout.obs)),
        action=clean(rollout.action),
        log_prob=clean(rollout.log_prob),
        value=clean(rollout.value),
        advantage=clean(advantage),
        target=clean(target),
        alive=alive,
        mask=None if rollout.mask is None else clean(rollout.mask, True),
    )
    return jax.tree.map(lambda x: x.reshape((alive.size,) + x.shape[alive.ndim :]), batch)


def learning_rewards(state: OnPolicyState, rollout: Rollout, hyper: Hyper) -> jax.Array:
    """Rewards `[T, E, A]` in the units of the values."""
    reward = rollout.reward if state.rewards is None else scale_reward(state.rewards, rollout.reward)
    return jnp.clip(reward * hyper["reward_scale"], -hyper["reward_clamp"], hyper["reward_clamp"])


def keep(alive: jax.Array, x: jax.Array, fill: float = 0) -> jax.Array:
    """`x` `[*alive.shape, ...]` where `alive`, and `fill` elsewhere."""
    return jnp.where(alive.reshape(alive.shape + (1,) * (x.ndim - alive.ndim)), x, jnp.asarray(fill, x.dtype))


class Method(NamedTuple):
    """What sets one learner of rollouts apart from another.

    Attributes:
      init: `(params) -> optimizer`, its state before the first step.
      learn: `(state, key, batch, hyper) -> (params, optimizer, metrics)`, all that a rollout teaches.
      prepare: `(config, state, rollout, hyper) -> batch` from a rollout with flat observations; the batch
        has at least `value`, `target` and `alive`.
      acting: `(optimizer, params) -> params` to act with.
    """

    init: Callable
    learn: Callable
    prepare: Callable = prepare
    acting: Callable = lambda optimizer, params: params


def total_loss(
    policy_loss: jax.Array, value_loss: jax.Array, distribution: Any, alive: jax.Array, hyper: Hyper
) -> tuple[jax.Array, Metrics]:
    """Policy loss, weighted value loss and entropy bonus, averaged over the alive samples.

    Args:
      policy_loss, value_loss: `[N]`.
      distribution: of the actions, `[N]`.
      alive: `[N]` bool.
      hyper: `value_coefficient`, `entropy_coefficient`.

    Returns:
      the loss and unreduced `[N]` quantities for metrics.
    """
    samples = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": distribution.entropy()}
    if (std := distribution.std) is not None:
        samples["action_std"] = jnp.broadcast_to(std.mean(-1), policy_loss.shape)
    total = policy_loss + hyper["value_coefficient"] * value_loss
    return masked_mean(total - hyper["entropy_coefficient"] * samples["entropy"], alive), samples
