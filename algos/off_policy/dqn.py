"""Deep Q-learning (Mnih et al. 2015), double, dueling and with n-step returns; shared by learners of teams.

See docs/reference/trainer.md 10.6.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from algos.nets.action_values import (
    ActionValues,
    ValueLayer,
    anneal_epsilon,
    draw_legal,
    make_action_values,
)
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
from algos.off_policy.replay.rings import RowLayout, Sample
from algos.types import ActionSpec, Context, Metrics, ObservationSpec, PyTree, Transition


@dataclass(frozen=True)
class ActionValueSettings(ReplayLearner):
    """Settings of learners of action values with a replay, in addition to those of `OffPolicySettings`.

    Attributes:
      layer_norm: normalisation of the hidden layers.
      dueling: a state's value and advantages as separate outputs.
      double: the online network chooses the actions of targets, which the target network values.
      target_period: gradient steps between updates of the target network; with `tau` 1 each is a copy.
      epsilon, epsilon_end: probability of a random legal action, initially and after `epsilon_transitions`.
      epsilon_transitions: transitions over which the probability falls linearly, the warm-up included.
      max_grad_norm: bound on the gradient norm; None for no clipping.
    """

    ACTIONS: ClassVar[str] = "discrete"
    privileged_critics: ClassVar[bool] = True
    TRACED: ClassVar[dict[str, tuple[float, float]]] = ReplayLearner.TRACED | {
        "epsilon": (0.0, 1.0),
        "epsilon_end": (0.0, 1.0),
        "max_grad_norm": (1e-6, math.inf),
    }
    OPTIONAL: ClassVar[tuple[str, ...]] = (*ReplayLearner.OPTIONAL, "max_grad_norm")
    COUNTS: ClassVar[tuple[str, ...]] = (*ReplayLearner.COUNTS, "target_period", "epsilon_transitions")

    layer_norm: bool = False
    dueling: bool = False
    double: bool = True
    target_period: int = 1
    epsilon: float = 1.0
    epsilon_end: float = 0.05
    epsilon_transitions: int = 10_000
    max_grad_norm: float | None = 10.0

    def layout(self, action: ActionSpec, critic_shape: tuple[int, ...] | None, team: int) -> RowLayout:
        """Returns the layout with the legal actions of the next observation."""
        del critic_shape, team
        return RowLayout(next_context=Context(mask=jax.ShapeDtypeStruct((action.mask_size,), bool)))


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
    )

    def init(key):
        key_network, key_mixer = jax.random.split(key)
        return {"critic": {"agent": network.init(key_network), "mixer": init_mixer(key_mixer)}}

    def values(params: PyTree, obs, mask=None) -> ActionValues:
        return network.apply(params["agent"], see(obs), mask)[0]

    def explore(state, key, obs, mask):
        return values(state.params["critic"], obs, mask).explore(key, current_epsilon(state))

    def predict(params, batch: Sample):
        chosen = values(params, batch.obs).of(batch.action)
        return mix(params["mixer"], chosen, batch.obs, batch.context)[None, :, None]

    def target(state, key, batch: Sample):
        del key
        slow, mask = state.targets["critic"], batch.next_context.mask
        following = values(slow, batch.next_obs, mask)
        judge = values(state.params["critic"], batch.next_obs, mask) if config.double else following
        best = mix(slow["mixer"], following.of(judge.mode()), batch.next_obs, batch.next_context)
        return bellman_target(batch, best[:, None])[:, 0]

    return OffPolicyMethod(
        init=init,
        hyper={},
        targets=("critic",),
        explore=explore,
        greedy=lambda state, obs, mask: values(state.params["critic"], obs, mask).mode(),
        target=target,
        predict=predict,
        critic_loss=squared_loss,
        improve=follow_values,
        warm_up=lambda key, explored, mask: draw_legal(key, explored.shape[:-1], action.sizes, mask),
        acting=keep_agent,
    )


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
