"""Memory of jobs on one device: state, constant data, temporary arrays of an update and of an evaluation.

    python benchmarks/memory.py [JOB ...] [--maps FOLDER] [--against docs/training.md]

The numbers are those of XLA's buffer assignment, which does not depend on LLVM's optimisation, so programs
are compiled without it. `--against` compares with the table in a page and exits with status 1 where the peak
of a job has grown by more than a tenth. Jobs are those of `benchmarks/compile.py`.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

import jax
from compile import JOBS
from rich.console import Console
from rich.table import Table

from algos.optim import small_batches
from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program

MB = 1e6
GROWTH = 1.1
COLUMNS = 6
FAST = {"xla_backend_optimization_level": 0}


class Memory(NamedTuple):
    """Megabytes of one job.

    Attributes:
      state: the state of the run: learners, environments, replay, statistics.
      world: constant data, such as maps and terrains.
      update: temporary arrays and results of one update.
      evaluation: those of one evaluation.
    """

    state: float
    world: float
    update: float
    evaluation: float

    @property
    def peak(self) -> float:
        """Megabytes while the larger of the two programs runs."""
        return self.state + self.world + max(self.update, self.evaluation)


def measure_memory(overrides: list[str]) -> Memory:
    """Compiles the update and the evaluation of a job, and returns what they occupy."""
    config, _ = command_line.compose_config(command_line.normalize_overrides(overrides))
    program = make_program(build.build_run_config(config))
    state = jax.eval_shape(
        lambda key, world: program.init(key, None, world), jax.random.key(0), program.world
    )
    update = jax.jit(program.update, donate_argnums=0)
    update = small_batches.lower_for_options(update, state, program.world)
    options = FAST | dict(program.compiler_options or {})

    def evaluate(state, world):
        return program.assess(state, jax.random.key(0), world)

    score = jax.jit(evaluate).lower(state, program.world).compile(compiler_options=FAST)
    return Memory(
        size_of(state),
        size_of(program.world),
        own_size(update.compile(compiler_options=options)),
        own_size(score),
    )


def size_of(tree) -> float:
    """Megabytes of all arrays of a tree; random keys count as 8 bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)) / MB


def own_size(compiled) -> float:
    """Megabytes that a compiled program needs beside its arguments."""
    stats = compiled.memory_analysis()
    return (stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes) / MB


def read_peaks(page: Path) -> dict[str, float]:
    """Peaks by job, in megabytes, from the rows of a page's table that begin with the name of a job."""
    rows = [re.findall(r"[^|]+", line) for line in page.read_text().splitlines() if line.startswith("| `")]
    found = {cells[0].strip(" `"): cells for cells in rows if len(cells) == COLUMNS}
    return {name: float(cells[-1].replace(",", "")) for name, cells in found.items() if name in JOBS}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--maps", help="folder of real maps, for the jobs that need one")
    parser.add_argument("--against", type=Path, help="a page with a table of an earlier measurement")
    arguments = parser.parse_args()
    unknown = set(arguments.jobs) - set(JOBS)
    if unknown:
        parser.error(f"JOB={min(unknown)}: allowed: {', '.join(JOBS)}")
    before = read_peaks(arguments.against) if arguments.against else {}
    table = Table(title="megabytes (10^6 bytes)", title_justify="left")
    for column in ("job", "state", "constants", "update", "evaluation", "peak"):
        table.add_column(column, justify="right")
    grown = []
    for name in arguments.jobs or [name for name in JOBS if name != "baselines"]:
        overrides = [one.replace("MAPS", arguments.maps or "MAPS") for one in JOBS[name]]
        if any("MAPS" in one for one in overrides):
            print(f"{name}: left out without --maps", file=sys.stderr)
            continue
        memory = measure_memory(overrides)
        table.add_row(f"`{name}`", *(f"{x:,.2f}" for x in (*memory, memory.peak)))
        if memory.peak > GROWTH * before.get(name, float("inf")):
            grown.append(f"{name}: {memory.peak:.2f} MB, {before[name]:.2f} before")
    Console(width=120).print(table)
    if grown:
        raise SystemExit("\n".join(grown))


if __name__ == "__main__":
    main()
