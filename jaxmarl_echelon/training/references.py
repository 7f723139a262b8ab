"""What a run's evaluation episodes are worth by themselves: reference scripts in the policy's place."""

from collections.abc import Mapping
from functools import partial

import jax

from jaxmarl_echelon.training import controllers, evaluation
from jaxmarl_echelon.training.program import Program
from jaxmarl_echelon.training.record import evaluation_values
from jaxmarl_echelon.training.types import RunState

Scores = dict[str, dict[str, float]]


def names(program: Program) -> tuple[str, ...]:
    """The environment's reference scripts for the scored role; empty where it has none."""
    return tuple(getattr(program.env, "references", {}).get(program.role, ()))


def play(
    program: Program, run: RunState, key: jax.Array, episodes: int | None = None
) -> dict[str, tuple[dict, evaluation.Evaluation]]:
    """Plays the evaluation once with each reference script of the scored role; pure, for jit and vmap.

    Args:
      program: the run's program.
      run: the run, whose other roles act as in its own evaluation.
      key: the evaluation's key: the same episodes.
      episodes: how many; None for as many as the configuration says.

    Returns:
      script name to the evaluation's scalars and episodes.
    """
    played = {}
    for name in names(program):
        script = controllers.script(controllers.find_script(program.env, program.role, name))
        acting = program.controllers | {program.role: script}
        result = program.evaluate_as(acting, run.policies, run, key, episodes=episodes)
        played[name] = evaluation.summary(result, program.env.spec, program.role), result
    return played


def scores(program: Program, run: RunState, key: jax.Array, episodes: int | None = None) -> Scores:
    """Runs `play`, if there is anything to play; script name to what `eval.csv` would say of it."""
    if not names(program):
        return {}
    return values(program, jax.device_get(jax.jit(partial(play, program, episodes=episodes))(run, key)))


def values(program: Program, played: Mapping[str, tuple[dict, evaluation.Evaluation]]) -> Scores:
    """Turns what `play` returned, on the host, into numbers by name."""
    return {name: evaluation_values(*result, program.env.spec) for name, result in played.items()}


def line(program: Program, name: str, score: Mapping[str, float], policy: Mapping[str, float]) -> str:
    """One line for people: a reference script beside the trained policy."""
    number = int(policy["eval_agg/num_episodes"])
    both = f"{name} {program.role}: {_result(score)}; trained policy: {_result(policy)}"
    return f"{both}; {number} episodes each"


def _result(score: Mapping[str, float]) -> str:
    if "eval_agg/success_rate" not in score:
        return f"return {score['eval_agg/avg_reward']:.1f}"
    success, low, high = (100 * score[f"eval_agg/success_{end}"] for end in ("rate", "low", "high"))
    return f"success {success:.1f} % [{low:.1f}, {high:.1f}]"
