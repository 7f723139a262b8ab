"""Evaluations of a run: of any controllers, of its own policies, and those of training."""

from collections.abc import Callable
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
      result: episodes of the task that scores the run; with the frames of the first `RECORDED` where the
        viewer writes episodes as text and the curriculum has no stages.
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
    config: RunConfig, curriculum: Curriculum, place: Callable, seats: Callable
) -> Evaluations:
    """Builds the evaluations of a run.

    Args:
      config: the run.
      curriculum: its curriculum.
      place: `(world) -> Parts`.
      seats: `(Parts) -> controllers` of the run's own evaluations.
    """

    def evaluate_as(seats, policies, run, key, params=None, record=None, episodes=None, world=None):
        here = place(world)
        params = curriculum.evaluation(run.curriculum) if params is None else params
        episodes = evaluation.whole_seat_rounds(here.env, episodes or config.eval_episodes)
        params = evaluation.evaluation_params(here.env, params, episodes)
        playing = add_env_opponents(here.env, seats(here))
        number = episodes // collectives.num_shards()
        return evaluation.play_episodes(here.env, playing, policies, key, params, record, number)

    def evaluate(run, key, params=None, record=None, episodes=None, world=None):
        return evaluate_as(seats, run.policies, run, key, params, record, episodes, world)

    return Evaluations(evaluate, evaluate_as)


@jax.named_scope("evaluate")
def assess_run(
    env: Environment, curriculum: Curriculum, evaluate: Callable, scored: str, run: RunState, key, world
) -> tuple[PyTree, Assessment]:
    """Runs the evaluation that scores a run, and one of the curriculum's stage; for one shard.

    Args:
      env, curriculum: of the run.
      evaluate: see `Program.evaluate`.
      scored: role that scores the run.
      run: the run reduced to acting.
      key: typed random key.
      world: the program's world, or None.
    """
    course, stage = run.curriculum, curriculum.stage(run.curriculum)
    if not curriculum.stages:
        record = env.viewer.snapshot if env.viewer is not None and env.viewer.tells else None
        result = evaluate(run, key, record=record, world=world)
        result = result.replace(frames=jax.tree.map(lambda x: x[:, :RECORDED], result.frames))
        return course, Assessment(evaluation.summarize_evaluation(result, env.spec, scored), result, stage)
    # lax.map compiles the evaluation once for both tasks.
    tasks = curriculum.evaluation(course), curriculum.stage_params(course, stage)
    tasks = jax.tree.map(lambda *x: jnp.stack(x), *tasks)
    both = jax.lax.map(lambda params: evaluate(run, key, params, world=world), tasks)
    result, own = (jax.tree.map(lambda x, i=i: x[i], both) for i in range(2))
    scalars = evaluation.summarize_evaluation(result, env.spec, scored)
    rate = own.score(env.spec)
    scalars["eval_agg/phase_success_rate"] = rate
    return curriculum.evaluated(course, rate, own.finished), Assessment(scalars, result, stage)
