"""Learning results: trainings over several seeds with acceptance bounds, and the table of docs/results.md.

    python benchmarks/learn.py [NAME ...] [--list] [--output FOLDER] [--write docs/results.md]

Each training is `python -m jaxmarl_echelon.train` with `seeds=N`, one vmapped program. Its last and its best
policies are scored on episodes that were used neither for training nor for selection, by `python -m
jaxmarl_echelon.evaluate` or, in small games with hidden information, exactly. Scores are success rates, mean
returns in environments without success, or exact exploitability. The table shows the interquartile mean over
seeds with the interval of a percentile bootstrap, as `python -m jaxmarl_echelon.compare --checkpoint latest`
does for the same runs. The exit status is 1 if the last policies of a training score below its bound (or, for
a control, above it). Without names the trainings of `QUICK` run, each within minutes.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from jaxmarl_echelon import run_loading
from jaxmarl_echelon.envs.textgames.analysis import exploitability
from jaxmarl_echelon.reporting.marked_text import read_marked, replace_marked
from jaxmarl_echelon.reporting.recorded_evaluations import read_evaluation
from jaxmarl_echelon.reporting.recorded_runs import find_members, read_run
from jaxmarl_echelon.reporting.seed_statistics import estimate_statistic, interquartile_mean
from jaxmarl_echelon.tracking.formats import format_estimate
from jaxmarl_echelon.tracking.run_tables import RETURN, find_score
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.program.program import Program

MARK = "learn"
CHECKPOINTS = ("latest", "best_eval")


class Training(NamedTuple):
    """One training and its acceptance bounds.

    Attributes:
      overrides: overrides of the command line, without `seeds`.
      seeds: number of seeds.
      least, most: bounds on the interquartile mean of the last policies' scores.
      episodes: episodes per final evaluation.
      exploitability: whether the score is the exact exploitability of a policy (small games with hidden
        information), instead of the score in evaluations.
      maps: whether it needs the folder `--maps`, substituted for MAPS in its overrides; TEACHER is
        substituted by the first seed of the training `f110` in the same output folder.
    """

    overrides: tuple[str, ...]
    seeds: int = 5
    least: float = -math.inf
    most: float = math.inf
    episodes: int = 512
    exploitability: bool = False
    maps: bool = False


MEMORY = (
    "algo=ppo_rnn",
    "env=gymnax/MemoryChain-bsuite",
    "env.params.memory_length=20",
    "env.params.max_steps_in_episode=100",
)
POSITIONS = ("algo=ppo_rnn", "env=gymnax/CartPole-v1", "env.observe=[0,2]")
PHASED = ("env=f110", "curriculum=phased26")
SMALL = (
    "env=f110",
    "algo=ppo_rnn",
    "algo.core={kind: gru, width: 32}",
    "algo.widths=[32]",
    "total_env_steps=524288",
)
SCRIPTED = ("controllers.player=pool:player", "pool.fixed=[random,perfect]")
POOLED = ("controllers.player=pool:player", "pool=scripts")
QUICK = {
    "pendulum_sac": Training(("env=gymnax/Pendulum-v1", "algo=sac"), least=-200.0),
    "pendulum_td3": Training(("env=gymnax/Pendulum-v1", "algo=td3"), least=-200.0),
    "pendulum_tqc": Training(("env=gymnax/Pendulum-v1", "algo=tqc"), least=-200.0),
    "pendulum_ppo": Training(("env=gymnax/Pendulum-v1", "algo=ppo"), least=-200.0),
    "cartpole_ppo": Training(("env=gymnax/CartPole-v1", "algo=ppo"), least=475.0),
    "cartpole_a2c": Training(("env=gymnax/CartPole-v1", "algo=a2c"), least=475.0),
    "cartpole_dqn": Training(("env=gymnax/CartPole-v1", "algo=dqn"), least=475.0),
    "cartpole_pqn": Training(("env=gymnax/CartPole-v1", "algo=pqn"), least=475.0),
    "memory_lstm": Training((*MEMORY, "algo.core.kind=lstm"), least=0.95),
    "memory_none": Training((*MEMORY, "algo.core.kind=none"), most=0.3),
    "positions_lstm": Training((*POSITIONS, "algo.core.kind=lstm"), least=475.0),
    "positions_none": Training((*POSITIONS, "algo.core.kind=none"), most=100.0),
    "f110": Training(("env=f110", "algo=ppo"), least=0.95),
    "kickstart": Training((*SMALL, "algo.teacher=TEACHER"), seeds=3, least=0.9),
    "kickstart_alone": Training(SMALL, seeds=3, most=0.5),
    "kuhn": Training(("env=textgames/kuhn", "algo=ppo"), seeds=3, most=0.05, exploitability=True),
    "kuhn_lm": Training(
        ("+algo=reinforce_lm", "env=textgames/kuhn"), seeds=3, most=0.08, exploitability=True
    ),
    "nim_lm": Training(("+algo=reinforce_lm", "env=textgames/nim", *SCRIPTED), seeds=3, least=0.75),
    "tictactoe_lm": Training(
        ("+algo=reinforce_lm", "env=textgames/tictactoe", *SCRIPTED), seeds=3, least=0.65
    ),
    # Perfect play cannot be beaten: half a point is a draw, in every game.
    "tictactoe": Training(
        (
            "env=textgames/tictactoe",
            "algo=ppo",
            "env.opponent=perfect",
            *POOLED,
            "pool.fixed=[random,perfect]",
            "total_env_steps=2000000",
        ),
        seeds=3,
        least=0.5,
    ),
}
LONG = {
    "phased26_ppo": Training(
        (
            *PHASED,
            "algo=ppo",
            # The tuning from before rollouts were extended to the length of an attack in phase 0.
            "num_envs=256",
            "algo.horizon=256",
            "algo.gae_lambda=0.995",
            "algo.policy_average=0.0",
            "algo.gamma=0.9998",
            "total_env_steps=10000000",
            "eval_every=8",
            "checkpoint_every=8",
        ),
        seeds=3,
    ),
    "phased26_tqc": Training((*PHASED, "algo=tqc", "total_env_steps=6000000"), seeds=3),
    "spielberg": Training(
        (
            "env=f110",
            "algo=ppo",
            "env.map=MAPS/spielberg/Spielberg.yaml",
            "num_envs=256",
            "total_env_steps=5242880",
            "eval_every=4",
            "checkpoint_every=8",
        ),
        seeds=3,
        least=0.95,
        maps=True,
    ),
    "race": Training(
        ("env=f110_race", "algo=ppo", "env.map=MAPS/spielberg/Spielberg.yaml", "env.max_steps=6000"),
        seeds=3,
        episodes=64,
        maps=True,
    ),
    "echelon": Training(("env=echelon", "algo=ppo"), seeds=3, episodes=256),
    # Scored against a full search of two plies, which it meets in training as well.
    "connect4": Training(
        (
            "env=textgames/connect4",
            "algo=ppo",
            "env.depths=[1,2,4]",
            "env.opponent=lookahead_2",
            "controllers.player=pool:player",
            "pool.weight=var",
            "pool.fixed=[greedy_win,lookahead_1,lookahead_2]",
            "eval_every=100",
            "checkpoint_every=100",
        ),
        seeds=3,
        episodes=256,
    ),
}
TRAININGS = QUICK | LONG


class Scores(NamedTuple):
    """Scores of one training's seeds, and its seconds."""

    measure: str
    last: list[float]
    best: list[float]
    seconds: float


def interval(scores: list[float]) -> tuple[float, float, float]:
    """The interquartile mean over seeds with its 95 % bootstrap interval (Agarwal et al. 2021).

    The ends are NaN for a single seed, which every resample would repeat.
    """
    return estimate_statistic([np.asarray(scores, np.float64)], interquartile_mean, seed=0)


def train(name: str, training: Training, folder: Path, maps: str | None) -> tuple[Path, float]:
    """Trains all seeds in one program; returns the group's folder and the wall-clock seconds."""
    places = {"MAPS": str(maps), "TEACHER": str((folder / "f110/ppo/f110/seed_0").resolve())}
    overrides = list(training.overrides)
    for mark, place in places.items():
        overrides = [override.replace(mark, place) for override in overrides]
    command = [sys.executable, "-m", "jaxmarl_echelon.train", *overrides, "tracking=quiet"]
    begin = time.perf_counter()
    subprocess.run(
        [*command, f"seeds={training.seeds}", f"run_name={name}", f"output_dir={folder}"], check=True
    )
    seconds = time.perf_counter() - begin
    (run,) = folder.glob(f"*/*/{name}")
    return run, seconds


def final_scores(group: Path, training: Training) -> tuple[str, dict[str, list[float]]]:
    """Returns the measure's name and, by checkpoint, the members' scores on held-out episodes."""
    if training.exploitability:
        return "exploitability", exploitability_scores(find_members(group))
    scores, measure = {}, ""
    for name in CHECKPOINTS:
        command = [sys.executable, "-m", "jaxmarl_echelon.evaluate", str(group), "--checkpoint", name]
        subprocess.run([*command, "--episodes", str(training.episodes)], check=True)
        measure, scores[name] = read_scores(group, name)
    return measure, scores


def read_scores(group: Path, checkpoint: str) -> tuple[str, list[float]]:
    """Reads the measure's name and the members' scores that `evaluate` wrote of a checkpoint."""
    made = [read_evaluation(read_run(member), checkpoint).columns for member in find_members(group)]
    column = find_score(made[0]).column
    measure = "return" if column == RETURN else column.removesuffix("_rate")
    return measure, [float(columns[column][0]) for columns in made]


def exploitability_scores(members: list[Path]) -> dict[str, list[float]]:
    """Returns the exact exploitability of the members' policies by checkpoint."""
    scores = {name: [] for name in CHECKPOINTS}
    for name, found in scores.items():
        score = None
        for run in run_loading.load_members(members, name):
            score = score or make_exploitability(run.program)
            found.append(score(run.state))
    return scores


def make_exploitability(program: Program) -> Callable[[RunState], float]:
    """Returns `(run state) -> exploitability` of the policy of a small game."""
    tree = exploitability.build_tree(program.env.rules, program.env.observe)
    table = jax.jit(partial(exploitability.learner_probabilities, tree, program.agents[program.role]))

    def score(state):
        policy = exploitability.renormalise_legal(tree, table(state.policies[program.role]))
        return float(exploitability.nash_conv(tree, policy) / 2)

    return score


def write_table(path: Path, rows: dict[str, Scores]) -> None:
    """Updates these rows of the table between the marks of a Markdown file; other rows are kept."""
    old = read_marked(path, MARK).splitlines()
    lines = {line.split("|")[1].strip(" `"): line for line in old if line.startswith("| `")}
    for name, scores in rows.items():
        numbers = ", ".join(f"{x:.4g}" for x in scores.last)
        cells = [f"`{name}`", scores.measure, len(scores.last), shown(scores.last), shown(scores.best)]
        lines[name] = f"| {' | '.join(map(str, [*cells, numbers, round(scores.seconds)]))} |"
    names = ("Training", "Score", "Seeds", "Last policies", "Best policies", "Last, seed by seed", "s")
    head = f"| {' | '.join(names)} |\n|{'---|' * len(names)}"
    table = "\n".join([head, *(lines[name] for name in TRAININGS if name in lines)])
    path.write_text(replace_marked(path, MARK, table), encoding="utf-8")


def shown(scores: list[float]) -> str:
    """An interquartile mean with its interval."""
    return format_estimate(interval(scores), "{:.4g}".format)


def bar(training: Training) -> str:
    """The bound on the last policies' scores as text."""
    if math.isfinite(training.least):
        return f"at least {training.least:g}"
    return f"at most {training.most:g}" if math.isfinite(training.most) else "none"


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TRAININGS)}")
    parser.add_argument("--list", action="store_true", help="say what each training is, and stop")
    parser.add_argument("--output", type=Path, default=Path("outputs/learn"), help="folder for the runs")
    parser.add_argument("--maps", help="folder of real maps, for the trainings that need one")
    parser.add_argument("--write", type=Path, help="Markdown file whose table of results is renewed")
    parsed = parser.parse_args()
    for name in parsed.names:
        if name not in TRAININGS:
            parser.error(f"{name}: unknown training; allowed: {', '.join(TRAININGS)}")
        if TRAININGS[name].maps and parsed.maps is None:
            parser.error(f"{name}: needs --maps FOLDER")
    return parsed


def main() -> None:
    """Trains, scores and prints a row per training; exits with 1 if a bound is violated."""
    given, console = arguments(), Console(width=None if sys.stdout.isatty() else 120)
    chosen = {name: TRAININGS[name] for name in given.names or QUICK}
    if given.list:
        for name, training in chosen.items():
            console.print(f"{name}: {' '.join(training.overrides)} seeds={training.seeds}", soft_wrap=True)
        return
    table = Table("training", "score", "last [95 %]", "best [95 %]", "bar", "s", title="over seeds")
    rows, failed = {}, []
    for name, training in chosen.items():
        group, seconds = train(name, training, given.output, given.maps)
        measure, scores = final_scores(group, training)
        rows[name] = Scores(measure, *scores.values(), seconds)
        middle = interval(rows[name].last)[0]
        if not training.least <= middle <= training.most:
            failed.append(name)
        cells = [measure, shown(rows[name].last), shown(rows[name].best), bar(training), f"{seconds:.0f}"]
        console.print(name, *cells, sep="  ")
        table.add_row(name, *cells)
        (given.output / f"{name}.json").write_text(json.dumps(rows[name]._asdict(), indent=2) + "\n")
        if given.write:
            write_table(given.write, rows)
    console.print(table)
    if failed:
        raise SystemExit(f"below their bars: {', '.join(failed)}")


if __name__ == "__main__":
    main()
