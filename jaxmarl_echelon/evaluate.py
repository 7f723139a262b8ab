"""`python -m jaxmarl_echelon.evaluate PATH`: scores a checkpoint, and shows what the policy does."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from jaxmarl_echelon import checkpoints, command_line
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training import controllers, evaluation, loop
from jaxmarl_echelon.training.program import Program, make_program


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
    parser.add_argument("--output", type=Path, help="folder for pictures (default: PATH's run folder)")
    parser.add_argument(
        "overrides", nargs="*", help="KEY=VALUE for the run's configuration, e.g. env.map=..."
    )
    return parser.parse_args()


def load(path: str, name: str, overrides=(), episodes: int | None = None):
    """Rebuilds a run from a checkpoint.

    Returns:
      checkpoint folder, its metadata, the run's configuration, its program and its restored state.
    """
    folder = checkpoints.find(path, name)
    facts = checkpoints.metadata(folder)
    config = OmegaConf.create({k: v for k, v in facts["config"].items() if k != "choices"})
    OmegaConf.set_struct(config, True)
    if episodes is not None:
        config.eval_episodes = episodes
    for override in overrides:
        key, _, value = override.partition("=")
        command_line.set_value(config, key, value)
    run_config = config_lib.read(config)
    program = make_program(run_config)
    like = jax.eval_shape(program.init, jax.random.key(run_config.seed))
    return folder, facts, run_config, program, checkpoints.restore(folder, like)


def baselines(program: Program, config, state) -> dict[str, Callable]:
    """Other actors for the learner's role: the untrained policy and the environment's scripts."""
    role = loop.learner_role(program)
    actors = {"untrained policy": (program.controllers, program.init(jax.random.key(config.seed)).learners)}
    for name in getattr(program.env, "baselines", ()):
        script = controllers.script(controllers.find_script(program.env, role, name))
        actors[name] = (program.controllers | {role: script}, state.learners)
    return actors


def table(rows: dict[str, dict[str, float]], episodes: int) -> Table:
    """One line per actor: success with its interval, return, length and the outcomes that occurred."""
    names = [name for name in next(iter(rows.values())) if name.startswith("eval_agg/outcome/")]
    outcomes = [name for name in names if any(values[name] > 0 for values in rows.values())]
    result = Table(title=f"{episodes} episodes each, deterministic", title_justify="left")
    result.add_column("actor", no_wrap=True)
    scored = "eval_agg/success_rate" in next(iter(rows.values()))
    for column in (["success [95 %]"] if scored else []) + ["return", "length"]:
        result.add_column(column, justify="right", no_wrap=True)
    for name in outcomes:
        result.add_column(name.rpartition("/")[2].replace("_", " "), justify="right")
    for actor, values in rows.items():
        cells = [actor]
        if scored:
            low, high = values["eval_agg/success_low"], values["eval_agg/success_high"]
            cells.append(f"{values['eval_agg/success_rate']:.2f} [{low:.2f}, {high:.2f}]")
        cells += [f"{values['eval_agg/avg_reward']:.1f}", f"{values['eval_agg/avg_episode_length']:.0f}"]
        result.add_row(*cells, *(f"{values[name]:.2f}" for name in outcomes))
    return result


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
    scalars, result = jax.device_get(jax.jit(loop.evaluation_function(program, config))(state))
    rows = {"trained policy": loop.evaluation_values(scalars, result, program.env.spec)}
    if arguments.baselines:
        rows |= score_baselines(program, config, state)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"checkpoint: {folder} ({facts['step']:,} steps)")
    console.print(table(rows, config.eval_episodes))
    if not arguments.overrides and arguments.episodes is None:
        same = rows["trained policy"] == facts["scores"]
        console.print(
            f"the score recorded during training is {'reproduced exactly' if same else 'NOT reproduced'}"
        )
    (output / "evaluation.json").write_text(json.dumps(rows, indent=2) + "\n")
    if viewer:
        show(program, config, state, record, viewer, output, arguments.episode, console)


def score_baselines(program, config, state) -> dict[str, dict[str, float]]:
    """Scores of the other actors on the very same episodes."""
    key = loop.evaluation_key(config.seed)
    spec, role = program.env.spec, loop.learner_role(program)
    rows = {}
    for name, (acting, learners) in baselines(program, config, state).items():
        play = jax.jit(
            lambda learners, state, acting=acting: program.evaluate_as(acting, learners, state, key)
        )
        result = play(learners, state)
        scalars = evaluation.summary(result, spec, role)
        rows[name] = loop.evaluation_values(scalars, jax.device_get(result), spec)
    return rows


def show(program, config, state, record, viewer, output: Path, episode: int | None, console) -> None:
    """Writes the picture of all trajectories and the animation of one episode."""
    key = loop.evaluation_key(config.seed)
    recorded = jax.device_get(jax.jit(lambda run: program.evaluate(run, key, record))(state))
    if episode is None:
        episode = interesting(program, recorded)
    viewer.picture(output / "trajectories.png", recorded)
    viewer.animation(output / f"episode_{episode}.gif", recorded, episode)
    console.print(f"pictures: {output}")


def interesting(program: Program, result) -> int:
    """The episode to look at: the first success, else the one with the highest return."""
    spec = program.env.spec
    if spec.success is not None:
        wins = np.flatnonzero(np.asarray(result.outcome) == spec.outcomes.index(spec.success))
        if wins.size:
            return int(wins[0])
    returns = result.episode_return[loop.learner_role(program)]
    return int(np.argmax(np.mean(returns, axis=-1)))


if __name__ == "__main__":
    command_line.guarded(main)
