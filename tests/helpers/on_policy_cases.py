"""Learners of rollouts, which share programs and first states where their settings let them."""

import dataclasses
import functools

import jax
from arrays import numbers

# What only matters once a rollout is learnt from, at its plainest.
PLAIN = {
    "epochs": 1,
    "num_minibatches": 1,
    "accumulation": 1,
    "segments_per_agent": 1,
    "burn_in": 0,
    "bootstrap_last": True,
    "normalize_advantage": "none",
    "recompute_advantage": "once",
    "policy_advantage": "fixed",
    "value_clip_center": "rollout",
    "kl_stop": "minibatch",
}


def make(config, shape, action, *, updates=None, **sizes):
    """The agent of a configuration, and its state before the first update.

    The agent is that of all configurations which differ in traced numbers only: these come with the state.
    """
    others = {name: getattr(type(config)(), name) for name in config.traced()}
    about = (shape, action, config.total_updates or updates, tuple(sizes.items()))
    agent = agent_of(dataclasses.replace(config, **others), *about)
    names = {field.name for field in dataclasses.fields(config)}
    others |= {name: plain for name, plain in PLAIN.items() if name in names}
    state = first_state(dataclasses.replace(config, **others), *about)
    return agent, state.replace(hyper=config.initial_hyper(config.total_updates or updates))


@functools.cache
def agent_of(config, shape, action, updates, sizes):
    return config.make(shape, action, updates=updates, **dict(sizes))


@functools.cache
def first_state(*about):
    return numbers(jax.jit(agent_of(*about).init)(jax.random.key(0)))
