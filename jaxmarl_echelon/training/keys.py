"""The random streams of a run: one key per seed and purpose, none of which is another's."""

import enum

import jax

# `split(key, n)[i]` and `fold_in(key, i)` may be the same key. Streams therefore branch off at a number
# beyond every count that anything is split into, and are told apart only after that.
APART = 0xF1E7_D000


class Stream(enum.IntEnum):
    """What a run draws random numbers for besides training.

    Attributes:
      EVALUATION: evaluations on the way, which choose the best checkpoint; the same episodes each time.
      FINAL: the scores of a finished policy, on episodes that chose nothing.
      PICTURES: the episodes that are drawn.
    """

    EVALUATION = 0
    FINAL = 1
    PICTURES = 2


def run_key(seed: int) -> jax.Array:
    """The key that training starts from."""
    return jax.random.key(seed)


def stream_key(seed: int, stream: Stream) -> jax.Array:
    """The key of one of the other streams of the run with this seed."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), APART), int(stream))
