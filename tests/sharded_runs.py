"""Short runs on several devices, in a process that has them; `test_shards` reads what it writes.

    python tests/sharded_runs.py FOLDER

JAX must have been told to cut the CPU into `DEVICES` devices.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import probes

from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.types import Goal
from jaxmarl_echelon.curricula.phased import phased
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.training.compiling import Compiled, compile_program
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.devices import Layout
from jaxmarl_echelon.training.keys import run_key
from jaxmarl_echelon.training.program import Program, make_program, scored_assessment

DEVICES = SHARDS = 8
UPDATES = 3
NUM_ENVS = 16
PLACE, ASKED = 0, 1


class Reach(probes.ContinuousTarget):
    """Three steps; one feature that the action moves, one that asks for it, and tasks with other gains."""

    horizon = 3
    observation = Box((2,), -10.0, 10.0)
    goals = {
        probes.ROLE: Goal(
            achieved=lambda obs: obs[..., PLACE : PLACE + 1],
            desired=lambda obs: obs[..., ASKED : ASKED + 1],
            replace=lambda obs, goal: obs.at[..., ASKED].set(goal[..., 0]),
            reward=lambda achieved, desired: -jnp.square(achieved - desired)[..., 0],
        )
    }

    def task_params(self, settings):
        return self.default_params() | {name: np.float32(value) for name, value in settings.items()}

    def observe(self, state, params):
        return jnp.stack([jnp.broadcast_to(state.level, state.cue.shape), state.cue], -1)

    def reward(self, state, action, params):
        return -jnp.square(self._moved(state, action) - state.cue)

    def step(self, key, state, actions, params):
        after, time = super().step(key, state, actions, params)
        after = after.replace(level=self._moved(state, actions[probes.ROLE])[0])
        shown = {probes.ROLE: self.observe(after, params)}
        return after, time.replace(obs=shown)

    def _moved(self, state, action):
        return state.level + 0.5 * action[..., 0] + action[..., 1]


def course(env):
    """Three tasks, which a handful of episodes each lead through."""
    phases = [
        {"name": f"gain_{gain}", "settings": {"gain": gain}, "criteria": {"success_rate": 0.0}}
        for gain in (1, 2, 3)
    ]
    common = {
        "criteria": {"min_episodes": 40, "window_size": 20},
        "mixture": {"foundation": 0.2, "previous": 0.2},
    }
    return phased(env, phases, common)


SMALL = {"horizon": 8, "widths": (16,), "learning_rate": 1e-3}
REPLAY = {
    "batch_size": 16,
    "learning_starts": 100,
    "replay": {"capacity": 512, "n_step": 2, "prioritized": True},
}
HINDSIGHT = {"replay": REPLAY["replay"] | {"hindsight_ratio": 0.5}}
ALGOS = {
    "ppo": PPOConfig(**SMALL, epochs=2, num_minibatches=2, target_kl=0.05),
    "ppo_rnn": PPOConfig(
        **SMALL,
        epochs=2,
        num_minibatches=4,
        sampling="prioritized",
        segments_per_agent=2,
        core={"kind": "lstm", "width": 8},
        priority_alpha=0.5,
    ),
    "a2c": A2CConfig(**SMALL, normalize_reward=True),
    "sac": SACConfig(**SMALL, **REPLAY),
    "td3": TD3Config(**SMALL, **REPLAY | {"replay": {"capacity": 512}}),
    "tqc": TQCConfig(**SMALL, **REPLAY | HINDSIGHT, n_critics=2, n_quantiles=5, drop_per_critic=1),
}
# Every number of devices once, and the two ends for the rest: most of the time goes to compiling.
PLACES = {name: (1, DEVICES) for name in ALGOS} | {"ppo": (1, 2, 4, DEVICES)}


def configure(name: str, shards: int = SHARDS, updates: int = UPDATES) -> RunConfig:
    """A short run of an algorithm."""
    return RunConfig(
        env=Reach(),
        algo=ALGOS[name],
        curriculum=course,
        total_env_steps=updates * NUM_ENVS * ALGOS[name].horizon * ALGOS[name].segments,
        num_envs=NUM_ENVS,
        shards=shards,
        eval_episodes=8,
        window=64,
        episode_rows=64,
    )


class Sharded(NamedTuple):
    """A run's program on some devices."""

    config: RunConfig
    program: Program
    layout: Layout
    compiled: Compiled


def sharded(name: str, devices: int, shards: int = SHARDS) -> Sharded:
    """An algorithm's run on the first so many devices."""
    config = configure(name, shards)
    program = make_program(config)
    layout = Layout.over(jax.devices()[:devices])
    assess = scored_assessment(program, config.seed)

    def init(key, world):
        return program.init(key, world=world)

    compiled = compile_program(
        init, program.update, assess, (run_key(config.seed),), program.world, 1, {}, layout, program.local
    )
    return Sharded(config, program, layout, compiled)


def arrays(tree) -> dict[str, np.ndarray]:
    """Key path to array, on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(raw(leaf)) for path, leaf in leaves}


def raw(leaf):
    """A leaf, or the data of a key."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def unlike(state, local) -> list[str]:
    """Names of the leaves without an axis of shards whose copies on the devices differ in a bit."""
    marks = jax.tree.leaves(local)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    found = []
    for mark, (path, leaf) in zip(marks, leaves, strict=True):
        copies = [np.asarray(part.data).tobytes() for part in raw(leaf).addressable_shards]
        if not mark and len(set(copies)) > 1:
            found.append(jax.tree_util.keystr(path))
    return found
