"""The random streams of a run never meet: what chooses a policy is not what scores it."""

import jax
import numpy as np

from jaxmarl_echelon.training.keys import Stream, run_key, stream_key

SEEDS = 64


def bits(keys):
    """Keys of any shape as rows of their words."""
    return np.asarray(jax.random.key_data(keys)).reshape(-1, 2)


def test_no_stream_of_any_seed_is_another_or_a_key_of_a_run():
    """Of a run: its own key, those that `initial_state` splits it into, and those of the learners."""

    @jax.jit
    @jax.vmap
    def of_runs(key):
        first = jax.random.split(key, 256)
        return jax.numpy.concatenate([key[None], first, jax.random.split(first[1], 64)])

    roots = jax.numpy.stack([run_key(seed) for seed in range(SEEDS)])
    streams = [bits(stream_key(seed, stream)) for seed in range(SEEDS) for stream in Stream]
    found = np.concatenate([bits(of_runs(roots)), *streams])
    assert len(np.unique(found, axis=0)) == len(found) == SEEDS * (1 + 256 + 64 + len(Stream))


def test_no_episode_of_a_stream_has_the_key_of_one_of_another():
    """However many episodes either plays: the first of many have the keys of a few."""
    starts = {stream: jax.random.split(stream_key(0, stream))[0] for stream in Stream}
    few = bits(jax.random.split(starts[Stream.EVALUATION], 64))
    many = bits(jax.random.split(starts[Stream.FINAL], 256))
    found = np.concatenate([few, many])
    assert len(np.unique(found, axis=0)) == len(found)
