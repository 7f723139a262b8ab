"""Evaluations of a run: of any controllers, of its own policies, and those of training."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.types import PyTree
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training.acting.controllers import add_env_opponents
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program import evaluation

# Episodes of an evaluation in training that are recorded where the viewer can write them as text.
RECORDED = 8


class Assessment(NamedTuple):
    """Output of an evaluation for the host.

    Attributes:
      scalars: by full name (`eval_agg/...`).
      result: episodes of the task that scores the run, with the frames of the first `count_recorded`.
      stage: the current stage of the curriculum, int32.
    """

    scalars: dict[str, jax.Array]
    result: evaluation.Evaluation
    stage: jax.Array


class Evaluations(NamedTuple):
    """Evaluations of a program; see `Program`."""

    evaluate: Callable
    evaluate_with_controllers: Callable


def make_evaluations(
    config: RunConfig, curriculum: Curriculum, place: Callable, seats: Callable, policy: Callable
) -> Evaluations:
    """Builds the evaluations of a run.

    Args:
      config: the run.
      curriculum: its curriculum.
      place: `(world) -> Parts`.
      seats: `(Parts) -> controllers` of the run's own evaluations.
      policy: see `Program.policy`.
    """

    def evaluate_as(
        seats, policies, run, key, params=None, record=None, episodes=None, world=None, recorded=None
    ):
        here = place(world)
        params = curriculum.evaluation(run.curriculum) if params is None else params
        episodes = evaluation.whole_seat_rounds(here.env, episodes or config.eval_episodes)
        params = evaluation.evaluation_params(here.env, params, episodes)
        playing = add_env_opponents(here.env, seats(here))
        number = episodes // collectives.num_shards()
        return evaluation.play_episodes(
            here.env, playing, policies, key, params, record, number, recorded=recorded
        )

    def evaluate(run, key, params=None, record=None, episodes=None, world=None, recorded=None):
        # A whole state samples the latest parameters, also where evaluations play their mean.
        acting = policy(run).policies
        return evaluate_as(seats, acting, run, key, params, record, episodes, world, recorded)

    return Evaluations(evaluate, evaluate_as)


@jax.named_scope("evaluate")
def assess_run(
    env: Environment,
    curriculum: Curriculum,
    evaluate: Callable,
    scored: str,
    replay: bool,
    run: RunState,
    key,
    world,
) -> tuple[PyTree, Assessment]:
    """Runs the evaluation that scores a run, and one of the curriculum's stage; for one shard.

    Args:
      env, curriculum: of the run.
      evaluate: see `Program.evaluate`.
      scored: role that scores the run.
      replay: whether an episode is recorded for a replay.
      run: the run reduced to acting.
      key: typed random key.
      world: the program's world, or None.
    """
    course, stage = run.curriculum, curriculum.stage(run.curriculum)
    number = count_recorded(env, replay=replay, staged=bool(curriculum.stages))
    record = env.viewer.snapshot if number else None
    play = partial(evaluate, run, key, record=record, world=world, recorded=number)
    if not curriculum.stages:
        result = take_frames(play(), number)
        return course, Assessment(evaluation.summarize_evaluation(result, env.spec, scored), result, stage)
    # lax.map compiles the evaluation once for both tasks.
    tasks = curriculum.evaluation(course), curriculum.stage_params(course, stage)
    tasks = jax.tree.map(lambda *x: jnp.stack(x), *tasks)
    both = jax.lax.map(lambda params: play(params=params), tasks)
    result, own = (take_frames(jax.tree.map(lambda x, i=i: x[i], both), number) for i in range(2))
    scalars = evaluation.summarize_evaluation(result, env.spec, scored)
    rate = own.score(env.spec)
    scalars["eval_agg/phase_success_rate"] = rate
    return curriculum.evaluated(course, rate, own.finished), Assessment(scalars, result, stage)


def count_recorded(env: Environment, *, replay: bool, staged: bool) -> int:
    """Number of episodes of an evaluation in training that are recorded.

    Args:
      env: the environment.
      replay: whether one is wanted for a replay.
      staged: whether the curriculum has stages, in which episodes are not written as text.
    """
    if env.viewer is None:
        return 0
    return RECORDED if env.viewer.tells and not staged else int(replay)


def take_frames(result: evaluation.Evaluation, number: int) -> evaluation.Evaluation:
    """Keeps the frames of the first episodes, of those that every shard has recorded."""
    return result.replace(frames=jax.tree.map(lambda x: x[:, :number], result.frames))
