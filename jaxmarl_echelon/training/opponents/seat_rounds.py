"""Rounds of turn games against a pool, in which the learner has every seat once.

The learner is always the same phase agent of an environment, so its seat follows from the ply in which a game
begins. If every game began as soon as the one before is over, the length of one would decide the seat of the
next: where the second seat tends to end games, a learner that was second would be second again. A game
therefore waits for the next ply that gives the learner a seat which it has not had in this round, and a round
is over when it has had all N. A game that is cut does not count, unless it was longer than a rollout.
"""

import jax
import jax.numpy as jnp

from algos import collectives
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.training.opponents.pool_role import SEAT, TAG


def begin(environments: int, seats: int) -> jax.Array:
    """`[E, N]` bool; no seat of the first round has been had."""
    return jnp.zeros((environments, seats), bool)


def seat_of(agent: jax.Array, phase: jax.Array, length: jax.Array, seats: int) -> jax.Array:
    """`[E]` int32; the seats of phase agents `agent [E]` in games whose ply `length [E]` falls in `phase`."""
    return (agent - phase + length) % seats


def had_already(had: jax.Array, seat: jax.Array) -> jax.Array:
    """`[E]` bool; whether the seats `seat [E]` have been had in this round."""
    return jnp.take_along_axis(had, seat[:, None], axis=1)[:, 0]


def counted(had: jax.Array, seat: jax.Array, over: jax.Array) -> jax.Array:
    """The seats that have been had, with `seat [E]` where a game is `over [E]`; none once all have been."""
    had = had | (over[:, None] & (seat[:, None] == jnp.arange(had.shape[1])))
    return had & ~jnp.all(had, axis=1, keepdims=True)


def balanced(finished: Finished, entries: int, seats: int) -> Finished:
    """Of the games against a pool as many from every seat, for each entry; mirror games are left out.

    Of each entry and seat the first ones of all shards are kept, as many as the seat with the fewest has.

    Args:
      finished: games `[T, E]` with the tags `opponent` and `seat`.
      entries: of the pool.
      seats: N.
    """
    tags = finished.tags
    met = finished.mask & (tags[TAG] > 0)
    cell = collectives.gather(jnp.where(met, tags[TAG] * seats + tags[SEAT], entries * seats), 1)
    flat = cell.ravel()
    order = jnp.argsort(flat, stable=True)
    first = jnp.searchsorted(flat[order], jnp.arange(entries * seats + 1))
    fewest = jnp.min(jnp.diff(first).reshape(entries, seats), axis=1)
    rank = jnp.zeros_like(flat).at[order].set(jnp.arange(flat.size)) - first[flat]
    entry = jnp.minimum(flat // seats, entries - 1)
    kept = (flat < entries * seats) & (rank < fewest[entry])
    own = collectives.own(kept.reshape(cell.shape).T).T
    return finished.replace(mask=own)
