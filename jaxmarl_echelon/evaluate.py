"""`python -m jaxmarl_echelon.evaluate PATH`: scores a checkpoint, and renders or prints its episodes.

Of the folder of a vectorized group, it scores every member, and the methods over seeds.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from algos import compiler
from jaxmarl_echelon import checkpoints, command_line, output_folders, run_loading
from jaxmarl_echelon.actor_scores import (
    ActorScores,
    judging_spec,
    make_actor_player,
    play_actors,
    replace_policy_by_script,
    reproduce_scores,
    score_actors,
    score_ladder,
    select_episode,
)
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Viewer
from jaxmarl_echelon.reporting.recorded_evaluations import (
    SCORES,
    TRAINED,
    EvaluationSettings,
    evaluation_folder,
    write_evaluation_settings,
)
from jaxmarl_echelon.reporting.recorded_runs import COPIES, RecordedRun, is_group_folder, read_runs
from jaxmarl_echelon.reporting.seed_statistics import estimate_statistic, interquartile_mean
from jaxmarl_echelon.tracking import formats, plots, tables
from jaxmarl_echelon.tracking.run_tables import RETURN
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key
from jaxmarl_echelon.training.host.run_record import versioned_name
from jaxmarl_echelon.training.program import evaluation


def parse_evaluate_arguments() -> argparse.Namespace:
    """Reads the command line."""
    program = command_line.invoked_command("jaxmarl_echelon.evaluate", "jaxmarl-evaluate")
    parser = command_line.Parser(prog=program, description=__doc__)
    parser.add_argument(
        "path", help="a run folder, its checkpoints folder, one checkpoint, or the folder of a group"
    )
    parser.add_argument(
        "--checkpoint", default="best_eval", help="checkpoint of a run or member folder (default: best_eval)"
    )
    parser.add_argument(
        "--episodes", type=int, help="episodes to play, at least (default: as many as during training)"
    )
    parser.add_argument(
        "--episode", type=int, help="row of episodes.csv to animate or print (default: the first success)"
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also score the untrained policy and the environment's scripted actors",
    )
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="score the policy on every phase of the run's curriculum, or of the environment's",
    )
    parser.add_argument(
        "--realism",
        action="store_true",
        help="compare sampled rollouts with the recordings of held-out scenes, if there are any",
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="print one episode as text, e.g. a game move by move (selected by --episode)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="folder to write to, of a group one with a folder per member (default: evaluation_CHECKPOINT in "
        "the run's folder)",
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], help="KEY=VALUE for the run's configuration, e.g. env.map=..."
    )
    arguments = parser.parse_intermixed_args()  # overrides may follow options
    if arguments.episodes is not None and arguments.episodes < 1:
        raise command_line.UsageError(f"--episodes={arguments.episodes}: must be at least 1")
    return arguments


class ScoredMember(NamedTuple):
    """A member of a group with its scores, and where and how it was scored."""

    run: RecordedRun
    output: Path
    spec: EnvSpec
    settings: EvaluationSettings
    scores: ActorScores


def main() -> None:
    """Scores a checkpoint, or the members of a group, by the command line."""
    command_line.use_compilation_cache()
    arguments = parse_evaluate_arguments()
    if is_group_folder(path := Path(arguments.path)):
        evaluate_group(arguments, read_runs(path))
    else:
        evaluate_run(arguments)


def evaluate_run(arguments: argparse.Namespace) -> None:
    """Scores a checkpoint, prints tables, and writes files and pictures; `arguments` is the command line."""
    run = run_loading.load_run(arguments.path, arguments.checkpoint, arguments.overrides)
    folder, facts, config, program, state = run
    settings = plan_evaluation(arguments, run)
    require_options(arguments, program.env, settings.episodes, program.curriculum)
    output = arguments.output or evaluation_folder(folder)
    output_folders.make_folder(output)
    viewer = program.env.viewer
    record = viewer.snapshot if viewer else None
    number = settings.episodes
    played = play_actors(program, config, state, number, baselines=arguments.baselines, record=record)
    scores = score_actors(program, played)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"checkpoint: {folder} ({facts['step']:,} steps)")
    print_environment(console, run)
    spec = judging_spec(program)
    tabled = tables.actor_tables(scores.actors, number, spec, console.width)
    for table in (*tabled, *tables.task_tables(scores.tasks, spec, console.width)):
        console.print(table)
    if not arguments.overrides:
        console.print(reproduce_scores(program, config, state, facts), soft_wrap=True)
    write_scores(output, scores, settings, spec)
    if arguments.ladder:
        steps = score_ladder(program, config, state, number)
        for table in tables.ladder_tables(steps, number, spec, console.width):
            console.print(table)
        (output / "ladder.json").write_text(json.dumps(steps, indent=2) + "\n")
        plots.ladder_plot(output / "ladder.png", steps)
    if arguments.realism:
        alike = score_realism(arguments, program.env.comparison.settings)
        console.print(tables.realism_table(alike))
        (output / "realism.json").write_text(json.dumps(alike, indent=2) + "\n")
    if viewer:
        trained = played[TRAINED]
        episode = select_episode(program, trained) if arguments.episode is None else arguments.episode
        for row in (row for row in scores.episodes if row["episode"] == episode):
            console.print(describe_episode(row), markup=False, soft_wrap=True)
        show_episodes(viewer, trained, output, episode, console, told=arguments.show)


def evaluate_group(arguments: argparse.Namespace, members: Sequence[RecordedRun]) -> None:
    """Scores the members of a group, prints a table, and writes every member's files.

    Members without the checkpoint, as those that have diverged, are left out with a warning.

    Args:
      arguments: the command line.
      members: in the order of `recorded_runs.find_members`.

    Raises:
      ValueError: one line, for options of single runs, and if no member has the checkpoint.
    """
    require_group_options(arguments, members)
    found = [one for one in members if checkpoints.has_checkpoint(one.folder, arguments.checkpoint)]
    if not found:
        checkpoints.find_checkpoint(members[0].folder, arguments.checkpoint)  # raises
    if arguments.output:
        output_folders.make_folder(arguments.output)  # scoring takes minutes
    console = Console(width=None if sys.stdout.isatty() else 120)
    scored = score_members(arguments, found, console)
    steps = sorted({one.settings.step for one in scored})
    told = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    number, spec = scored[0].settings.episodes, scored[0].spec
    console.print(f"checkpoints: {arguments.checkpoint} of {len(scored)} members ({told} steps)")
    rows = {one.run.folder.name: one.scores.actors[TRAINED] for one in scored}
    for table in tables.actor_tables(rows, number, spec, console.width, head="member"):
        console.print(table)
    console.print(tables.seed_table(estimate_over_seeds(scored), spec))
    for line in list_group_warnings(members, found, arguments.checkpoint):
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    for one in scored:
        output_folders.make_folder(one.output)
        write_scores(one.output, one.scores, one.settings, one.spec)
    console.print(f"scores: {scored[0].output} and those of the other members", markup=False, soft_wrap=True)


def list_group_warnings(
    members: Sequence[RecordedRun], found: Sequence[RecordedRun], checkpoint: str
) -> list[str]:
    """Lists what weakens a group's estimates over seeds, as lines; `found` are those with the checkpoint."""
    lines = [
        f"{one.folder.name} has no checkpoint {checkpoint} and is left out"
        for one in members
        if one not in found
    ]
    lines += [
        f"{one.folder.name} diverged; its scores are of a policy of the time before"
        for one in found
        if one.diverged
    ]
    return lines + ([COPIES] if len(found) > 1 and found[0].in_one_population else [])


def require_group_options(arguments: argparse.Namespace, members: Sequence[RecordedRun]) -> None:
    """Raises a one-line UsageError for options that need a single policy."""
    typed = {name: getattr(arguments, name) for name in ("ladder", "realism", "show")}
    for option, given in {"episode": arguments.episode is not None, **typed}.items():
        if given:
            named = f"name the folder of a member, such as {members[0].folder}"
            raise command_line.UsageError(f"--{option}: {arguments.path} is a group; {named}")


def score_members(
    arguments: argparse.Namespace, members: Sequence[RecordedRun], console: Console
) -> list[ScoredMember]:
    """Scores members of a group as `evaluate` scores each alone, with one compiled program per variant.

    Prints the environment of the first member.
    """
    scored, program, play = [], None, None
    folders = [one.folder for one in members]
    loaded = run_loading.load_members(folders, arguments.checkpoint, arguments.overrides)
    for member, run in zip(members, loaded, strict=True):
        settings = plan_evaluation(arguments, run)
        if program is None:
            print_environment(console, run)
        if play is None or run.program is not program:
            program, viewer = run.program, run.program.env.viewer
            # Recorded as for a single run: another program might differ in the last bits.
            record = viewer.snapshot if viewer else None
            play = make_actor_player(program, settings.episodes, baselines=arguments.baselines, record=record)
        played = {name: one.replace(frames=None) for name, one in play(run.config.seed, run.state).items()}
        output = evaluation_folder(run.folder)
        output = arguments.output / member.folder.name if arguments.output else output
        found = score_actors(program, played)
        scored.append(ScoredMember(member, output, judging_spec(program), settings, found))
    return scored


def estimate_over_seeds(scored: Sequence[ScoredMember]) -> list[tables.SeedRow]:
    """Estimates interquartile means over seeds, with bootstrap intervals, by variant and actor.

    Members whose episodes were all quarantined have no scores and are left out.
    """
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for one in scored:
        for actor, values in one.scores.actors.items():
            groups.setdefault((one.run.variant, actor), []).append(values)

    def estimate(rows: Sequence[Mapping[str, float]], column: str) -> tuple[float, float, float]:
        """The interquartile mean of a column; as `compare` estimates it."""
        values = np.array([row[f"eval_agg/{column}"] for row in rows])
        # Sorting would put what is not a number above every score.
        known = values[np.isfinite(values)]
        return estimate_statistic([known], interquartile_mean, seed=0) if known.size else (math.nan,) * 3

    column = scored[0].spec.score_column
    return [
        tables.SeedRow(
            *group,
            sum(math.isfinite(row[f"eval_agg/{RETURN}"]) for row in rows),
            None if column is None else estimate(rows, column),
            estimate(rows, RETURN),
        )
        for group, rows in groups.items()
    ]


def plan_evaluation(arguments: argparse.Namespace, run: run_loading.LoadedRun) -> EvaluationSettings:
    """Returns how a run is scored by the command line."""
    env = run.program.env
    episodes = evaluation.whole_seat_rounds(env, arguments.episodes or run.config.eval_episodes)
    version = versioned_name(env.spec)
    return EvaluationSettings(
        run.folder.name,
        run.facts["step"],
        episodes,
        list(arguments.overrides),
        version,
        checkpoints.state_digest(run.folder),
    )


def print_environment(console: Console, run: run_loading.LoadedRun) -> None:
    """Prints what a run's environment says of itself, and whether it was trained on another version."""
    env = run.program.env
    present = versioned_name(env.spec)
    if (trained_in := run.facts.get("environment", present)) != present:
        console.print(f"warning: trained on {trained_in}, evaluated on {present}; behaviour differs")
    for line in (*env.describe(), *env.left_out()):
        console.print(line, markup=False, soft_wrap=True)


def write_scores(output: Path, scores: ActorScores, settings: EvaluationSettings, spec: EnvSpec) -> None:
    """Writes `evaluation.json`, its settings, `episodes.csv` and, if there are tasks, `tasks.json`."""
    (output / SCORES).write_text(json.dumps(scores.actors, indent=2) + "\n")
    write_evaluation_settings(output, settings)
    if spec.tasks:
        (output / "tasks.json").write_text(json.dumps(scores.tasks, indent=2) + "\n")
    write_episodes(output / "episodes.csv", scores.episodes)


def require_options(
    arguments: argparse.Namespace, env: Environment, episodes: int, curriculum: Curriculum
) -> None:
    """Checks the options that depend on the run; raises a one-line UsageError.

    Args:
      arguments: the command line.
      env: the environment.
      episodes: number of episodes that are played.
      curriculum: the run's.
    """
    if arguments.ladder and not curriculum.stages and env.ladder is None:
        raise command_line.UsageError(
            f"--ladder: the run has no stages, and {env.spec.name} has no curriculum for it"
        )
    if arguments.episode is not None and not 0 <= arguments.episode < episodes:
        raise command_line.UsageError(f"--episode={arguments.episode}: must be from 0 to {episodes - 1}")
    if arguments.show and not (env.viewer and env.viewer.tells):
        raise command_line.UsageError(f"--show: {env.spec.name} has no text form of episodes")
    if arguments.realism and env.comparison is None:
        raise command_line.UsageError(f"--realism: {env.spec.name} has no recordings to compare with")


def score_realism(arguments: argparse.Namespace, settings) -> dict[str, dict[str, float]]:
    """Scores the similarity of recordings and rollouts of the policy and, with baselines, of scripts.

    Args:
      arguments: the command line.
      settings: settings of the environment for these rollouts.
    """
    needed = [f"env.{key}={value}" for key, value in settings.items()]
    overrides = [*arguments.overrides, *needed]
    _, _, config, program, state = run_loading.load_run(arguments.path, arguments.checkpoint, overrides)
    comparison = program.env.comparison
    names = controllers.find_baselines(program.env, program.role) if arguments.baselines else ()

    @compiler.jit_evaluation
    def play(number, key, state, world):
        seats = replace_policy_by_script(program, names, number, greedy=False)
        how = {"episodes": comparison.episodes, "record": comparison.snapshot, "world": world}
        return program.evaluate_with_controllers(seats, state.policies, state, key, **how).frames

    keys = jax.random.split(stream_key(config.seed, Stream.FINAL), comparison.rollouts)
    return {
        actor: comparison.scores([jax.device_get(play(number, key, state, program.world)) for key in keys])
        for number, actor in enumerate(("trained policy", *names))
    }


def write_episodes(path: Path, rows: list[dict]) -> None:
    """Writes a table with one row per episode; `episode` is what `--episode` takes."""
    first = ["episode", "task", "outcome", "reward", "length"]
    names = [*first, *(name for name in (rows[0] if rows else {}) if name not in first)]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(
            file, [name for name in names if rows and name in rows[0]], lineterminator="\n"
        )
        table.writeheader()
        table.writerows(rows)


def describe_episode(row: Mapping[str, Any]) -> str:
    """Returns an episode's row in words: "episode 3: pinch_left, timeout, return 201.5, 410 decisions"."""
    words = [str(row[name]) for name in ("task", "outcome") if row.get(name)]
    words += [f"return {formats.format_finite(row['reward'])}", f"{row['length']} decisions"]
    return f"episode {row['episode']}: {', '.join(words)}"


def show_episodes(
    viewer: Viewer,
    recorded: evaluation.Evaluation,
    output: Path,
    episode: int,
    console: Console,
    *,
    told: bool = False,
) -> None:
    """Renders the scored trajectories as a picture, and one as an animation and, if supported, a replay.

    With `told`, also prints that episode as text. Viewers without pictures write the replay alone.

    Args:
      viewer: the environment's.
      recorded: the episodes of the table, with frames.
      output: folder for the files.
      episode: index of the episode that is animated.
      console: prints where the files are.
      told: whether the episode is printed.
    """
    recorded = jax.device_get(recorded)
    if told:
        text = viewer.text(recorded, episode)
        console.print(f"episode {episode}:\n{text}", markup=False, highlight=False, soft_wrap=True)
    if viewer.draws:
        viewer.picture_with(output / "trajectories.png", recorded, episode)
        viewer.animation(output / f"episode_{episode}.gif", recorded, episode)
    viewer.replay(output / "replay.html", recorded, episode)
    console.print(f"pictures: {output}")


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
