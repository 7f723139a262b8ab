"""Scaling of one run on 1, 2, 4, ... devices: steps/s, efficiency, collectives, and a predicted scaling.

    python benchmarks/scale.py [KEY=VALUE ...] [--devices 1,2,4,8] [--envs-per-device 512] [--turns 4]
    python benchmarks/scale.py [KEY=VALUE ...] --one-device 1024,4096,16384,65536

Devices are virtual devices of the CPU, or the machine's GPUs with `--platform default`. Weak scaling gives
each device the same number of environments, strong scaling divides those of the smallest count. Each count
has its own process, which makes updates in turn, without evaluations. Virtual devices share the CPU's cores,
so the rates show the program's overhead, not its scaling on separate devices.

The collectives are read from the compiled program of the largest count, and the plan computes from them
what an update spends on communication on 8 and 64 GPUs: a collective over D devices costs
2 ceil(log2 D) latencies and its bytes, 2 (D - 1) / D of them for an all-reduce and (D - 1) / D of the
gathered for an all-gather, over the bandwidth of the slowest link (`--links`). Nothing overlaps.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
from collectives import KINDS, Collective, Link, collectives, communication
from rich.console import Console
from rich.table import Table
from trainer import best_seconds, make_collect

from algos.compiler import provide_collective_threads
from algos.optim.small_batches import lower_for_options
from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.host.compile import compile_program
from jaxmarl_echelon.training.host.devices import DeviceLayout
from jaxmarl_echelon.training.program.program import evaluation_as_in_training, make_program

HERE = Path(__file__).resolve()
DEFAULT = ("env=f110", "algo=ppo")
GOOD = 0.9
LINKS = "8:300e9:10e-6,64:25e9:20e-6"


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help=f"of the job; without any {' '.join(DEFAULT)}")
    parser.add_argument("--devices", type=numbers, default=(1, 2, 4, 8))
    parser.add_argument("--envs-per-device", type=int, default=512)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument(
        "--num-envs", type=int, help="of strong scaling; default: those of the fewest devices"
    )
    parser.add_argument("--platform", choices=("cpu", "default"), default="cpu")
    parser.add_argument("--cores", help="each count on each of these, as for taskset: 0/0,1")
    parser.add_argument("--only", choices=("weak", "strong"))
    parser.add_argument("--links", default=LINKS, help="devices:bytes/s:seconds, separated by commas")
    parser.add_argument("--rate", type=float, default=1e6, help="steps/s of one GPU, for the plan")
    parser.add_argument("--round", type=float, default=2e-4, help="least seconds of a loop's round on a GPU")
    parser.add_argument("--one-device", type=numbers, help="numbers of environments on one device")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """Parses whole numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def read(overrides: Sequence[str], **changes) -> build.RunConfig:
    """Reads the run with the overrides and changes."""
    typed = [*overrides, *(f"{key}={value}" for key, value in changes.items())]
    composed, _ = command_line.compose_config(command_line.normalize_overrides(typed))
    return build.build_run_config(composed)


def measure(overrides: Sequence[str], devices: int, num_envs: int) -> None:
    """Compiles a run, prints its facts as one line, and then makes one update per line on standard input.

    Each update prints its seconds.
    """
    provide_collective_threads()
    config = read(overrides, num_envs=num_envs, shards=devices, eval_episodes=devices)
    program = make_program(config)
    compiled = compile_program(
        lambda key, world: program.init(key, world=world),
        program.update,
        evaluation_as_in_training(program, config.seed),
        (run_key(config.seed),),
        program.world,
        1,
        program.compiler_options,
        DeviceLayout.over(jax.devices()[:devices]),
        program.local,
    )
    state, _ = compiled.chunk(compiled.init())
    facts = {
        "steps": config.steps_per_update,
        "decisions": config.horizon,
        "num_envs": num_envs,
        "collectives": collectives(compiled.executable().as_text()) if devices > 1 else [],
    }
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        state, report = compiled.chunk(state)
        jax.block_until_ready((state, report))
        print(json.dumps(time.perf_counter() - begin), flush=True)


class Measured:
    """A process with its own devices that runs `measure`.

    Attributes:
      facts: the printed facts of the run.
      seconds: of the updates so far.
    """

    def __init__(self, arguments: argparse.Namespace, job: dict, cores: str | None):
        self.job, self.seconds = job, []
        environment = dict(os.environ)
        if arguments.platform == "cpu":
            flags = (
                f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={job['devices']}"
            )
            environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        paths = str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")
        command = ["taskset", "-c", cores] if cores else []
        self.process = subprocess.Popen(
            [*command, sys.executable, HERE, "--measure", json.dumps(job)],
            env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._heard()

    def update(self) -> None:
        """Makes one update, and records its seconds."""
        self.process.stdin.write("update\n")
        self.process.stdin.flush()
        self.seconds.append(self._heard())

    def end(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()

    def rates(self) -> list[float]:
        """Steps/s of each update."""
        return [self.facts["steps"] / seconds for seconds in self.seconds]

    def _heard(self):
        for line in self.process.stdout:
            if not line.startswith("[Gloo]"):
                return json.loads(line)
        raise SystemExit(f"{self.job}: ended with status {self.process.wait()}")


def jobs(arguments: argparse.Namespace) -> dict[tuple[str, int, str | None], dict]:
    """Lists the measurements by kind of scaling, number of devices and cores."""
    found = {}
    total = arguments.num_envs or min(arguments.devices) * arguments.envs_per_device
    for kind in ("weak", "strong") if arguments.only is None else (arguments.only,):
        for devices in arguments.devices:
            number = devices * arguments.envs_per_device if kind == "weak" else total
            for cores in arguments.cores.split("/") if arguments.cores else (None,):
                job = {"overrides": arguments.overrides or DEFAULT, "devices": devices, "num_envs": number}
                found[kind, devices, cores] = job
    return found


def scaling(arguments: argparse.Namespace) -> None:
    """Measures all counts in turns, prints tables, and the plan."""
    measured = {name: Measured(arguments, job, name[2]) for name, job in jobs(arguments).items()}
    for _ in range(arguments.turns):
        for one in measured.values():
            one.update()
    show_rates(measured)
    largest = max(measured, key=lambda name: (name[0] == "weak", name[1]))
    facts = measured[largest].facts
    for one in measured.values():
        one.end()
    if largest[1] > 1:
        found = [Collective(*one) for one in facts["collectives"]]
        show_collectives(found, largest[1])
        show_plan(arguments, found, largest[1], facts)


def show_rates(measured: dict[tuple[str, int, str | None], Measured]) -> None:
    """Prints steps/s, and ratios turn by turn to the first of the same kind."""
    rate = "Steps/s, median (least, most)"
    table = Table(
        "Scaling", "Devices", "Cores", "Environments", rate, "x, median (least, most)", "Efficiency"
    )
    for (kind, devices, cores), one in measured.items():
        (fewest, base), *_ = ((name[1], other) for name, other in measured.items() if name[0] == kind)
        ratios = [a / b for a, b in zip(one.rates(), base.rates(), strict=True)]
        efficiency = statistics.median(ratios) * fewest / devices
        cells = (kind, str(devices), cores or "all", f"{one.facts['num_envs']:,}")
        table.add_row(*cells, middle(one.rates(), ",.0f"), middle(ratios, ".2f"), f"{efficiency:.2f}")
    Console().print(table)


def middle(values: Sequence[float], form: str) -> str:
    """Formats the median of values, and their range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


def grouped(found: Sequence[Collective]) -> dict[tuple[str, int | None], list[Collective]]:
    """Groups collectives by kind and by executions per update."""
    groups: dict[tuple[str, int | None], list[Collective]] = {}
    for one in found:
        groups.setdefault((one.kind, one.times), []).append(one)
    return groups


def show_collectives(found: Sequence[Collective], devices: int) -> None:
    """Prints the collectives of an update."""
    table = Table(
        "Collective", "In the program", "Runs of each per update", "Bytes of all, once", "Bytes per update"
    )
    for (kind, times), group in grouped(found).items():
        size = sum(one.bytes for one in group)
        total = "unknown" if times is None else f"{size * times:,}"
        table.add_row(kind, str(len(group)), str(times or "by data"), f"{size:,}", total)
    Console().print(f"collectives of an update on {devices} devices:", table)


def show_plan(arguments: argparse.Namespace, found: Sequence[Collective], measured: int, told: dict) -> None:
    """Prints the limits below which efficiency drops under `GOOD`: a device's rate, and its environments.

    An update of E environments takes f + w E + c: rounds of loops, work, communication. Weak scaling compares
    it with f + w E, strong scaling with the time of one device for all environments.
    """
    per_device = told["steps"] // measured
    rounds = told["decisions"] + sum(one.times or 1 for one in found if one.loops and one.kind == KINDS[0])
    fixed, work = rounds * arguments.round, per_device / arguments.rate
    table = Table(
        "GPUs", "GB/s", "us", "c, ms", "Weak", f"Weak {GOOD} up to", "Strong", f"Strong {GOOD} from"
    )
    for text in arguments.links.split(","):
        devices, bandwidth, latency = (float(part) for part in text.split(":"))
        spent = communication(found, measured, Link(int(devices), bandwidth, latency))
        # f + w E = c GOOD / (1 - GOOD), and (f + D w E) / (D (f + w E + c)) = GOOD.
        enough = spent * GOOD / (1 - GOOD) - fixed
        fastest = "any rate" if enough <= 0 else f"{per_device / enough:,.0f} steps/s"
        strong = (fixed + devices * work) / (devices * (fixed + work + spent))
        least = (GOOD * devices * (fixed + spent) - fixed) / (devices * (1 - GOOD) * work)
        environments = math.ceil(least * told["num_envs"] / measured)
        table.add_row(
            f"{devices:.0f}",
            f"{bandwidth / 1e9:,.0f}",
            f"{latency * 1e6:,.0f}",
            f"{spent * 1e3:.2f}",
            f"{(fixed + work) / (fixed + work + spent):.3f}",
            fastest,
            f"{strong:.2f}",
            f"{environments:,} per GPU",
        )
    told_so = (
        f"on paper, not measured: f = {rounds:,} rounds x {arguments.round * 1e6:,.0f} us"
        f" = {fixed * 1e3:,.0f} ms, "
        f"w E = {per_device:,} steps / ({arguments.rate:,.0f} steps/s) = {work * 1e3:,.0f} ms on each GPU"
    )
    Console().print(told_so, table)


def one_device(arguments: argparse.Namespace) -> None:
    """Steps/s of one device by the number of environments, the rollout's share, and memory."""
    table = Table("Environments", "Steps/s", "Rollout", "Argument + temporary MB", "Compile s")
    for num_envs in arguments.one_device:
        config = read(arguments.overrides or DEFAULT, num_envs=num_envs)
        program = make_program(config)
        begin = time.perf_counter()
        run = jax.jit(program.init)(jax.random.key(0))
        options = program.compiler_options
        update = lower_for_options(jax.jit(program.update), run).compile(compiler_options=options)
        seconds = time.perf_counter() - begin
        collect = jax.jit(make_collect(config, program)).lower(run).compile(compiler_options=options)
        best = best_seconds({"update": (update, run), "rollout": (collect, run)}, arguments.turns)
        stats = update.memory_analysis()
        memory = 0 if stats is None else stats.argument_size_in_bytes + stats.temp_size_in_bytes
        rate = config.steps_per_update / best["update"]
        share = f"{best['rollout'] / best['update']:.0%}"
        table.add_row(f"{num_envs:,}", f"{rate:,.0f}", share, f"{memory / 1e6:,.0f}", f"{seconds:.1f}")
    Console().print(f"one device: {jax.devices()[0].device_kind}", table)


def main() -> None:
    """Entry point."""
    arguments = parse()
    command_line.use_compilation_cache()
    if arguments.measure is not None:
        measure(**json.loads(arguments.measure))
    elif arguments.one_device:
        one_device(arguments)
    else:
        scaling(arguments)


if __name__ == "__main__":
    main()
