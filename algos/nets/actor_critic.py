"""Actor and critic of on-policy learners, feed-forward or recurrent, as pure functions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from algos.checks import require_choice, require_list, require_range, require_switches
from algos.defaults import FROM_FILE, take_defaults_from
from algos.nets.cores import Core, CoreConfig
from algos.nets.distributions import Gaussian, MultiCategorical, SquashedGaussian
from algos.nets.encoders import EncoderConfig, apply_encoder, make_encoder
from algos.nets.networks import (
    ACTIVATIONS,
    LOG_STD_RANGE,
    MLP,
    PRECISIONS,
    Layers,
    PolicyHead,
    ValueHead,
    policy_bias,
    require_reachable_action,
    require_widths,
)
from algos.nets.observations import Statistics, decompress_observations
from algos.types import ActionSpec, Asymmetric, ObservationSpec, PyTree, actor_observation

# First words of the names of the modules below that are the critic's, where it shares none with the actor.
_CRITIC = ("critic", "value")


def select_critic(params: PyTree) -> PyTree:
    """Returns a tree like the `params` of a network below, of bools: whether a parameter is the critic's own.

    Heads and separate trunks, encoders and memories; layers that both read count as the actor's.
    """
    # A path is the collection, the network's own module, and names within it, which may be any.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[1].key.startswith(_CRITIC), params)


class ActorCritic(nn.Module):
    """Policy and value of one observation.

    Attributes:
      policy: the policy head.
      policy_widths: hidden layers of the policy (of both, when shared).
      value_widths: hidden layers of the critic; unused when shared.
      shared: whether both heads read one trunk.
      layers: configuration of the hidden layers; each trunk has its own encoder, except that of a critic
        with privileged observations, which has none.
    """

    policy: PolicyHead
    policy_widths: tuple[int, ...]
    value_widths: tuple[int, ...]
    shared: bool = False
    layers: Layers = Layers()

    @nn.compact
    def __call__(self, obs: jax.Array | Asymmetric) -> tuple[tuple, jax.Array | None]:
        """Maps flat observations `[..., F]` to `((outputs, log_std), value)`."""
        seen = apply_encoder(self.layers.encoder, "actor_encoder", actor_observation(obs))
        actor = critic = MLP(self.policy_widths, self.layers, name="actor_trunk")(seen)
        if isinstance(obs, Asymmetric):
            return self.policy(actor), privileged_value(self.value_widths, self.layers, obs)
        if not self.shared:
            seen = apply_encoder(self.layers.encoder, "critic_encoder", obs)
            critic = MLP(self.value_widths, self.layers, name="critic_trunk")(seen)
        return self.policy(actor), ValueHead(name="value")(critic)


def privileged_value(widths: tuple[int, ...], layers: Layers, obs: Asymmetric) -> jax.Array | None:
    """Value of privileged critic observations, from a separate trunk; None without them. Call in a module."""
    if obs.critic is None:
        return None
    return ValueHead(name="value")(MLP(widths, layers, name="critic_trunk")(obs.critic))


class RecurrentActorCritic(nn.Module):
    """Policy and value of a history of observations: trunk, recurrent core, and both heads on the core.

    Attributes:
      policy: the policy head.
      widths: hidden layers of the trunk.
      value_widths: hidden layers of a critic with privileged observations, below its memory if it has one;
        else unused.
      core: settings of the core.
      layers: configuration of the hidden layers.
      head_widths: hidden layers between a memory and its head.
      critic_core: whether a critic with privileged observations has a core of its own; the carry is then the
        pair of both.
    """

    policy: PolicyHead
    widths: tuple[int, ...]
    value_widths: tuple[int, ...]
    core: CoreConfig
    layers: Layers = Layers()
    head_widths: tuple[int, ...] = ()
    critic_core: bool = False

    @nn.compact
    def __call__(self, carry: PyTree, obs: jax.Array | Asymmetric, reset: jax.Array, *, sequence: bool):
        """Maps flat observations to `(carry, (outputs, log_std), value)`.

        Args:
          carry: recurrent state, without the first axis of a sequence.
          obs: `[..., F]`, or a sequence `[T, ..., F]`.
          reset: bool, without the last axis of `obs`.
          sequence: whether `obs` is a sequence.
        """

        def remember(name, carry, x):
            core = Core(self.core, self.layers.dtype, name=name)
            return (core.sequence if sequence else core)(carry, x, reset)

        own, others = carry if self.critic_core else (carry, None)
        seen = apply_encoder(self.layers.encoder, "encoder", actor_observation(obs))
        own, x = remember("core", own, MLP(self.widths, self.layers, name="trunk")(seen))
        policy = self.policy(MLP(self.head_widths, self.layers, name="policy_layers")(x))
        after = MLP(self.head_widths, self.layers, name="value_layers")
        if not isinstance(obs, Asymmetric):
            return own, policy, ValueHead(name="value")(after(x))
        if not self.critic_core:
            return own, policy, privileged_value(self.value_widths, self.layers, obs)
        if obs.critic is None:
            return (own, others), policy, None
        seen = MLP(self.value_widths, self.layers, name="critic_trunk")(obs.critic)
        others, x = remember("critic_core", others, seen)
        return (own, others), policy, ValueHead(name="value")(after(x))


@dataclass(frozen=True)
class NetworkConfig:
    """Settings of hidden layers.

    Attributes:
      widths: hidden layers of the policy, or of the only network.
      activation: "tanh", "relu" or "silu".
      encoder: settings of the encoder of observations; a mapping is accepted.
      compute_dtype: a key of `PRECISIONS`; dtype of the hidden layers' arithmetic; parameters stay float32.
    """

    LISTS: ClassVar[tuple[str, ...]] = ("widths",)

    widths: tuple[int, ...] = FROM_FILE
    activation: str = FROM_FILE
    compute_dtype: str = FROM_FILE
    encoder: EncoderConfig = FROM_FILE

    def __post_init__(self):
        if isinstance(self.encoder, Mapping):
            object.__setattr__(self, "encoder", EncoderConfig(**self.encoder))
        for key in self.LISTS:
            if getattr(self, key) is not None:
                object.__setattr__(self, key, require_list(key, getattr(self, key)))
        require_switches(self)
        require_widths("widths", self.widths)
        require_choice("activation", self.activation, tuple(ACTIVATIONS))
        require_choice("compute_dtype", self.compute_dtype, tuple(PRECISIONS))

    def layers(self, observation: ObservationSpec, layer_norm: bool = False) -> Layers:
        """Builds the configuration of the hidden layers."""
        dtype = PRECISIONS[self.compute_dtype]
        encoder = make_encoder(self.encoder, observation.blocks, dtype)
        return Layers(self.activation, dtype, encoder, layer_norm)


@take_defaults_from("algo/ppo")
@dataclass(frozen=True)
class ActorCriticConfig(NetworkConfig):
    """Settings of an actor and critic, in addition to those of `NetworkConfig`.

    Attributes:
      value_widths: hidden layers of the critic; None for the same as `widths`. Unused with a recurrent core,
        unless critics have privileged observations.
      shared: one trunk of `widths` for both heads.
      initial_std: initial standard deviation of continuous actions, before squashing.
      state_dependent_std: whether the deviation is an output of the network.
      squash: tanh-squash continuous actions into (-1, 1).
      initial_action: initial mean action per dimension; None for 0.
    """

    LISTS: ClassVar[tuple[str, ...]] = (*NetworkConfig.LISTS, "value_widths", "initial_action")

    value_widths: tuple[int, ...] | None = FROM_FILE
    shared: bool = FROM_FILE
    initial_std: float = FROM_FILE
    state_dependent_std: bool = FROM_FILE
    squash: bool = FROM_FILE
    initial_action: tuple[float, ...] | None = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        require_widths("value_widths", self.value_widths)
        require_range("initial_std", self.initial_std, math.exp(LOG_STD_RANGE[0]), math.exp(LOG_STD_RANGE[1]))
        if self.squash:
            require_reachable_action(self.initial_action, " when squash=true")


class PolicyFunctions(NamedTuple):
    """An actor and critic as pure functions of flat observations `[..., F]`, or of `Asymmetric` ones.

    Attributes:
      init: `(key) -> params`.
      apply: `(params, obs, mask) -> (distribution, value)`; raises TypeError with a recurrent core.
      initial_carry: `(batch_shape) -> carry`; `()` without a core.
      step: `(params, obs, carry, reset, mask) -> (carry, distribution, value)`, one decision; the carry is
        cleared before it where `reset`.
      sequence: `(params, obs, carry, reset, mask) -> (distribution, value)` of T decisions, all `[T, ...]`
        except the carry, which is the state before the first.
    """

    init: Callable
    apply: Callable
    initial_carry: Callable
    step: Callable
    sequence: Callable


def with_inputs(policy: PolicyFunctions, see: Callable) -> PolicyFunctions:
    """Wraps a policy to take observations whose networks' inputs are `see(obs)`."""

    def apply(params, obs, mask):
        return policy.apply(params, see(obs), mask)

    def step(params, obs, carry, reset, mask):
        return policy.step(params, see(obs), carry, reset, mask)

    def sequence(params, obs, carry, reset, mask):
        return policy.sequence(params, see(obs), carry, reset, mask)

    return policy._replace(apply=apply, step=step, sequence=sequence)


def with_observation_decoder(policy: PolicyFunctions, statistics: Statistics) -> PolicyFunctions:
    """Wraps a policy to take observations in the form of `compress_observations`."""
    return with_inputs(policy, partial(decompress_observations, statistics))


def make_actor_critic(
    config: ActorCriticConfig,
    observation: ObservationSpec,
    action: ActionSpec,
    core: CoreConfig | None = None,
    head_widths: tuple[int, ...] = (),
    critic_core: bool = False,
    separate: bool = False,
) -> PolicyFunctions:
    """Builds the networks and the action distributions that they parametrise.

    Args:
      config: the settings.
      observation: shape and blocks of observations.
      action: the action space.
      core: the recurrent core; None for a feed-forward policy.
      head_widths, critic_core: see `RecurrentActorCritic`.
      separate: whether actor and critic must not share any layer.

    Raises:
      ValueError: if `initial_action` does not fit the action space, the encoder the observation, if critics
        are to have a memory without observations of their own, or if layers are shared that must not be.
    """
    continuous = action.kind == "continuous"
    head = PolicyHead(
        size=action.dimensions if continuous else action.mask_size,
        log_std=math.log(config.initial_std) if continuous else None,
        state_dependent_std=config.state_dependent_std,
        mean_bias=policy_bias(config.initial_action, action, config.squash),
    )

    def distribution(out, log_std, mask):
        if not continuous:
            return MultiCategorical.masked(out, action.sizes, mask)
        family = SquashedGaussian if config.squash else Gaussian
        return family(out, jnp.clip(log_std, *LOG_STD_RANGE))

    if config.shared and observation.critic is not None:
        raise ValueError("shared=True: must be false where critics have observations of their own")
    if critic_core and observation.critic is None:
        raise ValueError("critic_core=True: must be false unless critics have observations of their own")
    kind = "none" if core is None else core.kind
    if separate and (config.shared or (kind != "none" and observation.critic is None)):
        why = "shared=True" if config.shared else f"core.kind={kind}, whose core both heads read"
        raise ValueError(f"separate_clipping=True: must be false with {why}")
    layers = config.layers(observation)
    value_widths = config.widths if config.value_widths is None else config.value_widths
    example = jnp.zeros((observation.size,))
    if observation.critic is not None:
        example = Asymmetric(example, jnp.zeros((math.prod(observation.critic),)))
    if core is None or core.kind == "none":
        network = ActorCritic(head, config.widths, value_widths, config.shared, layers)
        return make_feed_forward(network, distribution, example)
    network = RecurrentActorCritic(head, config.widths, value_widths, core, layers, head_widths, critic_core)
    empty = Core(core).initial_carry

    def pair(batch_shape):
        return empty(batch_shape), empty(batch_shape)

    return make_recurrent(network, pair if critic_core else empty, distribution, example)


def make_feed_forward(
    network: nn.Module, distribution: Callable, example: jax.Array | Asymmetric
) -> PolicyFunctions:
    """Builds the pure functions of a feed-forward network; its carry is `()`.

    Args:
      network: a module from observations to `(outputs, value)`.
      distribution: `(*outputs, mask) -> distribution`.
      example: an observation.
    """

    def apply(params, obs, mask):
        out, value = cast(tuple, network.apply(params, obs))
        return distribution(*out, mask), value

    return PolicyFunctions(
        init=lambda key: network.init(key, example),
        apply=apply,
        initial_carry=lambda _batch_shape: (),
        step=lambda params, obs, carry, _reset, mask: (carry, *apply(params, obs, mask)),
        sequence=lambda params, obs, _carry, _reset, mask: apply(params, obs, mask),
    )


def make_recurrent(
    network: nn.Module, initial_carry: Callable, distribution: Callable, example: jax.Array | Asymmetric
) -> PolicyFunctions:
    """Builds the pure functions of a recurrent network.

    Args:
      network: a module called as `RecurrentActorCritic`.
      initial_carry: `(batch_shape) -> carry`, its empty recurrent state.
      distribution, example: as for `make_feed_forward`.
    """

    def init(key):
        return network.init(key, initial_carry(()), example, jnp.zeros((), bool), sequence=False)

    def step(params, obs, carry, reset, mask):
        carry, out, value = cast(tuple, network.apply(params, carry, obs, reset, sequence=False))
        return carry, distribution(*out, mask), value

    def sequence(params, obs, carry, reset, mask):
        _, out, value = cast(tuple, network.apply(params, carry, obs, reset, sequence=True))
        return distribution(*out, mask), value

    def apply(*_):
        raise TypeError("a recurrent policy takes single steps or sequences")

    return PolicyFunctions(init, apply, initial_carry, step, sequence)
