"""Reference scores: evaluations of scripted policies on the run's evaluation episodes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from algos import compiler
from jaxmarl_echelon.tracking.formats import format_finite
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.host.run_record import evaluation_values
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.program import Program

Scores = dict[str, dict[str, float]]


def reference_names(program: Program) -> tuple[str, ...]:
    """Names of the environment's reference scripts for the scored role; may be empty."""
    return tuple(program.env.references.get(program.role, ()))


def play_references(
    program: Program, run: RunState, key: jax.Array, world: Any, episodes: int | None = None
) -> dict[str, tuple[dict, evaluation.Evaluation]]:
    """Evaluates each reference script of the scored role; pure, for jit and vmap.

    Args:
      program: the run's program.
      run: the run, whose other roles act as in its own evaluation.
      key: the evaluation's key, for the same episodes.
      world: the program's world.
      episodes: number of episodes; None for `eval_episodes`.

    Returns:
      script name to the evaluation's scalars and episodes.
    """
    played = {}
    for name in reference_names(program):

        def seats(parts, name=name):
            policy = controllers.find_script(parts.env, program.role, name)
            return program.controllers(parts) | {program.role: controllers.make_script_controller(policy)}

        result = program.evaluate_with_controllers(
            seats, run.policies, run, key, episodes=episodes, world=world
        )
        played[name] = evaluation.summarize_evaluation(result, program.env.spec, program.role), result
    return played


def score_references(program: Program, run: RunState, key: jax.Array, episodes: int | None = None) -> Scores:
    """Jits and runs `play_references`; returns the `eval_agg/...` values by script name."""
    if not reference_names(program):
        return {}
    play_all = compiler.jit_evaluation(partial(play_references, program, episodes=episodes))
    return reference_values(program, jax.device_get(play_all(run, key, program.world)))


def reference_values(program: Program, played: Mapping[str, tuple[dict, evaluation.Evaluation]]) -> Scores:
    """Converts the output of `play_references` to Python floats by name."""
    return {name: evaluation_values(*result, program.env.spec) for name, result in played.items()}


def format_reference(
    program: Program, name: str, score: Mapping[str, float], policy: Mapping[str, float]
) -> str:
    """Formats a comparison of a reference script with the trained policy in one line."""
    number = int(policy["eval_agg/num_episodes"])
    both = f"{name} {program.role}: {_result(program, score)}; trained policy: {_result(program, policy)}"
    return f"{both}; {number} episodes each"


def _result(program: Program, score: Mapping[str, float]) -> str:
    """Formats a score with its interval; the return without a score."""
    spec = program.env.spec
    if spec.score is None:
        return f"return {format_finite(score['eval_agg/avg_reward'])}"
    names = (spec.score_column, f"{spec.score}_low", f"{spec.score}_high")
    mean, low, high = (100 * score[f"eval_agg/{name}"] for name in names)
    return f"{spec.score} {mean:.1f} % [{low:.1f}, {high:.1f}]"
