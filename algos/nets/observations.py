"""Inputs of networks from raw observations: normalised as a whole, or block by block for an encoder."""

from collections.abc import Callable
from typing import NamedTuple, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
from flax import struct

from algos.masks import expand_mask
from algos.nets.normalize import Moments, init_moments, merge_moments, normalize_by_moments
from algos.types import Asymmetric, Block


class Entities(NamedTuple):
    """An observation split into its blocks.

    Attributes:
      blocks: block name to `[..., *shape]`; empty rows of sets are 0.
      present: name of a set to bool `[..., K]`, the rows that are filled.
    """

    blocks: dict[str, jax.Array]
    present: dict[str, jax.Array]


class BlockMoments(struct.PyTreeNode):
    """Statistics of observations per block.

    Numbers that an encoder treats alike share a mean and variance: each feature of a set over the present
    rows, all cells of a map. In a vector block, every number has its own.

    Attributes:
      moments: block name to moments: `[F]` for a set, scalar for a map, the block's shape for a vector.
      blocks: the blocks.
    """

    moments: dict[str, Moments]
    blocks: tuple[Block, ...] = struct.field(pytree_node=False)


# Each part of asymmetric observations has its own statistics.
Statistics = Moments | BlockMoments | Asymmetric | None
S = TypeVar("S", bound=Moments | BlockMoments | None)


def init_statistics(size: int, blocks: tuple[Block, ...] = ()) -> Moments | BlockMoments:
    """Returns initial statistics of observations of `size` numbers, or of these blocks if there are any."""
    if not blocks:
        return init_moments((size,))
    return BlockMoments({block.name: init_moments(_shared_shape(block)) for block in blocks}, blocks)


def _shared_shape(block: Block) -> tuple[int, ...]:
    """Shape of a block's statistics."""
    return {"set": block.shape[1:], "map": ()}.get(block.kind, block.shape)


def split_into_blocks(flat: jax.Array, blocks: tuple[Block, ...]) -> Entities:
    """Splits raw observations `[..., F]` into blocks; rows of zeros in sets are empty."""
    parts = {
        block.name: flat[..., block.start : block.start + block.size].reshape(*flat.shape[:-1], *block.shape)
        for block in blocks
    }
    present = {block.name: jnp.any(parts[block.name] != 0, -1) for block in blocks if block.kind == "set"}
    return Entities(parts, present)


def merge_statistics(statistics: Statistics, flat: jax.Array | Asymmetric, alive: jax.Array) -> Statistics:
    """Merges the raw observations `[*lead, F]` of `alive` rows into the statistics; see `merge_moments`."""
    if statistics is None:
        return None
    if isinstance(flat, Asymmetric):
        return map_actor_and_critic(lambda own, part: merge_statistics(own, part, alive), statistics, flat)
    statistics, flat = _of_one_part(statistics), as_float32(flat)
    if isinstance(statistics, Moments):
        return merge_moments(statistics, flat, alive)
    seen = split_into_blocks(flat, statistics.blocks)
    merged = {}
    for block in statistics.blocks:
        x = seen.blocks[block.name]
        # One sample per row of a set and per cell of a map.
        count = expand_mask(alive, x.ndim - len(_shared_shape(block)))
        if block.kind == "set":
            count = count & seen.present[block.name]
        count = jnp.broadcast_to(count, x.shape[: x.ndim - len(_shared_shape(block))])
        merged[block.name] = merge_moments(statistics.moments[block.name], x, count)
    return statistics.replace(moments=merged)


def normalize_observations(
    statistics: Statistics, flat: jax.Array | Asymmetric
) -> jax.Array | Entities | Asymmetric:
    """Float32 inputs of networks from raw observations `[..., F]`, normalised if there are statistics.

    Empty rows of a set are detected in the raw rows: a normalised row of zeros is not 0, and a normalised
    row of an average entity may be.
    """
    if isinstance(flat, Asymmetric):
        return map_actor_and_critic(normalize_observations, statistics, flat)
    statistics, flat = _of_one_part(statistics), as_float32(flat)
    if statistics is None:
        return flat
    if isinstance(statistics, Moments):
        return normalize_by_moments(statistics, flat)
    raw = split_into_blocks(flat, statistics.blocks)
    blocks = {name: normalize_by_moments(statistics.moments[name], x) for name, x in raw.blocks.items()}
    for name, present in raw.present.items():
        blocks[name] = jnp.where(present[..., None], blocks[name], 0.0)
    return Entities(blocks, raw.present)


def compress_observations(
    statistics: Statistics, flat: jax.Array | Asymmetric
) -> jax.Array | Entities | Asymmetric:
    """Observations `[..., F]` as stored for several epochs: normalised floats, or the original integers.

    Integers stay unchanged to save memory; other observations are converted by `normalize_observations`.
    """
    if isinstance(flat, Asymmetric):
        return map_actor_and_critic(compress_observations, statistics, flat)
    return flat if has_integer_dtype(flat) else normalize_observations(statistics, flat)


def decompress_observations(
    statistics: Statistics, kept: jax.Array | Entities | Asymmetric
) -> jax.Array | Entities | Asymmetric:
    """Rebuilds network inputs from the compact form of `compress_observations`."""
    if isinstance(kept, Asymmetric):
        return map_actor_and_critic(decompress_observations, statistics, kept)
    return normalize_observations(statistics, kept) if has_integer_dtype(kept) else kept


def _of_one_part(statistics: S | Asymmetric) -> S:
    """Returns the statistics of observations that are not `Asymmetric`."""
    if isinstance(statistics, Asymmetric):
        raise TypeError("statistics of actor and critic need observations of both")
    return statistics


def as_float32(x: jax.Array) -> jax.Array:
    """Converts `x` to float32; returns `x` itself if it is float32."""
    return x if x.dtype == jnp.float32 else x.astype(jnp.float32)


def has_integer_dtype(obs: jax.Array | Entities) -> TypeGuard[jax.Array]:
    """Whether observations are of an integer type."""
    return not isinstance(obs, Entities) and not jnp.issubdtype(obs.dtype, jnp.floating)


def map_actor_and_critic(fn: Callable, statistics: Statistics, obs: Asymmetric) -> Asymmetric:
    """Applies `fn(statistics, obs)` to actor and critic observations; the critic's may be None."""
    own = Asymmetric(None, None) if statistics is None else statistics
    if not isinstance(own, Asymmetric):
        raise TypeError("observations of actor and critic need statistics of both")
    critic = None if obs.critic is None else fn(own.critic, obs.critic)
    return Asymmetric(fn(own.actor, obs.actor), critic)
