"""Small policies with random numbers in every array, of all kinds that can be exported."""

from dataclasses import replace

import jax
import numpy as np

from algos.off_policy.dqn import DQNConfig
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.pqn import PQNConfig
from algos.types import Block
from jaxmarl_echelon import export
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete
from jaxmarl_echelon.training.acting.controllers import action_spec

FLAT = Box((5,), -np.inf, np.inf)
PICTURE = Box((2, 3), 0.0, 255.0, np.uint8)
# A vector, a set of three rows and a map.
BLOCKS = (
    Block("own", 0, (2,), "vector"),
    Block("others", 2, (3, 2), "set", ("ahead", "left")),
    Block("map", 8, (4, 5), "map"),
)
PARTS = Box((28,), -np.inf, np.inf)
CONTINUOUS = Box((2,), (-1.0, 0.0), (3.0, 0.5))
CHOICE = Discrete(6)
CHOICES = MultiDiscrete((2, 5, 3))
SMALL = {"widths": (8, 8)}
REPLAY = SMALL | {"batch_size": 16, "replay": {"capacity": 600}}


def recurrent(kind, **core):
    return PPOConfig(
        widths=(8,), num_minibatches=2, sampling="sequential", core={"kind": kind, "width": 6, **core}
    )


# What only some learners are told.
MORE = {"ppo privileged": {"critic_shape": (3,)}, "gru privileged": {"critic_shape": (3,)}}
# Settings, observation, action, and blocks.
CASES = {
    "ppo": (PPOConfig(**SMALL), FLAT, CONTINUOUS, ()),
    "ppo squashed": (PPOConfig(**SMALL, squash=True, activation="silu"), FLAT, CONTINUOUS, ()),
    "ppo average": (
        PPOConfig(**SMALL, policy_average=0.7, normalize_observation=False),
        FLAT,
        CONTINUOUS,
        (),
    ),
    "ppo shared, choice": (PPOConfig(**SMALL, shared=True, activation="relu"), FLAT, CHOICE, ()),
    "ppo choices, whole numbers": (PPOConfig(**SMALL), PICTURE, CHOICES, ()),
    "ppo deepset": (PPOConfig(**SMALL, encoder={"kind": "deepset", "width": 8}), PARTS, CHOICES, BLOCKS),
    "ppo attention": (
        PPOConfig(**SMALL, encoder={"kind": "attention", "width": 8, "heads": 2, "maps": "flat"}),
        PARTS,
        CONTINUOUS,
        BLOCKS,
    ),
    "ppo privileged": (PPOConfig(**SMALL), FLAT, CONTINUOUS, ()),
    "a2c": (A2CConfig(**SMALL, state_dependent_std=True), FLAT, CHOICE, ()),
    "sac": (SACConfig(**REPLAY), FLAT, CONTINUOUS, ()),
    "td3": (TD3Config(**REPLAY), FLAT, CONTINUOUS, ()),
    "tqc": (TQCConfig(**REPLAY, encoder={"kind": "deepset", "width": 8}), PARTS, CONTINUOUS, BLOCKS),
    "dqn": (DQNConfig(**REPLAY, dueling=True), FLAT, CHOICES, ()),
    "pqn": (
        PQNConfig(widths=(8,), num_minibatches=2, core={"kind": "gru", "width": 6}),
        FLAT,
        CHOICE,
        (),
    ),
    "lstm": (recurrent("lstm", layers=2), FLAT, CONTINUOUS, ()),
    "gru": (recurrent("gru"), FLAT, CHOICES, ()),
    "gru privileged": (
        replace(recurrent("gru"), head_widths=(5,), critic_core=True),
        FLAT,
        CHOICE,
        (),
    ),
    "mingru": (recurrent("mingru", highway=True, scan="parallel", layers=2), FLAT, CHOICE, ()),
    "bf16": (PPOConfig(**SMALL, compute_dtype="bf16"), FLAT, CONTINUOUS, ()),
}


def random_state(agent):
    """A policy's state with random numbers."""
    shapes = jax.eval_shape(lambda key: agent.policy_state(agent.init(key)), jax.random.key(0))
    return random_numbers(shapes)


def random_numbers(shapes, seed=0):
    """Random numbers of these shapes: no array of floats is 0, variances are positive."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        if not np.issubdtype(leaf.dtype, np.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        if jax.tree_util.keystr(path).endswith(".var"):
            return rng.uniform(0.5, 4.0, leaf.shape).astype(leaf.dtype)
        # Small enough that few actions lie at their bounds, where errors would not show.
        scale = 1.0 / np.sqrt(max(leaf.shape)) if len(leaf.shape) > 1 else 0.2
        return (rng.standard_normal(leaf.shape) * scale).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def make_case(name):
    """The role, agent, state and blocks of a case, with the settings of an export."""
    settings, observation, action, blocks = CASES[name]
    role = Role("player", 1, observation, action)
    more = MORE.get(name, {}) | ({"episode_limit": 20} if settings.replays else {})
    agent = export.plain_settings(settings).make(
        observation.shape, action_spec(action), blocks=blocks, samples=4, updates=1, **more
    )
    return role, agent, random_state(agent), blocks
