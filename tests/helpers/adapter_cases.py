"""Environments for the tests of outward adapters, and episodes of them played without any adapter."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.adapters.seats import make_legal


@cache
def f110():
    """The adversarial task with few beams, in episodes of at most 25 decisions."""
    return je.make("f110", lidar_beams=6, lidar_noise=0.0, max_steps=50)


@cache
def echelon():
    """Two scouts against two heavies on one terrain, in episodes of at most 40 decisions."""
    return je.make(
        "echelon",
        blue={"scout": 2},
        red={"heavy": 2},
        maps=1,
        pages=8,
        damaged=8,
        telemetry=False,
        cache=None,
    )


class Direct:
    """Plays an environment by its own functions, with the keys of an adapter.

    Attributes:
      state, time: of the environment.
    """

    compiled: dict = {}

    def __init__(self, env, seed, scripts=()):
        self.env, self.params, self.scripts = env, env.default_params(), dict(scripts)
        if env not in self.compiled:
            acts = {role: jax.jit(self.script(role).act) for role in self.scripts}
            self.compiled[env] = jax.jit(env.reset), jax.jit(env.step), acts
        self.chain = jax.random.key(seed)
        self.begin()

    def script(self, role):
        name, scripts = self.scripts[role], self.env.scripts
        return scripts.get(f"{name}_{role}") or scripts[name]

    def begin(self):
        self.chain, key = jax.random.split(self.chain)
        self.state, self.time = self.compiled[self.env][0](key, self.params)
        self.memories = {role: self.script(role).init() for role in self.scripts}

    def step(self, actions):
        """Takes a decision with actions `[A, ...]` of the roles without a script; returns the time step."""
        self.chain, key_act, key_step = jax.random.split(self.chain, 3)
        chosen = {}
        for number, role in enumerate(self.env.spec.roles):
            if role.name in self.scripts:
                act = self.compiled[self.env][2][role.name]
                key = jax.random.fold_in(key_act, number)
                memory, chosen[role.name] = act(key, self.memories[role.name], self.state, self.params)
                self.memories[role.name] = memory
            else:
                mask = self.time.action_mask.get(role.name)
                chosen[role.name] = make_legal(role, jnp.asarray(actions[role.name]), mask)
        self.state, self.time = self.compiled[self.env][1](key_step, self.state, chosen, self.params)
        return jax.device_get(self.time)


def assert_close(a, b):
    """Asserts that numbers agree up to rounding, which differs between programs."""
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)
