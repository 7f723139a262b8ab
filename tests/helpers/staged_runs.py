"""An environment that is all settings, and made-up episodes, for the tests of curricula of stages."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role
from jaxmarl_echelon.envs.episodes import EpisodeEvents, Finished
from jaxmarl_echelon.envs.spaces import Box

OUTCOMES = ("won", "crashed", "late")


class Settings(Environment):
    """Offers what curricula ask of an environment; its one setting is `level`."""

    def __init__(self, components=("score",), success=("won",)):
        box = Box((1,), -1.0, 1.0)
        roles = (Role("guard", 1, box, box), Role("runner", 2, box, box))
        self.spec = EnvSpec(
            "settings",
            1,
            roles,
            0.1,
            10,
            results.standard_results(OUTCOMES, success, components=components),
            "success" if success else None,
        )
        self.controllers = {"guard": "script", "runner": "learner"}

    def default_params(self):
        return {"level": jnp.float32(-1.0), "pair": jnp.zeros(2, jnp.int32)}

    def task_params(self, settings):
        for key in settings:
            if key != "level":
                raise ValueError(f"env.{key}: unknown; allowed: level")
        return self.default_params() | {"level": jnp.float32(settings.get("level", -1.0))}


def table(count, **rules):
    """Stages `s0`, `s1`, ... with levels 0, 1, ..."""
    return [{"name": f"s{i}", "settings": {"level": float(i)}, **rules} for i in range(count)]


def finished(mask, stage, outcome, reward):
    """Results `[T, E]`; the return of each of two runners is `reward`, that of the guard far off."""
    mask = np.asarray(mask)
    reward = np.where(mask, reward, 0).astype(np.float32)
    return Finished(
        mask=mask,
        present={"guard": np.ones((*mask.shape, 1), bool), "runner": np.ones((*mask.shape, 2), bool)},
        episode_return={
            "guard": np.full((*mask.shape, 1), 1e6, np.float32),
            "runner": np.stack([reward - np.float32(1.0), reward + np.float32(1.0)], axis=-1),
        },
        length=np.asarray(mask, np.int32),
        results={"outcome": np.asarray(np.where(mask, outcome, -1), np.int32)},
        tags={"stage": np.asarray(np.where(mask, stage, 0), np.int32)},
    )


def rollout(mask, stage, outcome, reward):
    """A rollout `[T, E]` of episodes of one decision each: they begin in the order in which they end."""
    done = finished(mask, stage, outcome, reward)
    return EpisodeEvents(begins=done.mask, tags=done.tags, over=done.mask, finished=done)


def updater(curriculum):
    """`(state, rollout) -> state`, compiled, for rollouts at whose ends no episode is under way."""

    @jax.jit
    def update(state, rollout):
        return curriculum.update(state, curriculum.tickets(rollout.begins.shape[1]), rollout)[0]

    return update


def stream(rng, stages, present, skill, shape=(6, 5)):
    """A random rollout: most episodes belong to `present`, some to any stage; `skill` succeed."""
    mask = rng.random(shape) < 0.5
    stage = np.where(rng.random(shape) < 0.75, present, rng.integers(0, stages, shape))
    won = rng.random(shape) < skill
    outcome = np.where(won, 0, rng.integers(1, len(OUTCOMES), shape))
    return rollout(mask, stage, outcome, rng.integers(-3, 10, shape))


def in_order(rollout):
    """The finished episodes of a rollout as `(stage, outcome, reward)`, in time order."""
    done = rollout.finished
    mask, stage, outcome = (np.asarray(x) for x in (done.mask, done.tags["stage"], done.results["outcome"]))
    reward = np.asarray(done.episode_return["runner"]).mean(axis=-1)
    steps, envs = mask.shape
    return [
        (int(stage[t, e]), int(outcome[t, e]), float(reward[t, e]))
        for t in range(steps)
        for e in range(envs)
        if mask[t, e]
    ]


def judge(reference, rollout):
    """Shows a reference the episodes up to the one at which it moves: the rest began before that."""
    begun = reference.stage
    for episode in in_order(rollout):
        if reference.stage == begun:
            reference.episode(*episode)


def single(stage, outcome, reward=0.0):
    """A rollout in which one episode ended."""
    return rollout([[True]], [[stage]], [[outcome]], [[reward]])


def play(curriculum, state, outcomes, stage=None, update=None):
    """Ends episodes one rollout each, of the present stage unless another is given."""
    update = update or updater(curriculum)
    for outcome in outcomes:
        own = int(curriculum.stage(state)) if stage is None else stage
        state = update(state, single(own, outcome))
    return state
