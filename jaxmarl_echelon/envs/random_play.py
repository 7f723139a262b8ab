"""Steps of batched environments with random actions, for benchmarks and tests."""

import jax

from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.check_env import random_actions
from jaxmarl_echelon.envs.episodes import BatchTransition, DrawTask, Episodes, step_episodes


def step_randomly(
    env: Environment, key: jax.Array, episodes: Episodes, draw: DrawTask
) -> tuple[Episodes, BatchTransition]:
    """Takes one decision of random legal actions in each environment and resets those whose episode is over.

    Args:
      env: the environment.
      key: one key for all environments.
      episodes: the state before the decision.
      draw: `(key) -> EpisodeTask`, draws the parameters of a new episode.

    Returns:
      The episodes, ready for the next decision, and the transition.
    """
    key_act, key_step = jax.random.split(key)
    time = episodes.time
    keys = jax.random.split(key_act, time.over.shape[0])
    actions = jax.vmap(lambda key, time: random_actions(env.spec, key, time))(keys, time)
    return step_episodes(env, key_step, episodes, actions, draw)
