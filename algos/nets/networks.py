"""Flax modules of the learners: hidden layers, heads, actors and critics."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from algos.checks import is_number
from algos.nets.encoders import apply_encoder
from algos.nets.initializers import orthogonal
from algos.optim.small_batches import layer_product
from algos.types import ActionSpec, ObservationSpec

ACTIVATIONS = {"tanh": jnp.tanh, "relu": nn.relu, "silu": nn.silu}
PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16, "bfloat16": jnp.bfloat16}

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 0.01
LOG_STD_RANGE = (-5.0, 2.0)


class Linear(nn.Module):
    """Affine map to few outputs, `[..., F]` to `[..., size]`, in float32 for inputs of any dtype.

    Outputs need more precision than bfloat16: advantages are small differences of large values, and ratios
    are differences of log-probabilities. The products are therefore float32 of the highest precision, also
    on devices that round the factors of a product by default.

    The kernel is `[size, F]`, because XLA's CPU backend is slow at the gradient of a kernel whose
    last axis is short.
    """

    size: int
    gain: float
    bias_init: Callable = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `x @ kernel.T + bias`."""
        kernel = self.param("kernel", orthogonal(self.gain), (self.size, x.shape[-1]))
        bias = self.param("bias", self.bias_init, (self.size,))
        product = jax.lax.dot_general(
            x.astype(jnp.float32),
            kernel,
            (((x.ndim - 1,), (1,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
        )
        return product + bias


@dataclass(frozen=True)
class Layers:
    """Configuration of hidden layers, the same in all networks of a learner.

    Attributes:
      activation: a key of `ACTIVATIONS`.
      dtype: dtype of the arithmetic; parameters stay float32.
      encoder: `(name=...) -> module`, makes the encoder of observations; None for flat observations.
      layer_norm: whether layers are normalised before the activation (Ba, Kiros and Hinton 2016).
    """

    activation: str = "relu"
    dtype: jnp.dtype = jnp.float32
    encoder: Callable | None = None
    layer_norm: bool = False


class MLP(nn.Module):
    """Fully connected layers, each followed by the activation: `[..., F]` to `[..., widths[-1]]`.

    Attributes:
      widths: width of each layer; empty for the identity.
      layers: configuration of the layers.
    """

    widths: tuple[int, ...]
    layers: Layers = Layers()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layers."""
        for i, width in enumerate(self.widths):
            layer = nn.Dense(
                width,
                kernel_init=orthogonal(HIDDEN_GAIN),
                dtype=self.layers.dtype,
                dot_general=layer_product,
                name=f"layer_{i}",
            )
            x = layer(x)
            if self.layers.layer_norm:
                x = nn.LayerNorm(dtype=self.layers.dtype, name=f"norm_{i}")(x)
            x = ACTIVATIONS[self.layers.activation](x)
        return x


class PolicyHead(nn.Module):
    """Linear map to the parameters of an action distribution, with a mean near `mean_bias` initially.

    Attributes:
      size: outputs (action dimensions, or options of all choices).
      log_std: initial logarithm of the standard deviation; None for a head without a deviation.
      state_dependent_std: whether the log-deviation is an output of the network instead of a free
        parameter.
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
    """Linear map to one value, near 0 at initialisation: `[..., F]` to `[...]`, float32."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the values."""
        return Linear(1, VALUE_GAIN, name="out")(x)[..., 0]


class Actor(nn.Module):
    """Policy of one observation: hidden layers and a policy head.

    Attributes:
      head: the policy head.
      widths: widths of the hidden layers.
      layers: configuration of the hidden layers.
    """

    head: PolicyHead
    widths: tuple[int, ...]
    layers: Layers = Layers()

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Maps observations `[..., F]` to `(outputs, log_std)`."""
        x = apply_encoder(self.layers.encoder, "encoder", obs)
        return self.head(MLP(self.widths, self.layers, name="trunk")(x))


class Critic(nn.Module):
    """Estimates of action values, near 0 at initialisation.

    The first layer has separate kernels for the action and the observation, so that the gradient with
    respect to the action needs no product with the observation's kernel.

    Attributes:
      widths: widths of the hidden layers, at least one.
      outputs: estimates per action.
      layers: configuration of the hidden layers.
    """

    widths: tuple[int, ...]
    outputs: int = 1
    layers: Layers = Layers()

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        """Maps flat observations `[..., F]` and actions `[..., D]` to estimates `[..., outputs]`."""
        first, *rest = self.widths
        dense = partial(nn.Dense, first, kernel_init=orthogonal(HIDDEN_GAIN), dtype=self.layers.dtype)
        seen = apply_encoder(self.layers.encoder, "encoder", obs)
        x = dense(name="observation")(seen) + dense(use_bias=False, name="action")(action)
        x = ACTIVATIONS[self.layers.activation](x)
        x = MLP(tuple(rest), self.layers, name="trunk")(x)
        return Linear(self.outputs, VALUE_GAIN, name="out")(x)


class NetworkFunctions(NamedTuple):
    """A network as pure functions.

    Attributes:
      init: `(key) -> params`.
      apply: `(params, *inputs) -> outputs`.
    """

    init: Callable
    apply: Callable


def make_critics(
    critic: Critic, count: int, observation: ObservationSpec, action_size: int
) -> NetworkFunctions:
    """Builds an ensemble of independent critics; their parameters have a leading axis `[count]`.

    Returns:
      the network; `apply(params, obs, action)` maps `[..., F]` and `[..., D]` to
      `[members, ..., outputs]` for all members in `params`.
    """

    def init(key):
        obs, action = jnp.zeros((observation.size,)), jnp.zeros((action_size,))
        return jax.vmap(lambda k: critic.init(k, obs, action))(jax.random.split(key, count))

    return NetworkFunctions(init, jax.vmap(critic.apply, (0, None, None)))


def policy_bias(
    initial_action: tuple[float, ...] | None, action: ActionSpec, squash: bool
) -> tuple[float, ...]:
    """Bias of a policy head with initial mean action `initial_action`, squashed or not.

    Raises:
      ValueError: if `initial_action` does not fit the action space.
    """
    bias, continuous = initial_action or (), action.kind == "continuous"
    if bias and (not continuous or len(bias) != action.dimensions):
        wanted = f"{action.dimensions} numbers" if continuous else "null for discrete actions"
        raise ValueError(f"initial_action={bias}: must be {wanted}")
    return tuple(math.atanh(x) for x in bias) if squash else bias


def require_widths(key: str, widths: tuple[int, ...] | None) -> None:
    """Checks the widths of layers; None is allowed."""
    if any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in widths or ()):
        raise ValueError(f"{key}={widths}: must hold positive whole numbers")


def require_reachable_action(initial_action: tuple[float, ...] | None, reason: str) -> None:
    """Checks for actions strictly inside (-1, 1), which a hyperbolic tangent can reach; None is allowed."""
    if any(not is_number(x) or abs(x) >= 1.0 for x in initial_action or ()):
        raise ValueError(f"initial_action={initial_action}: must lie strictly inside (-1, 1){reason}")


def flatten_features(obs: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Flattens the trailing `shape` of observations `[..., *shape]` to `[..., F]`."""
    return obs.reshape(obs.shape[: obs.ndim - len(shape)] + (-1,))
