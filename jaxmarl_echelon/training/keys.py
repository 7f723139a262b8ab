"""The random streams of a run: a distinct key per seed and purpose."""

import enum

import jax

# `split(key, n)[i]` and `fold_in(key, i)` may be the same key, so streams are first folded with a number
# above every n used in a split, then with their own number.
APART = 0xF1E7_D000


class Stream(enum.IntEnum):
    """Random streams besides training.

    Attributes:
      EVALUATION: periodic evaluations, which select the best checkpoint; the same episodes each time.
      FINAL: final scores, on held-out episodes that selected nothing.
    """

    EVALUATION = 0
    FINAL = 1


def run_key(seed: int) -> jax.Array:
    """The key that training starts from."""
    return jax.random.key(seed)


def stream_key(seed: int, stream: Stream) -> jax.Array:
    """The key of one of the streams besides training, for this seed."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), APART), int(stream))
