"""Speed of the F110 simulator and of PPO on it, in steps per second and as shares of the machine's rates.

    python benchmarks/f110.py [--map PATH ...] [--quick] [--peer-python PATH [--only-peer]]

One simulator step is 0.01 s of physics for two cars and one scan per car, with automatic resets.
Peers, measured elsewhere on two such CPU cores: f1tenth_gym 5,000 steps/s on Spielberg at 108
beams and 800 at 1080; Stable-Baselines3 PPO on top of it 1,200 steps/s. With `--peer-python`, a Python that
has stable-baselines3, its PPO is measured as well, alternating with ours; on maps from files also
f1tenth_gym, if that Python has f110_gym.
"""

import argparse
import itertools
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from machine import gather_rate, matmul_rate, seconds_per_call
from peers import PeerError, ask
from rich.console import Console
from rich.table import Table
from spread import bytes_per_environment, spread
from updates import PEER

from algos.on_policy.ppo import PPOConfig
from algos.optim.small_batches import lower_for_options
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.f110.make import make
from jaxmarl_echelon.envs.f110.rewards import make_reward
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program.agents import make_controllers
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.rollouts import collect
from physics.lidar import Lidar, scan_walls
from physics.mapbank import distance_at

REWARD = {"terminal": None, "pressure": None, "pinch": None, "step": None}
GYM = {108: 5000.0, 1080: 800.0}
SB3 = 1200.0
AS_SB3 = (64, 32)
COMPARED = ("ours", "ratio, median", "least", "most")


def environment(where: str, beams: int, repeat: int = 1):
    """The default task, one physics step per decision, defender unlocked so that it drives off."""
    return make(make_reward(REWARD), map=where, lidar_beams=beams, action_repeat=repeat, lock_steps=0)


def simulator(env, num_envs: int, steps: int, devices: int):
    """Builds a function that runs `steps` decisions in E environments, and its arguments; see `spread`."""
    params = env.default_params()
    action = jnp.broadcast_to(jnp.array([0.0, 0.44]), (num_envs // devices, 1, 2))
    actions = {"attacker": action, "defender": action}

    def draw(_key):
        return episodes.EpisodeTask(params)

    def advance(running, key):
        return episodes.step_episodes(env, key, running, actions, draw)[0], None

    def run(running, key):
        return jax.lax.scan(advance, running, jax.random.split(key, steps))[0]

    return spread(run, lambda key: episodes.start_episodes(env, key, draw, num_envs), devices)


def gathers_per_beam(env) -> float:
    """Mean distance-field lookups per beam, by plain sphere tracing from starting poses."""
    bank, lidar = env.simulation.bank, env.simulation.lidar
    keys = jax.random.split(jax.random.key(2), 64)
    poses = jax.vmap(lambda k: env.reset(k, env.default_params())[0].cars.state)(keys)
    start, yaw = poses[..., :2].reshape(-1, 1, 2), poses[..., 4].reshape(-1, 1)
    angle = yaw + lidar.angles
    ray = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)

    def step(carry):
        travelled, reads, ahead = carry
        ahead = distance_at(bank, 0, start + travelled[..., None] * ray)
        ahead = jnp.where(travelled <= lidar.max_range, ahead, 0.0)
        return travelled + ahead, reads + (carry[2] > 0), ahead

    zero = jnp.zeros(angle.shape)
    _, reads, _ = jax.lax.while_loop(lambda c: jnp.any(c[2] > 0), step, (zero, zero, zero + 1.0))
    return float(jnp.mean(reads))


def measure_simulator(console, where: str, name: str, beams_list, sizes, gathers: float) -> None:
    """Prints one table: steps per second by beams, environments and devices."""
    table = Table(title=f"simulator, {name}", title_justify="left")
    for column in (
        "beams",
        "envs",
        "devices",
        "compile s",
        "env steps/s",
        "agent steps/s",
        "x f1tenth_gym",
        "of gather limit",
        "bytes/env",
    ):
        table.add_column(column, justify="right")
    for beams in beams_list:
        env = environment(where, beams)
        reads = gathers_per_beam(env)
        for num_envs, devices in itertools.product(sizes, sorted({1, jax.local_device_count()})):
            steps = max(8, 32768 // num_envs)
            run, arguments = simulator(env, num_envs, steps, devices)
            begin = time.perf_counter()
            compiled = run.lower(*arguments).compile()
            compile_seconds = time.perf_counter() - begin
            rate = num_envs * steps / seconds_per_call(compiled, *arguments)
            limit = gathers / (2 * beams * reads)
            peer = f"{rate / GYM[beams]:.1f}" if beams in GYM else ""
            size = bytes_per_environment(arguments[0], num_envs)
            table.add_row(
                str(beams), f"{num_envs:,}", str(devices), f"{compile_seconds:.1f}", f"{rate:,.0f}",
                f"{2 * rate:,.0f}", peer, f"{rate / limit:.0%}", f"{size:,.0f}",
            )  # fmt: skip
    console.print(table)


def measure_scan(console, where: str, name: str, gathers: float, cars: int = 2048) -> None:
    """Prints beams per second of the scan alone."""
    table = Table(title=f"scan alone, {cars:,} cars, {name}", title_justify="left")
    for column in ("beams", "beams/s", "reads per beam", "of gather limit"):
        table.add_column(column, justify="right")
    for beams in (108, 1080):
        env = environment(where, beams)
        bank = env.simulation.bank
        keys = jax.random.split(jax.random.key(2), cars // 2)
        state = jax.vmap(lambda k, env=env: env.reset(k, env.default_params())[0].cars.state)(keys)
        poses = jnp.stack([state[..., 0], state[..., 1], state[..., 4]], axis=-1).reshape(-1, 3)
        trace = jax.jit(
            lambda p, bank=bank, beams=beams: scan_walls(bank, jnp.int32(0), p, Lidar(beams=beams))
        )
        rate = cars * beams / seconds_per_call(trace, poses)
        reads = gathers_per_beam(env)
        table.add_row(str(beams), f"{rate:,.0f}", f"{reads:.1f}", f"{rate * reads / gathers:.0%}")
    console.print(table)


def flops_per_step(widths, features: int, actions: int, epochs: int) -> float:
    """FLOPs (2 x multiply-adds) of acting once and learning `epochs` times per step, with two networks."""
    shapes = np.array([features, *widths])
    hidden = float(np.sum(shapes[:-1] * shapes[1:]))
    inner = hidden - float(shapes[0] * shapes[1])
    heads = float(shapes[-1] * (actions + 1))
    forward = 2.0 * (2.0 * hidden + heads)
    backward = forward + 2.0 * (2.0 * inner + heads)
    return forward + epochs * (forward + backward)


def measure_training(console, where: str, name: str, settings, matmul: float) -> None:
    """Prints training steps per second of PPO: acting, simulation and learning in one program."""
    table = Table(title=f"PPO training, 256x256 networks, {name}", title_justify="left")
    for column in ("setting", "envs x steps", "minibatch", "compile s", "env steps/s", "rollout", "learning"):
        table.add_column(column, justify="right")
    table.add_column("x SB3", justify="right")
    table.add_column("of matmul limit", justify="right")
    for label, num_envs, horizon, minibatch, epochs, repeat in settings:
        env = environment(where, 108, repeat)
        batch = num_envs * horizon
        config, program = make_training(env, num_envs, horizon, minibatch, epochs)
        run = jax.jit(program.init)(jax.random.key(0))
        begin = time.perf_counter()
        update = lower_for_options(jax.jit(program.update), run).compile(
            compiler_options=program.compiler_options
        )
        compile_seconds = time.perf_counter() - begin
        seconds = seconds_per_call(update, run, budget=4.0)
        acting = seconds_per_call(rollout(config, program), run, budget=2.0)
        flops = flops_per_step((256, 256), 119, 2, epochs)
        peer = f"{batch / seconds / SB3:.1f}" if label == "as SB3" else ""
        table.add_row(
            label, f"{num_envs} x {horizon}", f"{minibatch} x {epochs}", f"{compile_seconds:.1f}",
            f"{batch / seconds:,.0f}", f"{acting / seconds:.0%}", f"{1 - acting / seconds:.0%}", peer,
            f"{batch / seconds * flops / matmul:.0%}",
        )  # fmt: skip
    console.print(table)


def make_training(env, num_envs: int, horizon: int, minibatch: int, epochs: int):
    """The configuration and the program of PPO with 256x256 networks."""
    batch = num_envs * horizon
    algo = PPOConfig(horizon=horizon, epochs=epochs, num_minibatches=batch // minibatch)
    config = RunConfig(
        env=env, algo=algo, curriculum=constant_curriculum, total_env_steps=batch, num_envs=num_envs
    )
    return config, make_program(config)


def race_of(where: str) -> dict:
    """Describes the task for f1tenth_gym: map, beams and 64 pairs of starting poses."""
    env = environment(where, 108)
    keys = jax.random.split(jax.random.key(2), 64)
    state = jax.vmap(lambda k: env.reset(k, env.default_params())[0].cars.state)(keys)
    poses = np.asarray(jnp.stack([state[..., 0], state[..., 1], state[..., 4]], axis=-1), np.float64)
    return {"map": os.path.abspath(where), "beams": 108, "poses": poses.tolist()}


def ask_or_stop(python: str, command: str, job: dict) -> float:
    """Measures a peer's rate; exits the benchmark if that fails."""
    try:
        return ask(python, command, job)["rate"]
    except PeerError as error:
        raise SystemExit(str(error)) from error


def compared(theirs: list[float], ours: list[float]) -> list[str]:
    """The peer's median, then the cells of `COMPARED`: our median and the ratios of interleaved runs."""
    ratios = np.array(ours) / np.array(theirs)
    medians = [f"{np.median(rates):,.0f}" for rates in (theirs, ours)]
    return medians + [f"{x:.1f}" for x in (np.median(ratios), ratios.min(), ratios.max())]


def find_gym(console, where: str, python: str) -> dict | None:
    """A race for f1tenth_gym; None without a map file or, with a printed reason, if it cannot be run."""
    if not where.endswith(".yaml"):
        return None
    race = race_of(where)
    try:
        ask(python, "simulator", {"race": race, "seconds": 0.1})
    except PeerError as error:
        console.print(f"f1tenth_gym counts with its quoted rates: {error}")
        return None
    return race


def measure_gym(console, where: str, name: str, python: str, race: dict, rounds: int = 5) -> None:
    """Prints steps per second of f1tenth_gym and ours, two cars, in interleaved runs."""
    table = Table(title=f"simulator beside f1tenth_gym, {name}, {rounds} turns", title_justify="left")
    for column in ("beams", "envs", "devices", "f1tenth_gym", *COMPARED):
        table.add_column(column, justify="right")
    devices = jax.local_device_count()
    for beams, num_envs in ((108, 1024), (1080, 256)):
        env = environment(where, beams)
        steps = 32768 // num_envs
        run, arguments = simulator(env, num_envs, steps, devices)
        compiled = run.lower(*arguments).compile()
        job = {"race": race | {"beams": beams}, "seconds": 5.0}
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(num_envs * steps / seconds_per_call(compiled, *arguments, budget=3.0))
            theirs.append(ask_or_stop(python, "simulator", job))
        table.add_row(str(beams), f"{num_envs:,}", str(devices), *compared(theirs, ours))
    console.print(table)


def measure_peer(console, where: str, name: str, python: str, race: dict | None, rounds: int = 5) -> None:
    """Prints steps per second of Stable-Baselines3's PPO and ours, at equal settings, in interleaved runs.

    Its environment is f1tenth_gym if there is a race for it. Otherwise, and with several environments, its
    environments are free, and the cost of f1tenth_gym is added, as measured in that round or as quoted.
    PyTorch is run with one thread and with all; which is faster depends on the machine.
    """
    num_envs, horizon = AS_SB3
    _, program = make_training(environment(where, 108), num_envs, horizon, 64, 10)
    run = jax.jit(program.init)(jax.random.key(0))
    update = lower_for_options(jax.jit(program.update), run).compile(
        compiler_options=program.compiler_options
    )
    gym = {"race": race}
    cases = tuple(itertools.product((1, num_envs), sorted({1, os.cpu_count()})))
    ours, alone, simulating = ({case: [] for case in cases} for _ in range(3))
    for _ in range(rounds):
        cost = 1.0 / (ask_or_stop(python, "simulator", gym | {"seconds": 3.0}) if race else GYM[108])
        for size, threads in cases:
            ours[size, threads].append(num_envs * horizon / seconds_per_call(update, run, budget=3.0))
            settings = PEER["ppo"] | {"n_steps": num_envs * horizon // size}
            job = {"num_envs": size, "observation": 119, "action": 2, "settings": settings}
            job |= {"threads": threads, "seconds": 6.0}
            rate = ask_or_stop(python, "steps", job)
            driving = ask_or_stop(python, "steps", job | gym) if race and size == 1 else 1 / (1 / rate + cost)
            alone[size, threads].append(rate)
            simulating[size, threads].append(driving)
    title = f"PPO beside Stable-Baselines3's at its settings, {name}, {rounds} turns"
    table = Table(title=title, title_justify="left")
    simulated = "with f1tenth_gym" if race else "with its simulator"
    for column in ("its envs", "its threads", "it alone", simulated, *COMPARED):
        table.add_column(column, justify="right")
    for case in cases:
        cells = compared(simulating[case], ours[case])
        table.add_row(*map(str, case), f"{np.median(alone[case]):,.0f}", *cells)
    console.print(table)


def measure_peers(console, where: str, name: str, python: str) -> None:
    """Prints both comparisons, or the one available in the peer's Python."""
    race = find_gym(console, where, python)
    if race:
        measure_gym(console, where, name, python, race)
    measure_peer(console, where, name, python, race)


def rollout(config: RunConfig, program):
    """A compiled rollout without learning: acting, simulation and recording of one update."""
    acting = make_controllers(config, program.env, program.agents, {}, greedy=False)
    collector = collect.RolloutSpec(config.env, program.agents, acting, config.horizon)
    drawn = episodes.EpisodeTask(config.env.default_params())
    return jax.jit(lambda run: collect.collect_rollout(collector, run, run.key, lambda _key: drawn))


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--map", action="append", default=[], help="map files to add to line2, e.g. Spielberg.yaml"
    )
    parser.add_argument("--peer-python", help="a Python that has stable-baselines3, and f110_gym for a --map")
    parser.add_argument("--only-peer", action="store_true", help="nothing but the comparison with it")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    arguments = parser.parse_args()
    if arguments.only_peer and not arguments.peer_python:
        parser.error("--only-peer needs --peer-python")
    # A CPU is one device by default; one device per core runs environments in parallel.
    if jax.config.jax_num_cpu_devices < 1:
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    console = Console()
    matmul, gathers = matmul_rate(), gather_rate()
    console.print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {jax.local_device_count()} device(s)"
    )
    console.print(f"this machine: {matmul / 1e9:,.0f} GFLOP/s matmul, {gathers / 1e6:,.0f} M gathers/s")
    for where in ["line2", *arguments.map]:
        name = where.rpartition("/")[2].removesuffix(".yaml")
        if arguments.only_peer:
            measure_peers(console, where, name, arguments.peer_python)
            continue
        measure_scan(console, where, name, gathers)
        beams, sizes = (
            ((108, 1080), (1024, 4096)) if arguments.quick else ((54, 108, 1080), (16, 256, 1024, 4096))
        )
        measure_simulator(console, where, name, beams, sizes, gathers)
        settings = [
            ("as SB3", 1, 2048, 64, 10, 1),
            ("as SB3", *AS_SB3, 64, 10, 1),
            ("default", 512, 256, 8192, 4, 2),
        ]
        measure_training(console, where, name, settings[1:] if arguments.quick else settings, matmul)
        if arguments.peer_python:
            measure_peers(console, where, name, arguments.peer_python)


if __name__ == "__main__":
    main()
