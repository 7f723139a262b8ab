"""An environment of missions that are all parameters and results, for the tests of their curriculum."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, VERBS, MissionWeights
from jaxmarl_echelon.envs.episodes import EpisodeEvents, Finished
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Box

METRICS = ("survival", "attempt", "completed", "efficiency", "win")
PHASES = [
    {"name": "one", "difficulty": [0.0, 0.4], "criteria": {"survival": 0.6, "attempt": 0.7}},
    {"name": "two", "difficulty": [0.2, 0.6], "criteria": {"completed": 0.5, "efficiency": 0.4}},
    {"name": "three", "difficulty": [0.4, 0.8], "exams": 0.5, "criteria": {"win": 0.6, "variance": 0.2}},
    {"name": "four", "difficulty": [0.5, 1.0], "exams": 0.5},
]


@struct.dataclass
class Levers:
    mission: jax.Array


@struct.dataclass
class Params:
    weights: MissionWeights
    levers: Levers
    level: jax.Array


class Missions(Environment):
    """Offers what the curriculum asks of an environment; its one setting is `level`."""

    def __init__(self, without=()):
        box = Box((1,), -1.0, 1.0)
        shown = [Result(name) for name in (*METRICS[:-1], "mission", "full_fire")]
        shown.append(Result("win", over="full_fire"))
        shown.append(Result("task", kind="code", labels=VERBS, groups=True))
        results = tuple(result for result in shown if result.name not in without)
        self.spec = EnvSpec("missions", 1, (Role("blue", 1, box, box),), 0.25, 240, results, "mission")

    def default_params(self):
        zero = np.float32(0)
        weights = MissionWeights(np.zeros(len(COMPONENTS), np.float32), *[zero] * 5, np.int32(0), *[zero] * 4)
        return Params(weights, Levers(np.ones(len(VERBS), np.float32)), np.float32(1))

    def task_params(self, settings):
        for key in settings:
            if key != "level":
                raise ValueError(f"env.{key}: unknown; allowed: level")
        return self.default_params().replace(level=np.float32(settings["level"]))


def episodes(rng, shape, phase, skill, verb=None, share=1.0):
    """Random results `[T, E]`: Bernoulli metrics that succeed with probability `skill`, or one per metric."""
    skill = dict.fromkeys(METRICS, skill) if np.isscalar(skill) else skill
    results = {name: (rng.random(shape) < skill[name]).astype(np.float32) for name in METRICS}
    results["mission"] = results["completed"] * rng.random(shape).astype(np.float32)
    results["task"] = rng.integers(0, len(VERBS), shape) if verb is None else np.full(shape, verb)
    mask = rng.random(shape) < share
    results["full_fire"] = rng.integers(0, 2, shape).astype(np.float32)
    results["win"] *= results["full_fire"]
    tags = {"stage": np.broadcast_to(phase, shape)}
    return mask, tags, results


def finished(mask, tags, results):
    """Results of episodes, as they are reported."""
    shape = np.shape(mask)
    reported = {
        name: jnp.asarray(np.where(mask, values, -1 if name == "task" else 0)).astype(
            jnp.int32 if name == "task" else jnp.float32
        )
        for name, values in results.items()
    }
    return Finished(
        mask=jnp.asarray(mask),
        present={"blue": jnp.ones((*shape, 1), bool)},
        episode_return={"blue": jnp.zeros((*shape, 1), jnp.float32)},
        length=jnp.asarray(mask, jnp.int32),
        results=reported,
        tags={name: jnp.asarray(np.where(mask, tag, -1), jnp.int32) for name, tag in tags.items()},
    )


def rollout(mask, tags, results):
    """A rollout of episodes of one decision each: they begin in the order in which they end."""
    done = finished(mask, tags, results)
    return EpisodeEvents(begins=done.mask, tags=done.tags, over=done.mask, finished=done)


@struct.dataclass
class Played:
    """State of `PlayedMissions`: decisions taken, the verb, luck in [0, 1], and whether red fires fully."""

    clock: jax.Array
    verb: jax.Array
    luck: jax.Array
    full_fire: jax.Array


class PlayedMissions(Missions):
    """Missions of up to four decisions that nearly always succeed; rewards follow the weights."""

    def __init__(self):
        super().__init__()
        self.spec = dataclasses.replace(self.spec, episode_limit=4)

    def reset(self, key, params):
        key_verb, key_luck = jax.random.split(key)
        state = Played(
            clock=jnp.int32(0),
            verb=jax.random.categorical(key_verb, jnp.log(params.levers.mission)).astype(jnp.int32),
            luck=jax.random.uniform(key_luck),
            full_fire=jnp.float32(params.weights.fire_low >= 1.0),
        )
        return state, self._show(state, jnp.float32(0))

    def step(self, key, state, actions, params):
        paid = params.weights.components[0] + params.weights.terminal * state.luck
        after = state.replace(clock=state.clock + 1)
        return after, self._show(after, paid * actions["blue"][0, 0])

    def _show(self, state, reward):
        over = state.clock >= 1 + (4 * state.luck).astype(jnp.int32)
        done = jnp.float32(state.luck < 0.98)
        metrics = dict.fromkeys((*METRICS[:-1], "mission"), done) | {"win": done * state.full_fire}
        return TimeStep(
            obs={"blue": state.luck[None, None]},
            reward={"blue": reward[None]},
            terminated={"blue": over[None]},
            truncated={"blue": jnp.zeros(1, bool)},
            alive={"blue": ~over[None]},
            action_mask={},
            over=over,
            info=metrics | {"task": state.verb, "full_fire": state.full_fire},
        )
