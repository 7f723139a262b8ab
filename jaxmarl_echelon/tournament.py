"""`python -m jaxmarl_echelon.tournament RUN [RUN ...]`: a round robin of finished runs, pools and scripts."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from algos import compiler
from algos.types import PyTree
from jaxmarl_echelon import command_line, output_folders, run_loading
from jaxmarl_echelon.selfplay.ratings import SYSTEMS, rating_system
from jaxmarl_echelon.tracking.pool_plot import matrix_plot
from jaxmarl_echelon.tracking.tables import break_headings
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key
from jaxmarl_echelon.training.config.build import same_arrays
from jaxmarl_echelon.training.config.role_assignment import POOL, SHARED, has_learner
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host.resume import find_differences, shorten_text
from jaxmarl_echelon.training.program import round_robin
from jaxmarl_echelon.training.program.agents import acts_by_same_program
from jaxmarl_echelon.training.program.program import Program
from jaxmarl_echelon.training.program.round_robin import MatchRoles

# Folded into the seed's key, to separate the ratings' key from that of the games.
RATED = 17
# Beginnings of a curriculum's keys that can change the task that scores a run, not only its rewards.
SCORED = ("evaluation", "verbs", "fire", "phases", "_target_")


def parse_tournament_arguments() -> argparse.Namespace:
    """Reads the command line."""
    program = command_line.invoked_command("jaxmarl_echelon.tournament", "jaxmarl-tournament")
    parser = command_line.Parser(prog=program, description=__doc__)
    parser.add_argument("paths", nargs="+", help="run folders or checkpoints, all of one task and network")
    parser.add_argument("--checkpoint", default="latest", help="checkpoint of a run folder (default: latest)")
    parser.add_argument(
        "--games", type=int, default=32, help="games per ordered pair, a multiple of the seats (default: 32)"
    )
    parser.add_argument(
        "--snapshots", type=int, default=4, help="snapshots per pool, evenly by age (default: 4)"
    )
    parser.add_argument("--scripts", nargs="+", default=[], help="scripts of the environment to include")
    parser.add_argument("--rating", default="trueskill", help=", ".join(SYSTEMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=Path("tournament"), help="folder (default: tournament)"
    )
    return parser.parse_args()


class Entrants(NamedTuple):
    """Policies of a run.

    Attributes:
      policies: states for acting by name: the last learner's and those of some snapshots.
      program: the run's.
      sides: the opposing roles, and the agent of the policies.
      config: the run's.
      settings: the run's configuration as plain data.
    """

    policies: dict[str, PyTree]
    program: Program
    sides: MatchRoles
    config: RunConfig
    settings: dict[str, Any]


def load_entrants(path: str, checkpoint: str, snapshots: int) -> Entrants:
    """Loads a run's last learner and some of its pool."""
    folder, facts, config, program, state = run_loading.load_run(path, checkpoint)
    sides = opposing_sides(config, program)
    owner = sides.ours if sides.ours in config.algos else program.role
    policy = sides.agent.policy_state(state.policies[owner])
    label = run_label(folder.parent.parent)
    found = {label: policy}
    if config.pooled is not None and config.controllers[config.pooled] == POOL + owner:
        past = list(run_loading.load_snapshots(folder, config, program, policy).items())
        chosen = np.unique(np.linspace(0, len(past) - 1, min(snapshots, len(past))).astype(int))
        found |= {f"{label} #{past[place][0]}": past[place][1] for place in chosen}
    return Entrants(found, program, sides, config, facts["config"])


def require_same_match(path: str, first: Entrants, other: Entrants) -> None:
    """Checks that the policies of two runs can meet in the first run's task.

    Raises:
      ValueError: one line, if settings of the environment differ, the tasks that score the runs, or what
        the networks compute.
    """
    for key, (ours, theirs) in differing_task_settings(first, other).items():
        wrong = f"{path}: {key}={shorten_text(theirs)}"
        raise ValueError(f"{wrong}: must be {shorten_text(ours)}, as in the first run")
    role, agent = first.program.env.spec.role(first.sides.ours), first.sides.agent
    (policy, *_) = other.policies.values()
    if agent.digest != other.sides.agent.digest:
        raise ValueError(f"{path}: must be trained on the base model of the first run")
    if not acts_by_same_program(agent, other.sides.agent, policy, role):
        raise ValueError(f"{path}: must have a network of the first run's shape, activation and distribution")


def differing_task_settings(first: Entrants, other: Entrants) -> dict[str, tuple[Any, Any]]:
    """Returns `(first's, other's)` by key of settings by which games of two runs differ.

    Curricula may differ where they score their runs on the same task, in the first run's environment, or
    differ in rewards only.
    """
    if found := find_differences(first.settings["env"], other.settings["env"], "env"):
        return found
    env = first.program.env
    courses = [one.config.curriculum(env) for one in (first, other)]
    if same_arrays(*(course.evaluation(course.init()) for course in courses)):
        return {}
    found = find_differences(*(one.settings.get("curriculum") or {} for one in (first, other)))
    return {
        f"curriculum.{key}": pair for start in SCORED for key, pair in found.items() if key.startswith(start)
    }


def run_label(folder: Path) -> str:
    """Returns the name of a run; members of a group of runs are named by both of their folders."""
    alone = (folder / "config.yaml").exists()
    return folder.name if alone else f"{folder.parent.name}/{folder.name}"


def opposing_sides(config: RunConfig, program) -> MatchRoles:
    """Returns the two opposing roles; raises ValueError if one policy cannot play both."""
    roles = program.env.spec.roles
    first, last = roles[0], roles[-1]
    if not first.fits(last) or len(roles) > 2:
        raise ValueError(f"{program.env.spec.name}: must have two roles with equal spaces, or turns")
    if first is last and not program.env.spec.turns:
        raise ValueError(f"{program.env.spec.name}: must have opposing roles, or turns")
    lends = config.controllers[first.name] in (SHARED + last.name, POOL + last.name)
    if first is not last and not lends and has_learner(last.name, config.controllers[last.name]):
        given = f"controllers.{last.name}={config.controllers[last.name]}"
        raise ValueError(f"{given}: must not learn by itself, as the policy of {first.name} plays both roles")
    owner = config.controllers[first.name].removeprefix(SHARED).removeprefix(POOL)
    owner = owner if owner in program.agents else first.name
    return MatchRoles(first.name, last.name, program.agents[owner])


def main() -> None:
    """Plays and rates a tournament by the command line."""
    command_line.use_compilation_cache()
    arguments = parse_tournament_arguments()
    for option, least in (("games", 1), ("snapshots", 0)):
        value = getattr(arguments, option)
        if value < least:
            raise command_line.UsageError(f"--{option}={value}: must be at least {least}")
    if arguments.rating not in SYSTEMS:
        raise command_line.UsageError(f"--rating={arguments.rating}: must be one of {', '.join(SYSTEMS)}")
    policies, first = {}, None
    for path in arguments.paths:
        found = load_entrants(path, arguments.checkpoint, arguments.snapshots)
        first = found if first is None else first
        round_robin.require_even_seats(first.program.env.spec, arguments.games)
        if repeated := policies.keys() & found.policies.keys():
            raise ValueError(f"{path}: duplicate entry {min(repeated)}; runs must have different names")
        require_same_match(path, first, found)
        policies |= found.policies
    program, sides = first.program, first.sides
    output_folders.make_folder(arguments.output)  # playing takes minutes
    together = jax.tree.map(lambda *x: jnp.stack(x), *policies.values())
    play = compiler.jit_evaluation(
        lambda policies, key, world: round_robin.play_round_robin(
            program, sides, policies, key, arguments.games, world, arguments.scripts
        )
    )
    key = stream_key(arguments.seed, Stream.MATCHES)
    scores = np.asarray(play(together, key, program.world))
    system = rating_system(arguments.rating, games_per_pair=2 * arguments.games)
    spec = program.env.spec
    rating = round_robin.fit_ratings(jax.random.fold_in(key, RATED), system, scores, graded=spec.graded)
    pairs = rating[:, None], rating[None]
    expected, quality = (np.asarray(told(*pairs)) for told in (system.expected, system.quality))
    payoff = round_robin.mean_scores(scores)
    names = [*policies, *arguments.scripts]
    print_ratings(names, payoff, rating, expected, quality)
    rows = {
        "names": names,
        "payoff": payoff.tolist(),
        "rating": rating.tolist(),
        "expected": expected.tolist(),
        "quality": quality.tolist(),
        "games": round_robin.count_results(scores).tolist(),
    }
    (arguments.output / "tournament.json").write_text(json.dumps(rows) + "\n")
    matrix_plot(arguments.output / "payoffs.png", names, payoff)


def print_ratings(
    names: list[str], payoff: np.ndarray, rating: np.ndarray, expected: np.ndarray, quality: np.ndarray
) -> None:
    """Prints the entries with ratings, scores, expected scores and match quality, the highest rated first.

    Args:
      names: names of the n entries.
      payoff: `[n, n]` scores of the row against the column.
      rating: `[n, D]`.
      expected: `[n, n]` expected scores by the ratings; shown as means over all other entries.
      quality: `[n, n]` match quality; shown as means over all other entries.
    """
    table = Table(title=f"{len(names)} entries, each against each", title_justify="left")
    columns = ("entry", "rating", "uncertainty", "mean score", "expected", "worst score", "match quality")
    for column in columns:
        first = column == "entry"  # Other headings may take two lines.
        table.add_column(column, justify="left" if first else "right", no_wrap=first)
    own = np.eye(len(names), dtype=bool)
    scores = np.where(own, np.nan, (payoff + 1.0 - payoff.T) / 2.0)
    means = [np.nanmean(np.where(own, np.nan, x), axis=1) for x in (scores, expected, quality)]
    for index in np.argsort(-rating[:, 0]):
        score, awaited, even = (mean[index] for mean in means)
        row = (rating[index, 0], rating[index, 1], score, awaited, np.nanmin(scores[index]), even)
        table.add_row(names[index], *(f"{value:.2f}" for value in row))
    # Without a terminal, as in a file, a fixed width prevents cut columns.
    console = Console(width=None if sys.stdout.isatty() else 120)
    break_headings(table, console.width)
    console.print(table)


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
