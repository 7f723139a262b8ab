"""Where the episodes of evaluations begin, for tests of what may not repeat itself."""

import jax
import numpy as np

from jaxmarl_echelon.training.evaluation import evaluation_params, start
from jaxmarl_echelon.training.keys import Stream, stream_key


def first_observations(env, params, streams, episodes, seed=0):
    """What the first role sees at the starts of streams' episodes, `[S, N, A * F]`, begun as `play` does."""
    keys = [jax.random.split(stream_key(seed, stream))[0] for stream in streams]
    begin = jax.jit(lambda k, p: start(env, k, evaluation_params(env, p, episodes))[0].tree[1].obs)
    seen = [begin(key, params)[env.spec.roles[0].name] for key in keys]
    return np.reshape(seen, (len(streams), episodes, -1))


def check_starts_differ(env, params, number=24):
    """Demands that no two starts of an evaluation are the same, nor one of another stream's."""
    # Equally many of both: one program.
    every = np.concatenate(first_observations(env, params, (Stream.EVALUATION, Stream.FINAL), number))
    assert len(np.unique(every, axis=0)) == 2 * number
