"""Actors and critics of off-policy learners."""

import jax.numpy as jnp

from algos.nets.encoders import make_encoder
from algos.nets.networks import (
    PRECISIONS,
    Actor,
    Critic,
    Layers,
    NetworkFunctions,
    PolicyHead,
    make_critics,
    policy_bias,
)
from algos.off_policy.settings import ActorCriticSettings, OffPolicySettings
from algos.types import ActionSpec, ObservationSpec


def make_layers(config: OffPolicySettings, observation: ObservationSpec, layer_norm: bool = False) -> Layers:
    """Builds the configuration of the hidden layers of a learner's networks."""
    dtype = PRECISIONS[config.compute_dtype]
    encoder = make_encoder(config.encoder, observation.blocks, dtype)
    return Layers(config.activation, dtype, encoder, layer_norm)


def make_actor(
    config: ActorCriticSettings,
    observation: ObservationSpec,
    action: ActionSpec,
    log_std: float | None = None,
) -> NetworkFunctions:
    """Builds an actor from observations to `(mean, log_std)`, `[..., D]` each, before squashing.

    Args:
      config: the settings.
      observation: shape and blocks of observations.
      action: the action space.
      log_std: initial logarithm of the standard deviation; None for a deterministic actor, whose second
        output is None.

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    head = PolicyHead(
        size=action.dimensions,
        log_std=log_std,
        state_dependent_std=log_std is not None,
        mean_bias=policy_bias(config.initial_action, action, squash=True),
    )
    actor = Actor(head, config.widths, make_layers(config, observation))
    return NetworkFunctions(lambda key: actor.init(key, jnp.zeros((observation.size,))), actor.apply)


def make_ensemble(
    config: ActorCriticSettings,
    observation: ObservationSpec,
    action: ActionSpec,
    outputs: int = 1,
) -> NetworkFunctions:
    """Builds the ensemble of critics with this many outputs each; see `make_critics`."""
    widths = config.widths if config.critic_widths is None else config.critic_widths
    critic = Critic(widths, outputs, make_layers(config, observation))
    return make_critics(critic, config.n_critics, observation, action.dimensions)
