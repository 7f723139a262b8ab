"""Speed of driving: simulation with random actions, parts of a step, banks of scenes.

    python benchmarks/drive.py [--quick] [KEY=VALUE ...]

A learner-step is one decision of 0.1 s of one learner that is alive, with observations, rewards and
automatic resets; slots that a scene does not fill are counted apart. Claims of others, end to end on one
RTX 4080: GPUDrive 50,000 and PufferDrive 320,000 learner-steps/s.
"""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from hydra import compose, initialize_config_dir
from machine import gather_rate, matmul_rate, seconds_per_call
from rich.console import Console
from rich.table import Table
from spread import bytes_per_environment

from jaxmarl_echelon.config_path import config_directory
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.checks import random_actions
from jaxmarl_echelon.envs.drive import others, roads, routes
from jaxmarl_echelon.envs.drive.observing.observe import observe
from jaxmarl_echelon.envs.drive.routes import Group
from jaxmarl_echelon.envs.drive.types import VEHICLE_ROLE
from jaxmarl_echelon.training import config as config_lib

SIZES = {
    "A = 16, N = 32": (),
    "A = 16, N = 32, puffer": ("env.layout=puffer",),
    "A = N = 64": ("env.agents=64", "env.bodies=64"),
}
PARTS = "A = 16, N = 32"


def environment(overrides=()):
    """The environment of a configuration."""
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return config_lib.read(compose("config", ["env=drive", *overrides])).env


def driving(env, num_envs: int, steps: int, devices: int):
    """Runs `steps` decisions with random actions and counts living learners; with its inputs."""
    params = env.default_params()
    share = num_envs // devices
    mesh = jax.make_mesh((devices,), ("env",), devices=jax.devices()[:devices])
    shard, all_of_it = jax.sharding.PartitionSpec("env"), jax.sharding.PartitionSpec()

    def draw(key):
        return episodes.Drawn(params)

    def run(running, key, world):
        placed = env.with_world(world)
        key = jax.random.fold_in(key, jax.lax.axis_index("env"))

        def advance(running, key):
            key_act, key_step = jax.random.split(key)
            time = running.running.tree.time
            keys = jax.random.split(key_act, share)
            actions = jax.vmap(lambda key, time: random_actions(env.spec, key, time))(keys, time)
            alive = jnp.sum(time.alive[VEHICLE_ROLE])
            return episodes.step(placed, key_step, running, actions, draw)[0], alive

        running, alive = jax.lax.scan(advance, running, jax.random.split(key, steps))
        return running, jnp.sum(alive)[None]

    everywhere = jax.shard_map(
        run, mesh=mesh, in_specs=(shard, all_of_it, all_of_it), out_specs=(shard, shard), check_vma=False
    )
    begin = jax.jit(lambda key, world: episodes.start(env.with_world(world), key, draw, num_envs))
    running = begin(jax.random.key(0), env.world)
    running = jax.device_put(running, jax.sharding.NamedSharding(mesh, shard))
    apart = jax.sharding.NamedSharding(mesh, all_of_it)
    return jax.jit(everywhere), (running, *jax.device_put((jax.random.key(1), env.world), apart))


def measure_speed(console, sizes, overrides) -> None:
    """Prints learner-steps per second by number of environments, devices, bodies and layout."""
    table = Table(title="random actions", title_justify="left")
    for column in (
        "scene",
        "envs",
        "devices",
        "compile s",
        "learner-steps/s",
        "with empty slots",
        "bytes/env",
    ):
        table.add_column(column, justify="right")
    for label, given in SIZES.items():
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
                slots = num_envs * steps * env.simulation.agents
                size = bytes_per_environment(arguments[0].running, num_envs)
                table.add_row(
                    label, f"{num_envs:,}", str(devices), f"{compile_seconds:.1f}", f"{alive / seconds:,.0f}",
                    f"{slots / seconds:,.0f}", f"{size:,.0f}",
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
        return roads.offroad(bank, state.scene, own(state), size, kind, signed=False)

    def moved_others(bank, state):
        group = Group(agents, bodies - agents)
        return others.advance(
            others.IDM, bank, state.scene, state.step, group, state.motion, state.present, solid(state),
            state.traffic,
        )  # fmt: skip

    def whole(bank, state, key, action):
        return env.with_world(bank).step(key, state, {VEHICLE_ROLE: action}, params)

    parts = {
        "whole step": (whole, (keys, action)),
        "boxes": (lambda b, s: roads.touching(s.motion, b.size[s.scene], solid(s), agents), ()),
        "road edges": (edges, ()),
        "lanes": (lambda b, s: roads.lane_of(b, s.scene, own(s), None), ()),
        "observation": (lambda b, s: observe(env.view, b, s, env.steps), ()),
        "scripted bodies": (moved_others, ()),
        "start of a scene": (lambda b, s: routes.nearest_arc(b, s.scene, s.motion), ()),
    }
    table = Table(title=f"parts of a step, {PARTS}, {num_envs} environments", title_justify="left")
    table.add_column("part")
    table.add_column("us per environment", justify="right")
    for part, (fn, inputs) in parts.items():
        batched = jax.jit(jax.vmap(fn, (None, *[0] * (1 + len(inputs)))))
        seconds = seconds_per_call(batched, bank, states, *inputs)
        table.add_row(part, f"{1e6 * seconds / num_envs:,.1f}")
    console.print(table)


def measure_bank(console, overrides) -> None:
    """Prints what a scene costs: seconds to build, and bytes."""
    begin = time.perf_counter()
    env = environment(["env.cache=null", "env.maps=16", "env.eval_maps=0", *overrides])
    seconds = time.perf_counter() - begin
    scenes = env.bank.kind.shape[0]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(env.bank))
    console.print(
        f"bank: {seconds / scenes:.2f} s and {size / scenes / 1e6:.2f} MB per scene, {scenes} scenes"
    )


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--only", choices=("speed", "parts", "bank"), help="one of the tables")
    arguments, overrides = parser.parse_known_args()
    # A CPU is one device by default; one device per core runs environments in parallel.
    if jax.config.jax_num_cpu_devices < 1:
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    console = Console()
    console.print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {jax.local_device_count()} device(s)"
    )
    console.print(f"this machine: {matmul_rate() / 1e9:,.0f} GFLOP/s, {gather_rate() / 1e6:,.0f} M gathers/s")
    if arguments.only in (None, "parts"):
        measure_parts(console, overrides)
    if arguments.only in (None, "speed"):
        measure_speed(console, (256,) if arguments.quick else (64, 256, 1024), overrides)
    if arguments.only in (None, "bank"):
        measure_bank(console, overrides)


if __name__ == "__main__":
    main()
