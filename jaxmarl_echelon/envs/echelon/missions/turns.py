"""What comes when its turn is: sequences for evaluations, which play the same episodes every time.

Two things that each follow the index of an episode are tied to each other where their numbers share a factor:
of four verbs and eight terrains each verb would see two terrains. So one of them goes round in an order that
is drawn for each round.
"""

import jax
import jax.numpy as jnp
import numpy as np

# Multiples of this, modulo 2^32, are fractional parts of multiples of the golden ratio: they spread evenly,
# however many there are.
_GOLDEN = np.uint32(0x9E3779B9)
_BITS = 24


def weighted_turn(weights: jax.Array, index: jax.Array) -> jax.Array:
    """The item `int32` whose turn it is at an index, each as often as its weight says.

    A round has as many turns as there are positive weights, and takes that many evenly spaced samples of the
    weights. With equal weights every item has one turn in a round, in order.

    Args:
      weights: `[N]` relative, at least 0, not all of them 0.
      index: int32 from 0.
    """
    number = jnp.sum(weights > 0)
    lap = (index // number).astype(jnp.uint32)
    shift = (((lap + 1) * _GOLDEN >> (32 - _BITS)) + 0.5) * 2.0**-_BITS
    share = jnp.cumsum(weights) / jnp.sum(weights)
    item = jnp.searchsorted(share, (index % number + shift) / number, side="right")
    return jnp.minimum(item, jnp.max(jnp.where(weights > 0, jnp.arange(weights.size), 0))).astype(jnp.int32)


def shuffled_turn(weights: jax.Array, index: jax.Array) -> jax.Array:
    """The item `int32` whose turn it is at an index; those of positive weight have one turn in each round.

    Rounds have orders of their own, the same for every caller.

    Args:
      weights: `[N]`, not all of them 0.
      index: int32 from 0.
    """
    used = weights > 0
    number = jnp.sum(used)
    drawn = jax.random.uniform(jax.random.fold_in(jax.random.key(0), index // number), weights.shape)
    return jnp.argsort(jnp.where(used, drawn, jnp.inf))[index % number].astype(jnp.int32)
