"""Parallelised Q-network (Gallici et al. 2024): Q(lambda) on rollouts, without replay or target network.

See docs/reference/trainer.md 10.7.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_choice, require_minibatches
from algos.defaults import FROM_FILE, take_defaults_from
from algos.nets.action_values import ActionValues, ValueLayer, anneal_epsilon, make_action_values
from algos.nets.actor_critic import PolicyFunctions, with_observation_decoder
from algos.nets.cores import CoreConfig
from algos.nets.normalize import masked_mean_or_zero
from algos.nets.observations import Entities, compress_observations
from algos.on_policy.agent import OnPolicyMethod, RolloutLearner
from algos.on_policy.minibatches import sum_alive
from algos.on_policy.returns import gae_of_rollout
from algos.on_policy.sample_epochs import keep_where, learning_rewards, run_epochs
from algos.on_policy.settings import OnPolicyState
from algos.optim.optimizers import VALUE_OPTIMIZERS, Optimizer, make_optimizer
from algos.types import ActionSpec, Agent, Asymmetric, Hyper, Metrics, ObservationSpec, PyTree, Rollout


@take_defaults_from("algo/pqn")
@dataclass(frozen=True)
class PQNConfig(RolloutLearner):
    """Settings of PQN, in addition to those of `RolloutSettings`; `gae_lambda` is the decay of the returns.

    Attributes:
      layer_norm: normalisation of the hidden layers, which replaces the target network.
      dueling: a state's value and advantages as separate outputs.
      core: recurrent core between the hidden layers and the values; a mapping is accepted. With one, rows of
        `horizon` decisions are learnt from whole.
      epochs: passes over a rollout.
      num_minibatches: minibatches per pass; must divide T * E * A, or E * A with a recurrent core (of teams
        T * E, or E).
      optimizer: one of `algos.optim.optimizers.VALUE_OPTIMIZERS`.
      epsilon, epsilon_end: probability of a random legal action, initially and after `exploration_fraction`.
      exploration_fraction: part of `total_updates` over which the probability falls linearly.
    """

    NAME: ClassVar[str] = "pqn"
    ACTIONS: ClassVar[str | None] = "discrete"
    uses_advantages: ClassVar[bool] = False
    TRACED: ClassVar[dict[str, tuple[float, float]]] = RolloutLearner.TRACED | {
        "epsilon": (0.0, 1.0),
        "epsilon_end": (0.0, 1.0),
        "exploration_fraction": (1e-6, 1.0),
    }
    COUNTS: ClassVar[tuple[str, ...]] = (*RolloutLearner.COUNTS, "epochs", "num_minibatches")

    layer_norm: bool = FROM_FILE
    dueling: bool = FROM_FILE
    core: CoreConfig = FROM_FILE
    epochs: int = FROM_FILE
    num_minibatches: int = FROM_FILE
    optimizer: str = FROM_FILE
    epsilon: float = FROM_FILE
    epsilon_end: float = FROM_FILE
    exploration_fraction: float = FROM_FILE

    def __post_init__(self):
        require_choice("optimizer", self.optimizer, VALUE_OPTIMIZERS)
        if isinstance(self.core, Mapping):
            object.__setattr__(self, "core", CoreConfig(**self.core))
        super().__post_init__()

    @property
    def accumulation(self) -> int:
        """One minibatch per gradient step; see `EpochSettings`."""
        return 1

    @property
    def separate_clipping(self) -> bool:
        """False: there is no actor; see `EpochSettings`."""
        return False

    @property
    def kl_stop(self) -> None:
        """None: there is no policy whose divergence could stop an update; see `EpochSettings`."""
        return

    @property
    def recurrent(self) -> bool:
        """Whether there is a recurrent core."""
        return self.core.kind != "none"

    def require_total_updates(self, total_updates: int | None) -> None:
        """Checks that the length of the run is known, over which exploration falls."""
        if total_updates is None:
            raise ValueError("total_updates=None: must be given with algo=pqn, whose exploration falls")

    def networks(self, observation: ObservationSpec, action: ActionSpec) -> PolicyFunctions:
        """Builds the network of action values."""
        self.require_task(action)
        head = ValueLayer(action.sizes, self.dueling)
        layers = self.layers(observation, self.layer_norm)
        return make_action_values(head, self.widths, layers, observation.size, self.core)

    def method(self, policy: PolicyFunctions, **run) -> OnPolicyMethod:
        """Returns epochs of minibatches on the squared errors of the taken actions' values."""
        del run
        optimizer = make_optimizer(self.optimizer)
        return OnPolicyMethod(
            optimizer.init,
            partial(learn_values, self, policy, optimizer),
            value_targets,
            decide=explore_values,
        )

    def rows(self, samples: int) -> int:
        """Samples of a minibatch; see `RolloutSettings.rows`."""
        return samples * self.horizon // self.num_minibatches

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        critic_shape: tuple[int, ...] | None = None,
        samples: int | None = None,
        team: int = 1,
        shards: int = 1,
        **run,
    ) -> Agent:
        """Builds the agent; see `RolloutLearner.make`. Critics' own observations are not used."""
        del critic_shape
        if samples is not None:
            who = "teams" if self.teams else "agents"
            sizes = "horizon * environments" if self.teams else "horizon * environments * agents"
            unit = who if self.recurrent else f"samples of a rollout ({sizes})"
            each = "" if shards == 1 else f" on each of {shards} shards"
            rows = samples // (shards * team) * (1 if self.recurrent else self.horizon)
            require_minibatches(self.num_minibatches, rows, unit + each)
        agent = super().make(observation_shape, action, samples=samples, team=team, shards=shards, **run)
        # Values are no distribution that another learner could imitate.
        return agent._replace(teach=None, explores=True)


class ValueBatch(NamedTuple):
    """Rows to learn from: samples `[N, ...]`, or segments `[S, T, ...]` with a recurrent core.

    Of learners of teams, a row is one of a team: `obs`, `action`, `reset`, `carry` and `acts` have an axis of
    agents `[N, A, ...]`, the others have none.

    Attributes:
      obs: observations in the form of `algos.nets.observations.compress_observations`.
      action: actions taken.
      value: value of the best action, as estimated in the rollout.
      target: returns.
      alive: bool; the agent acted, or is out and its story goes on. Other rows hold zeros.
      reset: bool, as in `Rollout`.
      carry: recurrent state before each segment, `[S, ...]`; `()` without a core.
      idle: bool per row, of agents that were never `alive` in the rollout.
      acts: bool, agents of a team whose values are added; None for learners of single agents.
    """

    obs: jax.Array | Entities | Asymmetric
    action: jax.Array
    value: jax.Array
    target: jax.Array
    alive: jax.Array
    reset: jax.Array
    carry: PyTree
    idle: jax.Array
    acts: jax.Array | None = None


def rollout_epsilon(state: OnPolicyState) -> jax.Array:
    """Probability of a random action in the rollout after `state.updates` updates."""
    hyper = state.hyper
    progress = state.updates / (hyper["exploration_fraction"] * hyper["total_updates"])
    return anneal_epsilon(hyper, progress)


def explore_values(
    state: OnPolicyState, key: jax.Array, values: ActionValues, value: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Acts epsilon-greedily; records the value of the best action."""
    return values.explore(key, rollout_epsilon(state)), {"value": value}


def value_targets(config: PQNConfig, state: OnPolicyState, rollout: Rollout, hyper: Hyper) -> ValueBatch:
    """Computes the returns of a rollout and arranges it in rows.

    With the value of the best action as the value of a state, the targets of `gae` are the returns
    `R_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda R_{t+1})` (Gallici et al. 2024, section 4).
    """
    # Whatever an agent that is out would do has the same value, from which its last decision bootstraps.
    learnt = rollout.has_value_target
    reward = learning_rewards(state, rollout, hyper)
    _, target = gae_of_rollout(rollout, reward, hyper["gamma"], hyper["gae_lambda"])
    clean = partial(keep_where, learnt)
    steps = ValueBatch(
        obs=compress_observations(state.observations, rollout.obs),
        action=clean(rollout.action),
        value=clean(rollout.extras["value"]),
        target=clean(target),
        alive=learnt,
        reset=rollout.reset,
        carry=(),
        idle=jnp.broadcast_to(~learnt.any(0), learnt.shape),
    )
    return arrange_rows(config, steps, rollout.carry)


def arrange_rows(config: PQNConfig, steps: ValueBatch, carry: PyTree) -> ValueBatch:
    """Arranges the decisions `[T, E, ...]` of a rollout in rows.

    Args:
      config: the settings.
      steps: the decisions; targets `[T, E, A]`, or `[T, E]` of teams.
      carry: recurrent state `[1, E, A, ...]` before the rollout; `()` without a core.
    """
    length, axes = len(steps.target), steps.target.ndim
    if not config.recurrent:
        return jax.tree.map(lambda x: x.reshape((steps.target.size,) + x.shape[axes:]), steps)
    rows = jax.tree.map(lambda x: jnp.moveaxis(x.reshape((length, -1) + x.shape[axes:]), 0, 1), steps)
    # The carry of an agent that is dead at the start may be non-finite.
    carry = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0.0).reshape((-1,) + x.shape[axes:]), carry)
    return rows._replace(carry=carry, idle=rows.idle[:, 0])


def learn_values(
    config: PQNConfig,
    policy: PolicyFunctions,
    optimizer: Optimizer,
    state: OnPolicyState,
    key: jax.Array,
    batch: ValueBatch,
    hyper: Hyper,
) -> tuple[PyTree, PyTree, Metrics]:
    """Runs all epochs over shuffled rows; returns `(params, optimizer, metrics)`."""
    policy = with_observation_decoder(policy, state.observations)

    def gradient(params, memory, rows):
        minibatch = jax.tree.map(lambda x: x[rows], batch)
        if config.recurrent:
            inside = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), minibatch._replace(carry=(), idle=()))
            minibatch = inside._replace(carry=minibatch.carry)
        grads, samples = jax.grad(action_value_loss, argnums=1, has_aux=True)(policy, params, minibatch)
        return grads, *sum_alive(samples, minibatch.alive), memory

    params, optimizer_state, metrics = run_epochs(
        config, optimizer, state, key, batch.idle, gradient, lambda rows: rows, hyper
    )
    return params, optimizer_state, metrics | {"epsilon": rollout_epsilon(state)}


def action_value_loss(
    policy: PolicyFunctions, params: PyTree, batch: ValueBatch
) -> tuple[jax.Array, Metrics]:
    """Half the squared errors of the taken actions' values, or of their sums over a team, averaged over rows.

    Args:
      policy: the network.
      params: its parameters.
      batch: samples `[N]`, or segments `[T, S]` with a recurrent core.

    Returns:
      the loss and unreduced quantities for metrics.
    """
    values, _ = policy.sequence(params, batch.obs, batch.carry, batch.reset, None)
    value = values.of(batch.action)
    if batch.acts is not None:
        value = jnp.where(batch.acts, value, 0.0).sum(-1)
    error = value - batch.target
    samples = {"value_loss": 0.5 * jnp.square(error), "td_error": jnp.abs(error), "value": value}
    return masked_mean_or_zero(samples["value_loss"], batch.alive), samples
