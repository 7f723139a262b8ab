"""Shapley values of small cooperative games, from the values of coalitions.

Shapley 1953, "A value for n-person games"; sampling as in Castro, Gomez and Tejada 2009, "Polynomial
calculation of the Shapley value based on sampling". Reference: docs/reference/echelon.md 16.4.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

# Games of at most this many players are always enumerated.
ENUMERATED = 3


def is_enumerated(players: int, samples: int) -> bool:
    """Returns whether to evaluate all coalitions: in small games, and where sampling takes as many."""
    return players <= ENUMERATED or 2**players - 2 <= 2 * samples * (players - 1)


def list_coalitions(players: int) -> np.ndarray:
    """Returns all coalitions, bool `[2**n, n]`; the first is empty, the last has everyone."""
    return (np.arange(2**players)[:, None] >> np.arange(players)) % 2 == 1


def exact_shapley_values(values: jax.Array) -> jax.Array:
    """Returns Shapley values `[n]` from the values `[2**n]` of all coalitions, as `list_coalitions`."""
    players = values.size.bit_length() - 1
    inside = list_coalitions(players)
    orders = [math.factorial(k) * math.factorial(players - k - 1) for k in range(players)]
    shares = jnp.asarray(np.array(orders) / math.factorial(players), jnp.float32)
    found = []
    for has in inside.T:
        # Both selections list the coalitions of the others in the same order.
        joined, without = values[np.flatnonzero(has)], values[np.flatnonzero(~has)]
        found.append(jnp.sum(shares[inside[~has].sum(1)] * (joined - without)))
    return jnp.stack(found)


def draw_ranks(key: jax.Array, players: int, samples: int) -> jax.Array:
    """Draws permutations and adds the reverse of each.

    Returns:
      int32 `[2 * samples, n]` place of each player in each permutation.
    """
    places = jnp.broadcast_to(jnp.arange(players), (samples, players))
    drawn = jax.random.permutation(key, places, axis=1, independent=True)
    return jnp.concatenate([drawn, players - 1 - drawn])


def prefix_coalitions(ranks: jax.Array) -> jax.Array:
    """Returns the first k players of permutations `[P, n]`, for k from 1 to n - 1: bool `[P, n - 1, n]`."""
    return ranks[:, None, :] < jnp.arange(1, ranks.shape[1])[:, None]


def sampled_shapley_values(ranks: jax.Array, values: jax.Array) -> jax.Array:
    """Returns mean marginal contributions `[n]` over permutations.

    Args:
      ranks: `[P, n]` places of the players.
      values: `[P, n + 1]` of the first k players, for k from 0 to n.
    """
    return jnp.mean(jnp.take_along_axis(jnp.diff(values, axis=1), ranks, axis=1), axis=0)
