"""Random play of an environment of another library, as one program."""

from functools import partial

import jax

from jaxmarl_echelon.envs.check_env import random_actions


@partial(jax.jit, static_argnames=("env", "steps"))
def play_at_random(key, env, steps, params):
    """Plays random legal actions without resets; returns states, time steps and actions `[steps]`.

    The first time step is that of the reset; the state of a row is the one before its actions.
    """

    def step(carry, key):
        state, time = carry
        key_act, key_step = jax.random.split(key)
        actions = random_actions(env.spec, key_act, time)
        state_after, after = env.step(key_step, state, actions, params)
        return (state_after, after), (state, after, actions, key_step)

    key_reset, key_steps = jax.random.split(key)
    begun = env.reset(key_reset, params)
    return begun, jax.lax.scan(step, begun, jax.random.split(key_steps, steps))[1]
