"""Speed and memory of learning from segments, compared with plain PyTorch and a GPU's memory.

    python benchmarks/trainer.py [--peer-python PATH] [--cores none,lstm,mingru/parallel] [--width 128]
        [--precision bf16] [--memory]

Trunk and core of `--width` units, 256 agents, rows of 64 decisions, four epochs of minibatches of 4096
decisions, on CartPole, whose cost is negligible. Times are the best of several. `--peer-python` is a Python
with torch (default: this one). Compilation is reported separately.
"""

import argparse
import math
import os
import sys
import time

import jax
import jax.numpy as jnp
from machine import matmul_rate
from peers import PeerError, ask
from rich.console import Console
from rich.table import Table

from algos.on_policy.segment_epochs import segments_from_rollout
from algos.on_policy.traced_settings import apply_schedules
from algos.types import ActionSpec, Rollout
from jaxmarl_echelon import command_line
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.agents import make_controllers
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.rollouts import collect as rollout_lib

HORIZON, AGENTS, MINIBATCH, EPOCHS = 64, 256, 4096, 4
FEATURES, ACTIONS = 4, 2
CARD = 80e9
PLANS = (
    ("119 numbers, float32", (119,), jnp.float32),
    ("200 tokens of 3 bytes", (200, 3), jnp.uint8),
)


def read(*overrides: str) -> build.RunConfig:
    """The run with these overrides."""
    config, _ = command_line.compose_config(["env=gymnax/CartPole-v1", *overrides])
    return build.build_run_config(config)


def best_seconds(calls: dict, repeats: int) -> dict[str, float]:
    """Minimum seconds of compiled calls, each with its arguments, interleaved after a warm-up."""
    best = dict.fromkeys(calls, math.inf)
    for turn in range(repeats + 1):
        for name, (call, *arguments) in calls.items():
            begin = time.perf_counter()
            jax.block_until_ready(call(*arguments))
            if turn:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def compile_call(call, *arguments):
    """The compiled call, and its compilation seconds."""
    begin = time.perf_counter()
    return jax.jit(call).lower(*arguments).compile(), time.perf_counter() - begin


def make_collect(config: build.RunConfig, program):
    """A rollout without learning: acting, simulation and recording of one update."""
    acting = make_controllers(config, program.env, program.agents, {}, greedy=False)
    collector = rollout_lib.RolloutSpec(config.env, program.agents, acting, config.horizon, config.segments)
    drawn = episodes.EpisodeTask(config.env.default_params())
    return lambda run: rollout_lib.collect_rollout(collector, run, run.key, lambda _key: drawn)


def measure(kind: str, width: int, precision: str, repeats: int) -> dict[str, float]:
    """Seconds of an update, of its parts, and of compiling it; `kind/scan` chooses the scan of a MinGRU."""
    kind, _, scan = kind.partition("/")
    sizes = (f"num_envs={AGENTS}", f"algo.minibatch_size={MINIBATCH}", f"algo.horizon={HORIZON}")
    networks = (f"algo.core.kind={kind}", f"algo.core.width={width}", f"algo.widths=[{width}]")
    config = read(
        "algo=ppo_rnn",
        *sizes,
        *networks,
        *([f"algo.core.scan={scan}"] if scan else []),
        f"algo.epochs={EPOCHS}",
        "algo.shared=true",
        f"precision={precision}",
    )
    program = make_program(config)
    algo, agent = config.algos[program.role], program.agents[program.role]
    run = jax.jit(program.init)(jax.random.key(0))
    update, compiling = compile_call(program.update, run)
    collect, _ = compile_call(make_collect(config, program), run)
    learner, rollout = run.policies[program.role], collect(run)[1].rollouts[program.role]

    def advantages(state, rollout):
        return segments_from_rollout(algo, state, rollout, apply_schedules(algo, state.hyper, state.updates))

    learn, _ = compile_call(agent.update, learner, jax.random.key(1), rollout)
    trace, _ = compile_call(advantages, learner, rollout)
    calls = {
        "update": (update, run),
        "rollout": (collect, run),
        "advantages": (trace, learner, rollout),
        "learning": (learn, learner, jax.random.key(1), rollout),
    }
    seconds = best_seconds(calls, repeats) | {"compiling": compiling}
    seconds["learning"] -= seconds["advantages"]
    return seconds


def needed_flops(kind: str, width: int) -> float:
    """FLOPs of the matrix products of learning from one decision.

    One forward and two backward passes, without the gradient of the observation.
    """
    gates = {"none": 0, "mingru": 2, "gru": 6, "lstm": 8}[kind.partition("/")[0]]
    first, rest = FEATURES * width, gates * width * width + width * (ACTIONS + 1)
    return 2.0 * (2 * first + 3 * rest)


def peer(python: str, kind: str, width: int, repeats: int) -> float | str:
    """Measures training decisions per second in plain PyTorch; returns the reason if that fails."""
    if kind.startswith("mingru"):
        return "torch has none"
    job = {
        "kind": kind,
        "features": FEATURES,
        "actions": ACTIONS,
        "width": width,
        "horizon": HORIZON,
        "rows": MINIBATCH // HORIZON,
        "threads": os.cpu_count(),
        "steps": EPOCHS * AGENTS * HORIZON // MINIBATCH,
        "repeats": repeats,
    }
    try:
        return ask(python, "segments", job)["rate"]
    except PeerError as error:
        return str(error)


def speed_table(arguments) -> Table:
    """Table of rates and time fractions by recurrent core."""
    before, matmul = os.getloadavg()[0], matmul_rate()
    measured = {}
    for kind in arguments.cores.split(","):
        sizes = kind, arguments.width
        seconds = measure(*sizes, arguments.precision, arguments.repeats)
        measured[kind] = seconds, peer(arguments.peer_python, *sizes, arguments.repeats)
        matmul = max(matmul, matmul_rate())
    sizes = f"{arguments.width} units, {arguments.precision}"
    title = f"learning from decisions, {sizes}; matrix products at {matmul / 1e9:.0f} GFLOP/s"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = (
        f"load before and after: {before:.1f} and {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    columns = ("core", "learnt/s", "PyTorch", "ratio", "of the matmul rate", "played and learnt/s")
    for column in (*columns, "rollout", "advantages", "learning", "compile s"):
        table.add_column(column, justify="right")
    for kind, (seconds, theirs) in measured.items():
        if isinstance(theirs, str):
            print(f"{kind}: no peer: {theirs}", file=sys.stderr)
        ours = EPOCHS * AGENTS * HORIZON / seconds["learning"]
        table.add_row(
            kind,
            f"{ours:,.0f}",
            "-" if isinstance(theirs, str) else f"{theirs:,.0f}",
            "-" if isinstance(theirs, str) else f"{ours / theirs:.2f}",
            f"{ours * needed_flops(kind, arguments.width) / matmul:.0%}",
            f"{AGENTS * HORIZON / seconds['update']:,.0f}",
            *(f"{seconds[part] / seconds['update']:.1%}" for part in ("rollout", "advantages", "learning")),
            f"{seconds['compiling']:.1f}",
        )
    return table


def nbytes(tree) -> int:
    """Bytes of all arrays or `ShapeDtypeStruct`s in a tree."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def shapes_of(agent, algo, agents: int, shape: tuple[int, ...], dtype) -> Rollout:
    """Shapes and dtypes of a rollout as recorded in training."""
    decisions = algo.segments_per_agent * algo.horizon

    def make():
        zeros, no = jnp.zeros((decisions, agents, 1)), jnp.zeros((decisions, agents, 1), bool)
        rows = (algo.segments_per_agent, agents, 1)
        return Rollout(
            obs=jnp.zeros((decisions, agents, 1, *shape), dtype),
            action=jnp.zeros((decisions, agents, 1, 1), jnp.int32),
            extras={"log_prob": zeros, "value": zeros},
            reward=zeros,
            reset=no,
            discount=zeros,
            boundary=no,
            bootstrap=zeros,
            alive=no,
            mask=None,
            carry=agent.initial_carry(rows),
            last_value=zeros[0],
        )

    return jax.eval_shape(make)


def memory(shape: tuple[int, ...], dtype, precision: str, agents: int) -> dict[str, float]:
    """Bytes of one update of Metta's trainer for `agents` agents, without running it.

    From array shapes; temporaries are from XLA's memory analysis.
    """
    (algo,) = read("algo=ppo_rnn_metta", f"num_envs={agents}", f"precision={precision}").algos.values()
    agent = algo.make(shape, ActionSpec("discrete", (9,)), samples=agents, updates=1)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    rollout = shapes_of(agent, algo, agents, shape, dtype)

    def cut(state, rollout):
        flat = rollout.obs.reshape((*rollout.alive.shape, -1))
        return segments_from_rollout(
            algo, state, rollout.replace(obs=flat), apply_schedules(algo, state.hyper, state.updates)
        )

    update, _ = compile_call(agent.update, state, jax.random.key(0), rollout)
    plan, carry = algo.plan(agents), nbytes(rollout.carry)
    return {
        "decisions": plan.batch_size,
        "minibatch": plan.minibatch_size,
        "stored": nbytes(rollout) - carry,
        "segments": nbytes(jax.eval_shape(cut, state, rollout)) - carry,
        "carry": 2 * carry,
        "learner": nbytes(state),
        "temporary": update.memory_analysis().temp_size_in_bytes,
    }


def memory_table(name: str, shape: tuple[int, ...], dtype, precision: str, agents: int = 8192) -> Table:
    """Table of bytes per decision and per agent, and totals at Metta's sizes relative to one GPU's memory."""
    whole = memory(shape, dtype, precision, agents)
    decisions, minibatch = whole["decisions"], whole["minibatch"]
    one = memory(shape, dtype, precision, minibatch // HORIZON)
    activations = one["temporary"] - one["segments"]
    title = f"ppo_rnn_metta, {agents:,} agents x {HORIZON}, minibatches of {minibatch:,}; {name}; {precision}"
    table = Table(title=title, title_justify="left")
    for column in ("what", "bytes", "per", "GB", "of a card of 80 GB"):
        table.add_column(column, justify="left" if column in ("what", "per") else "right")
    rows = (
        ("rollout as recorded", whole["stored"], decisions, "decision"),
        ("segments made of it", whole["segments"], decisions, "decision"),
        ("memory before rows, and of the actors", whole["carry"], agents, "agent"),
        ("activations and gradients of a minibatch", activations, minibatch, "decision in it"),
        ("parameters, optimiser, statistics", whole["learner"], 1, "run"),
    )
    for what, size, number, unit in rows:
        table.add_row(what, f"{size / number:,.0f}", unit, f"{size / 1e9:.3f}", f"{size / CARD:.2%}")
    peak = whole["stored"] + whole["carry"] + whole["learner"] + whole["temporary"]
    table.add_row("peak of an update, by the compiler", "", "", f"{peak / 1e9:.3f}", f"{peak / CARD:.2%}")
    return table


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--cores", default="none,mingru,gru,lstm")
    parser.add_argument("--width", type=int, default=128, help="units of the trunk and the core")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="leave the speed out")
    arguments = parser.parse_args()
    console = Console(width=150)
    if not arguments.memory:
        console.print(speed_table(arguments))
    for plan in PLANS:
        console.print(memory_table(*plan, arguments.precision))


if __name__ == "__main__":
    main()
