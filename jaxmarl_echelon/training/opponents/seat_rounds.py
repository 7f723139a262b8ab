"""Rounds of turn-based games against a pool, in which the learner plays every seat once.

The learner is always the same phase agent of an environment, so that its seat depends on the ply in which a
game begins. If every game began right after the previous one, the length of a game would determine the seat
in the next: where the second seat tends to end games, a learner in the second seat would stay there. A game
therefore begins at the next ply that gives the learner a seat which it has not played in this round, and a
round ends when it has played all N. A truncated game does not count, unless it is longer than a rollout. See
docs/reference/trainer.md 12.5.
"""

import jax
import jax.numpy as jnp

from algos import collectives
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.training.opponents.pool_role import SEAT, TAG


def begin_round(environments: int, seats: int) -> jax.Array:
    """Returns the record of a new round: `[E, N]` bool, no seat played."""
    return jnp.zeros((environments, seats), bool)


def seat_of_agent(agent: jax.Array, phase: jax.Array, length: jax.Array, seats: int) -> jax.Array:
    """Seats `[E]` int32 of phase agents `agent [E]` in games whose ply number `length [E]` is in `phase`."""
    return (agent - phase + length) % seats


def is_seat_played(had: jax.Array, seat: jax.Array) -> jax.Array:
    """Whether the seats `seat [E]` have been played in this round, `[E]` bool."""
    return jnp.take_along_axis(had, seat[:, None], axis=1)[:, 0]


def mark_played_seats(had: jax.Array, seat: jax.Array, over: jax.Array) -> jax.Array:
    """Adds `seat [E]` to the played seats where a game is `over [E]`; clears the record of full rounds."""
    had = had | (over[:, None] & (seat[:, None] == jnp.arange(had.shape[1])))
    return had & ~jnp.all(had, axis=1, keepdims=True)


def balance_seats(key: jax.Array, finished: Finished, entries: int, seats: int) -> Finished:
    """Selects equally many games against each entry from every seat; leaves mirrored games out.

    For each entry and seat as many games of all shards are drawn as the seat with the fewest has. The first
    ones would be short: after a change of opponents all games begin together.

    Args:
      key: typed random key, the same for all shards.
      finished: games `[T, E]` with the tags `opponent` and `seat`.
      entries: number of entries of the pool.
      seats: N.
    """
    tags = finished.tags
    met = finished.mask & (tags[TAG] > 0)
    cell = collectives.gather_shards(jnp.where(met, tags[TAG] * seats + tags[SEAT], entries * seats), 1)
    flat = cell.ravel()
    order = jnp.lexsort((jax.random.uniform(key, flat.shape), flat))
    first = jnp.searchsorted(flat[order], jnp.arange(entries * seats + 1))
    fewest = jnp.min(jnp.diff(first).reshape(entries, seats), axis=1)
    rank = jnp.zeros_like(flat).at[order].set(jnp.arange(flat.size)) - first[flat]
    entry = jnp.minimum(flat // seats, entries - 1)
    kept = (flat < entries * seats) & (rank < fewest[entry])
    own = collectives.local_rows(kept.reshape(cell.shape).T).T
    return finished.replace(mask=own)
