"""`python -m jaxmarl_echelon.evaluate PATH`: scores a checkpoint, and shows what the policy does."""

import argparse
import json
import sys
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from jaxmarl_echelon import checkpoints, command_line
from jaxmarl_echelon.tracking import plots, tables
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training import controllers, evaluation, loop, references
from jaxmarl_echelon.training.program import Program, make_actors, make_program
from jaxmarl_echelon.training.record import evaluation_values


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m jaxmarl_echelon.evaluate", description=__doc__)
    parser.add_argument("path", help="a run folder, its checkpoints folder, or one checkpoint")
    parser.add_argument(
        "--checkpoint", default="best_eval", help="which one of a run folder (default: best_eval)"
    )
    parser.add_argument("--episodes", type=int, help="episodes to play (default: as during training)")
    parser.add_argument("--episode", type=int, help="which episode to animate (default: the first success)")
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also score the untrained policy and the environment's scripted actors",
    )
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="score the policy on every phase of the run's curriculum (of phased26 where it has none)",
    )
    parser.add_argument("--output", type=Path, help="folder for pictures (default: PATH's run folder)")
    parser.add_argument(
        "overrides", nargs="*", default=[], help="KEY=VALUE for the run's configuration, e.g. env.map=..."
    )
    return parser.parse_intermixed_args()  # overrides may follow options


def load(path: str, name: str, overrides=(), episodes: int | None = None):
    """Rebuilds a run from a checkpoint.

    Returns:
      checkpoint folder, its metadata, the run's configuration, its program and its policy's state.
    """
    folder = checkpoints.find(path, name)
    facts = checkpoints.metadata(folder)
    config = config_lib.saved(facts)
    if episodes is not None:
        config.eval_episodes = episodes
    for override in overrides:
        key, _, value = override.partition("=")
        command_line.set_value(config, key, value)
    run_config = config_lib.read(config)
    program = make_program(run_config, make_actors(run_config))
    like = jax.eval_shape(lambda key: program.policy(program.init(key)), jax.random.key(run_config.seed))
    return folder, facts, run_config, program, checkpoints.restore(folder, like)


def main() -> None:
    """Entry point."""
    command_line.use_compilation_cache()
    arguments = parse()
    folder, facts, config, program, state = load(
        arguments.path, arguments.checkpoint, arguments.overrides, arguments.episodes
    )
    output = arguments.output or folder.parent.parent / f"evaluation_{folder.name}"
    output.mkdir(parents=True, exist_ok=True)
    viewer = getattr(program.env, "viewer", None)
    record = viewer.snapshot if viewer else None
    key = loop.evaluation_key(config.seed)
    _, assessment = jax.device_get(jax.jit(program.assess)(state, key))
    rows = {"trained policy": evaluation_values(assessment.scalars, assessment.result, program.env.spec)}
    if arguments.baselines:
        rows |= score_baselines(program, config, state)
    else:
        rows |= references.scores(program, state, key)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"checkpoint: {folder} ({facts['step']:,} steps)")
    for line in getattr(program.env, "describe", tuple)():
        console.print(line, markup=False, soft_wrap=True)
    console.print(tables.actors(rows, config.eval_episodes))
    if (by_task := tables.tasks(rows["trained policy"])) is not None:
        console.print(by_task)
    if not arguments.overrides and arguments.episodes is None:
        same = rows["trained policy"] == facts["scores"]
        console.print(
            f"the score recorded during training is {'reproduced exactly' if same else 'NOT reproduced'}"
        )
    (output / "evaluation.json").write_text(json.dumps(rows, indent=2) + "\n")
    if arguments.ladder:
        steps = ladder(program, config, state)
        console.print(tables.ladder(steps, config.eval_episodes))
        (output / "ladder.json").write_text(json.dumps(steps, indent=2) + "\n")
        plots.ladder_plot(output / "ladder.png", steps)
    if viewer:
        show(program, config, state, record, viewer, output, arguments.episode, console)


def score_baselines(program, config, state) -> dict[str, dict[str, float]]:
    """Scores of the untrained policy and of the environment's scripts on the very same episodes."""
    key, role = loop.evaluation_key(config.seed), program.role
    names = getattr(program.env, "baselines", ())
    scripts = [controllers.script(controllers.find_script(program.env, role, name)) for name in names]
    options = [program.controllers[role], *scripts]

    @jax.jit
    def play(number, policies, state):
        acting = program.controllers | {role: controllers.one_of(options, number)}
        return program.evaluate_as(acting, policies, state, key)

    untrained = jax.jit(lambda key: program.policy(program.init(key)).policies)(jax.random.key(config.seed))
    actors = {"untrained policy": (0, untrained)}
    actors |= {name: (number, state.policies) for number, name in enumerate(names, 1)}
    return {name: scores(program, play(*actor, state)) for name, actor in actors.items()}


def scores(program: Program, result: evaluation.Evaluation) -> dict[str, float]:
    """What `eval.csv` would say of an evaluation."""
    scalars = evaluation.summary(result, program.env.spec, program.role)
    return evaluation_values(scalars, jax.device_get(result), program.env.spec)


def ladder(program, config, state) -> list[dict]:
    """Scores of the policy on every stage of a curriculum, as the stages are by themselves.

    Raises:
      ValueError: where the environment cannot be set to the stages' tasks.
    """
    curriculum = program.curriculum
    course = state.curriculum
    if not curriculum.stages:
        composed, _ = command_line.compose_config(["curriculum=phased26"])
        curriculum = config_lib.build(composed.curriculum, "curriculum", _partial_=True)(program.env)
        course = curriculum.init()
    key = loop.evaluation_key(config.seed)
    play = jax.jit(lambda state, index: program.evaluate(state, key, curriculum.stage_params(course, index)))
    rows = []
    for index, name in enumerate(curriculum.stages):
        values = scores(program, play(state, index))
        rows.append(
            {
                "name": f"{index} {name}",
                "success": values["eval_agg/success_rate"],
                "low": values["eval_agg/success_low"],
                "high": values["eval_agg/success_high"],
                "outcomes": {o: values[f"eval_agg/outcome/{o}"] for o in program.env.spec.outcomes},
            }
        )
    return rows


def show(program, config, state, record, viewer, output: Path, episode: int | None, console) -> None:
    """Writes the picture of all trajectories, and one episode as an animation and, if it can be, a replay."""
    key = loop.evaluation_key(config.seed)
    recorded = jax.device_get(jax.jit(lambda run: program.evaluate(run, key, record=record))(state))
    if episode is None:
        episode = interesting(program, recorded)
    viewer.picture(output / "trajectories.png", recorded)
    viewer.animation(output / f"episode_{episode}.gif", recorded, episode)
    if hasattr(viewer, "replay"):
        viewer.replay(output / "replay.html", recorded, episode)
    console.print(f"pictures: {output}")


def interesting(program: Program, result) -> int:
    """The episode to look at: the first success, else the one with the highest return."""
    spec = program.env.spec
    if spec.success is not None:
        wins = np.flatnonzero(spec.succeeded(np.asarray(result.outcome)))
        if wins.size:
            return int(wins[0])
    returns = result.episode_return[program.role]
    return int(np.argmax(np.mean(returns, axis=-1)))


if __name__ == "__main__":
    command_line.guarded(main)
