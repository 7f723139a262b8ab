"""Flax networks shared by the learners."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": jnp.tanh, "relu": nn.relu, "silu": nn.silu}

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 0.01


def _dense(width: int, gain: float, dtype: jnp.dtype, name: str) -> nn.Dense:
    return nn.Dense(width, kernel_init=nn.initializers.orthogonal(gain), dtype=dtype, name=name)


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
            x = ACTIVATIONS[self.activation](_dense(width, HIDDEN_GAIN, self.dtype, f"layer_{i}")(x))
        return x


class PolicyHead(nn.Module):
    """Linear map to the parameters of an action distribution, started close to `mean_bias`.

    Attributes:
      size: outputs (action dimensions, or options of all choices).
      log_std: initial logarithm of the standard deviation; None for a head without one.
      state_dependent_std: whether the logarithm of the deviation is an output too, rather than a
        parameter of its own.
      mean_bias: initial bias of the outputs, one per output, or empty for 0.
      dtype: type of the arithmetic; results are float32.
    """

    size: int
    log_std: float | None = None
    state_dependent_std: bool = False
    mean_bias: tuple[float, ...] = ()
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Returns the outputs `[..., size]` and log-deviations (`[..., size]`, `[size]` or None)."""

        def initial_bias(_key, shape, dtype=jnp.float32):
            return jnp.broadcast_to(jnp.asarray(self.mean_bias or 0.0, dtype), shape)

        kernel_init = nn.initializers.orthogonal(POLICY_GAIN)
        out = nn.Dense(self.size, kernel_init=kernel_init, bias_init=initial_bias, dtype=self.dtype, name="out")(x)
        out = out.astype(jnp.float32)
        if self.log_std is None:
            return out, None
        constant = nn.initializers.constant(self.log_std)
        if not self.state_dependent_std:
            return out, self.param("log_std", constant, (self.size,))
        std_head = nn.Dense(self.size, kernel_init=kernel_init, bias_init=constant, dtype=self.dtype, name="log_std")
        return out, std_head(x).astype(jnp.float32)


class ValueHead(nn.Module):
    """Linear map to one value, near 0 at first: `[..., F]` to `[...]`, float32."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return _dense(1, VALUE_GAIN, self.dtype, "out")(x)[..., 0].astype(jnp.float32)


class ActorCritic(nn.Module):
    """Policy and value of one observation.

    Attributes:
      policy: the policy head.
      policy_widths: hidden layers of the policy (of both, when shared).
      value_widths: hidden layers of the critic; unused when shared.
      shared: whether both heads read one trunk.
      activation: a key of `ACTIVATIONS`.
      dtype: type of the arithmetic.
    """

    policy: PolicyHead
    policy_widths: tuple[int, ...]
    value_widths: tuple[int, ...]
    shared: bool = False
    activation: str = "tanh"
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[tuple[jax.Array, jax.Array | None], jax.Array]:
        """Maps flat observations `[..., F]` to `((outputs, log_std), value)`."""
        actor = MLP(self.policy_widths, self.activation, self.dtype, name="actor_trunk")(obs)
        if self.shared:
            critic = actor
        else:
            critic = MLP(self.value_widths, self.activation, self.dtype, name="critic_trunk")(obs)
        return self.policy(actor), ValueHead(self.dtype, name="value")(critic)
