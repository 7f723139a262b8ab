"""Diversity of play against each entry of a pool: shares of distinct n-grams of moves.

The moves of the last `GAMES_KEPT` games against each entry are stored, and all statistics are counted from
these stored games. See docs/reference/selfplay.md 3.5.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct

from algos import collectives
from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete

GAMES_KEPT = 512
BUCKETS = 2**14
GRAMS = (1, 2, 3, 4)
# Length of the n-grams read by the matchmaking mode "exploration".
MATCHMAKING_GRAM = 2
NO_MOVE = -1
# Knuth's multiplicative hash: odd, so that multiplication modulo a power of 2 is a bijection.
FACTOR = 2654435761


class MoveHistory(struct.PyTreeNode):
    """Moves of the running games, and of the last games against n entries, in one shard.

    Attributes:
      running: `[E, L]` int32 moves of all seats so far, padded with `NO_MOVE`.
      kept: `[n, GAMES, L]` int32 moves of finished games, padded with `NO_MOVE`.
      written: `[n]` int32 number of games written so far; the ring holds the newest `GAMES_KEPT` of them.
    """

    running: jax.Array
    kept: jax.Array
    written: jax.Array


def init(environments: int, entries: int, longest: int) -> MoveHistory:
    """Returns an empty record for games of at most `longest` moves."""
    return MoveHistory(
        jnp.full((environments, longest), NO_MOVE, jnp.int32),
        jnp.full((entries, GAMES_KEPT, longest), NO_MOVE, jnp.int32),
        jnp.zeros(entries, jnp.int32),
    )


def action_count(space: Discrete | MultiDiscrete) -> int:
    """Number of distinct moves in an action space."""
    return space.n if isinstance(space, Discrete) else math.prod(space.sizes)


def encode_actions(space: Discrete | MultiDiscrete, action: jax.Array) -> jax.Array:
    """Encodes actions as integers `[...]`, from `[...]` or, for several choices, `[..., choices]`.

    An action with a negative choice is no action of the game: `NO_MOVE`.
    """
    if isinstance(space, Discrete):
        return action
    found = jnp.zeros(action.shape[:-1], jnp.int32)
    for choice, size in enumerate(space.sizes):
        found = found * size + action[..., choice]
    return jnp.where(jnp.any(action < 0, axis=-1), NO_MOVE, found)


def record_ply(
    plays: MoveHistory, move: jax.Array, ended: jax.Array, entry: jax.Array, over: jax.Array
) -> MoveHistory:
    """Adds one ply of E environments to the record.

    Args:
      plays: the record before the ply.
      move: `[E]` int32; `NO_MOVE` for forced plies.
      ended: `[E]` bool; a game ended with this ply.
      entry: `[E]` int32 opponent entry; 0 for mirror games, which are not stored.
      over: `[E]` bool; the next ply begins a new game, for any reason.
    """
    rows, place = jnp.arange(move.shape[0]), jnp.sum(plays.running >= 0, axis=1)
    running = plays.running.at[rows, place].set(move, mode="drop")
    mine = (ended & (entry > 0))[:, None] & (entry[:, None] == jnp.arange(plays.written.shape[0]))
    number = jnp.sum(mine, axis=0, dtype=jnp.int32)
    rank = jnp.sum(jnp.where(mine, jnp.cumsum(mine, axis=0) - 1, 0), axis=1)
    # If more games end at once than fit, only the last ones are stored, so no place is written twice.
    stays = jnp.any(mine, axis=1) & (number[entry] - rank <= GAMES_KEPT)
    slot = jnp.where(stays, (plays.written[entry] + rank) % GAMES_KEPT, GAMES_KEPT)
    return MoveHistory(
        jnp.where(over[:, None], NO_MOVE, running),
        plays.kept.at[entry, slot].set(running, mode="drop"),
        plays.written + number,
    )


def clear_entries(plays: MoveHistory, entries: jax.Array) -> MoveHistory:
    """Clears the games against `entries [n]` bool, whose slots are reused."""
    kept = jnp.where(entries[:, None, None], NO_MOVE, plays.kept)
    return plays.replace(kept=kept, written=jnp.where(entries, 0, plays.written))


def hash_ngrams(moves: jax.Array, number: int, n: int) -> jax.Array:
    """Bucket index of each n-gram of moves `[..., L]`: `[..., L - n + 1]`; `NO_MOVE` in the padding.

    Exact if the `number`^n possible n-grams fit into `BUCKETS`, else hashed.
    """
    longest = moves.shape[-1]
    parts = [moves[..., first : longest - n + 1 + first] for first in range(n)]
    found = jnp.zeros(parts[0].shape, jnp.uint32)
    for part in parts:
        found = found * jnp.uint32(number) + part.astype(jnp.uint32)
    if number**n > BUCKETS:
        found = (found * jnp.uint32(FACTOR)) >> jnp.uint32(32 - 14)
    return jnp.where(parts[-1] >= 0, found.astype(jnp.int32), NO_MOVE)


def distinct_ngram_share(plays: MoveHistory, number: int, n: int) -> jax.Array:
    """Returns the share `[entries]` of distinct n-grams in all shards' games per entry; 1 without games."""
    if plays.kept.shape[-1] < n:
        return jnp.ones(plays.written.shape)
    found = hash_ngrams(plays.kept, number, n)
    entry = jnp.arange(found.shape[0])[:, None, None]
    there = found >= 0
    table = jnp.zeros((found.shape[0], BUCKETS), jnp.int32)
    table = collectives.sum_over_shards(table.at[entry, jnp.where(there, found, BUCKETS)].add(1, mode="drop"))
    total = jnp.sum(table, axis=1)
    return jnp.where(total > 0, jnp.sum(table > 0, axis=1) / jnp.maximum(total, 1), 1.0)
