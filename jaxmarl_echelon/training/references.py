"""What a run's evaluation episodes are worth by themselves: reference scripts in the policy's place."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from jaxmarl_echelon.training import controllers, evaluation
from jaxmarl_echelon.training.program import Program
from jaxmarl_echelon.training.record import evaluation_values
from jaxmarl_echelon.training.types import RunState

Scores = dict[str, dict[str, float]]


def names(program: Program) -> tuple[str, ...]:
    """The environment's reference scripts for the scored role; empty where it has none."""
    return tuple(program.env.references.get(program.role, ()))


def play(
    program: Program, run: RunState, key: jax.Array, world: Any, episodes: int | None = None
) -> dict[str, tuple[dict, evaluation.Evaluation]]:
    """Plays the evaluation once with each reference script of the scored role; pure, for jit and vmap.

    Args:
      program: the run's program.
      run: the run, whose other roles act as in its own evaluation.
      key: the evaluation's key: the same episodes.
      world: of the environment.
      episodes: how many; None for as many as the configuration says.

    Returns:
      script name to the evaluation's scalars and episodes.
    """
    played = {}
    for name in names(program):

        def seats(env, name=name):
            script = controllers.script(controllers.find_script(env, program.role, name))
            return program.controllers(env) | {program.role: script}

        result = program.evaluate_as(seats, run.policies, run, key, episodes=episodes, world=world)
        played[name] = evaluation.summary(result, program.env.spec, program.role), result
    return played


def scores(program: Program, run: RunState, key: jax.Array, episodes: int | None = None) -> Scores:
    """Runs `play`, if there is anything to play; script name to what `eval.csv` would say of it."""
    if not names(program):
        return {}
    play_all = jax.jit(partial(play, program, episodes=episodes))
    return values(program, jax.device_get(play_all(run, key, program.world)))


def values(program: Program, played: Mapping[str, tuple[dict, evaluation.Evaluation]]) -> Scores:
    """Turns what `play` returned, on the host, into numbers by name."""
    return {name: evaluation_values(*result, program.env.spec) for name, result in played.items()}


def line(program: Program, name: str, score: Mapping[str, float], policy: Mapping[str, float]) -> str:
    """One line for people: a reference script beside the trained policy."""
    number = int(policy["eval_agg/num_episodes"])
    both = f"{name} {program.role}: {_result(program, score)}; trained policy: {_result(program, policy)}"
    return f"{both}; {number} episodes each"


def _result(program: Program, score: Mapping[str, float]) -> str:
    spec = program.env.spec
    if spec.score is None:
        return f"return {score['eval_agg/avg_reward']:.1f}"
    names = (spec.score_column, f"{spec.score}_low", f"{spec.score}_high")
    mean, low, high = (100 * score[f"eval_agg/{name}"] for name in names)
    return f"{spec.score} {mean:.1f} % [{low:.1f}, {high:.1f}]"
