"""Speed of driving: simulation, training, parts of a step, banks of scenes, and a comparison of engines.

    python benchmarks/drive.py [--quick] [--only TABLE] [--case TEXT] [KEY=VALUE ...]

A learner-step is one decision of 0.1 s of one living learner, with observations, rewards and automatic
resets; unfilled slots of a scene are counted separately. Published rates, end to end on one RTX 4080:
GPUDrive 50,000 and PufferDrive 320,000 learner-steps/s.

Shares of the machine: gathered numbers and multiply-adds of a program are counted in its trace, and compared
with this machine's rates of random gathers and matrix products.
"""

import argparse
import math
import os
import sys
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hydra import compose, initialize_config_dir
from jax.extend.core import jaxprs_in_params
from machine import gather_rate, matmul_rate, seconds_per_call
from rich.console import Console
from rich.table import Table
from spread import bytes_per_environment

from algos.defaults import config_directory
from algos.optim.small_batches import lower_for_options
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.drive.codes import CELL, CROSSWALK, EDGE
from jaxmarl_echelon.envs.drive.observing.layout import PUFFER_ROADS, ObservationConfig
from jaxmarl_echelon.envs.drive.observing.observe import observe_learners
from jaxmarl_echelon.envs.drive.state import VEHICLE_ROLE
from jaxmarl_echelon.envs.drive.traffic import road_contacts, routes, scripted_bodies
from jaxmarl_echelon.envs.drive.traffic.routes import BodyGroup
from jaxmarl_echelon.envs.random_play import step_randomly
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program
from physics.segments import segments_between, segments_meet_box

SIZES = {
    "A = 16, N = 32": (),
    "A = 16, N = 32, puffer": ("env.layout=puffer",),
    "A = N = 64": ("env.agents=64", "env.bodies=64"),
    "A = N = 64, puffer": ("env.agents=64", "env.bodies=64", "env.layout=puffer"),
}
PARTS = "A = 16, N = 32"
# Training case: plain PPO with the networks of the tuning for two cores, on the environment's own settings.
TRAINED = (
    "algo=ppo", "algo.horizon=32", "algo.epochs=2", "algo.num_minibatches=8", "algo.widths=[128,128]",
    "algo.shared=true", "algo.activation=relu", "algo.encoder.kind=deepset", "algo.encoder.width=32",
)  # fmt: skip
NEAR, AROUND = 2, 10  # squares to each side that PufferDrive searches for contacts, and that it shows


def configured(overrides=()) -> build.RunConfig:
    """A run's configuration, without tuning."""
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return build.build_run_config(compose("config", ["env=drive", "tuning=none", *overrides]))


def environment(overrides=()):
    """The environment of a configuration."""
    return configured(overrides).env


class Counted(NamedTuple):
    """Operation counts of a traced program.

    Attributes:
      gathers: number of gathered elements.
      flops: floating-point operations of its matrix products, two per multiply-add.
    """

    gathers: float
    flops: float

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.gathers + other.gathers, self.flops + other.flops)

    def times(self, number: int) -> "Counted":
        """Multiplies the counts by a number of executions."""
        return Counted(self.gathers * number, self.flops * number)


def counted(jaxpr) -> Counted:
    """Counts gathers and products of a jaxpr, with loops by their length and the most expensive branches."""
    total = Counted(0.0, 0.0)
    for eqn in jaxpr.eqns:
        name, size = eqn.primitive.name, sum(math.prod(out.aval.shape) for out in eqn.outvars)
        if name == "gather":
            total += Counted(size, 0.0)
        elif name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            inner = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            total += Counted(0.0, 2.0 * size * inner)
        parts = [counted(part) for part in jaxprs_in_params(eqn.params)]
        if name == "cond" and parts:
            total += max(parts)
        times = eqn.params["mesh"].size if name == "shard_map" else eqn.params.get("length", 1)
        total = sum((part.times(times) for part in parts if name != "cond"), total)
    return total


def of_machine(rate: float, each: Counted, gathers: float, products: float) -> tuple[str, str]:
    """Formats the shares of the machine's gather and product rates that a program rate uses."""
    return f"{rate * each.gathers / gathers:.0%}", f"{rate * each.flops / products:.1%}"


def driving(env, num_envs: int, steps: int, devices: int):
    """Runs `steps` decisions with random actions and counts living learners; with its inputs."""
    params = env.default_params()
    mesh = jax.make_mesh((devices,), ("env",), devices=jax.devices()[:devices])
    shard, all_of_it = jax.sharding.PartitionSpec("env"), jax.sharding.PartitionSpec()

    def draw(_key):
        return episodes.EpisodeTask(params)

    def run(running, key, world):
        placed = env.with_world(world)
        key = jax.random.fold_in(key, jax.lax.axis_index("env"))

        def advance(running, key):
            alive = jnp.sum(running.time.alive[VEHICLE_ROLE])
            return step_randomly(placed, key, running, draw)[0], alive

        running, alive = jax.lax.scan(advance, running, jax.random.split(key, steps))
        return running, jnp.sum(alive)[None]

    everywhere = jax.shard_map(
        run, mesh=mesh, in_specs=(shard, all_of_it, all_of_it), out_specs=(shard, shard), check_vma=False
    )
    begin = jax.jit(lambda key, world: episodes.start_episodes(env.with_world(world), key, draw, num_envs))
    running = begin(jax.random.key(0), env.world)
    running = jax.device_put(running, jax.sharding.NamedSharding(mesh, shard))
    apart = jax.sharding.NamedSharding(mesh, all_of_it)
    return jax.jit(everywhere), (running, *jax.device_put((jax.random.key(1), env.world), apart))


def cpu_seconds(fn, *arguments, calls: int = 5) -> float:
    """Measures the CPU seconds of a compiled call."""
    begin = time.process_time()
    for _ in range(calls):
        jax.block_until_ready(fn(*arguments))
    return (time.process_time() - begin) / calls


def measure_speed(console, cases, sizes, overrides, rates) -> None:
    """Prints learner-steps per second by number of environments, devices, bodies and layout."""
    table = Table(title="random actions", title_justify="left")
    for column in (
        "scene",
        "envs",
        "devices",
        "compile s",
        "learner-steps/s",
        "per CPU s",
        "with empty slots",
        "of gathers",
        "bytes/env",
    ):
        table.add_column(column, justify="right")
    for label, given in cases.items():
        env = environment([*given, *overrides])
        for devices in sorted({1, jax.local_device_count()}):
            for num_envs in sizes:
                steps = max(8, 4096 // num_envs)
                run, arguments = driving(env, num_envs, steps, devices)
                begin = time.perf_counter()
                compiled = run.lower(*arguments).compile()
                compile_seconds = time.perf_counter() - begin
                seconds = seconds_per_call(compiled, *arguments, budget=3.0)
                alive = int(np.sum(compiled(*arguments)[1]))
                busy = cpu_seconds(compiled, *arguments)
                slots = num_envs * steps * env.simulation.agents
                size = bytes_per_environment(arguments[0].running, num_envs)
                one = counted(jax.make_jaxpr(run)(*arguments).jaxpr)
                share, _ = of_machine(1 / seconds, one, *rates)
                table.add_row(
                    label, f"{num_envs:,}", str(devices), f"{compile_seconds:.1f}", f"{alive / seconds:,.0f}",
                    f"{alive / busy:,.0f}", f"{slots / seconds:,.0f}", share, f"{size:,.0f}",
                )  # fmt: skip
    console.print(table)


def measure_training(console, cases, sizes, overrides, rates) -> None:
    """Prints learner-steps per second of PPO: acting, simulation and learning in one program, one device."""
    table = Table(title="PPO, 2 epochs of 32 decisions, networks of 128 and sets of 32", title_justify="left")
    columns = "scene", "envs", "compile s", "learner-steps/s", "with empty slots", "of products", "of gathers"
    for column in columns:
        table.add_column(column, justify="right")
    for label, given in cases.items():
        for num_envs in sizes:
            config = configured([*TRAINED, *given, f"num_envs={num_envs}", *overrides])
            program, world = make_program(config), None
            world = program.world
            run = jax.jit(lambda key, world, program=program: program.init(key, world=world))(
                jax.random.key(0), world
            )
            update = jax.jit(lambda run, world, program=program: program.update(run, world=world))
            begin = time.perf_counter()
            compiled = lower_for_options(update, run, world).compile(
                compiler_options=program.compiler_options
            )
            compile_seconds = time.perf_counter() - begin
            seconds = seconds_per_call(compiled, run, world, budget=3.0)
            shares = of_machine(1 / seconds, counted(jax.make_jaxpr(update)(run, world).jaxpr), *rates)
            # Under the environment's own rules, trajectories do not end before their episodes.
            learners = float(np.mean(np.sum(config.env.bank.learner, axis=1)))
            decisions = program.steps_per_update / seconds
            table.add_row(
                label, f"{num_envs:,}", f"{compile_seconds:.1f}", f"{decisions * learners:,.0f}",
                f"{decisions * config.env.simulation.agents:,.0f}", *reversed(shares),
            )  # fmt: skip
    console.print(table)


def measure_parts(console, overrides, num_envs: int = 256) -> None:
    """Prints microseconds per environment and step of the parts of a step, each run in isolation."""
    env = environment([*SIZES[PARTS], *overrides])
    run, (running, key, world) = driving(env, num_envs, 40, 1)
    states = jax.tree.map(jnp.asarray, jax.device_get(run(running, key, world)[0].running.tree.env))
    bank, simulation, params = env.bank, env.simulation, env.default_params()
    agents, bodies = simulation.agents, bank.size.shape[1]
    keys = jax.random.split(jax.random.key(3), num_envs)
    action = jnp.broadcast_to(simulation.actions.idle(agents), (num_envs, agents))

    def solid(state):
        return simulation.solid(state.present, state.ghost)

    def own(state):
        return simulation.learners(state.motion)

    def edges(bank, state):
        size, kind = bank.size[state.scene][:agents], bank.type[state.scene][:agents]
        return road_contacts.touches_road_edge(bank, state.scene, own(state), size, kind, signed=False)

    def moved_others(bank, state):
        group = BodyGroup(agents, bodies - agents)
        return scripted_bodies.move_scripted_bodies(
            scripted_bodies.IDM, bank, state.scene, state.step, group, state.motion, state.present,
            solid(state), state.traffic,
        )  # fmt: skip

    def whole(bank, state, key, action):
        return env.with_world(bank).step(key, state, {VEHICLE_ROLE: action}, params)

    parts = {
        "whole step": (whole, (keys, action)),
        "boxes": (
            lambda b, s: road_contacts.find_touching_bodies(
                road_contacts.boxes_of(s.motion, b.size[s.scene], solid(s)), jnp.arange(agents)
            ),
            (),
        ),
        "road edges": (edges, ()),
        "lanes": (lambda b, s: road_contacts.find_lanes(b, s.scene, own(s), None), ()),
        "observation": (lambda b, s: observe_learners(env.view, b, s, env.steps), ()),
        "scripted bodies": (moved_others, ()),
        "start of a scene": (lambda b, s: routes.project_onto_routes(b, s.scene, s.motion), ()),
    }
    table = Table(title=f"parts of a step, {PARTS}, {num_envs} environments", title_justify="left")
    table.add_column("part")
    table.add_column("us per environment", justify="right")
    for part, (fn, inputs) in parts.items():
        batched = jax.jit(jax.vmap(fn, (None, *[0] * (1 + len(inputs)))))
        seconds = seconds_per_call(batched, bank, states, *inputs)
        table.add_row(part, f"{1e6 * seconds / num_envs:,.1f}")
    console.print(table)


def measure_bank(console, cases, scenes: int, overrides) -> None:
    """Prints the cost of a scene: seconds to build, and bytes by part of the bank."""
    table = Table(title=f"banks of {scenes} scenes", title_justify="left")
    groups = {
        "recordings": ("recording", "recorded"),
        "routes": ("route", "gate_", "conflict", "junction"),
        "contacts": ("near_",),
        "views": ("view_", "spiral"),
    }
    for column in ("scene", "s/scene", "MB/scene", *groups, "rest"):
        table.add_column(column, justify="right")
    for label, given in cases.items():
        begin = time.perf_counter()
        bank = environment(
            ["env.cache=null", f"env.maps={scenes}", "env.eval_maps=0", *given, *overrides]
        ).bank
        seconds = time.perf_counter() - begin
        sizes = {name: leaf.nbytes / scenes for name, leaf in vars(bank).items() if leaf is not None}
        parts = [
            sum(size for name, size in sizes.items() if name.startswith(prefixes))
            for prefixes in groups.values()
        ]
        parts.append(sum(sizes.values()) - sum(parts))
        cells = (f"{part / 1e6:.3f}" for part in parts)
        table.add_row(label, f"{seconds / scenes:.2f}", f"{sum(sizes.values()) / 1e6:.2f}", *cells)
    console.print(table)


def measure_structure(console, overrides, rates) -> None:
    """Prints the operations of PufferDrive's engine per learner-step, and their least time on this machine.

    By its structure: for contacts it reads every body and the segments of 5 x 5 squares, whose edges it tests
    against the four sides of the box; it observes all bodies, and up to 200 segments of 21 x 21 squares.
    Bodies are those of the scenes; so are the segments around the learners' starts.
    """
    bank = jax.tree.map(np.asarray, environment([*SIZES[PARTS], *overrides]).bank)
    near, shown, bodies = [], [], []
    for scene in range(len(bank.kind)):
        kind = bank.segment_kind[scene]
        segment = bank.segment[scene]
        square = np.floor(((segment[:, :2] + segment[:, 2:]) / 2 - bank.origin[scene]) / CELL)
        learners = np.flatnonzero(bank.learner[scene])
        own = np.floor((bank.recording[scene, 0, learners, :2] - bank.origin[scene]) / CELL)
        apart = np.abs(square[None] - own[:, None]).max(-1)
        near += ((apart <= NEAR) & (kind == EDGE)).sum(1).tolist()
        drawn = (apart <= AROUND) & (kind >= 0) & (kind != CROSSWALK)
        shown += np.minimum(drawn.sum(1), PUFFER_ROADS).tolist()
        bodies += [int(bank.recorded[scene, 0].sum())] * len(learners)
    near, shown, bodies = (float(np.mean(values)) for values in (near, shown, bodies))
    floats = ObservationConfig(layout="puffer").size
    # A segment has four coordinates and a type, a body a pose, a speed and a size.
    work = {
        "segments near: numbers read": (5 * near, rates[0]),
        "segments near: tests against 4 sides": (4 * near, tests_per_second()),
        "bodies, twice: numbers read": (2 * 6 * bodies, rates[0]),
        "segments shown: numbers read": (5 * shown, rates[0]),
        "observation: numbers written": (floats, writes_per_second()),
    }
    table = Table(title="PufferDrive's engine by its structure, per step of a learner", title_justify="left")
    for column in ("work", "number", "us"):
        table.add_column(column, justify="left" if column == "work" else "right")
    total = 0.0
    for what, (number, rate) in work.items():
        total += number / rate
        table.add_row(what, f"{number:,.0f}", f"{1e6 * number / rate:.2f}")
    table.add_row("together", "", f"{1e6 * total:.2f}")
    console.print(table)
    console.print(f"at most {1 / total:,.0f} learner-steps/s of simulation on one device like these")


def tests_per_second(number: int = 1 << 18) -> float:
    """Measures this machine's box-segment tests per second."""
    ends = jax.random.uniform(jax.random.key(0), (number, 4), minval=-5.0, maxval=5.0)
    size = jnp.array([4.5, 2.0])

    def test(ends):
        return jnp.sum(
            segments_meet_box(segments_between(ends[:, :2], ends[:, 2:]), 0.0, 0.0, 1.0, 0.0, size)
        )

    return number / seconds_per_call(jax.jit(test), ends)


def writes_per_second(number: int = 1 << 18) -> float:
    """Measures the float32 numbers that this machine computes and writes sequentially per second."""
    return number / seconds_per_call(jax.jit(lambda x: x * 2.0 + 1.0), jnp.ones(number))


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one case, few environments, no training")
    parser.add_argument(
        "--only", choices=("speed", "training", "parts", "bank", "structure"), help="one of the tables"
    )
    parser.add_argument("--case", default="", help="cases whose name begins so, e.g. 'A = N = 64'")
    parser.add_argument("--envs", type=int, help="number of environments of speed and training")
    arguments, overrides = parser.parse_known_args()
    # A CPU is one device by default; one device per core runs environments in parallel.
    if jax.config.jax_num_cpu_devices < 1:
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {jax.local_device_count()} device(s)"
    )
    rates = gather_rate(), matmul_rate()
    console.print(f"this machine: {rates[1] / 1e9:,.0f} GFLOP/s, {rates[0] / 1e6:,.0f} M gathers/s")
    cases = {label: given for label, given in SIZES.items() if label.startswith(arguments.case)}
    quick = arguments.quick
    if quick:
        cases, overrides = {PARTS: SIZES[PARTS]}, ["env.maps=14", "env.eval_maps=0", *overrides]
    tables = {
        "parts": partial(measure_parts, console, overrides),
        "speed": partial(
            measure_speed, console, cases, _sizes(arguments, (64, 256, 1024), 256), overrides, rates
        ),
        "training": partial(
            measure_training, console, cases, _sizes(arguments, (64, 256), 64), overrides, rates
        ),
        "bank": partial(measure_bank, console, cases, 7 if quick else 28, overrides),
        "structure": partial(measure_structure, console, overrides, rates),
    }
    for name, measure in tables.items():
        if arguments.only == name or (arguments.only is None and not (quick and name == "training")):
            measure()


def _sizes(arguments: argparse.Namespace, several: tuple[int, ...], one: int) -> tuple[int, ...]:
    if arguments.envs is not None:
        return (arguments.envs,)
    return (one,) if arguments.quick else several


if __name__ == "__main__":
    main()
