"""Flax networks shared by the learners."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from algos.checks import is_number, require_choice, require_list, require_range, require_switches
from algos.nets.cores import Core, CoreConfig
from algos.nets.distributions import Gaussian, MultiCategorical, SquashedGaussian
from algos.nets.encoders import EncoderConfig, encode, make_encoder
from algos.nets.initializers import orthogonal
from algos.optim.products import dense_product
from algos.types import ActionSpec, ObservationSpec

PyTree = Any

ACTIVATIONS = {"tanh": jnp.tanh, "relu": nn.relu, "silu": nn.silu}
PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16, "bfloat16": jnp.bfloat16}

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 0.01
LOG_STD_RANGE = (-5.0, 2.0)


class Linear(nn.Module):
    """Affine map to few outputs, `[..., F]` to `[..., size]`, float32 whatever the inputs are.

    Outputs are read to more digits than bfloat16 has: values of hundreds whose differences are advantages,
    log-probabilities whose differences are ratios. So their arithmetic is that of float32, also on devices
    that would by default round the factors of a product.

    The kernel is `[size, F]`, because XLA's CPU backend is slow at the gradient of a kernel whose
    last axis is short.
    """

    size: int
    gain: float
    bias_init: Callable = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", orthogonal(self.gain), (self.size, x.shape[-1]))
        bias = self.param("bias", self.bias_init, (self.size,))
        product = jax.lax.dot_general(
            x.astype(jnp.float32),
            kernel,
            (((x.ndim - 1,), (1,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
        )
        return product + bias


class MLP(nn.Module):
    """Fully connected layers, each followed by the activation: `[..., F]` to `[..., widths[-1]]`.

    Attributes:
      widths: width of each layer; none gives the identity.
      activation: a key of `ACTIVATIONS`.
      dtype: type of the arithmetic; parameters stay float32.
    """

    widths: tuple[int, ...]
    activation: str = "tanh"
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i, width in enumerate(self.widths):
            kernel_init = orthogonal(HIDDEN_GAIN)
            layer = nn.Dense(
                width,
                kernel_init=kernel_init,
                dtype=self.dtype,
                dot_general=dense_product,
                name=f"layer_{i}",
            )
            x = ACTIVATIONS[self.activation](layer(x))
        return x


class PolicyHead(nn.Module):
    """Linear map to the parameters of an action distribution, started close to `mean_bias`.

    Attributes:
      size: outputs (action dimensions, or options of all choices).
      log_std: initial logarithm of the standard deviation; None for a head without one.
      state_dependent_std: whether the logarithm of the deviation is an output too, rather than a
        parameter of its own.
      mean_bias: initial bias of the outputs, one per output, or empty for 0.
    """

    size: int
    log_std: float | None = None
    state_dependent_std: bool = False
    mean_bias: tuple[float, ...] = ()

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Returns the outputs `[..., size]` and log-deviations (`[..., size]`, `[size]` or None)."""

        def initial_bias(_key, shape, dtype=jnp.float32):
            return jnp.broadcast_to(jnp.asarray(self.mean_bias or 0.0, dtype), shape)

        out = Linear(self.size, POLICY_GAIN, initial_bias, name="out")(x)
        if self.log_std is None:
            return out, None
        constant = nn.initializers.constant(self.log_std)
        if not self.state_dependent_std:
            return out, self.param("log_std", constant, (self.size,))
        return out, Linear(self.size, POLICY_GAIN, constant, name="log_std")(x)


class ValueHead(nn.Module):
    """Linear map to one value, near 0 at first: `[..., F]` to `[...]`, float32."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return Linear(1, VALUE_GAIN, name="out")(x)[..., 0]


class Actor(nn.Module):
    """Policy of one observation: hidden layers and a policy head.

    Attributes:
      head: the policy head.
      widths: hidden layers.
      activation: a key of `ACTIVATIONS`.
      dtype: type of the hidden arithmetic.
      encoder: makes the encoder of observations, or None; as in the other networks.
    """

    head: PolicyHead
    widths: tuple[int, ...]
    activation: str = "relu"
    dtype: jnp.dtype = jnp.float32
    encoder: Callable | None = None

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Maps observations `[..., F]` to `(outputs, log_std)`."""
        x = encode(self.encoder, "encoder", obs)
        return self.head(MLP(self.widths, self.activation, self.dtype, name="trunk")(x))


class Critic(nn.Module):
    """Estimates of what an action is worth, near 0 at first.

    The first layer keeps the kernel of the action apart from that of the observation, so that the
    gradient with respect to the action needs no product with the latter.

    Attributes:
      widths: hidden layers, at least one.
      outputs: estimates per action.
      activation: a key of `ACTIVATIONS`.
      dtype: type of the hidden arithmetic.
      encoder: makes the encoder of observations, or None.
    """

    widths: tuple[int, ...]
    outputs: int = 1
    activation: str = "relu"
    dtype: jnp.dtype = jnp.float32
    encoder: Callable | None = None

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        """Maps flat observations `[..., F]` and actions `[..., D]` to estimates `[..., outputs]`."""
        init = orthogonal(HIDDEN_GAIN)
        first, *rest = self.widths
        seen = encode(self.encoder, "encoder", obs)
        x = nn.Dense(first, kernel_init=init, dtype=self.dtype, name="observation")(seen)
        x = x + nn.Dense(first, use_bias=False, kernel_init=init, dtype=self.dtype, name="action")(action)
        x = ACTIVATIONS[self.activation](x)
        x = MLP(tuple(rest), self.activation, self.dtype, name="trunk")(x)
        return Linear(self.outputs, VALUE_GAIN, name="out")(x)


class Network(NamedTuple):
    """A network as pure functions.

    Attributes:
      init: `(key) -> params`.
      apply: `(params, *inputs) -> outputs`.
    """

    init: Callable
    apply: Callable


def make_critics(critic: Critic, count: int, observation: ObservationSpec, action_size: int) -> Network:
    """An ensemble of independent critics, whose parameters have a leading axis `[count]`.

    Returns:
      the network; `apply(params, obs, action)` maps `[..., F]` and `[..., D]` to
      `[members, ..., outputs]` for as many members as `params` holds.
    """

    def init(key):
        obs, action = jnp.zeros((observation.size,)), jnp.zeros((action_size,))
        return jax.vmap(lambda k: critic.init(k, obs, action))(jax.random.split(key, count))

    return Network(init, jax.vmap(critic.apply, (0, None, None)))


class ActorCritic(nn.Module):
    """Policy and value of one observation.

    Attributes:
      policy: the policy head.
      policy_widths: hidden layers of the policy (of both, when shared).
      value_widths: hidden layers of the critic; unused when shared.
      shared: whether both heads read one trunk.
      activation: a key of `ACTIVATIONS`.
      dtype: type of the hidden arithmetic.
      encoder: makes encoders of observations, one per trunk, or None.
    """

    policy: PolicyHead
    policy_widths: tuple[int, ...]
    value_widths: tuple[int, ...]
    shared: bool = False
    activation: str = "tanh"
    dtype: jnp.dtype = jnp.float32
    encoder: Callable | None = None

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[tuple[jax.Array, jax.Array | None], jax.Array]:
        """Maps flat observations `[..., F]` to `((outputs, log_std), value)`."""
        seen = encode(self.encoder, "actor_encoder", obs)
        actor = MLP(self.policy_widths, self.activation, self.dtype, name="actor_trunk")(seen)
        if self.shared:
            critic = actor
        else:
            seen = encode(self.encoder, "critic_encoder", obs)
            critic = MLP(self.value_widths, self.activation, self.dtype, name="critic_trunk")(seen)
        return self.policy(actor), ValueHead(name="value")(critic)


class RecurrentActorCritic(nn.Module):
    """Policy and value of what was seen so far: trunk, recurrent core, and both heads on top of it.

    Attributes:
      policy: the policy head.
      widths: hidden layers of the trunk.
      core: choices of the core.
      activation: a key of `ACTIVATIONS`.
      dtype: type of the hidden arithmetic.
      encoder: makes the encoder of observations, or None.
    """

    policy: PolicyHead
    widths: tuple[int, ...]
    core: CoreConfig
    activation: str = "tanh"
    dtype: jnp.dtype = jnp.float32
    encoder: Callable | None = None

    @nn.compact
    def __call__(self, carry: PyTree, obs: jax.Array, reset: jax.Array, *, sequence: bool):
        """Maps flat observations `[..., F]`, or a sequence `[T, ..., F]` of them, to
        `(carry, (outputs, log_std), value)`; `reset` lacks the last axis, `carry` the first of a sequence.
        """
        core = Core(self.core, self.dtype, name="core")
        seen = encode(self.encoder, "encoder", obs)
        x = MLP(self.widths, self.activation, self.dtype, name="trunk")(seen)
        carry, x = (core.sequence if sequence else core)(carry, x, reset)
        return carry, self.policy(x), ValueHead(name="value")(x)


@dataclass(frozen=True)
class ActorCriticConfig:
    """Choices of an actor and critic.

    Attributes:
      widths: hidden layers of the policy (of both, when shared).
      value_widths: hidden layers of the critic; None for the same as `widths`.
      shared: one trunk for both heads.
      activation: "tanh", "relu" or "silu".
      initial_std: initial standard deviation of continuous actions (before squashing).
      state_dependent_std: whether the deviation is an output of the network.
      squash: tanh-squash continuous actions into (-1, 1).
      initial_action: initial mean action per dimension; None for 0.
      encoder: what becomes of observations before the hidden layers; a mapping is accepted.
      compute_dtype: a key of `PRECISIONS`; type of the hidden arithmetic, parameters stay float32.
    """

    widths: tuple[int, ...] = (256, 256)
    value_widths: tuple[int, ...] | None = None
    shared: bool = False
    activation: str = "tanh"
    initial_std: float = 0.6
    state_dependent_std: bool = False
    squash: bool = False
    initial_action: tuple[float, ...] | None = None
    compute_dtype: str = "float32"
    encoder: EncoderConfig = EncoderConfig()

    def __post_init__(self):
        if isinstance(self.encoder, Mapping):
            object.__setattr__(self, "encoder", EncoderConfig(**self.encoder))
        for key in ("widths", "value_widths", "initial_action"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, require_list(key, getattr(self, key)))
        require_switches(self)
        for key in ("widths", "value_widths"):
            require_widths(key, getattr(self, key))
        require_choice("activation", self.activation, tuple(ACTIVATIONS))
        require_choice("compute_dtype", self.compute_dtype, tuple(PRECISIONS))
        require_range("initial_std", self.initial_std, math.exp(LOG_STD_RANGE[0]), math.exp(LOG_STD_RANGE[1]))
        if self.squash:
            require_inside(self.initial_action, " when squash=true")


class Policy(NamedTuple):
    """An actor and critic as pure functions of flat observations `[..., F]`.

    Attributes:
      init: `(key) -> params`.
      apply: `(params, obs, mask) -> (distribution, value)`; None with a recurrent core.
      initial_carry: `(batch_shape) -> carry`; `()` without a core.
      step: `(params, obs, carry, reset, mask) -> (carry, distribution, value)`, one decision; the carry is
        cleared before it where `reset`.
      sequence: `(params, obs, carry, reset, mask) -> (distribution, value)` of T decisions, all `[T, ...]`
        but the carry, which is that before the first.
    """

    init: Callable
    apply: Callable | None
    initial_carry: Callable
    step: Callable
    sequence: Callable


def make_actor_critic(
    config: ActorCriticConfig,
    observation: ObservationSpec,
    action: ActionSpec,
    core: CoreConfig | None = None,
) -> Policy:
    """Builds the networks and the action distribution on top of them.

    Args:
      config: the choices.
      observation: what is seen.
      action: the action space.
      core: the recurrent core; None for a feed-forward policy.

    Raises:
      ValueError: if `initial_action` does not fit the action space, or the encoder the observation.
    """
    continuous = action.kind == "continuous"
    dtype = PRECISIONS[config.compute_dtype]
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

    encoder = make_encoder(config.encoder, observation.blocks, dtype)
    if core is None or core.kind == "none":
        value_widths = config.widths if config.value_widths is None else config.value_widths
        network = ActorCritic(
            head, config.widths, value_widths, config.shared, config.activation, dtype, encoder
        )
        return _feed_forward(network, distribution, observation.size)
    network = RecurrentActorCritic(head, config.widths, core, config.activation, dtype, encoder)
    return _recurrent(network, distribution, observation.size)


def _feed_forward(network: ActorCritic, distribution: Callable, observation_size: int) -> Policy:
    def apply(params, obs, mask):
        out, value = network.apply(params, obs)
        return distribution(*out, mask), value

    return Policy(
        init=lambda key: network.init(key, jnp.zeros((observation_size,))),
        apply=apply,
        initial_carry=lambda batch_shape: (),
        step=lambda params, obs, carry, reset, mask: (carry, *apply(params, obs, mask)),
        sequence=lambda params, obs, carry, reset, mask: apply(params, obs, mask),
    )


def _recurrent(network: RecurrentActorCritic, distribution: Callable, observation_size: int) -> Policy:
    initial_carry = Core(network.core).initial_carry

    def init(key):
        obs, reset = jnp.zeros((observation_size,)), jnp.zeros((), bool)
        return network.init(key, initial_carry(()), obs, reset, sequence=False)

    def step(params, obs, carry, reset, mask):
        carry, out, value = network.apply(params, carry, obs, reset, sequence=False)
        return carry, distribution(*out, mask), value

    def sequence(params, obs, carry, reset, mask):
        _, out, value = network.apply(params, carry, obs, reset, sequence=True)
        return distribution(*out, mask), value

    return Policy(init, None, initial_carry, step, sequence)


def policy_bias(
    initial_action: tuple[float, ...] | None, action: ActionSpec, squash: bool
) -> tuple[float, ...]:
    """Bias of a policy head whose mean action, squashed or not, starts at `initial_action`.

    Raises:
      ValueError: if that does not fit the action space.
    """
    bias, continuous = initial_action or (), action.kind == "continuous"
    if bias and (not continuous or len(bias) != action.dimensions):
        wanted = f"{action.dimensions} numbers" if continuous else "null for discrete actions"
        raise ValueError(f"initial_action={bias}: must be {wanted}")
    return tuple(math.atanh(x) for x in bias) if squash else bias


def require_widths(key: str, widths: tuple[int, ...] | None) -> None:
    """Demands widths of layers, or None."""
    if any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in widths or ()):
        raise ValueError(f"{key}={widths}: must hold positive whole numbers")


def require_inside(initial_action: tuple[float, ...] | None, reason: str) -> None:
    """Demands actions that a hyperbolic tangent can reach, or None."""
    if any(not is_number(x) or abs(x) >= 1.0 for x in initial_action or ()):
        raise ValueError(f"initial_action={initial_action}: must lie strictly inside (-1, 1){reason}")


def flatten(obs: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Flattens the trailing `shape` of observations `[..., *shape]` to `[..., F]`, float32."""
    return obs.reshape(obs.shape[: obs.ndim - len(shape)] + (-1,)).astype(jnp.float32)
