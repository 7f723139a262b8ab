"""`python -m jaxmarl_echelon.evaluate PATH`: scores a checkpoint, and shows what the policy does."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from omegaconf import OmegaConf
from rich.console import Console

from algos import compiler
from jaxmarl_echelon import checkpoints, command_line, optional_packages
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.tracking import formats, plots, tables
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.random_streams import Stream, run_key, stream_key
from jaxmarl_echelon.training.config import build, input_files
from jaxmarl_echelon.training.config.role_assignment import FROZEN
from jaxmarl_echelon.training.host import reference_scores
from jaxmarl_echelon.training.host.run_record import environment, evaluation_values
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.agents import make_actors
from jaxmarl_echelon.training.program.program import Program, make_program, scored_assessment


def parse() -> argparse.Namespace:
    """Reads the command line."""
    program = command_line.program("jaxmarl_echelon.evaluate", "jaxmarl-evaluate")
    parser = command_line.Parser(prog=program, description=__doc__)
    parser.add_argument("path", help="a run folder, its checkpoints folder, or one checkpoint")
    parser.add_argument(
        "--checkpoint", default="best_eval", help="which one of a run folder (default: best_eval)"
    )
    parser.add_argument("--episodes", type=int, help="episodes to play (default: as many as during training)")
    parser.add_argument(
        "--episode", type=int, help="which episode to animate or print (default: the first success)"
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also score the untrained policy and the environment's scripted actors",
    )
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="score the policy on every phase of the run's curriculum, or else of the environment's",
    )
    parser.add_argument(
        "--realism",
        action="store_true",
        help="compare sampled rollouts with the recordings of held-out scenes, where there are any",
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="print one episode as text, e.g. a game move by move (--episode chooses which)",
    )
    parser.add_argument("--output", type=Path, help="folder for pictures (default: PATH's run folder)")
    parser.add_argument(
        "overrides", nargs="*", default=[], help="KEY=VALUE for the run's configuration, e.g. env.map=..."
    )
    return parser.parse_intermixed_args()  # overrides may follow options


def load(path: str, name: str, overrides=(), *, policy_only: bool = False):
    """Rebuilds a run from a checkpoint.

    A role for which `overrides` name a frozen policy is played by that one, whatever the run has learnt.
    A file that they name is taken as it is now; any other one has to be as the run has read it.

    Args:
      path: a run's folder, its `checkpoints` folder, or one checkpoint.
      name: of the checkpoint in a run's folder.
      overrides: `KEY=VALUE` each, of the run's configuration.
      policy_only: the environment is not wanted, so that changed files are only said.

    Returns:
      checkpoint folder, metadata, run configuration, program, and the state reduced to acting.

    Raises:
      ValueError: one line, for a checkpoint or a configuration that cannot be read, or a changed file.
    """
    folder = checkpoints.find(path, name)
    facts = checkpoints.metadata(folder)
    config, said = build.saved(facts), set()
    for override in map(command_line.in_full, overrides):
        key, _, value = override.partition("=")
        command_line.set_value(config, key, value)
        said |= input_files.named(OmegaConf.to_container(config, resolve=True), key)
    optional_packages.require(config, facts["config"]["choices"], ("env",))
    run_config = build.read(config)
    read = {name: found for name, found in input_files.of(facts).items() if name not in said}
    held = read if policy_only else input_files.held(run_config)
    input_files.require_same(
        read, input_files.read_by(run_config, learning=False), folder.parent.parent, held
    )
    program = make_program(run_config, make_actors(run_config))
    like = jax.eval_shape(lambda key: program.policy(program.init(key)), run_key(run_config.seed))
    before = facts["config"].get("controllers") or {}
    other = {
        role: program.world.policies[role]
        for role, actor in run_config.controllers.items()
        if actor.startswith(FROZEN) and actor != before.get(role)
    }
    own = {name: policy for name, policy in like.policies.items() if name not in other}
    state = checkpoints.restore(folder, like.replace(policies=own))
    return folder, facts, run_config, program, state.replace(policies=state.policies | other)


def main() -> None:
    """Entry point."""
    command_line.use_compilation_cache()
    arguments = parse()
    if arguments.episodes is not None and arguments.episodes < 1:
        raise command_line.UsageError(f"--episodes={arguments.episodes}: must be at least 1")
    folder, facts, config, program, state = load(arguments.path, arguments.checkpoint, arguments.overrides)
    episodes = arguments.episodes or config.eval_episodes
    if arguments.episode is not None and not 0 <= arguments.episode < episodes:
        raise command_line.UsageError(f"--episode={arguments.episode}: must be from 0 to {episodes - 1}")
    viewer = program.env.viewer
    if arguments.show and not (viewer and viewer.tells):
        raise command_line.UsageError(f"--show: episodes of {program.env.spec.name} cannot be told as text")
    if arguments.realism and program.env.comparison is None:
        raise command_line.UsageError(f"--realism: {program.env.spec.name} has no recordings to compare with")
    output = arguments.output or folder.parent.parent / f"evaluation_{folder.name}"
    output.mkdir(parents=True, exist_ok=True)
    played = play_actors(program, config, state, episodes, baselines=arguments.baselines)
    rows = {name: scores(program, result) for name, result in played.items()}
    tasks = {name: task_scores(program, result) for name, result in played.items()}
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"checkpoint: {folder} ({facts['step']:,} steps)")
    present = environment(program.env.spec)
    if (trained_in := facts.get("environment", present)) != present:
        console.print(f"trained in {trained_in}, scored in {present}, which behaves otherwise")
    for line in (*program.env.describe(), *program.env.left_out()):
        console.print(line, markup=False, soft_wrap=True)
    spec = program.env.spec
    for table in (*tables.actors(rows, episodes, spec), *tables.tasks(tasks, spec)):
        console.print(table)
    if not arguments.overrides:
        console.print(reproduction(program, config, state, facts))
    (output / "evaluation.json").write_text(json.dumps(rows, indent=2) + "\n")
    if program.env.spec.tasks:
        (output / "tasks.json").write_text(json.dumps(tasks, indent=2) + "\n")
    if arguments.ladder:
        steps = ladder(program, config, state, episodes)
        console.print(tables.ladder(steps, episodes))
        (output / "ladder.json").write_text(json.dumps(steps, indent=2) + "\n")
        plots.ladder_plot(output / "ladder.png", steps)
    if arguments.realism:
        alike = likeness(arguments, program.env.comparison.settings)
        console.print(tables.realism(alike))
        (output / "realism.json").write_text(json.dumps(alike, indent=2) + "\n")
    if viewer:
        shown = arguments.episode, console
        show(program, config, state, viewer, episodes, output, *shown, told=arguments.show)


def acting_as(program: Program, names, number, *, greedy: bool = True):
    """`(env) -> controllers` with the script of traced `number` in the policy's place, from 1 on."""
    role = program.role

    def seats(env):
        scripts = [controllers.script(controllers.find_script(env, role, name)) for name in names]
        acting = program.controllers(env, greedy)
        return acting | {role: controllers.one_of([acting[role], *scripts], number)}

    return seats


def likeness(arguments: argparse.Namespace, settings) -> dict[str, dict[str, float]]:
    """How alike rollouts of the policy and the recordings are; with baselines also those of scripts.

    Args:
      arguments: the command line.
      settings: of the environment, that rollouts need.
    """
    needed = [f"env.{key}={value}" for key, value in settings.items()]
    overrides = [*arguments.overrides, *needed]
    _, _, config, program, state = load(arguments.path, arguments.checkpoint, overrides)
    comparison = program.env.comparison
    names = program.env.baselines if arguments.baselines else ()

    @jax.jit
    def play(number, key, state, world):
        seats = acting_as(program, names, number, greedy=False)
        how = {"episodes": comparison.episodes, "record": comparison.snapshot, "world": world}
        return program.evaluate_as(seats, state.policies, state, key, **how).frames

    keys = jax.random.split(stream_key(config.seed, Stream.FINAL), comparison.rollouts)
    return {
        actor: comparison.scores([jax.device_get(play(number, key, state, program.world)) for key in keys])
        for number, actor in enumerate(("trained policy", *names))
    }


def play_actors(
    program, config, state, episodes: int, *, baselines: bool
) -> dict[str, evaluation.Evaluation]:
    """Evaluations of the policy and of other actors on the same final episodes, in one program.

    Other actors are the environment's reference scripts; with `baselines`, the untrained policy and the
    environment's baseline scripts.
    """
    key = stream_key(config.seed, Stream.FINAL)
    names = program.env.baselines if baselines else reference_scores.names(program)

    @jax.jit
    def play(number, policies, state, world):
        seats = acting_as(program, names, number)
        return program.evaluate_as(seats, policies, state, key, episodes=episodes, world=world)

    actors = {"trained policy": (0, state.policies)}
    if baselines:
        untrained = jax.jit(lambda key, world: program.policy(program.init(key, world=world)).policies)
        start = run_key(config.seed), program.world
        compiled = untrained.lower(*start).compile(compiler_options=compiler.quick())
        actors["untrained policy"] = 0, compiled(*start)
    actors |= {name: (number, state.policies) for number, name in enumerate(names, 1)}
    world = program.world
    return {name: play(*actor, state, world) for name, actor in actors.items()}


def reproduction(program, config, state, facts: Mapping[str, Any]) -> str:
    """Repeats the evaluation of training; returns a line with its result and whether it was reproduced.

    Args:
      program, config, state: as from `load`.
      facts: the checkpoint's metadata.
    """
    _, assessment = jax.device_get(jax.jit(scored_assessment(program, config.seed))(state, program.world))
    values = evaluation_values(assessment.scalars, assessment.result, program.env.spec)
    parts = [f"return {formats.fixed(values['eval_agg/avg_reward'], 1)}"]
    if (column := program.env.spec.score_column) is not None:
        parts.insert(0, f"{program.env.spec.score} {formats.fixed(values[f'eval_agg/{column}'], 2)}")
    return (
        f"the {config.eval_episodes} episodes that chose checkpoints during training: {', '.join(parts)}; "
        f"{comparison(facts, values)}"
    )


def comparison(facts: Mapping[str, Any], values: Mapping[str, float]) -> str:
    """Whether values are those that training recorded of a checkpoint, if it recorded any of its policy."""
    if (step := facts.get("scored_at", facts["step"])) != facts["step"]:
        return f"training did not score this policy, but the one of {step:,} steps"
    if (variant := facts.get("scored_on")) is not None:
        return f"training scored this variant on the task of {variant}"
    # Compared as text, because NaN != NaN.
    same = "reproduced exactly" if json.dumps(values) == json.dumps(facts["scores"]) else "NOT reproduced"
    return f"the score recorded there is {same}"


def scores(program: Program, result: evaluation.Evaluation) -> dict[str, float]:
    """An evaluation's values as in `eval.csv`."""
    scalars = evaluation.summary(result, program.env.spec, program.role)
    return evaluation_values(scalars, jax.device_get(result), program.env.spec)


def task_scores(program: Program, result: evaluation.Evaluation) -> dict[str, dict[str, float]]:
    """An evaluation's values per task that occurred."""
    if program.env.spec.score is None:
        return {}
    parts = evaluation.by_task(result, program.env.spec)
    return {task: scores(program, part) for task, part in parts.items()}


def ladder(program, config, state, episodes: int) -> list[dict]:
    """Scores of the policy on each stage's task of a curriculum, on held-out episodes.

    Raises:
      ValueError: if the environment does not support the stages' tasks.
    """
    curriculum = program.curriculum
    course = state.curriculum
    if not curriculum.stages:
        if program.env.ladder is None:
            raise command_line.UsageError(
                f"--ladder: the run has no stages, and {program.env.spec.name} names no curriculum for it"
            )
        composed, _ = command_line.compose_config([f"curriculum={program.env.ladder}"])
        curriculum = build.build(composed.curriculum, "curriculum", _partial_=True)(program.env)
        course = curriculum.init()
    key = stream_key(config.seed, Stream.FINAL)

    @jax.jit
    def play(state, index, world):
        params = curriculum.stage_params(course, index)
        return program.evaluate(state, key, params, episodes=episodes, world=world)

    rows = []
    for index, name in enumerate(curriculum.stages):
        values = scores(program, play(state, index, program.world))
        spec = program.env.spec
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


def show(
    program,
    config,
    state,
    viewer,
    episodes: int,
    output: Path,
    episode: int | None,
    console,
    *,
    told: bool = False,
) -> None:
    """Renders the scored trajectories as a picture, and one as an animation and, if supported, a replay.

    Prints that episode as text if it is to be `told`; viewers that draw nothing are only asked for that.
    """
    if not (viewer.draws or told):
        return
    key = stream_key(config.seed, Stream.FINAL)  # the episodes of the table

    @jax.jit
    def play(run, world):
        return program.evaluate(run, key, record=viewer.snapshot, episodes=episodes, world=world)

    recorded = jax.device_get(play(state, program.world))
    if episode is None:
        episode = interesting(program, recorded)
    if told:
        text = viewer.text(recorded, episode)
        console.print(f"episode {episode}:\n{text}", markup=False, highlight=False, soft_wrap=True)
    if not viewer.draws:
        return
    viewer.picture(output / "trajectories.png", recorded)
    viewer.animation(output / f"episode_{episode}.gif", recorded, episode)
    viewer.replay(output / "replay.html", recorded, episode)
    console.print(f"pictures: {output}")


def interesting(program: Program, result) -> int:
    """Index of the episode to animate: the first with the highest positive score, else the highest return."""
    spec = program.env.spec
    if spec.score is not None:
        score = np.asarray(results.ratio(*result.scores(spec), empty=0.0))
        if score.max() > 0:
            return int(np.argmax(score))
    returns = np.asarray(result.mean_return(program.role))
    return int(np.argmax(np.where(np.isnan(returns), -np.inf, returns)))


def script() -> None:
    """The console script."""
    command_line.guarded(main)


if __name__ == "__main__":
    script()
