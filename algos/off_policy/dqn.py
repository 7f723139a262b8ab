"""Deep Q-learning (Mnih et al. 2015), double, dueling and with n-step returns; shared by learners of teams.

See docs/reference/trainer.md 10.6.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp

from algos import collectives
from algos.checks import require_choice
from algos.defaults import FROM_FILE, take_defaults_from
from algos.nets.action_values import (
    ActionValues,
    ValueLayer,
    anneal_epsilon,
    draw_legal,
    make_action_values,
)
from algos.nets.actor_critic import PolicyFunctions
from algos.nets.cores import CoreConfig
from algos.off_policy.agent import ReplayLearner
from algos.off_policy.learning import (
    OffPolicyMethod,
    OffPolicyState,
    bellman_target,
    flatten_transition,
    squared_loss,
    update_targets,
)
from algos.off_policy.networks import make_layers
from algos.off_policy.replay.rings import ReplayRowLayout, Sample
from algos.optim.optimizers import VALUE_OPTIMIZERS, make_optimizer
from algos.types import ActionSpec, Context, Metrics, ObservationSpec, PyTree, Transition


@dataclass(frozen=True)
class ActionValueSettings(ReplayLearner):
    """Settings of learners of action values with a replay, in addition to those of `OffPolicySettings`.

    Attributes:
      layer_norm: normalisation of the hidden layers.
      dueling: a state's value and advantages as separate outputs.
      double: the online network chooses the actions of targets, which the target network values.
      core: recurrent core between the hidden layers and the values; a mapping is accepted. With one, samples
        are sequences of `replay.sequence` decisions, which are run from an empty memory (Hausknecht and
        Stone 2015).
      target_period: gradient steps between updates of the target network; with `tau` 1 each is a copy.
      epsilon, epsilon_end: probability of a random legal action, initially and after `epsilon_transitions`.
      epsilon_transitions: transitions over which the probability falls linearly, the warm-up included.
      learning_rate_end: learning rate after `learning_rate_transitions`; None for a constant one.
      learning_rate_transitions: transitions over which the learning rate changes linearly, the warm-up
        included.
      max_grad_norm: bound on the gradient norm; None for no clipping.
      optimizer: one of `algos.optim.optimizers.VALUE_OPTIMIZERS`.
    """

    ACTIONS: ClassVar[str | None] = "discrete"
    privileged_critics: ClassVar[bool] = True
    TRACED: ClassVar[dict[str, tuple[float, float]]] = ReplayLearner.TRACED | {
        "epsilon": (0.0, 1.0),
        "epsilon_end": (0.0, 1.0),
        "learning_rate_end": (0.0, 1.0),
        "max_grad_norm": (1e-6, math.inf),
    }
    OPTIONAL: ClassVar[tuple[str, ...]] = (*ReplayLearner.OPTIONAL, "learning_rate_end", "max_grad_norm")
    COUNTS: ClassVar[tuple[str, ...]] = (
        *ReplayLearner.COUNTS,
        "target_period",
        "epsilon_transitions",
        "learning_rate_transitions",
    )

    layer_norm: bool = FROM_FILE
    dueling: bool = FROM_FILE
    double: bool = FROM_FILE
    core: CoreConfig = FROM_FILE
    target_period: int = FROM_FILE
    epsilon: float = FROM_FILE
    epsilon_end: float = FROM_FILE
    epsilon_transitions: int = FROM_FILE
    learning_rate_end: float | None = FROM_FILE
    learning_rate_transitions: int = FROM_FILE
    max_grad_norm: float | None = FROM_FILE
    optimizer: str = FROM_FILE

    def __post_init__(self):
        require_choice("optimizer", self.optimizer, VALUE_OPTIMIZERS)
        if isinstance(self.core, Mapping):
            object.__setattr__(self, "core", CoreConfig(**self.core))
        super().__post_init__()
        if self.remembers and self.replay.sequence == 1:
            raise ValueError(f"replay.sequence=1: must be above 1 with core.kind={self.core.kind}")

    @property
    def remembers(self) -> bool:
        """Whether there is a recurrent core."""
        return self.core.kind != "none"

    def layout(self, action: ActionSpec, critic_shape: tuple[int, ...] | None, team: int) -> ReplayRowLayout:
        """Returns the layout with the legal actions of the next observation."""
        del critic_shape, team
        return ReplayRowLayout(next_context=Context(mask=jax.ShapeDtypeStruct((action.mask_size,), bool)))


@take_defaults_from("algo/dqn")
@dataclass(frozen=True)
class DQNConfig(ActionValueSettings):
    """Settings of deep Q-learning; agents learn independently of each other, with shared parameters."""

    NAME: ClassVar[str] = "dqn"

    def method(self, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
        """Returns the method that regresses the value of each agent's own action."""
        return make_value_method(self, observation, action)._replace(rows=rows_with_masks(action))


def rows_with_masks(action: ActionSpec) -> Callable:
    """Builds `OffPolicyMethod.rows` of single agents with the legal actions of their next observations."""

    def rows(transition: Transition, observation: ObservationSpec) -> Transition:
        mask = next_mask(transition, action).reshape((-1, action.mask_size))
        return flatten_transition(transition, observation).replace(next_context=Context(mask=mask))

    return rows


def next_mask(transition: Transition, action: ActionSpec) -> jax.Array:
    """Legal actions `[E, A, n]` of the next observations."""
    known = transition.next_context
    if known is None or known.mask is None:
        return jnp.ones((*transition.alive.shape, action.mask_size), bool)
    return known.mask


def make_value_method(
    config: ActionValueSettings,
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    see: Callable = lambda obs: obs,
    features: int | None = None,
    mix: Callable = lambda _params, chosen, _obs, _context: chosen,
    init_mixer: Callable = lambda _key: {},
) -> OffPolicyMethod:
    """Builds the network and losses of learners of action values.

    Args:
      config: the settings.
      observation: shape and blocks of observations.
      action: the action space.
      see: `(obs) -> inputs` of the network from normalised observations `[..., F]`.
      features: size of these inputs; None for that of observations.
      mix: `(params, chosen, obs, context) -> [B]`, the value that is regressed from the values `chosen` of a
        row's actions, `[B]`, or `[B, A]` for rows of A agents.
      init_mixer: `(key) -> params` of `mix`.
    """
    network = make_action_values(
        ValueLayer(action.sizes, config.dueling),
        config.widths,
        make_layers(config, observation, config.layer_norm),
        observation.size if features is None else features,
        config.core,
    )

    def init(key):
        key_network, key_mixer = jax.random.split(key)
        return {"critic": {"agent": network.init(key_network), "mixer": init_mixer(key_mixer)}}

    parts = ValueParts(network, see, mix, config.double)
    return OffPolicyMethod(
        init=init,
        hyper={},
        targets=("critic",),
        explore=partial(explore_by_values, parts),
        greedy=partial(choose_best_action, parts),
        target=partial(mixed_target, parts),
        predict=partial(predict_mixture, parts),
        critic_loss=sequence_loss if config.remembers else squared_loss,
        improve=follow_values,
        warm_up=lambda key, explored, mask: draw_legal(key, explored.shape[:-1], action.sizes, mask),
        acting=keep_agent,
        initial_carry=network.initial_carry,
        explores=True,
        optimizer=make_optimizer(config.optimizer),
        regress=partial(regress_sequences, parts) if config.remembers else None,
    )


class ValueParts(NamedTuple):
    """Network and losses of learners of action values; see `make_value_method`.

    Attributes:
      network: whose distribution is `ActionValues`.
      see, mix: as for `make_value_method`.
      double: whether the online network chooses the actions of targets.
    """

    network: PolicyFunctions
    see: Callable
    mix: Callable
    double: bool

    def act(self, state: OffPolicyState, obs, carry, reset, mask) -> tuple[ActionValues, PyTree]:
        """Returns the values of all actions for one decision, and the carry after it."""
        params = state.params["critic"]["agent"]
        carry, values, _ = self.network.step(params, self.see(obs), carry, reset, mask)
        return values, carry

    def now(self, params: PyTree, batch: Sample) -> ActionValues:
        """Returns the values of all actions in the observations that a batch acted on."""
        if batch.inside is None:
            return self.network.apply(params["agent"], self.see(batch.obs), None)[0]
        values = self.every(params, batch)
        return values.replace(values=values.values[:, :-1])

    def later(self, params: PyTree, batch: Sample) -> ActionValues:
        """Returns the values of all actions in the next observations of a batch, with the legal ones."""
        mask = batch.next_context.mask
        if batch.inside is None:
            return self.network.apply(params["agent"], self.see(batch.next_obs), mask)[0]
        values = self.every(params, batch)
        return values.replace(values=values.values[:, 1:], mask=mask)

    def of_actions(self, params: PyTree, values: ActionValues, batch: Sample) -> jax.Array:
        """Mixture `[1, B, 1]` of the values of the actions of a batch, or `[1, B, L, 1]` of sequences."""
        chosen = values.of(batch.action)
        return self.mix(params["mixer"], chosen, batch.obs, batch.context)[None, ..., None]

    def every(self, params: PyTree, batch: Sample) -> ActionValues:
        """Returns the values of all actions in the L + 1 observations of sequences, `[B, L + 1, ...]`."""
        obs = jax.tree.map(lambda x, y: jnp.concatenate([x[:, :1], y], 1), batch.obs, batch.next_obs)
        reset = batch.reset
        if reset is None:
            rows, length, *agents = batch.action.shape[:-1]
            reset = jnp.zeros((rows, length + 1, *agents), bool)
        return run_sequences(self.network, params["agent"], self.see(obs), reset)


class SequenceTarget(NamedTuple):
    """Targets `[B, L]` of sequences, of which the steps that are not inside are not learnt from.

    `length` is the mean number of steps inside, over the batches of all shards.
    """

    value: jax.Array
    inside: jax.Array
    length: jax.Array


def explore_by_values(
    parts: ValueParts, state: OffPolicyState, key: jax.Array, obs, carry, reset, mask
) -> tuple[jax.Array, PyTree]:
    """Draws epsilon-greedy actions; see `OffPolicyMethod.explore`."""
    values, carry = parts.act(state, obs, carry, reset, mask)
    return values.explore(key, current_epsilon(state)), carry


def choose_best_action(
    parts: ValueParts, state: OffPolicyState, obs, carry, reset, mask
) -> tuple[jax.Array, PyTree]:
    """Chooses the best actions; see `OffPolicyMethod.greedy`."""
    values, carry = parts.act(state, obs, carry, reset, mask)
    return values.mode(), carry


def predict_mixture(parts: ValueParts, params: PyTree, batch: Sample) -> jax.Array:
    """Mixture `[1, B, 1]` of the values of the actions of a batch, or `[1, B, L, 1]` of sequences."""
    return parts.of_actions(params, parts.now(params, batch), batch)


def mixed_target(
    parts: ValueParts,
    state: OffPolicyState,
    key: jax.Array,
    batch: Sample,
    online: ActionValues | None = None,
) -> jax.Array | SequenceTarget:
    """Targets `[B]`: reward plus discounted mixture of the target network's values of the best actions.

    `online` are the values of the next observations by the online network, where they are known.
    """
    del key
    slow = state.targets["critic"]
    judge = values = parts.later(slow, batch)
    if parts.double:
        judge = parts.later(state.params["critic"], batch) if online is None else online
    best = parts.mix(slow["mixer"], values.of(judge.mode()), batch.next_obs, batch.next_context)
    found = bellman_target(batch, best[..., None])[..., 0]
    if batch.inside is None:
        return found
    return SequenceTarget(found, batch.inside, collectives.mean_over_shards(batch.inside.sum(-1).mean()))


def regress_sequences(
    parts: ValueParts, params: PyTree, state: OffPolicyState, key: jax.Array, batch: Sample
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes losses and errors `[B]` of sequences, and estimates, by one run of the online network.

    Double targets choose actions by the values of the same run; see `OffPolicyMethod.regress`.
    """
    seen = parts.every(params, batch)
    prediction = parts.of_actions(params, seen.replace(values=seen.values[:, :-1]), batch)
    later = seen.replace(values=seen.values[:, 1:], mask=batch.next_context.mask)
    target = cast(SequenceTarget, jax.lax.stop_gradient(mixed_target(parts, state, key, batch, later)))
    return *sequence_loss(prediction, target), prediction


def run_sequences(network: PolicyFunctions, params: PyTree, obs: PyTree, reset: jax.Array) -> ActionValues:
    """Values `[B, L, ...]` of observations `[B, L, ...]`, from an empty memory.

    Where `reset` is set, bool `[B, L]` or `[B, L, A]`, the memory is empty within the sequence too.
    """
    steps, reset = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (obs, reset))
    values, _ = network.sequence(params, steps, network.initial_carry(reset.shape[1:]), reset, None)
    return values.replace(values=jnp.moveaxis(values.values, 0, 1))


def sequence_loss(prediction: jax.Array, target: SequenceTarget) -> tuple[jax.Array, jax.Array]:
    """Half the squared errors of sequences `[1, B, L, 1]`, whose mean over B is that over the steps inside.

    With several shards, each with B sequences, this is the mean over all of theirs.

    Returns:
      the losses and the mean absolute errors of each sequence, `[B]`.
    """
    error = jnp.where(target.inside, prediction[0, ..., 0] - target.value, 0.0)
    steps = target.inside.sum(-1)
    loss = 0.5 * jnp.square(error).sum(-1) / jnp.maximum(target.length, 1.0)
    return loss, jnp.abs(error).sum(-1) / jnp.maximum(steps, 1)


def keep_agent(params: PyTree) -> PyTree:
    """Selects the parameters of the agents' network."""
    return {"critic": {"agent": params["critic"]["agent"]}}


def current_epsilon(state: OffPolicyState) -> jax.Array:
    """Probability of a random action."""
    return anneal_epsilon(state.hyper, state.seen / state.hyper["epsilon_transitions"])


def follow_values(state: OffPolicyState, key: jax.Array, batch: Sample) -> tuple[OffPolicyState, Metrics]:
    """Updates the target network after every `target_period` gradient steps."""
    del key, batch
    due = (state.updates + 1) % state.hyper["target_period"] == 0
    return update_targets(state, due), {"epsilon": current_epsilon(state)}
