"""Where the episodes of evaluations begin, for tests of what may not repeat itself."""

import jax
import numpy as np

from jaxmarl_echelon.training.evaluation import evaluation_params, start
from jaxmarl_echelon.training.keys import Stream, stream_key


def first_observations(env, params, stream, episodes, seed=0):
    """What the first role sees at the starts of episodes, `[N, A * F]`, begun as `evaluation.play` does."""
    key = jax.random.split(stream_key(seed, stream))[0]
    chosen = evaluation_params(env, params, episodes)
    time = jax.jit(lambda k, p: start(env, k, p)[0].tree[1])(key, chosen)
    return np.asarray(time.obs[env.spec.roles[0].name]).reshape(episodes, -1)


def check_starts_differ(env, params, number=24):
    """Demands that no two starts of an evaluation are the same, nor one of another stream's."""
    # Equally many of both: one program.
    streams = Stream.EVALUATION, Stream.FINAL
    every = np.concatenate([first_observations(env, params, stream, number) for stream in streams])
    assert len(np.unique(every, axis=0)) == 2 * number
