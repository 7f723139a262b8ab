"""The curriculum contract: which parameters the next episode gets."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.episodes import Drawn

PyTree = Any


class Curriculum(NamedTuple):
    """A curriculum as pure functions; its state lives in the run and is saved with it.

    Attributes:
      init: `() -> state`; it holds the parameters of every task the curriculum trains on, so that
        variants of a run differ in nothing but arrays.
      draw: `(key, state) -> Drawn`, one environment's next episode and the stage it belongs to.
      update: `(state, tickets, flow) -> (state, tickets)`, after each rollout. `flow` (`Flow`,
        `[T, E]`) says which episodes began, of which stage, which were over, and with what results.
        Episodes end in order of their length, so that a rule that looks at results as they come
        prefers short ones: a curriculum chooses those it judges by as they begin (see `tickets`).
      metrics: `(state) -> dict` of `curriculum/...` scalars.
      evaluation: `(state) -> params` of the task that the run is scored by.
      retasked: `(state, fresh) -> state`, the state where it stands, with the tasks of a fresh one.
      tickets: `(num_envs) -> tickets`, what it keeps of the episodes under way from one rollout to
        the next; the run holds it beside the state, none of whose shapes depend on E.
      tags: names of the tags of what it draws, with the labels that their numbers stand for.
      stages: names of the stages; empty for a curriculum without any.
      stage: `(state) -> int32`, the present stage.
      stage_params: `(state, index) -> params` of one stage's task, as itself.
      evaluated: `(state, score) -> state`, after an evaluation of the present stage: float32, the
        mean score of the episodes that count, NaN where none does.
    """

    init: Callable
    draw: Callable
    update: Callable
    metrics: Callable
    evaluation: Callable
    retasked: Callable
    tickets: Callable = lambda num_envs: ()
    tags: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    stages: tuple[str, ...] = ()
    stage: Callable = lambda state: jnp.int32(0)
    stage_params: Callable | None = None
    evaluated: Callable = lambda state, rate: state


def fixed(env, evaluation: dict | None = None) -> Curriculum:
    """No curriculum: every episode gets the parameters of the configuration.

    They are the curriculum's state, so that a sweep can run other values side by side.

    Args:
      env: the environment.
      evaluation: settings of the environment that differ in evaluation; see `task`.
    """
    scored = task(env, evaluation, "curriculum.evaluation")

    def init():
        return jax.tree.map(jnp.asarray, env.default_params())

    return Curriculum(
        init=init,
        draw=lambda key, state: Drawn(state),
        update=lambda state, tickets, flow: (state, tickets),
        metrics=lambda state: {},
        evaluation=lambda state: jax.tree.map(jnp.asarray, scored),
        retasked=lambda state, fresh: fresh,
    )


def task(env, settings: dict | None, where: str) -> PyTree:
    """The environment's parameters with some settings changed, by `env.task_params(settings)`.

    Raises:
      ValueError: one line, for settings that the environment does not know or cannot change.
    """
    if not settings:
        return env.default_params()
    try:
        return env.task_params(settings)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
