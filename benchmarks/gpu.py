"""Simulators and PPO on one accelerator, and the rates of that card.

    python benchmarks/gpu.py [CASE[:SIZE,...] ...] [--envs 1024,4096,16384,65536] [--output FOLDER]
                             [--profile CASE:SIZE,...] [--peer-path FOLDER] [--processes 12]
                             [--seconds 3600] [--compile-seconds 2400] [--programs FOLDER]
    python benchmarks/gpu.py CASE[:SIZE,...] ... --ahead --programs FOLDER          # on any machine

Every size of every case is a process of its own. First all of them compile, `--processes` at a time; then
they measure, one after the other on an idle machine. Simulators take random actions and reset finished
episodes; a case `ppo_NAME` measures whole updates, and the rollouts in them. A decision is that of one agent
that is alive. `--profile` adds the number of kernels, their seconds, and the longest ones. `--peer-path` is
a folder with rejax, which then trains on CartPole at the sizes of `ppo_cartpole`. Results are also written to
`gpu.jsonl` in the folder, one line each.

`--ahead` compiles for an H100 on a machine without one, with jax's plugin for CUDA installed, and without
tuning of products; `--programs` takes what it wrote instead of compiling. Both need the same version of jax.
"""

import argparse
import collections
import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

DECISIONS = 32  # of a simulator in one call
PPO = (
    "algo=ppo", "tuning=none", "algo.horizon=32", "algo.epochs=2", "algo.num_minibatches=8",
    "algo.widths=[128,128]", "algo.shared=true", "algo.activation=relu",
)  # fmt: skip
SIMULATORS = {
    "cartpole": ("env=gymnax/CartPole-v1",),
    "kuhn": ("env=textgames/kuhn",),
    "f110": ("env=f110",),
    "f110_race": ("env=f110_race",),
    "echelon": ("env=echelon", "env.telemetry=false"),
    "echelon_10v10": ("env=echelon_10v10", "env.telemetry=false"),
    "missions_small": ("env=echelon_missions_small", "env.telemetry=false"),
    "missions": ("env=echelon_missions", "env.telemetry=false"),
    "drive": ("env=drive",),
    "drive_64": ("env=drive", "env.agents=64", "env.bodies=64"),
}
TRAININGS = {
    "ppo_cartpole": (
        "env=gymnax/CartPole-v1", "algo=ppo", "tuning=none", "algo.horizon=128", "algo.epochs=4",
        "algo.num_minibatches=4", "algo.widths=[64,64]", "algo.normalize_observation=false",
    ),
    "ppo_f110": ("env=f110", *PPO),
    "ppo_echelon": ("env=echelon", "env.telemetry=false", *PPO),
    "ppo_missions": ("env=echelon_missions_small", "env.telemetry=false", *PPO),
    "ppo_drive": ("env=drive", *PPO, "algo.encoder.kind=deepset", "algo.encoder.width=32"),
    "ppo_rnn_drive": ("env=drive", "algo=ppo_rnn_drive"),
}  # fmt: skip
PEER = "rejax"
# What XLA's compiler has to know about the card, as a device of its own reports it.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84929347584
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Compiler:
    """Compiles functions of arrays and keys, or loads what was compiled ahead; records the seconds.

    Args:
      case: name and size, of which the files' names are made.
      folder: of programs; None compiles.
      ahead: compile for an H100 that is not there and save, instead of loading.
    """

    def __init__(self, case: str, folder: Path | None, ahead: bool):
        self.case, self.folder, self.ahead = case, folder, ahead
        self.seconds: dict[str, float] = {}
        self.temporary_mb: dict[str, float] = {}

    def __call__(self, label: str, fn, *shapes, options=None):
        """Returns the program `(*arrays) -> arrays`; typed keys are arrays of their numbers."""
        import jax
        from jax.experimental import serialize_executable

        from algos.optim import small_batches

        path = self.folder / f"{self.case}_{label}.pkl" if self.folder else None
        begin = time.perf_counter()
        if path and path.exists() and not self.ahead:
            program = serialize_executable.deserialize_and_load(*pickle.loads(path.read_bytes()))
        else:
            known = tuple(shape.find() if isinstance(shape, LazyShape) else shape for shape in shapes)
            flat, arrays = as_function_of_arrays(fn, known)
            if self.ahead:
                placed = jax.sharding.SingleDeviceSharding(absent_device())
                arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed) for x in arrays]
                with small_batches.traced_for_options():
                    traced = jax.jit(flat, out_shardings=placed, keep_unused=True).trace(*arrays)
                program = traced.lower(lowering_platforms=("cuda",)).compile()
                path.write_bytes(pickle.dumps(serialize_executable.serialize(program)))
            else:
                lowered = small_batches.lower_for_options(jax.jit(flat, keep_unused=True), *arrays)
                program = lowered.compile(compiler_options=options)
        self.seconds[label] = time.perf_counter() - begin
        self.temporary_mb[label] = program.memory_analysis().temp_size_in_bytes / 1e6
        return program


class LazyShape(NamedTuple):
    """A shape that takes a trace to know, which a program that is loaded does not need."""

    find: Callable


def arrays_of(tree) -> list:
    """The leaves of a tree, with the numbers of typed keys in their place."""
    import jax

    def plain(x):
        return jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return [plain(x) for x in jax.tree.leaves(tree)]


def as_function_of_arrays(fn, shapes):
    """`fn` as `(*arrays) -> arrays` of its leaves, and the arrays' shapes."""
    import jax

    leaves, structure = jax.tree.flatten(shapes)
    typed = [jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]

    def flat(*arrays):
        given = [jax.random.wrap_key_data(x) if key else x for x, key in zip(arrays, typed, strict=True)]
        return arrays_of(fn(*jax.tree.unflatten(structure, given)))

    return flat, jax.eval_shape(lambda: arrays_of(jax.tree.map(_empty, shapes)))


def _empty(shape):
    import jax

    if not jax.numpy.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jax.numpy.zeros(shape.shape, shape.dtype)
    return jax.random.split(jax.random.key(0), shape.shape) if shape.shape else jax.random.key(0)


def absent_device():
    """An H100 to compile for."""
    from jax.experimental import topologies

    (device,) = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1").devices
    return device


def simulator(config, num_envs: int):
    """`(episodes [E], key, world) -> (episodes [E], number of decisions)`, and `(key, world) -> episodes`."""
    import jax
    import jax.numpy as jnp

    from jaxmarl_echelon.envs import episodes
    from jaxmarl_echelon.envs.random_play import step_randomly

    env, params = config.env, config.env.default_params()

    def draw(_key):
        return episodes.EpisodeTask(params)

    def run(running, key, world):
        placed = env.with_world(world)

        def advance(running, key):
            alive = sum(jnp.sum(alive, dtype=jnp.int32) for alive in running.time.alive.values())
            return step_randomly(placed, key, running, draw)[0], alive

        running, alive = jax.lax.scan(advance, running, jax.random.split(key, DECISIONS))
        return running, jnp.sum(alive)

    def start(key, world):
        return episodes.start_episodes(env.with_world(world), key, draw, num_envs)

    return run, start


def measure_simulator(config, num_envs: int, compiler: Compiler, turn) -> dict:
    """Measures a simulator under random actions."""
    import jax
    from machine import seconds_per_call

    run, start = simulator(config, num_envs)
    key, world = jax.eval_shape(lambda: (jax.random.key(0), config.env.world))
    begin = compiler("start", start, key, world)
    program = compiler("run", run, LazyShape(lambda: jax.eval_shape(start, key, world)), key, world)
    with turn():
        places = arrays_of(jax.device_put(config.env.world))
        running = begin(*arrays_of(jax.random.key(0)), *places)
        # Episodes end at different times after some rounds; decisions are those of the last.
        for seed in range(3):
            *running, alive = jax.block_until_ready(
                program(*running, *arrays_of(jax.random.key(seed)), *places)
            )
        inputs = (*running, *arrays_of(jax.random.key(3)), *places)
        seconds = seconds_per_call(program, *inputs, budget=0.5)
        found = profile(lambda: program(*inputs))
    return {
        "seconds": seconds,
        "env_steps": num_envs * DECISIONS / seconds,
        "decisions": int(alive) / seconds,
        "temporary_mb": compiler.temporary_mb["run"],
        "compiling": compiler.seconds["run"],
        **found,
    }


def measure_training(config, compiler: Compiler, turn) -> dict:
    """Measures updates, and the rollouts of which they consist beside learning."""
    import jax
    from machine import seconds_per_call

    from jaxmarl_echelon.envs import episodes
    from jaxmarl_echelon.training.program.agents import make_controllers
    from jaxmarl_echelon.training.program.program import make_program
    from jaxmarl_echelon.training.rollouts.collect import collect_rollout
    from jaxmarl_echelon.training.rollouts.spec import RolloutSpec

    program = make_program(config)
    key, world = jax.eval_shape(lambda: (jax.random.key(0), program.world))

    def init(key, world):
        return program.init(key, world=world)

    def update(run, world):
        return program.update(run, world=world)

    def collect(run, world):
        env, agents, frozen = program.place(world)
        acting = make_controllers(config, env, agents, frozen, greedy=False)
        collector = RolloutSpec(env, agents, acting, config.horizon, config.segments)
        drawn = episodes.EpisodeTask(env.default_params())
        run, found = collect_rollout(collector, run, run.key, lambda _key: drawn)
        return run, found, found.rollouts[program.role].alive.sum()

    shape = LazyShape(lambda: jax.eval_shape(init, key, world))
    begin = compiler("init", init, key, world)
    updated = compiler("update", update, shape, world, options=program.compiler_options)
    collected = compiler("collect", collect, shape, world)
    with turn():
        places = arrays_of(jax.device_put(program.world))
        run = begin(*arrays_of(jax.random.key(0)), *places)
        for _ in range(2):
            # The state comes before the report.
            run = jax.block_until_ready(updated(*run, *places))[: len(run)]
        seconds = seconds_per_call(updated, *run, *places)
        rollout = seconds_per_call(collected, *run, *places, budget=0.5)
        decisions = int(collected(*run, *places)[-1])
        found = profile(lambda: updated(*run, *places))
    return {
        "seconds": seconds,
        "env_steps": program.steps_per_update / seconds,
        "decisions": decisions / seconds,
        "rollout_share": rollout / seconds,
        "temporary_mb": compiler.temporary_mb["update"],
        "compiling": compiler.seconds["update"],
        **found,
    }


def measure_peer(num_envs: int, turn) -> dict:
    """Measures rejax's PPO on CartPole at the settings of `ppo_cartpole`, five updates a run."""
    import jax
    import rejax
    from machine import seconds_per_call

    steps = 5 * num_envs * 128
    algorithm = rejax.PPO.create(
        env="CartPole-v1", num_envs=num_envs, num_steps=128, num_epochs=4, num_minibatches=4,
        total_timesteps=steps, learning_rate=2.5e-4, max_grad_norm=0.5, eval_freq=steps,
        skip_initial_evaluation=True, agent_kwargs={"activation": "tanh", "hidden_layer_sizes": [64, 64]},
    )  # fmt: skip
    algorithm = algorithm.replace(eval_callback=lambda *_: ())
    begin = time.perf_counter()
    compiled = jax.jit(algorithm.train).lower(jax.random.key(0)).compile()
    compiling = time.perf_counter() - begin
    with turn():
        seconds = seconds_per_call(compiled, jax.random.key(0))
    rate = steps / seconds
    return {"compiling": compiling, "seconds": seconds / 5, "env_steps": rate, "decisions": rate}


def profile(call) -> dict:
    """Kernels and copies of a call on the device: their number, busy seconds, and the longest by name."""
    import jax

    if not os.environ.get("GPU_PROFILE"):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    busy, number, longest = 0.0, 0, collections.Counter()
    for plane in data.planes:
        if "GPU" not in plane.name:
            continue
        for line in plane.lines:
            if "Stream" not in line.name:
                continue
            for event in line.events:
                number, busy = number + 1, busy + event.duration_ns / 1e9
                longest[event.name] += event.duration_ns / 1e6
    return {"kernels": number, "busy": busy, "longest_ms": dict(longest.most_common(12))}


def measure_card() -> dict:
    """Measures this device's rates: products, dependent gathers, and copies."""
    import jax
    import jax.numpy as jnp
    from machine import gather_rate, matmul_rate, seconds_per_call

    size = 1 << 28
    array = jnp.ones(size)
    copy = seconds_per_call(jax.jit(lambda x: x + 1.0), array)
    half = jnp.ones((8192, 8192), jnp.bfloat16)
    half_seconds = seconds_per_call(jax.jit(jnp.matmul), half, half)
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "products_tflops": matmul_rate(8192, 8192, 8192) / 1e12,
        "bfloat16_tflops": 2 * 8192**3 / half_seconds / 1e12,
        "gathers_g": gather_rate(1 << 24, 1 << 24) / 1e9,
        "bandwidth_gb": 8 * size / copy / 1e9,
    }


def measure(name: str, num_envs: int, folder: Path, given) -> dict:
    """Compiles one size of one case in this process, waits for its turn, and measures it."""

    @contextlib.contextmanager
    def turn():
        ready, go = (folder / f"{name}_{num_envs}.{word}" for word in ("ready", "go"))
        ready.touch()
        while not go.exists():
            time.sleep(0.05)
        yield

    if name == "card":
        with turn():
            return measure_card()
    if name == PEER:
        return measure_peer(num_envs, turn)
    config = configure(name, num_envs)
    compiler = Compiler(f"{name}_{num_envs}", given.programs, ahead=False)
    if name in TRAININGS:
        return measure_training(config, compiler, turn)
    return measure_simulator(config, num_envs, compiler, turn)


def configure(name: str, num_envs: int):
    """The configuration of a case."""
    from jaxmarl_echelon import command_line
    from jaxmarl_echelon.training.config import build

    overrides = (SIMULATORS | TRAININGS)[name]
    given, _ = command_line.compose_config([*overrides, f"num_envs={num_envs}"])
    return build.build_run_config(given)


def compile_ahead(name: str, num_envs: int, folder: Path) -> None:
    """Compiles one size of one case for an H100 that is not there, and saves its programs."""
    import jax

    class Compiled(Exception):
        """Everything is compiled; there is nothing to measure it on."""

    def turn():
        raise Compiled

    # What is traced asks which device it is for.
    jax.default_backend = lambda: "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    config, compiler = configure(name, num_envs), Compiler(f"{name}_{num_envs}", folder, ahead=True)
    with contextlib.suppress(Compiled):
        if name in TRAININGS:
            measure_training(config, compiler, turn)
        else:
            measure_simulator(config, num_envs, compiler, turn)
    print(name, num_envs, {label: round(value, 1) for label, value in compiler.seconds.items()}, flush=True)


class Job(NamedTuple):
    """A process that measures one size of one case, and the file that it writes to."""

    name: str
    num_envs: int
    process: subprocess.Popen
    output: Path

    def is_ready(self) -> bool:
        """Tells whether it has compiled, or ended."""
        return self.process.poll() is not None or self.output.with_suffix(".ready").exists()

    def result(self) -> dict:
        """Returns its results, or the end of its error."""
        case = {"case": self.name, "num_envs": self.num_envs}
        if self.process.poll() is None:
            self.process.kill()
            return case | {"error": "out of time"}
        lines = self.output.read_text().strip().splitlines() or ["nothing printed"]
        return case | (json.loads(lines[-1]) if self.process.returncode == 0 else {"error": lines[-1][:300]})


def compile_all(jobs: list[tuple[str, int]], folder: Path, given) -> list[Job]:
    """Starts the jobs, `given.processes` at a time, and returns them when all wait to be measured."""
    begin, started, waiting = time.monotonic(), [], list(jobs)
    options = ["--programs", str(given.programs)] if given.programs else []
    environ = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}

    def start(name, num_envs):
        case = f"{name}:{num_envs}"
        own = environ | ({"GPU_PROFILE": "1"} if case in given.profile.split(",") else {})
        if name == PEER:
            own["PYTHONPATH"] = os.pathsep.join([given.peer_path, environ.get("PYTHONPATH", "")])
        output = folder / f"{name}_{num_envs}.txt"
        with output.open("w") as out:
            command = [sys.executable, __file__, case, "--measure", str(folder), *options]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=own)
        started.append(Job(name, num_envs, process, output))

    while time.monotonic() - begin < given.compile_seconds:
        compiling = sum(not job.is_ready() for job in started)
        if not compiling and not waiting:
            break
        for _ in range(min(len(waiting), given.processes - compiling)):
            start(*waiting.pop(0))
        time.sleep(0.1)
    for job in started:
        if not job.is_ready():
            job.process.kill()
    return started


def run_all(jobs: list[tuple[str, int]], given) -> list[dict]:
    """Compiles the jobs, and then measures one after the other until `given.seconds` have passed."""
    begin, found = time.monotonic(), []
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        log = stack.enter_context((given.output / "gpu.jsonl").open("a")) if given.output else sys.stderr
        for job in compile_all(jobs, Path(place), given):
            job.output.with_suffix(".go").touch()
            left = max(0.1, min(given.each, given.seconds - (time.monotonic() - begin)))
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(left)
            found.append(job.result())
            print(json.dumps(found[-1]), file=log, flush=True)
    return found


def show(found: list[dict]) -> None:
    """Prints the card and the failures, and a table of the others."""
    from rich.console import Console
    from rich.table import Table

    columns = "compiling", "env_steps", "decisions", "rollout_share", "temporary_mb", "kernels", "busy"
    table = Table()
    for column in ("case", "num_envs", "ms", *columns):
        table.add_column(column, justify="right")
    order = [*SIMULATORS, *TRAININGS, PEER]
    ready = [one for one in found if "env_steps" in one]
    for one in sorted(ready, key=lambda one: (order.index(one["case"]), one["num_envs"])):
        values = [one.get(column) for column in columns]
        cells = ["" if x is None else f"{x:.2f}" if x < 10 else f"{x:,.0f}" for x in values]
        table.add_row(one["case"], f"{one['num_envs']:,}", f"{1000 * one['seconds']:.1f}", *cells)
    console = Console(width=130)
    for one in found:
        if "env_steps" not in one:
            console.print(one)
    console.print(table)


def main() -> None:
    """Measures the card and the cases, and prints them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join([*SIMULATORS, *TRAININGS, "card"])
    parser.add_argument("cases", nargs="*", help=f"of {names}; NAME:SIZE,SIZE for its own sizes; default all")
    parser.add_argument("--envs", default="1024,4096,16384,65536")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which nothing more is measured")
    parser.add_argument("--compile-seconds", type=float, default=2400.0, help="the same for compiling")
    parser.add_argument("--each", type=float, default=60.0, help="largest number of seconds of a measurement")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--profile", default="", help="NAME:SIZE,NAME:SIZE of the cases to profile")
    parser.add_argument("--programs", type=Path, help="a folder of programs that were compiled ahead")
    parser.add_argument("--ahead", action="store_true", help="compile them")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peer-path", help="a folder to import rejax from")
    given = parser.parse_args()
    known = [*SIMULATORS, *TRAININGS, "card"]
    sizes = {}
    for case in given.cases or known:
        name, _, own = case.partition(":")
        if name not in (*known, PEER):
            raise SystemExit(f"{name}: unknown case; allowed: {', '.join(known)}")
        sizes.setdefault(name, []).extend(["0"] if name == "card" else (own or given.envs).split(","))
    if given.peer_path and "ppo_cartpole" in sizes:
        sizes[PEER] = sizes["ppo_cartpole"]
    jobs = [(name, int(size)) for name, found in sizes.items() for size in found]
    if given.measure:
        print(json.dumps(measure(*jobs[0], given.measure, given)))
    elif given.ahead:
        for job in jobs:
            compile_ahead(*job, given.programs)
    else:
        show(run_all(jobs, given))


if __name__ == "__main__":
    main()
