"""Where the episodes of evaluations begin, for tests of what may not repeat itself."""

import functools

import jax
import numpy as np

from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key
from jaxmarl_echelon.training.program.evaluation import evaluation_params, reset_environments

EPISODES = 24


@functools.cache
def begins(env, episodes):
    """Begins as many episodes of an evaluation as `play` does: `(key, params) -> (states, time steps)`."""
    return jax.jit(
        lambda key, params: reset_environments(env, key, evaluation_params(env, params, episodes))[0].tree
    )


def first_observations(env, params, streams, episodes, seed=0):
    """What the first role sees at the starts of streams' episodes, `[S, N, A * F]`."""
    keys = [jax.random.split(stream_key(seed, stream))[0] for stream in streams]
    seen = [begins(env, episodes)(key, params)[1].obs[env.spec.roles[0].name] for key in keys]
    return np.reshape(seen, (len(streams), episodes, -1))


def check_starts_differ(env, params, number=EPISODES):
    """Demands that no two starts of an evaluation are the same, nor one of another stream's."""
    # Equally many of both: one program.
    every = np.concatenate(first_observations(env, params, (Stream.EVALUATION, Stream.FINAL), number))
    assert len(np.unique(every, axis=0)) == 2 * number
