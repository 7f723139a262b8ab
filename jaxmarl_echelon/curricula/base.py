"""The curriculum contract: draws the parameters of new episodes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from algos.types import PyTree
from jaxmarl_echelon.envs.episodes import EpisodeEvents, EpisodeTask, Finished, start_episodes


class Curriculum(NamedTuple):
    """A curriculum as pure functions; its state is part of the run state.

    Attributes:
      init: `() -> state`, including the parameters of all training tasks, so that variants of a run
        differ only in arrays.
      draw: `(key, state) -> EpisodeTask`, parameters and tags of one environment's next episode.
      update: `(state, tickets, flow) -> (state, tickets)`, after each rollout; `flow` (`EpisodeEvents`,
        `[T, E]`) has starts, tags, ends and results of episodes, of all shards. Results arrive in order of
        episode length, biased towards short episodes, so episodes must be selected as they begin (see
        `tickets`).
      metrics: `(state) -> dict` of `curriculum/...` scalars; of stages `current_stage`, and as one is entered
        `decided_success`, the success in the stage that was left by which it was decided, and
        `blend_probability`, if the stage that was left is drawn for some time. Without stages
        `progress`, if there is one, is how far the task has changed, 1 at its last one: of the scores of
        training those of later tasks count first.
      evaluation: `(state) -> params` of the task that scores the run.
      retasked: `(state, fresh) -> state`, the progress of `state` with the tasks of `fresh`; episodes of a
        current stage whose task has changed no longer count.
      requeued: `(tickets, state, fresh) -> tickets`, likewise without running episodes of such a stage.
      retagged: `(tags, state, fresh) -> tags`, likewise the tags `[E]` of episodes that have been drawn and
        whose first decision is still to come: those of such a stage are of no stage.
      tickets: `(num_envs) -> tickets`, queue of running episodes, kept between rollouts; separate from
        the state, whose shapes do not depend on E.
      tags: names of the tags of `EpisodeTask`, with the labels of their codes.
      stages: names of the stages; empty without stages.
      by_episodes: whether tasks depend on the run's own episodes without being stages, so that runs of
        different policies are at different tasks after the same number of updates.
      stage: `(state) -> int32`, the current stage.
      stage_params: `(state, index) -> params` of one stage's task.
      evaluated: `(state, score, finished) -> state`, after an evaluation of the current stage; `score` is
        its float32 mean score over counted episodes, NaN without any; `finished` (`Finished`, `[N]`,
        without tags) has the episodes.
      needs_evaluations: whether a stage is only left after evaluations.
    """

    init: Callable
    draw: Callable
    update: Callable
    metrics: Callable
    evaluation: Callable
    retasked: Callable
    requeued: Callable = lambda tickets, _state, _fresh: tickets
    retagged: Callable = lambda tags, _state, _fresh: tags
    tickets: Callable = lambda _num_envs: ()
    tags: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    stages: tuple[str, ...] = ()
    by_episodes: bool = False
    stage: Callable = lambda _state: jnp.int32(0)
    stage_params: Callable | None = None
    evaluated: Callable = lambda state, _score, _finished: state
    needs_evaluations: bool = False


def constant_curriculum(env, evaluation: dict | None = None) -> Curriculum:
    """Builds a constant curriculum: every episode uses the configured parameters.

    The parameters are the curriculum's state, so that sweeps can vmap over them.

    Args:
      env: the environment.
      evaluation: settings of the environment overridden in evaluation; see `read_task_params`.
    """
    scored = read_task_params(env, evaluation, "curriculum.evaluation")

    def init():
        return jax.tree.map(jnp.asarray, env.default_params())

    return Curriculum(
        init=init,
        draw=lambda _key, state: EpisodeTask(state),
        update=lambda state, tickets, _flow: (state, tickets),
        metrics=lambda _state: {},
        evaluation=lambda _state: jax.tree.map(jnp.asarray, scored),
        retasked=lambda _state, fresh: fresh,
    )


def trace_episodes(curriculum: Curriculum, env, episodes: int) -> EpisodeEvents:
    """Returns the shapes and types of the starts and ends of episodes `[E]` of an environment."""

    def begin(key):
        state, here = curriculum.init(), jnp.zeros(episodes, bool)
        begun = start_episodes(env, key, lambda one: curriculum.draw(one, state), episodes)
        sums = begun.running.tree.sums
        parts = sums.present, sums.episode_return, sums.length, sums.results
        return EpisodeEvents(here, begun.tags, here, Finished(here, *parts, tags=begun.tags))

    return jax.eval_shape(begin, jax.random.key(0))


def trace_curriculum(curriculum: Curriculum, flow: EpisodeEvents) -> ClosedJaxpr:
    """Traces what a curriculum does with its state: a draw, an update, an evaluation, and what it reports.

    Args:
      curriculum: the curriculum.
      flow: from `trace_episodes`, also for a curriculum of the same states.
    """

    def go(key, state, tickets, flow):
        drawn = curriculum.draw(key, state)
        state, tickets = curriculum.update(state, tickets, jax.tree.map(lambda x: x[None], flow))
        state = curriculum.evaluated(state, jnp.float32(0.5), flow.finished)
        stage = curriculum.stage(state)
        own = curriculum.stage_params(state, stage) if curriculum.stage_params else None
        return drawn, state, tickets, stage, own, curriculum.metrics(state)

    state, tickets = jax.eval_shape(lambda: (curriculum.init(), curriculum.tickets(flow.over.shape[0])))
    return jax.make_jaxpr(go)(jax.random.key(0), state, tickets, flow)


def tasks_differ(ours: PyTree, theirs: PyTree) -> jax.Array:
    """Whether two trees of task parameters differ in a number; NaN equals NaN."""
    pairs = zip(*map(jax.tree.leaves, (ours, theirs)), strict=True)
    return ~jnp.all(jnp.array([jnp.array_equal(*pair, equal_nan=True) for pair in pairs], bool))


def read_task_params(env, settings: dict | None, where: str) -> PyTree:
    """Returns the environment's parameters with changed settings, by `env.task_params(settings)`.

    Raises:
      ValueError: one line prefixed with `where`, for settings that are unknown or static.
    """
    if not settings:
        return env.default_params()
    try:
        return env.task_params(settings)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
