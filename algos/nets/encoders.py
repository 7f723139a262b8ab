"""Encoders of structured observations: sets of entities, small maps, and plain vectors.

Elsewhere observations are flat vectors; encoders work on their blocks (`algos.types.Block`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from algos.checks import require_choice, require_count
from algos.defaults import FROM_FILE, take_defaults_from
from algos.nets.initializers import orthogonal
from algos.nets.observations import Entities, split_into_blocks
from algos.types import Block

KINDS = ("none", "deepset", "attention")
MAPS = ("cnn", "flat")
GAIN = 2.0**0.5


@take_defaults_from("algo/ppo:encoder")
@dataclass(frozen=True)
class EncoderConfig:
    """Settings of the encoder before the hidden layers of a network.

    Attributes:
      kind: "none" for flat observations; "deepset" (Zaheer et al. 2017) embeds the rows of every set
        separately and pools them; "attention" adds self-attention between the rows (Vaswani et al. 2017).
      width: size of an embedded row, and of an embedded map.
      heads: attention heads; must divide `width`.
      maps: "cnn" for two convolutions of every map, "flat" for its cells unchanged.
    """

    kind: str = FROM_FILE
    width: int = FROM_FILE
    heads: int = FROM_FILE
    maps: str = FROM_FILE

    def __post_init__(self):
        require_choice("encoder.kind", self.kind, KINDS)
        require_choice("encoder.maps", self.maps, MAPS)
        require_count("encoder.width", self.width)
        require_count("encoder.heads", self.heads)
        if self.kind == "attention" and self.width % self.heads:
            raise ValueError(f"encoder.heads={self.heads}: must divide encoder.width={self.width}")


class SetEncoder(nn.Module):
    """Permutation-invariant embedding of a set of rows: `[..., K, F]` to `[..., 2 * width]`.

    Empty rows have no effect.

    Attributes:
      width: size of an embedded row.
      heads: heads of the attention between rows; 0 for no attention.
      dtype: dtype of the arithmetic.
    """

    width: int
    heads: int = 0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, rows: jax.Array, present: jax.Array) -> jax.Array:
        """Embeds the rows that are `present`, bool `[..., K]`."""
        dense = partial(nn.Dense, self.width, kernel_init=orthogonal(GAIN), dtype=self.dtype)
        x = nn.relu(dense(name="embed")(rows))
        if self.heads:
            mask = present[..., None, None, :]
            attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype, name="attention")
            x = x + attention(x, mask=mask)
        x = nn.relu(dense(name="mix")(x))
        shown = present[..., None]
        mean = jnp.where(shown, x, 0.0).sum(-2) / jnp.maximum(shown.sum(-2), 1)
        # Embeddings are not negative: 0 is the maximum of an empty set.
        largest = jnp.where(shown, x, 0.0).max(-2)
        return jnp.concatenate([mean, largest], axis=-1)


class MapEncoder(nn.Module):
    """Embedding of a small map: `[..., H, W]` to `[..., width]` by two strided convolutions."""

    width: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, grid: jax.Array) -> jax.Array:
        """Embeds the maps."""
        x = grid[..., None]
        for i, features in enumerate((8, 16)):
            x = nn.relu(nn.Conv(features, (3, 3), strides=2, dtype=self.dtype, name=f"conv_{i}")(x))
        x = x.reshape(*x.shape[:-3], -1)
        return nn.relu(nn.Dense(self.width, kernel_init=orthogonal(GAIN), dtype=self.dtype, name="out")(x))


class EntityEncoder(nn.Module):
    """Encodes each block of an observation by its kind and concatenates the results to `[..., G]`.

    Attributes:
      config: the settings; `kind` is not "none".
      blocks: the blocks of the observation.
      dtype: dtype of the arithmetic.
    """

    config: EncoderConfig
    blocks: tuple[Block, ...]
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, obs: jax.Array | Entities) -> jax.Array:
        """Encodes observations split into blocks, or raw ones `[..., F]`."""
        seen = obs if isinstance(obs, Entities) else split_into_blocks(obs, self.blocks)
        heads = self.config.heads if self.config.kind == "attention" else 0
        parts = []
        for block in self.blocks:
            x = seen.blocks[block.name]
            if block.kind == "set":
                present = seen.present[block.name]
                x = SetEncoder(self.config.width, heads, self.dtype, name=block.name)(x, present)
            elif block.kind == "map" and self.config.maps == "cnn":
                x = MapEncoder(self.config.width, self.dtype, name=block.name)(x)
            else:
                x = x.reshape(*x.shape[: x.ndim - len(block.shape)], -1)
            parts.append(x.astype(jnp.float32))
        return jnp.concatenate(parts, axis=-1)


def make_encoder(
    config: EncoderConfig, blocks: Sequence[Block] | None, dtype: jnp.dtype = jnp.float32
) -> Callable | None:
    """Returns a factory `(name=...) -> module` of encoders; None if observations stay flat.

    Raises:
      ValueError: if the observations have no blocks.
    """
    if config.kind == "none":
        return None
    if not blocks:
        raise ValueError(
            f"encoder.kind={config.kind}: must be none; this environment's observations have no blocks"
        )
    return partial(EntityEncoder, config, tuple(blocks), dtype)


def encoded_blocks(config: EncoderConfig, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Returns the blocks that are encoded separately; empty if observations stay flat."""
    return () if config.kind == "none" else tuple(blocks)


def apply_encoder(encoder: Callable | None, name: str, obs: jax.Array | Entities) -> jax.Array:
    """Applies an encoder with this name; returns `obs` without one. Call inside a module."""
    if encoder is not None:
        return encoder(name=name)(obs)
    if isinstance(obs, Entities):
        raise TypeError(f"{name}: observations that are split into blocks need an encoder")
    return obs
