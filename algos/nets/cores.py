"""Recurrent cores of policies, in single steps and over whole sequences.

All kinds share one interface. `kind="none"` is the identity with an empty state, so that feed-forward
policies use the same code. See docs/reference/trainer.md 5.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from algos.checks import require_choice, require_count, require_range, require_switches
from algos.defaults import FROM_FILE, take_defaults_from
from algos.nets.cells import CELLS, cast_product, clear_carry, run_cell
from algos.nets.initializers import orthogonal
from algos.types import PyTree

KINDS = ("none", "lstm", "gru", "mingru")
WEIGHT_INITS = ("orthogonal", "uniform")
CANDIDATES = ("positive", "linear")
SCANS = ("sequential", "parallel")
BIAS_LIMIT = 100.0


@take_defaults_from("algo/ppo:core")
@dataclass(frozen=True)
class CoreConfig:
    """Settings of a recurrent core.

    Attributes:
      kind: "none" (identity), "lstm", "gru" or "mingru".
      width: units H of every layer.
      layers: layers, each fed by the output of the one below.
      weight_init: "orthogonal" (gain 1, each fused kernel as one matrix) or "uniform" (within
        1 / sqrt(width) of 0).
      bias_init: initial value of all biases; None for 1 with "lstm" and 0 otherwise. Each gate has one
        bias; where another framework has two bias vectors, this is their sum.
      forget_bias: initial bias of the forget gate alone, "lstm" only; None for `bias_init`.
      candidate: activation of the candidate state of "mingru": "positive" (x + 1/2 above 0, sigmoid(x)
        below) or "linear".
      highway: "mingru" only; a third gate mixes the layer's input into its output.
      scan: "mingru" only; "sequential" is faster on CPUs, "parallel" takes O(log T) dependent operations.

    Raises:
      ValueError: if a value is out of range, or is set for a kind that does not use it.
    """

    kind: str = FROM_FILE
    width: int = FROM_FILE
    layers: int = FROM_FILE
    weight_init: str = FROM_FILE
    bias_init: float | None = FROM_FILE
    forget_bias: float | None = FROM_FILE
    candidate: str = FROM_FILE
    highway: bool = FROM_FILE
    scan: str = FROM_FILE

    def __post_init__(self):
        require_choice("kind", self.kind, KINDS)
        require_switches(self, "core.")
        require_count("width", self.width)
        require_count("layers", self.layers)
        require_choice("weight_init", self.weight_init, WEIGHT_INITS)
        require_choice("candidate", self.candidate, CANDIDATES)
        require_choice("scan", self.scan, SCANS)
        for key in ("bias_init", "forget_bias"):
            if getattr(self, key) is not None:
                require_range(key, getattr(self, key), -BIAS_LIMIT, BIAS_LIMIT)
        self._require_kind("lstm", forget_bias=None)
        self._require_kind("mingru", candidate="positive", highway=False, scan="sequential")

    def _require_kind(self, kind: str, **defaults) -> None:
        """Checks that settings of one kind keep their defaults with other kinds."""
        for key, default in defaults.items():
            value = getattr(self, key)
            if self.kind != kind and value != default:
                raise ValueError(
                    f"{key}={value}: must be {default} with kind={self.kind}; only {kind} has it"
                )


def linear_recurrence(
    decay: jax.Array, drive: jax.Array, state: jax.Array, reset: jax.Array, *, parallel: bool
) -> jax.Array:
    """Solves `h_t = decay_t * h_{t-1} + drive_t`, with `h_{t-1}` replaced by 0 at a reset.

    Args:
      decay, drive: `[T, ..., H]`.
      state: `[..., H]`, the state before the first step.
      reset: `[T, ...]` bool.
      parallel: whether to combine steps in a tree (Blelloch 1990) rather than one after the other.

    Returns:
      `[T, ..., H]`.
    """
    if not parallel:

        def step(hidden, now):
            decay, drive, reset = now
            hidden = decay * clear_carry(hidden, reset) + drive
            return hidden, hidden

        return jax.lax.scan(step, state, (decay, drive, reset))[1]

    def combine(early, late):
        (early_decay, early_drive, early_reset), (decay, drive, reset) = early, late
        joint = jnp.where(reset, drive, decay * early_drive + drive)
        return early_decay * decay, joint, early_reset | reset

    drive = drive.at[0].add(decay[0] * clear_carry(state, reset[0]))
    return jax.lax.associative_scan(combine, (decay, drive, reset[..., None]))[1]


def positive_candidate(x: jax.Array) -> jax.Array:
    """Continuous, increasing map to positive numbers (Feng et al. 2024, appendix B)."""
    return jnp.where(x >= 0.0, x + 0.5, nn.sigmoid(x))


def _weight_init(config: CoreConfig) -> Callable:
    """Initialiser of the kernels."""
    if config.weight_init == "orthogonal":
        return orthogonal()
    bound = 1.0 / math.sqrt(config.width)
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


def _bias_init(config: CoreConfig) -> Callable:
    """Initialiser of the biases, with the forget gate's own value for the LSTM."""
    lstm = config.kind == "lstm"
    common = float(lstm) if config.bias_init is None else config.bias_init
    forget = common if config.forget_bias is None else config.forget_bias

    def init(_key, shape, dtype=jnp.float32):
        bias = jnp.full(shape, common, dtype)
        return bias.at[config.width : 2 * config.width].set(forget) if lstm else bias

    return init


class GatedLayer(nn.Module):
    """One LSTM or GRU layer over a sequence; see `Core.sequence`."""

    config: CoreConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, carry, x: jax.Array, reset: jax.Array) -> tuple[PyTree, jax.Array]:
        """Returns `(carry, y)` of T steps."""
        cell = CELLS[self.config.kind]
        width, columns = self.config.width, cell.gates * self.config.width
        init = _weight_init(self.config)
        input_kernel = self.param("input_kernel", init, (x.shape[-1], columns))
        kernel = self.param("recurrent_kernel", init, (width, columns))
        bias = self.param("bias", _bias_init(self.config), (columns,))
        inputs = cast_product(x, input_kernel, self.dtype) + bias
        return run_cell(cell, self.dtype, kernel, carry, inputs, reset)


class MinGRULayer(nn.Module):
    """One MinGRU layer over a sequence (Feng et al. 2024, "Were RNNs all we needed?"); see `Core.sequence`.

    `h_t = (1 - z_t) h_{t-1} + z_t c_t`, where the gate z and the candidate c read the input alone.
    """

    config: CoreConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, carry, x: jax.Array, reset: jax.Array) -> tuple[PyTree, jax.Array]:
        """Returns `(carry, y)` of T steps."""
        config = self.config
        columns = (3 if config.highway else 2) * config.width
        init = _weight_init(config)
        kernel = self.param("input_kernel", init, (x.shape[-1], columns))
        bias = self.param("bias", _bias_init(config), (columns,))
        update, candidate, *mix = jnp.split(
            cast_product(x, kernel, self.dtype) + bias, columns // config.width, axis=-1
        )
        update = nn.sigmoid(update)
        if config.candidate == "positive":
            candidate = positive_candidate(candidate)
        (state,) = carry
        parallel = config.scan == "parallel"
        hidden = linear_recurrence(1.0 - update, update * candidate, state, reset, parallel=parallel)
        carry = (hidden[-1],)
        if not config.highway:
            return carry, hidden
        if x.shape[-1] != config.width:
            skip_kernel = self.param("skip_kernel", init, (x.shape[-1], config.width))
            x = cast_product(x, skip_kernel, self.dtype)
        mix = nn.sigmoid(mix[0])
        return carry, mix * hidden + (1.0 - mix) * x


class Core(nn.Module):
    """A stack of recurrent layers; calling it takes one step, `sequence` takes many.

    Both use the same parameters and give the same numbers to rounding. Parameters and state are
    float32.

    Attributes:
      config: the settings.
      dtype: type of the matrix products.
    """

    config: CoreConfig
    dtype: jnp.dtype = jnp.float32

    def __call__(self, carry: PyTree, x: jax.Array, reset: jax.Array) -> tuple[PyTree, jax.Array]:
        """Takes one step.

        Args:
          carry: state after the last step, as from `initial_carry`.
          x: `[..., F]`.
          reset: `[...]` bool; the state is cleared before the step where True.

        Returns:
          `(carry, y)` with y `[..., H]`, or x itself with kind "none".
        """
        carry, y = self.sequence(carry, x[None], reset[None])
        return carry, y[0]

    @nn.compact
    def sequence(self, carry: PyTree, x: jax.Array, reset: jax.Array) -> tuple[PyTree, jax.Array]:
        """Takes T steps.

        Args:
          carry: state before the first step.
          x: `[T, ..., F]`.
          reset: `[T, ...]` bool; the state is cleared before each step where True.

        Returns:
          `(carry, y)`: the state after the last step, and y `[T, ..., H]`, or x itself with kind
          "none".
        """
        layer = MinGRULayer if self.config.kind == "mingru" else GatedLayer
        after = []
        for i, state in enumerate(carry):
            state, x = layer(self.config, self.dtype, name=f"layer_{i}")(state, x, reset)
            after.append(state)
        return tuple(after), x

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """Returns the cleared state: per layer a tuple of zeros `[*batch_shape, H]`; `()` with "none"."""
        if self.config.kind == "none":
            return ()
        states = CELLS[self.config.kind].states if self.config.kind in CELLS else 1
        zeros = jnp.zeros((*batch_shape, self.config.width), jnp.float32)
        return ((zeros,) * states,) * self.config.layers
