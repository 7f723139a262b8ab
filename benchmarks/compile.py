"""Compilation of runs: seconds of tracing, lowering and compiling, and StableHLO lines by function.

    python benchmarks/compile.py [JOB ...] [--list] [--maps FOLDER] [--against CHECKOUT] [--turns N]
                                 [--functions N] [--lower-only]

Each job is measured in its own process, cold (an empty compilation cache) and warm (the cache of the cold
run), in wall-clock and CPU seconds. Lines are those of the StableHLO text. Each counts for the innermost
function of the project in which it was traced ("own") and for all callers of that function ("with callees").
With `--against` the same jobs of another checkout are measured alternately, and ratios of medians are
printed: this checkout's over the other's.
"""

import argparse
import collections
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent.parent
SPIELBERG = "env.map=MAPS/spielberg/Spielberg.yaml"
JOBS = {
    "f110": ("env=f110", "algo=ppo"),
    "f110_54": ("env=f110", "algo=ppo", "env.lidar_beams=54"),
    "f110_1080": ("env=f110", "algo=ppo", "env.lidar_beams=1080"),
    "spielberg": ("env=f110", "algo=ppo", SPIELBERG),
    "phased26": ("env=f110", "algo=ppo", "curriculum=phased26"),
    "tqc": ("env=f110", "algo=tqc"),
    "ppo_rnn": ("env=f110", "algo=ppo_rnn"),
    "echelon": ("env=echelon", "algo=ppo"),
    "echelon_10v10": ("env=echelon_10v10", "algo=ppo"),
    "missions": ("env=echelon_missions_small", "algo=ppo", "curriculum=missions4"),
    "drive": ("env=drive", "algo=ppo"),
    "kuhn": ("env=textgames/kuhn", "algo=ppo", "controllers.player=pool:player"),
    "kuhn_lm": ("env=textgames/kuhn", "algo=reinforce_lm"),
    "cartpole": ("env=gymnax/CartPole-v1", "algo=ppo"),
    "baselines": ("env=f110", "algo=ppo"),
}
PHASES = ("tracing", "lowering", "compiling")
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}


class Seconds(NamedTuple):
    """Wall-clock and CPU seconds (all threads; None if unknown) of one phase."""

    wall: float
    cpu: float | None


@contextmanager
def clock(found: dict[str, Seconds], phase: str) -> Iterator[None]:
    """Records the seconds of its body under `phase`."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    found[phase] = Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def functions(text: str, roots: tuple[str, ...]) -> tuple[dict[str, int], dict[str, int]]:
    """Line counts of a StableHLO text by the function in which they were traced.

    Args:
      text: with debug information.
      roots: path prefixes of the counted files; frames in other files are skipped.

    Returns:
      lines by `module.function`: exclusive (innermost function) and inclusive (with callees).
    """
    places: dict[str, tuple[str, ...]] = {}
    definitions = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    def frames(name: str) -> tuple[str, ...]:
        if name not in places:
            body = definitions.get(name, "")
            if found := re.fullmatch(r"callsite\((#loc\d*) at (#loc\d*)\)", body):
                places[name] = frames(found[1]) + frames(found[2])
            elif found := re.fullmatch(r'"(.*)"\((#loc\d*)\)', body):
                inner = definitions.get(found[2], "")
                file = re.match(r'"(/[^"]*)":\d+', inner)
                own = file and next((root for root in roots if file[1].startswith(root)), None)
                if file:
                    module = file[1].removeprefix(own).removesuffix(".py").split("/")[-1] if own else ""
                    places[name] = (f"{module}.{found[1]}",) if own else ()
                else:
                    places[name] = frames(found[2])
            else:
                places[name] = ()
        return places[name]

    own, total = collections.Counter(), collections.Counter()
    for line in text.splitlines():
        found = re.search(r" loc\((#loc\d*)\)$", line)
        if not found or not line.startswith("    "):
            continue
        chain = frames(found[1])
        own[chain[0] if chain else "(none)"] += 1
        total.update(set(chain))
    return dict(own), dict(total)


def tracing_for(options: dict | None) -> AbstractContextManager:
    """The context in which a run traces a program that it compiles with these options."""
    if not options or not importlib.util.find_spec("algos.optim.small_batches"):
        return nullcontext()
    small_batches = importlib.import_module("algos.optim.small_batches")
    # Older checkouts have no such context.
    return getattr(small_batches, "traced_for_options", nullcontext)()


def lowered_part(
    fn: Callable, arguments: tuple, roots: tuple[str, ...], options: dict | None, donate: bool, compiles: bool
) -> dict:
    """Traces, lowers and compiles one function; returns seconds by phase, lines, and lines by function."""
    import jax

    seconds: dict[str, Seconds] = {}
    jitted = jax.jit(fn, donate_argnums=0) if donate else jax.jit(fn)
    with clock(seconds, "tracing"), tracing_for(options):
        traced = jitted.trace(*arguments)
    with clock(seconds, "lowering"):
        lowered = traced.lower()
    if compiles:
        with clock(seconds, "compiling"):
            lowered.compile(compiler_options=options)
    own, total = functions(lowered.as_text(debug_info=True), roots)
    return {
        "seconds": seconds,
        "lines": lowered.as_text().count("\n"),
        "own": own,
        "total": total,
    }


def measure(overrides: list[str], compiles: bool) -> dict:
    """Measures the three programs of a run sequentially, in this process."""
    import jax

    import jaxmarl_echelon
    from jaxmarl_echelon import command_line
    from jaxmarl_echelon.training.config import build
    from jaxmarl_echelon.training.program.program import make_program

    command_line.use_compilation_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    root = str(Path(jaxmarl_echelon.__file__).parent.parent)
    roots = tuple(f"{root}/{package}/" for package in ("jaxmarl_echelon", "algos", "physics"))
    config, _ = command_line.compose_config(command_line.normalize_overrides(overrides))
    run = build.build_run_config(config)
    program = make_program(run)

    # Pass the world as an argument if the program takes one, as runs do.
    world = (program.world,) if hasattr(program, "world") else ()

    def start(key, *world):
        return program.init(key, None, *world)

    def chunk(state, *world):
        return jax.lax.scan(lambda s, _: program.update(s, *world), state, None, run.updates_per_chunk)

    def evaluate(state, *world):
        return program.assess(state, jax.random.key(0), *world)

    key = jax.random.key(0)
    state = jax.eval_shape(start, key, *world)
    options, quick, scoring = program.compiler_options, None, None
    if importlib.util.find_spec("algos.compiler"):
        compiler = importlib.import_module("algos.compiler")
        quick = compiler.quick_compile_options()
        # Older checkouts have none for evaluations.
        scoring = getattr(compiler, "evaluation_compile_options", dict)()
    return {
        "init": lowered_part(start, (key, *world), roots, quick, False, compiles),
        "update": lowered_part(chunk, (state, *world), roots, options, True, compiles),
        "evaluate": lowered_part(evaluate, (state, *world), roots, scoring, False, compiles),
    }


def measure_baselines(overrides: list[str]) -> dict:
    """`evaluate RUN --baselines` for a run of one update: seconds summed over all it compiles."""
    import jax

    from jaxmarl_echelon import evaluate

    total = dict.fromkeys(PHASES, 0.0)

    def note(event, duration, **_):
        if event in EVENTS:
            total[EVENTS[event]] += duration

    with tempfile.TemporaryDirectory() as folder:
        train = ["-m", "jaxmarl_echelon.train", *overrides, "tracking=quiet", "num_envs=16"]
        train += ["total_env_steps=1", f"output_dir={folder}", "run_name=run", "algo.horizon=16"]
        subprocess.run([sys.executable, *train, "eval_episodes=8"], check=True, stdout=subprocess.DEVNULL)
        (run,) = Path(folder).glob("*/*/run")
        jax.monitoring.register_event_duration_secs_listener(note)
        sys.argv = ["evaluate", str(run), "--baselines"]
        before, cpu = sys.stdout, time.process_time()
        with open(os.devnull, "w") as sys.stdout:
            evaluate.main()
        sys.stdout, cpu = before, time.process_time() - cpu
    seconds = {phase: Seconds(wall, None) for phase, wall in total.items()}
    return {"evaluate --baselines": {"seconds": seconds, "cpu": cpu, "lines": 0, "own": {}, "total": {}}}


def child(name: str, overrides: tuple[str, ...], checkout: Path, cache: str, compiles: bool) -> dict:
    """Measures a job of a checkout in a subprocess."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "JAX_COMPILATION_CACHE_DIR": cache}
    command = [sys.executable, __file__, "--measure", name, *overrides]
    command += [] if compiles else ["--lower-only"]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SystemExit(f"{name} in {checkout}: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def seconds_of(parts: dict, phase: str, which: int) -> float:
    """Seconds of a phase summed over parts, wall clock (0) or CPU (1)."""
    found = [part["seconds"][phase][which] for part in parts.values() if phase in part["seconds"]]
    return sum(x for x in found if x is not None)


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(JOBS)}; without any all")
    parser.add_argument("--list", action="store_true", help="say what each job is, and stop")
    parser.add_argument("--maps", help="folder of real maps, for the jobs that need one")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--turns", type=int, default=1, help="how often each job is measured")
    parser.add_argument("--functions", type=int, default=12, help="how many functions are shown")
    parser.add_argument("--lower-only", action="store_true", help="lines only; nothing is compiled")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The selected jobs, with the folder of maps substituted."""
    for name in given.jobs:
        if name not in JOBS:
            raise SystemExit(f"{name}: unknown job; allowed: {', '.join(JOBS)}")
    jobs = {name: JOBS[name] for name in given.jobs or JOBS}
    needing = [name for name, job in jobs.items() if SPIELBERG in job]
    if given.maps is None and needing and given.jobs and not given.list:
        raise SystemExit(f"{needing[0]}: needs --maps FOLDER")
    if given.maps is None and not given.list:
        if needing:
            print(f"left out without --maps FOLDER: {', '.join(needing)}", file=sys.stderr)
        jobs = {name: job for name, job in jobs.items() if name not in needing}
    folder = str(Path(given.maps).resolve()) if given.maps else "MAPS"
    return {name: tuple(part.replace("MAPS", folder) for part in job) for name, job in jobs.items()}


def show(console, name: str, runs: dict[str, list[tuple[dict, dict | None]]], number: int) -> None:
    """Prints the tables of one job: seconds and lines of each checkout, ratios, and the largest functions."""
    from rich.table import Table

    table = Table(title=name)
    for column in ("checkout", "part", "lines", *PHASES, "CPU", "warm, in all"):
        table.add_column(column, justify="left" if column in ("checkout", "part") else "right")
    sums: dict[str, dict[str, float]] = {}
    for checkout, measured in runs.items():
        for part, example in measured[0][0].items():

            def median(phase, which=0, part=part, measured=measured):
                found = [run[part]["seconds"].get(phase, (0, 0))[which] for run, _ in measured]
                return statistics.median(x or 0.0 for x in found)

            cpu = example.get("cpu") or sum(median(phase, 1) for phase in PHASES)
            warm = [sum(w for w, _ in run[part]["seconds"].values()) for _, run in measured if run]
            cells = [f"{median(phase):.2f}" for phase in PHASES] + [f"{cpu:.1f}"]
            shown = f"{statistics.median(warm):.2f}" if warm else "-"
            table.add_row(checkout, part, f"{example['lines']:,}", *cells, shown)
            into = sums.setdefault(checkout, collections.Counter())
            into["lines"] += example["lines"]
            into["wall"] += sum(median(phase) for phase in PHASES)
            into["CPU"] += cpu
            into["warm"] += statistics.median(warm) if warm else 0.0
    console.print(table)
    for checkout, total in sums.items():
        parts = [
            f"{key} {value:,.0f}" if key == "lines" else f"{key} {value:.1f} s"
            for key, value in total.items()
        ]
        console.print(f"{name}, {checkout}, in all: {', '.join(parts)}")
    if len(sums) == 2:
        ours, other = sums.values()
        ratios = [f"{key} {ours[key] / other[key]:.2f}" for key in ours if other[key]]
        console.print(f"{name}, this over the other: {', '.join(ratios)}")
    for part, example in next(iter(runs.values()))[0][0].items():
        for kind, title in (("own", "own"), ("total", "with callees")):
            largest = sorted(example[kind].items(), key=lambda item: -item[1])[:number]
            if largest:
                console.print(f"{part}, {title}: {', '.join(f'{f} {n}' for f, n in largest)}", soft_wrap=True)


def main() -> None:
    """Measures the jobs and prints their tables."""
    given = arguments()
    if given.measure:
        name, *overrides = given.jobs
        if name == "baselines":
            print(json.dumps(measure_baselines(overrides)))
        else:
            print(json.dumps(measure(overrides, not given.lower_only)))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120)
    jobs = chosen(given)
    if given.list:
        for name, job in jobs.items():
            console.print(f"{name}: {' '.join(job)}", soft_wrap=True)
        return
    checkouts = {"this": HERE} | ({"other": given.against.resolve()} if given.against else {})
    for name, job in jobs.items():
        if given.lower_only and name == "baselines":
            continue
        runs = {checkout: [] for checkout in checkouts}
        for turn in range(given.turns):
            for checkout in list(checkouts)[:: 1 if turn % 2 == 0 else -1]:
                with tempfile.TemporaryDirectory() as cache:
                    measured = [child(name, job, checkouts[checkout], cache, not given.lower_only)]
                    again = None if given.lower_only else child(name, job, checkouts[checkout], cache, True)
                runs[checkout].append((measured[0], again))
        show(console, name, runs, given.functions)


if __name__ == "__main__":
    main()
