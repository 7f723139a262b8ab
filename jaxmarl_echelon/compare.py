"""`python -m jaxmarl_echelon.compare RUN... --output FOLDER`: compares runs over seeds, with intervals."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from jaxmarl_echelon import command_line, output_folders
from jaxmarl_echelon.reporting import comparison_files
from jaxmarl_echelon.reporting.comparison import ComparisonSettings, MethodComparison, compare_methods
from jaxmarl_echelon.reporting.marked_text import replace_marked
from jaxmarl_echelon.reporting.methods import find_runs, sort_runs
from jaxmarl_echelon.reporting.seed_statistics import RESAMPLES


def parse_compare_arguments() -> argparse.Namespace:
    """Reads the command line."""
    program = command_line.invoked_command("jaxmarl_echelon.compare", "jaxmarl-compare")
    parser = command_line.Parser(prog=program, description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[NAME=]RUN",
        help="a run folder, a vectorized group, one of its members, or a glob",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for tables, picture and page")
    parser.add_argument(
        "--checkpoint",
        help="compare evaluations of this checkpoint on fresh episodes, by jaxmarl_echelon.evaluate, such as "
        "latest (default: the runs' own last evaluations)",
    )
    parser.add_argument(
        "--measure",
        help="column of eval.csv, with --checkpoint a name in evaluation.json (default: the score, or "
        "avg_reward without one)",
    )
    parser.add_argument("--step", type=int, help="compare the last evaluations up to this environment step")
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="[TASK=]LOW:HIGH",
        help="scores that are scaled to 0 and 1, of one task or of all; scores with an interval have 0:1",
    )
    parser.add_argument(
        "--task-keys",
        default="",
        help="keys whose values make another task, separated by commas: env.map,...",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    parser.add_argument(
        "--resamples", type=int, default=RESAMPLES, help=f"of the bootstrap (default: {RESAMPLES})"
    )
    parser.add_argument("--write", type=Path, help="document into which the tables are written, too")
    parser.add_argument(
        "--mark",
        metavar="NAME",
        help="between its <!-- compare NAME: begin --> and <!-- compare NAME: end -->",
    )
    arguments = parser.parse_args()
    if (arguments.write is None) != (arguments.mark is None):
        raise command_line.UsageError("--write, --mark: must be given together")
    if arguments.checkpoint is not None and arguments.step is not None:
        raise command_line.UsageError(f"--step={arguments.step}: must be left out with --checkpoint")
    for option, least in (("seed", 0), ("resamples", 100)):
        if (value := getattr(arguments, option)) < least:
            raise command_line.UsageError(f"--{option}={value}: must be at least {least}")
    return arguments


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    """Parses `[TASK=]LOW:HIGH` to the task, empty for all, and its range; raises a one-line UsageError."""
    task, _, ends = text.rpartition("=")
    try:
        low, high = (float(end) for end in ends.split(":"))
    except ValueError:
        raise command_line.UsageError(f"--range={text}: must be LOW:HIGH or TASK=LOW:HIGH") from None
    if not low < high:
        raise command_line.UsageError(f"--range={text}: LOW must be below HIGH")
    return task, (low, high)


def main() -> None:
    """Compares runs by the command line."""
    arguments = parse_compare_arguments()
    settings = ComparisonSettings(
        measure=arguments.measure,
        checkpoint=arguments.checkpoint,
        step=arguments.step,
        ranges=dict(map(parse_range, arguments.range)),
        seed=arguments.seed,
        resamples=arguments.resamples,
    )
    keys = [key for key in arguments.task_keys.split(",") if key]
    comparison = compare_methods(sort_runs(find_runs(arguments.runs), keys), settings)
    if unknown := set(settings.ranges) - {*comparison.tasks, ""}:
        raise command_line.UsageError(
            f"--range={min(unknown)}=...: no such task; tasks: {', '.join(comparison.tasks)}"
        )
    require_no_other_comparison(arguments.output, comparison)
    renewed = None
    if arguments.write:
        markdown = comparison_files.compose_comparison_markdown(comparison)
        renewed = replace_marked(arguments.write, f"compare {arguments.mark}", markdown)
    write_comparison(arguments.output, comparison)
    if renewed is not None:
        arguments.write.write_text(renewed, encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in comparison_files.comparison_tables(comparison):
        console.print(table)
    for line in comparison.warnings:
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    console.print(f"comparison: {arguments.output / 'compare.html'}", markup=False, soft_wrap=True)


def require_no_other_comparison(folder: Path, comparison: MethodComparison) -> None:
    """Checks that all runs of an earlier comparison in a folder are in this one, which replaces it.

    Raises:
      UsageError: one line with a run that is not.
    """
    if not output_folders.is_taken(folder):
        return
    mine = {str(one.run.folder) for one in comparison.runs}
    if others := [run for run in comparison_files.read_compared_runs(folder) if run not in mine]:
        raise command_line.UsageError(
            f"--output={folder}: has a comparison of other runs, such as {others[0]}; "
            "choose another folder, or remove this one"
        )


def write_comparison(folder: Path, comparison: MethodComparison) -> None:
    """Writes a comparison's tables, `compare.md`, `compare.png` and `compare.html` into a folder."""
    # Importing Matplotlib takes as long as everything else, and errors should show before.
    from jaxmarl_echelon.reporting.comparison_plot import comparison_plot

    output_folders.make_folder(folder)
    comparison_files.write_comparison_tables(folder, comparison)
    markdown = comparison_files.compose_comparison_markdown(comparison)
    (folder / "compare.md").write_text(f"{markdown}\n", encoding="utf-8")
    comparison_files.write_comparison_page(folder / "compare.html", comparison)
    comparison_plot(folder / "compare.png", comparison)


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
