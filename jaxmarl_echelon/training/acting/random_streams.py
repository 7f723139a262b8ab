"""Random streams of a run: a distinct key per seed and purpose. See docs/reference/trainer.md 14."""

import enum
from typing import NamedTuple

import jax

# `split(key, n)[i]` and `fold_in(key, i)` may be the same key, so streams are first folded with a number
# above every n used in a split, then with their own number.
APART = 0xF1E7_D000


class Stream(enum.IntEnum):
    """Random streams other than training.

    Attributes:
      EVALUATION: periodic evaluations, which select the best checkpoint; the same episodes each time.
      FINAL: final scores, on held-out episodes that were not used for selection.
      MATCHES: games between finished policies, of tournaments and exploiters.
      SEARCH: settings that are drawn before a run.
      POPULATION: exchanges of population based training.
    """

    EVALUATION = 0
    FINAL = 1
    MATCHES = 3
    SEARCH = 4
    POPULATION = 5


class InitialKeys(NamedTuple):
    """Keys of a run's initial state.

    Attributes:
      run: key of the first update.
      learners: initial parameters.
      episodes: first episodes.
      stagger: numbers of decisions after which the first episodes are truncated.
      opponents: the pool's first draw.
    """

    run: jax.Array
    learners: jax.Array
    episodes: jax.Array
    stagger: jax.Array
    opponents: jax.Array


class UpdateKeys(NamedTuple):
    """Keys of one update.

    Attributes:
      following: key of the next update.
      rollout: actions and environments.
      learning: the learners' updates.
      opponents: the pool's draw, and the choice of league learners that are reset.
    """

    following: jax.Array
    rollout: jax.Array
    learning: jax.Array
    opponents: jax.Array


def teacher_key(key: jax.Array) -> jax.Array:
    """Key of the scripted teachers in a decision whose actions are drawn with `key`."""
    return jax.random.fold_in(key, APART + 2)


def run_key(seed: int) -> jax.Array:
    """Key from which training starts."""
    return jax.random.key(seed)


def stream_key(seed: int, stream: Stream) -> jax.Array:
    """Key of a non-training random stream for a seed."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), APART), int(stream))


def split_initial(key: jax.Array) -> InitialKeys:
    """Splits the key from which training starts into the keys of a run's initial state."""
    first, second, third, fourth = jax.random.split(key, 4)
    return InitialKeys(first, second, third, fourth, jax.random.fold_in(key, APART + 1))


def split_update(key: jax.Array) -> UpdateKeys:
    """Splits an update's key into the keys of its parts."""
    first, second, third = jax.random.split(key, 3)
    return UpdateKeys(first, second, third, jax.random.fold_in(key, APART + 1))
