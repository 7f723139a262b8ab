"""Which episodes a curriculum judges by, and in what order.

Whoever looks at episodes in the order in which they end sees the short ones first: just after a
move, when all begin at about the same time, it sees nothing else, and the more environments run,
the longer. If success takes shorter than failure, a poor policy looks good. So whether an episode
counts is settled when it begins: it gets a place in a line, and it is looked at once all before it
have ended. Nothing that happens in it decides whether it counts, or which others count beside it.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxmarl_echelon.envs.episodes import Flow, PyTree

NONE = -1


@struct.dataclass
class Tickets:
    """A line of R episodes, in the order in which they began, and who stands in it.

    Attributes:
      held: `[E]` int32, place in the line of each environment's episode; `NONE` for no place.
      length: int32, places taken.
      over: `[R]` bool; the episode has ended.
      sound: `[R]` bool; it has ended with a result, rather than been thrown away.
      results: arrays `[R]` of the sound ones.
    """

    held: jax.Array
    length: jax.Array
    over: jax.Array
    sound: jax.Array
    results: PyTree


def empty(num_envs: int, size: int, results: PyTree) -> Tickets:
    """An empty line of `size` places for E environments; `results` shows one episode's, scalars."""
    none = jnp.zeros(size, bool)
    return Tickets(
        held=jnp.full(num_envs, NONE, jnp.int32),
        length=jnp.int32(0),
        over=none,
        sound=none,
        results=jax.tree.map(lambda x: jnp.zeros(size, x.dtype), results),
    )


def follow(tickets: Tickets, flow: Flow, own: jax.Array, results: PyTree) -> Tickets:
    """Lets episodes join the line as they begin and notes the results of those in it.

    They join in time order, those that begin together by environment. Once all places are taken
    the others get none, now or later, so that how many are in line does not depend on how many
    environments there are.

    Args:
      tickets: the line before.
      flow: T decisions.
      own: `[T, E]` bool; of the episodes that begin, those that may join.
      results: arrays `[T, E]`, of the episodes that finish.
    """
    size = tickets.over.shape[0]
    joining = flow.begins & own
    place = tickets.length + _numbered(joining)
    place = jnp.where(joining & (place < size), place, NONE)

    def advance(held, decision):
        begins, place, over = decision
        held = jnp.where(begins, place, held)
        return jnp.where(over, NONE, held), held

    after, held = lax.scan(advance, tickets.held, (flow.begins, place, flow.over))
    at = jnp.where(flow.over & (held != NONE), held, size).reshape(-1)
    moment = jnp.full(size, NONE, jnp.int32).at[at].set(jnp.arange(at.size, dtype=jnp.int32), mode="drop")
    ended = moment != NONE

    def note(old, new):
        return jnp.where(ended, new.reshape(-1)[moment], old)

    return Tickets(
        held=after,
        length=jnp.minimum(tickets.length + jnp.sum(joining, dtype=jnp.int32), size),
        over=tickets.over | ended,
        sound=note(tickets.sound, flow.finished.mask),
        results=jax.tree.map(note, tickets.results, results),
    )


def settled(tickets: Tickets) -> tuple[PyTree, jax.Array, jax.Array]:
    """The episodes whose turn it is: they have ended, and so have all before them.

    Returns:
      results `[R]`, of which the first `number` are theirs, in the order of the line;
      number: int32, those of them that ended with a result;
      places: int32, places at the head of the line that they and those thrown away take up.
    """
    size = tickets.over.size
    places = jnp.where(jnp.all(tickets.over), size, jnp.argmin(tickets.over)).astype(jnp.int32)
    counted = (jnp.arange(size) < places) & tickets.sound
    order = jnp.nonzero(counted, size=size, fill_value=0)[0]
    results = jax.tree.map(lambda x: x[order], tickets.results)
    return results, jnp.sum(counted, dtype=jnp.int32), places


def leave(tickets: Tickets, places: jax.Array) -> Tickets:
    """Takes as many episodes from the head of the line; all of them, under way or not, for R."""
    length = jnp.maximum(tickets.length - places, 0)
    taken = jnp.arange(tickets.over.size) < length

    def move_up(x):
        return jnp.where(taken, jnp.roll(x, -places), jnp.zeros_like(x))

    return Tickets(
        held=jnp.where(tickets.held >= places, tickets.held - places, NONE),
        length=length,
        over=move_up(tickets.over),
        sound=move_up(tickets.sound),
        results=jax.tree.map(move_up, tickets.results),
    )


def _numbered(mask: jax.Array) -> jax.Array:
    """Numbers the marked of `mask [T, E]` from 0, row by row; other entries mean nothing."""
    mask = mask.astype(jnp.int32)
    rows = jnp.sum(mask, axis=1)
    before = jnp.cumsum(rows) - rows
    return before[:, None] + jnp.cumsum(mask, axis=1) - 1
