"""Observation and action spaces: hashable, with sampling and membership tests.

Every space has `shape`, `dtype`, `mask_size` (length of an action mask, 0 for none), `sample(key, mask)`
and `contains(x)`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Bound = float | tuple


def _hashable(bound: Any) -> Bound:
    if np.ndim(bound) == 0:
        return float(bound)
    return tuple(_hashable(row) for row in bound)


@dataclass(frozen=True)
class Box:
    """Arrays with inclusive lower and upper bounds per element.

    Attributes:
      shape: shape of one element of the space.
      low: lower bound, a number or (nested) sequence that broadcasts to `shape`; may be -inf.
      high: upper bound, likewise; may be inf.
      dtype: NumPy dtype; integer boxes need finite bounds.

    Raises:
      ValueError: bounds that do not fit the shape, are NaN, or have low > high.
    """

    shape: tuple[int, ...]
    low: Bound
    high: Bound
    dtype: np.dtype = np.dtype("float32")

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "low", _hashable(self.low))
        object.__setattr__(self, "high", _hashable(self.high))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        low, high = self.bounds()
        if not (low <= high).all():
            raise ValueError(f"Box low={self.low} must not exceed high={self.high}")
        if not self._is_float and not (np.abs([low, high]) < 2**31 - 1).all():
            bounds = f"low={self.low} high={self.high}"
            raise ValueError(f"Box of dtype {self.dtype} needs bounds smaller than 2**31 - 1, got {bounds}")

    @property
    def _is_float(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.floating))

    @property
    def mask_size(self) -> int:
        """Length of an action mask: always 0."""
        return 0

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lower and the upper bounds as float64 NumPy arrays of `shape`."""
        given = [np.asarray(bound, np.float64) for bound in (self.low, self.high)]
        try:
            return np.broadcast_to(given[0], self.shape), np.broadcast_to(given[1], self.shape)
        except ValueError:
            bounds = f"low={self.low} high={self.high}"
            raise ValueError(f"Box {bounds} do not broadcast to shape {self.shape}") from None

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Samples uniformly where bounded, exponentially where half-bounded, else standard normal.

        `mask` is ignored.
        """
        del mask
        low, high = self.bounds()
        if not self._is_float:
            above = (high + 1).astype(np.int32)
            return jax.random.randint(key, self.shape, low.astype(np.int32), above).astype(self.dtype)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        floor, ceiling = np.where(has_low, low, 0.0), np.where(has_high, high, 0.0)
        key_uniform, key_normal = jax.random.split(key)
        uniform = jax.random.uniform(key_uniform, self.shape)
        tail = -jnp.log1p(-uniform)
        bounded = (1 - uniform) * floor + uniform * ceiling
        unbounded = jax.random.normal(key_normal, self.shape)
        draw = jnp.where(has_low, floor + tail, jnp.where(has_high, ceiling - tail, unbounded))
        draw = jnp.where(has_low & has_high, bounded, draw)
        return jnp.clip(draw, low, high).astype(self.dtype)

    def contains(self, x: jax.Array) -> jax.Array:
        """Tells whether `x [..., *shape]` lies within the bounds, bool `[...]`; False for NaN.

        Raises:
          ValueError: if the last axes of `x` are not `shape`.
        """
        _require_trailing_shape(x, self.shape)
        low, high = (jnp.asarray(bound, self.dtype) for bound in self.bounds())
        inside = (x >= low) & (x <= high)
        return inside.all(axis=tuple(range(x.ndim - len(self.shape), x.ndim)))


@dataclass(frozen=True)
class Discrete:
    """Integers 0 .. n - 1.

    Attributes:
      n: number of options.

    Raises:
      ValueError: if `n` is below 1.
    """

    n: int

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"Discrete n={self.n} must be at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element: `()`."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """NumPy dtype of an element, int32."""
        return np.dtype("int32")

    @property
    def mask_size(self) -> int:
        """Length of an action mask: `n`."""
        return self.n

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Samples one option uniformly, among those set in `mask [n]` if given."""
        return MultiDiscrete((self.n,)).sample(key, mask)[0]

    def contains(self, x: jax.Array) -> jax.Array:
        """Tells whether each element of `x [...]` is one of the options, bool `[...]`."""
        return (x >= 0) & (x < self.n)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices, each an integer below its own size.

    Attributes:
      sizes: number of options of each choice.

    Raises:
      ValueError: if there is no choice, or a choice without options.
    """

    sizes: tuple[int, ...]

    def __post_init__(self):
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"MultiDiscrete sizes={self.sizes} must be one or more numbers of at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element: `(number of choices,)`."""
        return (len(self.sizes),)

    @property
    def dtype(self) -> np.dtype:
        """NumPy dtype of an element, int32."""
        return np.dtype("int32")

    @property
    def mask_size(self) -> int:
        """Length of an action mask: the sum of `sizes`, with choices concatenated."""
        return sum(self.sizes)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Samples each choice uniformly, among the options set in `mask [sum(sizes)]` if given.

        A choice without legal options gets 0.
        """
        if mask is None:
            return jax.random.randint(key, self.shape, 0, np.asarray(self.sizes, np.int32))
        option = np.arange(max(self.sizes))
        exists = option < np.asarray(self.sizes)[:, None]
        first = np.cumsum((0, *self.sizes[:-1]))
        legal = mask[np.where(exists, first[:, None] + option, 0)] & exists
        return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(self.dtype)

    def contains(self, x: jax.Array) -> jax.Array:
        """Tells whether every choice in `x [..., choices]` is a valid option, bool `[...]`.

        Raises:
          ValueError: if the last axis of `x` is not the number of choices.
        """
        _require_trailing_shape(x, self.shape)
        return ((x >= 0) & (x < np.asarray(self.sizes))).all(-1)


Space = Box | Discrete | MultiDiscrete


def _require_trailing_shape(x: jax.Array, shape: tuple[int, ...]) -> None:
    if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != shape:
        raise ValueError(f"array of shape {tuple(x.shape)} does not end in the space's shape {shape}")
