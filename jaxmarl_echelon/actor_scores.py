"""Scores of a run's policy and of other actors, on episodes that had no part in the training."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from algos import compiler
from algos.types import PyTree
from jaxmarl_echelon import command_line
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.reporting.recorded_evaluations import TRAINED
from jaxmarl_echelon.tracking import formats
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.random_streams import Stream, run_key, stream_key
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.host import reference_scores
from jaxmarl_echelon.training.host.episode_rows import list_episodes
from jaxmarl_echelon.training.host.run_record import evaluation_values
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.program import Program, evaluation_as_in_training


class ActorScores(NamedTuple):
    """Scores of an evaluation's actors, as they are written.

    Attributes:
      actors: actor to its `eval_agg/...` values, first the trained policy.
      tasks: likewise by task that occurred.
      episodes: rows of `episodes.csv`, of the trained policy.
    """

    actors: dict[str, dict[str, float]]
    tasks: dict[str, dict[str, dict[str, float]]]
    episodes: list[dict]


def score_actors(program: Program, played: Mapping[str, evaluation.Evaluation]) -> ActorScores:
    """Scores the episodes of every actor; those of the trained policy are listed."""
    return ActorScores(
        {name: evaluation_scores(program, result) for name, result in played.items()},
        {name: task_scores(program, result) for name, result in played.items()},
        list_episodes(played[TRAINED], judging_spec(program), program.role),
    )


def replace_policy_by_script(program: Program, names, number, *, greedy: bool = True):
    """Returns `(Parts) -> controllers`; traced `number` n >= 1 replaces the policy by the n-th script."""
    role = program.role

    def seats(parts):
        policies = [controllers.find_script(parts.env, role, name) for name in names]
        scripts = [controllers.make_script_controller(policy) for policy in policies]
        acting = program.controllers(parts, greedy)
        return acting | {role: controllers.switch_controller([acting[role], *scripts], number)}

    return seats


def play_actors(
    program, config, state, episodes: int, *, baselines: bool, record=None
) -> dict[str, evaluation.Evaluation]:
    """Evaluates the policy and other actors on the same final episodes; see `make_actor_player`."""
    return make_actor_player(program, episodes, baselines=baselines, record=record)(config.seed, state)


def make_actor_player(
    program: Program, episodes: int, *, baselines: bool, record: Callable | None = None
) -> Callable:
    """Returns `(seed, state) -> Evaluation by actor`: the policy and others on a seed's final episodes.

    The other actors, which replace the policy of the scored role, are the environment's reference scripts, or
    with `baselines` the untrained policy and the environment's baseline scripts. `record` makes the frames of
    the policy's episodes. All actors and seeds share one compiled program.
    """
    usual = controllers.find_baselines(program.env, program.role)
    names = usual if baselines else reference_scores.reference_names(program)
    untrained = make_untrained_policy(program) if baselines else None

    @compiler.jit_evaluation
    def play(number, policies, state, world, key):
        seats = replace_policy_by_script(program, names, number)
        how = {"episodes": episodes, "world": world, "record": record}
        return program.evaluate_with_controllers(seats, policies, state, key, **how)

    def play_all(seed, state):
        actors = {TRAINED: (0, state.policies)}
        if untrained is not None:
            actors["untrained policy"] = 0, state.policies | untrained(seed)
        actors |= {name: (number, state.policies) for number, name in enumerate(names, 1)}
        found = {}
        for number, (name, actor) in enumerate(actors.items()):
            played = play(*actor, state, program.world, stream_key(seed, Stream.FINAL))
            found[name] = played if number == 0 else played.replace(frames=None)
        return found

    return play_all


def make_untrained_policy(program: Program) -> Callable[[int], dict[str, Any]]:
    """Returns `(seed) -> policy of the scored role before training`, by its name, compiled at once.

    Other learners are not among them: they are opponents here.
    """
    fresh = jax.jit(lambda key, world: program.init_policy(key, world).policies[program.role])
    lowered = fresh.lower(run_key(0), program.world)
    compiled = lowered.compile(compiler_options=compiler.quick_compile_options())
    return lambda seed: {program.role: compiled(run_key(seed), program.world)}


def reproduce_scores(program, config, state, facts: Mapping[str, Any]) -> str:
    """Repeats the evaluation of training; returns a line with its result and whether it was reproduced.

    Args:
      program, config, state: from `load_run`.
      facts: the checkpoint's metadata.
    """
    _, assessment = jax.device_get(
        compiler.jit_evaluation(evaluation_as_in_training(program, config.seed))(state, program.world)
    )
    values = evaluation_values(assessment.scalars, assessment.result, program.env.spec)
    parts = [f"return {formats.format_finite(values['eval_agg/avg_reward'])}"]
    spec = judging_spec(program)
    if (column := spec.score_column) is not None:
        parts.insert(0, f"{spec.score} {formats.format_fixed(values[f'eval_agg/{column}'], 2)}")
    number = assessment.result.length.size
    return (
        f"the {number} episodes that chose checkpoints during training: {', '.join(parts)}; "
        f"{compare_scores(facts, values)}"
    )


def compare_scores(facts: Mapping[str, Any], values: Mapping[str, float]) -> str:
    """Formats the comparison of values with those that training recorded for the checkpoint, if any."""
    if (step := facts.get("scored_at", facts["step"])) != facts["step"]:
        return f"training did not score this policy, but the one of {step:,} steps"
    if (variant := facts.get("scored_on")) is not None:
        return f"training scored this variant on the task of {variant}"
    # Compared as text, because NaN != NaN.
    same = "reproduced exactly" if json.dumps(values) == json.dumps(facts["scores"]) else "NOT reproduced"
    return f"the score recorded there is {same}"


def judging_spec(program: Program) -> EnvSpec:
    """Returns the environment's spec with the run's score in place of its own: a later learner's, if any.

    It is `hidden` only where this makes evaluations sample the actions of a learner.
    """
    spec = program.env.spec
    column = spec.judged_by(program.agents)
    return dataclasses.replace(
        spec,
        score=next((one.name for one in spec.results if one.column == column), None),
        hidden=spec.hidden and not all(agent.explores for agent in program.agents.values()),
    )


def evaluation_scores(program: Program, result: evaluation.Evaluation) -> dict[str, float]:
    """Returns an evaluation's values, as in `eval.csv`, with the interval of the run's score."""
    spec = judging_spec(program)
    scalars = evaluation.summarize_evaluation(result, spec, program.role)
    return evaluation_values(scalars, jax.device_get(result), spec)


def task_scores(program: Program, result: evaluation.Evaluation) -> dict[str, dict[str, float]]:
    """Returns an evaluation's values per task that occurred."""
    if judging_spec(program).score is None:
        return {}
    spec, found = program.env.spec, {}
    for task, part in evaluation.split_by_task(result, spec).items():
        # A part leaves out the episodes of other tasks as if they were quarantined.
        own = np.asarray(result.quarantined) & (np.asarray(result.results["task"]) == spec.tasks.index(task))
        found[task] = evaluation_scores(program, part) | {"eval_agg/quarantined": float(own.sum())}
    return found


def score_ladder(program, config, state, episodes: int) -> list[dict]:
    """Scores the policy on the task of each curriculum stage, on held-out episodes.

    Raises:
      ValueError: if the environment does not support the stages' tasks.
    """
    curriculum, course = ladder_course(program, state)
    task = curriculum.stage_params
    assert task is not None  # Curricula with stages have it.
    key = stream_key(config.seed, Stream.FINAL)

    @jax.jit
    def play(state, index, world):
        return program.evaluate(state, key, task(course, index), episodes=episodes, world=world)

    rows, spec = [], judging_spec(program)
    for index, name in enumerate(curriculum.stages):
        values = evaluation_scores(program, play(state, index, program.world))
        rows.append(
            {
                "name": f"{index} {name}",
                "success": values[f"eval_agg/{spec.score_column}"],
                "low": values[f"eval_agg/{spec.score}_low"],
                "high": values[f"eval_agg/{spec.score}_high"],
                "outcomes": {o: values[f"eval_agg/outcome/{o}"] for o in spec.outcomes},
            }
        )
    return rows


def ladder_course(program: Program, state: RunState) -> tuple[Curriculum, PyTree]:
    """Returns the curriculum of `--ladder`, the run's or the environment's, and its state.

    The state has the tasks of the current configuration, as a checkpoint has those of its own.
    """
    curriculum = program.curriculum
    if curriculum.stages:
        return curriculum, curriculum.retasked(state.curriculum, curriculum.init())
    composed, _ = command_line.compose_config([f"curriculum={program.env.ladder}"])
    curriculum = build.instantiate_node(composed.curriculum, "curriculum", _partial_=True)(program.env)
    return curriculum, curriculum.init()


def record_episodes(program, config, state, episodes: int) -> evaluation.Evaluation:
    """Plays the episodes of the table and records them for the environment's viewer.

    Args:
      program, config, state: from `load_run`.
      episodes: number of episodes.
    """
    key, record = stream_key(config.seed, Stream.FINAL), program.env.viewer.snapshot

    @jax.jit
    def play(run, world):
        return program.evaluate(run, key, record=record, episodes=episodes, world=world)

    return jax.device_get(play(state, program.world))


def select_episode(program: Program, result) -> int:
    """Selects the episode to animate: the first with the highest positive score, else the highest return."""
    spec = judging_spec(program)
    if spec.score is not None:
        score = np.asarray(results.divide_or_empty(*result.scores(spec), empty=0.0))
        if score.max() > 0:
            return int(np.argmax(score))
    returns = np.asarray(result.mean_return(program.role))
    return int(np.argmax(np.where(np.isnan(returns), -np.inf, returns)))
