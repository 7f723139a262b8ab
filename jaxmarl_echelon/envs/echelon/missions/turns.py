"""Deterministic sequences for evaluations, which play the same episodes every time.

Two items that both cycle with the index of an episode are correlated if their numbers share a factor: with
four verbs and eight terrains each verb would see only two terrains. Therefore one of the sequences is
shuffled in each round.
"""

import jax
import jax.numpy as jnp
import numpy as np

# Multiples of this, modulo 2^32, are fractional parts of multiples of the golden ratio, which are spread
# evenly for any number of them.
_GOLDEN = np.uint32(0x9E3779B9)
_BITS = 24


def pick_by_weight(weights: jax.Array, index: jax.Array) -> jax.Array:
    """Returns the item (int32) at an index of a sequence in which items occur in proportion to their weights.

    A round has as many entries as there are positive weights, and consists of that many evenly spaced samples
    of the weights. With equal weights every item occurs once per round, in order.

    Args:
      weights: `[N]` relative, at least 0, not all 0.
      index: int32 from 0.
    """
    number = jnp.sum(weights > 0)
    lap = (index // number).astype(jnp.uint32)
    shift = (((lap + 1) * _GOLDEN >> (32 - _BITS)) + 0.5) * 2.0**-_BITS
    share = jnp.cumsum(weights) / jnp.sum(weights)
    item = jnp.searchsorted(share, (index % number + shift) / number, side="right")
    return jnp.minimum(item, jnp.max(jnp.where(weights > 0, jnp.arange(weights.size), 0))).astype(jnp.int32)


def pick_shuffled(weights: jax.Array, index: jax.Array) -> jax.Array:
    """Returns the item (int32) at an index of a sequence of shuffled rounds of all items of positive weight.

    Each round is shuffled independently, with a fixed seed.

    Args:
      weights: `[N]`, not all 0.
      index: int32 from 0.
    """
    used = weights > 0
    number = jnp.sum(used)
    drawn = jax.random.uniform(jax.random.fold_in(jax.random.key(0), index // number), weights.shape)
    return jnp.argsort(jnp.where(used, drawn, jnp.inf))[index % number].astype(jnp.int32)
