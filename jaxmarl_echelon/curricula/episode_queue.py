"""Bounded FIFO queue of episodes ordered by start time, the basis of a curriculum's statistics.

Processing episodes in order of completion is biased towards short ones, most of all just after a
transition, when all begin at about the same time, and for longer with more environments: if success is
faster than failure, a poor policy looks good. Episodes are therefore enqueued when they begin and
dequeued once they and all earlier ones have ended, so that selection is independent of their results.
Reference: docs/reference/curricula.md 2.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from algos.types import PyTree
from jaxmarl_echelon.envs.episodes import EpisodeEvents

NOT_QUEUED = -1


class EpisodeQueue(struct.PyTreeNode):
    """FIFO queue of up to R episodes, ordered by start time.

    Attributes:
      held: `[E]` int32, queue index of each environment's running episode; `NOT_QUEUED` if not enqueued.
      length: int32, queue length.
      over: `[R]` bool; the episode has ended.
      sound: `[R]` bool; it ended with a result (neither truncated by the trainer nor quarantined).
      results: arrays `[R]`, valid where `sound`.
    """

    held: jax.Array
    length: jax.Array
    over: jax.Array
    sound: jax.Array
    results: PyTree


def make_episode_queue(num_envs: int, size: int, results: PyTree) -> EpisodeQueue:
    """Returns an empty queue of capacity `size` for E environments; `results` is a template of scalars."""
    none = jnp.zeros(size, bool)
    return EpisodeQueue(
        held=jnp.full(num_envs, NOT_QUEUED, jnp.int32),
        length=jnp.int32(0),
        over=none,
        sound=none,
        results=jax.tree.map(lambda x: jnp.zeros(size, x.dtype), results),
    )


def enqueue_and_record(
    tickets: EpisodeQueue, flow: EpisodeEvents, own: jax.Array, results: PyTree
) -> EpisodeQueue:
    """Enqueues episodes as they begin and records the results of enqueued ones that end.

    Order is by decision, then by environment. Episodes that begin while the queue is full are never
    enqueued, so that its length does not depend on the number of environments.

    Args:
      tickets: the queue before.
      flow: T decisions.
      own: `[T, E]` bool; episodes that may be enqueued where they begin.
      results: arrays `[T, E]` of finished episodes.
    """
    size = tickets.over.shape[0]
    joining = flow.begins & own
    place = tickets.length + _numbered(joining)
    place = jnp.where(joining & (place < size), place, NOT_QUEUED)

    def advance(held, decision):
        begins, place, over = decision
        held = jnp.where(begins, place, held)
        return jnp.where(over, NOT_QUEUED, held), held

    after, held = lax.scan(advance, tickets.held, (flow.begins, place, flow.over))
    at = jnp.where(flow.over & (held != NOT_QUEUED), held, size).reshape(-1)
    moment = (
        jnp.full(size, NOT_QUEUED, jnp.int32).at[at].set(jnp.arange(at.size, dtype=jnp.int32), mode="drop")
    )
    ended = moment != NOT_QUEUED

    def note(old, new):
        return jnp.where(ended, new.reshape(-1)[moment], old)

    return EpisodeQueue(
        held=after,
        length=jnp.minimum(tickets.length + jnp.sum(joining, dtype=jnp.int32), size),
        over=tickets.over | ended,
        sound=note(tickets.sound, flow.finished.mask),
        results=jax.tree.map(note, tickets.results, results),
    )


def completed_prefix(tickets: EpisodeQueue) -> tuple[PyTree, jax.Array, jax.Array]:
    """Returns the ended prefix of the queue: episodes that have ended along with all earlier ones.

    Returns:
      results `[R]`, of which the first `number` are valid, in queue order;
      number: int32, sound episodes in the prefix;
      places: int32, length of the prefix.
    """
    size = tickets.over.size
    places = jnp.where(jnp.all(tickets.over), size, jnp.argmin(tickets.over)).astype(jnp.int32)
    counted = (jnp.arange(size) < places) & tickets.sound
    order = jnp.nonzero(counted, size=size, fill_value=0)[0]
    results = jax.tree.map(lambda x: x[order], tickets.results)
    return results, jnp.sum(counted, dtype=jnp.int32), places


def dequeue_episodes(tickets: EpisodeQueue, places: jax.Array) -> EpisodeQueue:
    """Dequeues the first `places` episodes; `places = R` empties the queue, running episodes included."""
    length = jnp.maximum(tickets.length - places, 0)
    taken = jnp.arange(tickets.over.size) < length

    def move_up(x):
        return jnp.where(taken, jnp.roll(x, -places), jnp.zeros_like(x))

    return EpisodeQueue(
        held=jnp.where(tickets.held >= places, tickets.held - places, NOT_QUEUED),
        length=length,
        over=move_up(tickets.over),
        sound=move_up(tickets.sound),
        results=jax.tree.map(move_up, tickets.results),
    )


def empty_queue(tickets: EpisodeQueue, cleared: jax.Array) -> EpisodeQueue:
    """Empties the queue where `cleared` (bool) is set, running episodes included."""
    return dequeue_episodes(tickets, jnp.where(cleared, tickets.over.size, 0))


def _numbered(mask: jax.Array) -> jax.Array:
    """Returns the row-major rank, from 0, of the set elements of `mask [T, E]`; others are undefined."""
    mask = mask.astype(jnp.int32)
    rows = jnp.sum(mask, axis=1)
    before = jnp.cumsum(rows) - rows
    return before[:, None] + jnp.cumsum(mask, axis=1) - 1
