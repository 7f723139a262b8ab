"""How different the games against each entry of a pool are: shares of distinct n-grams of their moves.

The moves of the last `GAMES` games against every entry are kept as they were played; what is told of them
is counted from these alone. Source: spec section 3.1.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct

from algos import collectives
from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete

GAMES = 512
BUCKETS = 2**14
GRAMS = (1, 2, 3, 4)
# Of the mode that draws opponents by it.
MODE = 2
NOTHING = -1
# Odd, so that products modulo a power of 2 lose nothing: Knuth's multiplicative hash.
FACTOR = 2654435761


@struct.dataclass
class Plays:
    """Moves of running games and of the last games against n entries, of one shard.

    Attributes:
      running: `[E, L]` int32 moves of both sides so far, then `NOTHING`.
      kept: `[n, GAMES, L]` int32; `NOTHING` from the end of each game on.
      written: `[n]` int32 games kept so far, of which the newest are there.
    """

    running: jax.Array
    kept: jax.Array
    written: jax.Array


def init(environments: int, entries: int, longest: int) -> Plays:
    """Nothing played yet, in games of at most `longest` moves."""
    return Plays(
        jnp.full((environments, longest), NOTHING, jnp.int32),
        jnp.full((entries, GAMES, longest), NOTHING, jnp.int32),
        jnp.zeros(entries, jnp.int32),
    )


def number_of(space: Discrete | MultiDiscrete) -> int:
    """Different moves of an action space."""
    return space.n if isinstance(space, Discrete) else math.prod(space.sizes)


def as_number(space: Discrete | MultiDiscrete, action: jax.Array) -> jax.Array:
    """Moves `[...]` as numbers, of actions `[...]` or, of several choices, `[..., choices]`."""
    if isinstance(space, Discrete):
        return action
    found = jnp.zeros(action.shape[:-1], jnp.int32)
    for choice, size in enumerate(space.sizes):
        found = found * size + action[..., choice]
    return found


def noted(plays: Plays, move: jax.Array, ended: jax.Array, entry: jax.Array, over: jax.Array) -> Plays:
    """The record after a ply of E environments.

    Args:
      plays: before it.
      move: `[E]` int32; `NOTHING` where nobody decided.
      ended: `[E]` bool; a game has ended with it.
      entry: `[E]` int32 who is played, 0 for mirror games, which are not kept.
      over: `[E]` bool; another game begins, for any reason.
    """
    rows, place = jnp.arange(move.shape[0]), jnp.sum(plays.running >= 0, axis=1)
    running = plays.running.at[rows, place].set(move, mode="drop")
    mine = (ended & (entry > 0))[:, None] & (entry[:, None] == jnp.arange(plays.written.shape[0]))
    number = jnp.sum(mine, axis=0, dtype=jnp.int32)
    rank = jnp.sum(jnp.where(mine, jnp.cumsum(mine, axis=0) - 1, 0), axis=1)
    # Of more games at once than are kept the last ones: no place is written twice.
    stays = jnp.any(mine, axis=1) & (number[entry] - rank <= GAMES)
    slot = jnp.where(stays, (plays.written[entry] + rank) % GAMES, GAMES)
    return Plays(
        jnp.where(over[:, None], NOTHING, running),
        plays.kept.at[entry, slot].set(running, mode="drop"),
        plays.written + number,
    )


def forgotten(plays: Plays, entries: jax.Array) -> Plays:
    """The record without the games against some `entries [n]` bool, whose places others take."""
    kept = jnp.where(entries[:, None, None], NOTHING, plays.kept)
    return plays.replace(kept=kept, written=jnp.where(entries, 0, plays.written))


def buckets(moves: jax.Array, number: int, n: int) -> jax.Array:
    """A bucket for every n-gram of moves `[..., L]`, `[..., L - n + 1]`; `NOTHING` where there is none.

    Exact where `number`^n different ones fit, else by a hash.
    """
    longest = moves.shape[-1]
    parts = [moves[..., first : longest - n + 1 + first] for first in range(n)]
    found = jnp.zeros(parts[0].shape, jnp.uint32)
    for part in parts:
        found = found * jnp.uint32(number) + part.astype(jnp.uint32)
    if number**n > BUCKETS:
        found = (found * jnp.uint32(FACTOR)) >> jnp.uint32(32 - 14)
    return jnp.where(parts[-1] >= 0, found.astype(jnp.int32), NOTHING)


def distinct(plays: Plays, number: int, n: int) -> jax.Array:
    """`[entries]` share of distinct n-grams in the games of all shards against each entry; 1 without any."""
    if plays.kept.shape[-1] < n:
        return jnp.ones(plays.written.shape)
    found = buckets(plays.kept, number, n)
    entry = jnp.arange(found.shape[0])[:, None, None]
    there = found >= 0
    table = jnp.zeros((found.shape[0], BUCKETS), jnp.int32)
    table = collectives.sum(table.at[entry, jnp.where(there, found, BUCKETS)].add(1, mode="drop"))
    total = jnp.sum(table, axis=1)
    return jnp.where(total > 0, jnp.sum(table > 0, axis=1) / jnp.maximum(total, 1), 1.0)
