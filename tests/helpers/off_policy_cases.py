"""Small learners with a replay, hand-built experience for them, and their networks in plain NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from arrays import numbers

from algos.off_policy.replay.rings import Sample
from algos.types import ActionSpec, ObservationSpec, Transition

CONTINUOUS = ActionSpec("continuous", (2,))
E, A, F, D = 3, 2, 4, 2
ROWS = E * A
SMALL = {"widths": (8,), "batch_size": 16, "learning_starts": 24, "horizon": 4}


def make(config_class, replay=None, **settings):
    """An agent, and its state before the first decision.

    The agent is that of all configurations which differ in numbers only that the state holds.
    """
    config = config_class(**SMALL | settings, replay={"capacity": 600} | (replay or {}))
    agent, state = build(plain(config)), first_state(untaught(plain(config)))
    state = state.replace(hyper=build(config).hyper())
    if "log_alpha" in state.params:
        state = state.replace(params=state.params | {"log_alpha": np.log(np.float32(config.alpha))})
    return agent, state


def plain(config):
    """The configuration with its class's own numbers wherever the state holds them."""
    own = type(config)()
    names = [*config.TRACED, *config.COUNTS, *(name for name in ("alpha",) if hasattr(config, name))]
    given = {name: getattr(own, name) for name in names if getattr(config, name) is not None}
    return dataclasses.replace(config, **{name: 0.001 if x is None else x for name, x in given.items()})


@functools.cache
def build(config):
    """The agent of a configuration, made once."""
    return config.make((F,), CONTINUOUS, samples=ROWS, updates=10, episode_limit=20, goal=None)


def untaught(config):
    """The configuration without what matters only once its agent learns."""
    own = {field.name for field in dataclasses.fields(config)}
    rates = dict.fromkeys(config.OPTIONAL)
    steps = {"batch_size": 16, "updates_per_step": 1, "policy_delay": 1}
    return dataclasses.replace(config, **{name: x for name, x in (rates | steps).items() if name in own})


@functools.cache
def first_state(config):
    """The state of a configuration's agent before the first decision, made once."""
    return numbers(jax.jit(build(config).init)(jax.random.key(0)))


def method_of(config_class, **settings):
    """The method of an agent, and the agent's state."""
    _, state = make(config_class, **settings)
    return method(plain(config_class(**SMALL | settings))), state


@functools.cache
def method(config):
    return config.method(ObservationSpec((F,)), CONTINUOUS)


def transition_of(key, action=None, reward=None, boundary=False, terminal=False):
    """One decision `[E, A]` of random experience."""
    keys = jax.random.split(key, 4)
    if action is None:
        action = jax.random.uniform(keys[1], (E, A, D), minval=-1.0)
    if reward is None:
        reward = jax.random.normal(keys[2], (E, A))
    return Transition(
        obs=3.0 + 2.0 * jax.random.normal(keys[0], (E, A, F)),
        action=action,
        reward=reward,
        discount=jnp.broadcast_to(jnp.where(terminal, 0.0, 1.0), (E, A)),
        next_obs=3.0 + 2.0 * jax.random.normal(keys[3], (E, A, F)),
        boundary=jnp.broadcast_to(boundary, (E, A)),
        success=jnp.zeros((E, A), bool),
        alive=jnp.ones((E, A), bool),
    )


def lived(number):
    """A decision of random experience, for every number another one."""
    return jax.tree.map(lambda x: x[number], experience())


@functools.cache
def experience():
    return numbers(jax.jit(jax.vmap(transition_of))(jax.random.split(jax.random.key(0), 16)))


@functools.cache
def sample_of(size=16):
    """A batch as a replay would give it, with every field different from its default."""
    noise = np.random.default_rng(7)

    def normal(*shape):
        return np.float32(noise.standard_normal(shape))

    return Sample(
        obs=normal(size, F),
        action=np.float32(noise.uniform(-1.0, 1.0, (size, D))),
        reward=normal(size),
        discount=np.where(np.arange(size) % 3 == 0, np.float32(0.0), np.float32(0.9)),
        next_obs=normal(size, F),
        weight=np.float32(noise.uniform(0.2, 1.0, size)),
        index=np.arange(size, dtype=np.int32),
    )


def perturbed(state, scale=0.3):
    """The state with all parameters and targets moved, each its own way, so that no output is near 0."""
    noise = np.random.default_rng(0)

    def move(x):
        return np.asarray(x + scale * noise.standard_normal(x.shape), x.dtype)

    params, targets = jax.tree.map(move, (state.params, state.targets))
    return state.replace(params=params, targets=targets)


def numpy_actor(params, obs):
    """Outputs of an actor with one relu layer: `(mean, log_std)`, the latter None without a head for it."""
    params = jax.tree.map(np.asarray, params)["params"]
    layer, head = params["trunk"]["layer_0"], params["head"]
    hidden = np.maximum(obs @ layer["kernel"] + layer["bias"], 0.0)
    mean = hidden @ head["out"]["kernel"].T + head["out"]["bias"]
    if "log_std" not in head:
        return mean, None
    return mean, hidden @ head["log_std"]["kernel"].T + head["log_std"]["bias"]


def numpy_critics(params, obs, action):
    """Outputs `[n, B, q]` of critics with one relu layer, critic after critic."""
    params = jax.tree.map(np.asarray, params)["params"]
    outputs = []
    for i in range(params["out"]["bias"].shape[0]):
        one = jax.tree.map(lambda x, i=i: x[i], params)
        hidden = obs @ one["observation"]["kernel"] + one["observation"]["bias"]
        hidden = np.maximum(hidden + action @ one["action"]["kernel"], 0.0)
        outputs.append(hidden @ one["out"]["kernel"].T + one["out"]["bias"])
    return np.stack(outputs)


def numpy_soft_sample(params, obs, key):
    """Action and log-probability of a squashed Gaussian, by the textbook change of variables."""
    mean, log_std = numpy_actor(params, np.asarray(obs))
    noise = np.asarray(jax.random.normal(key, mean.shape), np.float64)
    log_std = np.clip(log_std, -5.0, 2.0).astype(np.float64)
    action = np.tanh(mean + np.exp(log_std) * noise)
    gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return action, (gaussian - np.log1p(-(action**2))).sum(-1)


def changed(x, y) -> bool:
    """Whether any leaf differs."""
    return any(jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(np.asarray(a) != np.asarray(b))), x, y)))
