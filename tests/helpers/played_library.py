"""Random play of an environment of another library, as one program."""

from functools import partial

import jax

from jaxmarl_echelon.envs.check_env import random_actions
from jaxmarl_echelon.envs.check_rollout import RolloutRecord


@partial(jax.jit, static_argnames=("env", "steps"))
def play_at_random(key, env, steps, params):
    """Plays random legal actions without resets.

    Returns the first state and time step; and per step the state and the time step before it, the time step
    after it, the actions and the key of the step, `[steps]`.
    """

    def step(carry, key):
        state, time = carry
        key_act, key_step = jax.random.split(key)
        actions = random_actions(env.spec, key_act, time)
        state_after, after = env.step(key_step, state, actions, params)
        return (state_after, after), (state, time, after, actions, key_step)

    key_reset, key_steps = jax.random.split(key)
    begun = env.reset(key_reset, params)
    return begun, jax.lax.scan(step, begun, jax.random.split(key_steps, steps))[1]


def record_to_end(states, before, after):
    """The record of one episode, from its start to its end, for `check_record`."""
    length = int(after.over.argmax()) + 1
    cut = jax.tree.map(lambda x: x[:length], (before, states, after))
    fresh = jax.numpy.arange(length) == 0
    return RolloutRecord(cut[0], jax.device_get(fresh), cut[1], cut[2])
