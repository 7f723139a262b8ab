"""One run on 1, 2, 4, ... devices: steps/s, efficiency, what devices say to each other, and a plan on paper.

    python benchmarks/scale.py [KEY=VALUE ...] [--devices 1,2,4,8] [--envs-per-device 512] [--turns 3]
    python benchmarks/scale.py [KEY=VALUE ...] --one-device 1024,4096,16384,65536

Devices are parts into which XLA cuts the CPU, or the machine's GPUs with `--platform default`. Weak scaling
gives every device the same number of environments, strong scaling divides those of the smallest count. Every
count runs in a process of its own, all in turns, and times whole updates without evaluations. Parts of a CPU
share its cores: the rates say what the program costs, not how it scales beyond them.

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
from typing import NamedTuple

import jax
from collectives import KINDS, Collective, collectives
from rich.console import Console
from rich.table import Table
from trainer import best_seconds, make_collect

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training.compiling import compile_program
from jaxmarl_echelon.training.devices import Layout
from jaxmarl_echelon.training.keys import run_key
from jaxmarl_echelon.training.program import make_program, scored_assessment

HERE = Path(__file__).resolve()
DEFAULT = ("env=f110", "algo=ppo")
GOOD = 0.9
LINKS = "8:300e9:10e-6,64:25e9:20e-6"


class Link(NamedTuple):
    """What so many GPUs are joined by: bytes/s of the slowest link per GPU, and seconds per message."""

    devices: int
    bandwidth: float
    latency: float


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help=f"of the job; without any {' '.join(DEFAULT)}")
    parser.add_argument("--devices", type=numbers, default=(1, 2, 4, 8))
    parser.add_argument("--envs-per-device", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--updates", type=int, default=3, help="timed per turn, after one that is not")
    parser.add_argument("--platform", choices=("cpu", "default"), default="cpu")
    parser.add_argument("--cores", help="cores of each count, as for taskset, separated by slashes: 0/0,1")
    parser.add_argument("--only", choices=("weak", "strong"))
    parser.add_argument("--links", default=LINKS, help="devices:bytes/s:seconds, separated by commas")
    parser.add_argument("--rate", type=float, default=1e6, help="steps/s of one GPU, for the plan")
    parser.add_argument("--round", type=float, default=2e-4, help="least seconds of a loop's round on a GPU")
    parser.add_argument("--one-device", type=numbers, help="numbers of environments on one device")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def read(overrides: Sequence[str], **changes) -> config_lib.RunConfig:
    """The run of the overrides and changes."""
    typed = [*overrides, *(f"{key}={value}" for key, value in changes.items())]
    composed, _ = command_line.compose_config(command_line.plain(typed))
    return config_lib.read(composed)


def measure(overrides: Sequence[str], devices: int, num_envs: int, updates: int) -> dict:
    """Seconds of each of so many updates, and the collectives of one."""
    config = read(overrides, num_envs=num_envs, shards=devices, eval_episodes=devices)
    program = make_program(config, tuned=True)
    layout = Layout.over(jax.devices()[:devices])
    arguments = (run_key(config.seed),)
    compiled = compile_program(
        lambda key, world: program.init(key, world=world),
        program.update,
        scored_assessment(program, config.seed),
        arguments,
        program.world,
        1,
        program.compiler_options,
        layout,
        program.local,
    )
    state, seconds = compiled.init(), []
    for _ in range(updates + 1):
        begin = time.perf_counter()
        state, report = compiled.chunk(state)
        jax.block_until_ready((state, report))
        seconds.append(time.perf_counter() - begin)
    found = collectives(compiled.executable().as_text()) if devices > 1 else []
    return {
        "seconds": seconds[1:],
        "steps": config.steps_per_update,
        "decisions": config.horizon,
        "num_envs": num_envs,
        "collectives": found,
        "device": jax.devices()[0].device_kind,
    }


def in_process(arguments: argparse.Namespace, job: dict, cores: str | None) -> dict:
    """`measure` in a process that has the devices; exits with its output if it fails."""
    flags = os.environ.get("XLA_FLAGS", "")
    environment = dict(os.environ)
    if arguments.platform == "cpu":
        environment |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={job['devices']}",
        }
    pinned = ["taskset", "-c", cores] if cores else []
    command = [*pinned, sys.executable, HERE, "--measure", json.dumps(job)]
    environment["PYTHONPATH"] = os.pathsep.join((str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{job}: failed\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def jobs(arguments: argparse.Namespace) -> dict[tuple[str, int], dict]:
    """What is measured, by kind of scaling and number of devices."""
    found = {}
    smallest = min(arguments.devices) * arguments.envs_per_device
    common = {"overrides": arguments.overrides or DEFAULT, "updates": arguments.updates}
    for kind in ("weak", "strong") if arguments.only is None else (arguments.only,):
        for devices in arguments.devices:
            total = devices * arguments.envs_per_device if kind == "weak" else smallest
            found[kind, devices] = common | {"devices": devices, "num_envs": total}
    return found


def scaling(arguments: argparse.Namespace) -> None:
    """Measures all counts in turns, prints tables, and the plan."""
    asked = jobs(arguments)
    cores = arguments.cores.split("/") if arguments.cores else [None] * len(arguments.devices)
    pinned = dict(zip(arguments.devices, cores, strict=True))
    heard: dict[tuple[str, int], list[dict]] = {name: [] for name in asked}
    for _ in range(arguments.turns):
        for name, job in asked.items():
            heard[name].append(in_process(arguments, job, pinned[name[1]]))
    show_rates(heard, asked, pinned)
    largest = max(heard, key=lambda name: (name[0] == "weak", name[1]))
    if largest[1] > 1:
        told = heard[largest][0]
        found = [Collective(*one) for one in told["collectives"]]
        show_collectives(found, largest[1])
        show_plan(arguments, found, largest[1], told)


def rates(turns: Sequence[dict]) -> list[float]:
    """Steps/s of each turn, by its median update."""
    return [one["steps"] / statistics.median(one["seconds"]) for one in turns]


def show_rates(heard: dict, asked: dict, pinned: dict) -> None:
    """Prints steps/s; efficiency is against the smallest count of the same kind."""
    table = Table(
        "Scaling", "Devices", "Cores", "Environments", "Steps/s, median (least, most)", "x", "Efficiency"
    )
    for (kind, devices), turns in heard.items():
        least = min(count for other, count in heard if other == kind)
        found, base = rates(turns), rates(heard[kind, least])
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        middle = f"{statistics.median(found):,.0f} ({min(found):,.0f}, {max(found):,.0f})"
        size = f"{asked[kind, devices]['num_envs']:,}"
        cells = (kind, str(devices), pinned[devices] or "all", size, middle, f"{ratio:.2f}")
        table.add_row(*cells, f"{ratio * least / devices:.2f}")
    Console().print(table)


def grouped(found: Sequence[Collective]) -> dict[tuple[str, int | None], list[Collective]]:
    """Collectives by kind and by how often an update runs them."""
    groups: dict[tuple[str, int | None], list[Collective]] = {}
    for one in found:
        groups.setdefault((one.kind, one.times), []).append(one)
    return groups


def show_collectives(found: Sequence[Collective], devices: int) -> None:
    """Prints what an update exchanges."""
    table = Table(
        "Collective", "In the program", "Runs of each per update", "Bytes of all, once", "Bytes per update"
    )
    for (kind, times), group in grouped(found).items():
        size = sum(one.bytes for one in group)
        total = "unknown" if times is None else f"{size * times:,}"
        table.add_row(kind, str(len(group)), str(times or "by data"), f"{size:,}", total)
    Console().print(f"collectives of an update on {devices} devices:", table)


def communication(found: Sequence[Collective], measured: int, link: Link) -> float:
    """Seconds per update; `measured` is the number of devices that the collectives were read for."""
    number, total = link.devices, 0.0
    for one in found:
        passed = 2.0 * one.bytes if one.kind == "all-reduce" else one.bytes * number / measured
        volume = passed * (number - 1) / number / link.bandwidth
        total += (one.times or 1) * (2 * math.ceil(math.log2(number)) * link.latency + volume)
    return total


def show_plan(arguments: argparse.Namespace, found: Sequence[Collective], measured: int, told: dict) -> None:
    """Prints where efficiency falls below `GOOD`, by a device's rate and by the environments left to it.

    An update of E environments takes f + w E + c: rounds of loops, work, communication. Weak scaling compares
    it with f + w E, strong scaling with what one device would take for all of them.
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
        program = make_program(config, tuned=True)
        begin = time.perf_counter()
        run = jax.jit(program.init)(jax.random.key(0))
        options = program.compiler_options
        update = jax.jit(program.update).lower(run).compile(compiler_options=options)
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
        print(json.dumps(measure(**json.loads(arguments.measure))))
    elif arguments.one_device:
        one_device(arguments)
    else:
        scaling(arguments)


if __name__ == "__main__":
    main()
