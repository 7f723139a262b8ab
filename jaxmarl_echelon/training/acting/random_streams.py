"""The random streams of a run: a distinct key per seed and purpose."""

import enum
from typing import NamedTuple

import jax

# `split(key, n)[i]` and `fold_in(key, i)` may be the same key, so streams are first folded with a number
# above every n used in a split, then with their own number.
APART = 0xF1E7_D000


class Stream(enum.IntEnum):
    """Random streams besides training.

    Attributes:
      EVALUATION: periodic evaluations, which select the best checkpoint; the same episodes each time.
      FINAL: final scores, on held-out episodes that selected nothing.
      MATCHES: games between finished policies, of tournaments and exploiters.
    """

    EVALUATION = 0
    FINAL = 1
    MATCHES = 3


class InitialKeys(NamedTuple):
    """Keys of a run's initial state.

    Attributes:
      run: of the first update.
      learners: of their parameters.
      episodes: of the first episodes.
      stagger: of the decisions after which these are cut.
      opponents: of the pool's first draw.
    """

    run: jax.Array
    learners: jax.Array
    episodes: jax.Array
    stagger: jax.Array
    opponents: jax.Array


class UpdateKeys(NamedTuple):
    """Keys of one update.

    Attributes:
      following: of the next update.
      rollout: of actions and environments.
      learning: of the learners' updates.
      opponents: of the pool's draw, and of the choice who begins anew.
    """

    following: jax.Array
    rollout: jax.Array
    learning: jax.Array
    opponents: jax.Array


def run_key(seed: int) -> jax.Array:
    """The key that training starts from."""
    return jax.random.key(seed)


def stream_key(seed: int, stream: Stream) -> jax.Array:
    """The key of one of the streams besides training, for this seed."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), APART), int(stream))


def split_initial(key: jax.Array) -> InitialKeys:
    """The keys of a run's initial state, from the one that training starts from."""
    return InitialKeys(*jax.random.split(key, 4), jax.random.fold_in(key, APART + 1))


def split_update(key: jax.Array) -> UpdateKeys:
    """The keys of an update."""
    return UpdateKeys(*jax.random.split(key, 3), jax.random.fold_in(key, APART + 1))
