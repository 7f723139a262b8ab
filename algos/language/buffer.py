"""Buffer of answers between rollouts and gradient steps: a fixed room, uniform eviction, uniform draws.

Batches have a constant size whatever the length of games is. Its answers may be of older policies; the
learner weights them by truncated importance ratios. All of it belongs to one shard.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from algos.checks import require_count, require_range
from algos.language.state import AnswerRows


@dataclass(frozen=True)
class BufferSettings:
    """Sizes of a buffer, over all shards.

    Attributes:
      capacity: most answers.
      batch: answers of an update's gradient steps, which leave the buffer.
      wait: no step is taken before the buffer holds `wait * batch` answers.
      normalize: whether the advantages of a batch are standardised.
    """

    capacity: int = 768
    batch: int = 384
    wait: float = 1.5
    normalize: bool = True

    def __post_init__(self):
        require_count("buffer.capacity", self.capacity)
        require_count("buffer.batch", self.batch)
        require_range("buffer.wait", self.wait, 1.0, math.inf)
        if self.wait * self.batch > self.capacity:
            raise ValueError(
                f"buffer.capacity={self.capacity}: must be at least wait * batch = {self.wait * self.batch:g}"
            )


class AnswerBuffer(struct.PyTreeNode):
    """Answers that wait to be learnt from.

    Attributes:
      rows: `[capacity, ...]`; filled where `rows.alive`.
      age: int32 `[capacity]`, updates since an answer was given.
    """

    rows: AnswerRows
    age: jax.Array


def init_buffer(like: AnswerRows, capacity: int) -> AnswerBuffer:
    """Returns an empty buffer.

    Args:
      like: rows `[N, ...]`, or their shapes.
      capacity: answers on this shard.
    """
    rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape[1:]), x.dtype), like)
    return AnswerBuffer(rows, jnp.zeros(capacity, jnp.int32))


def add_answers(buffer: AnswerBuffer, key: jax.Array, rows: AnswerRows) -> AnswerBuffer:
    """Adds the answers of a rollout that are learnt from; if there is no room, random answers leave."""
    capacity = buffer.age.shape[0]
    every = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), buffer.rows, rows)
    age = jnp.concatenate([buffer.age + 1, jnp.zeros(rows.alive.shape, jnp.int32)])
    kept = draw_rows(key, every.alive, capacity)
    return jax.tree.map(lambda x: x[kept], AnswerBuffer(every, age))


def take_batch(
    buffer: AnswerBuffer, key: jax.Array, size: int, least: float
) -> tuple[AnswerBuffer, AnswerRows, jax.Array]:
    """Draws a batch without replacement and removes it, if the buffer holds at least `least` answers.

    Returns:
      the buffer, the rows `[size, ...]`, none of them alive if there are too few, and the mean age of the
      batch, NaN without one.
    """
    ready = buffer.rows.alive.sum() >= least
    drawn = draw_rows(key, buffer.rows.alive, size)
    rows, age = jax.tree.map(lambda x: x[drawn], (buffer.rows, buffer.age))
    rows = rows.replace(alive=rows.alive & ready)
    left = buffer.rows.alive.at[drawn].set(jnp.where(ready, False, buffer.rows.alive[drawn]))
    mean_age = jnp.where(ready, age.astype(jnp.float32).mean(), jnp.nan)
    return buffer.replace(rows=buffer.rows.replace(alive=left)), rows, mean_age


def draw_rows(key: jax.Array, alive: jax.Array, number: int) -> jax.Array:
    """Draws indices `[number]` of different rows, those that are alive first and in random order."""
    luck = jax.random.uniform(key, alive.shape)
    return jnp.argsort(jnp.where(alive, luck, luck + 1.0))[:number]
