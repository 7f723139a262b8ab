"""Known tasks: our algorithms over vmapped seeds compared with Stable-Baselines3 at equal settings.

    python benchmarks/vs_sb3.py [--peer-python PATH] [--seeds 5] [--only sac,ppo] [--ours | --peers]

Settings are those of `conf/tuning/gymnax/TASK/ALGO.yaml`. Returns are means of 20 deterministic episodes
after the last step. `--peer-python` is a Python that has stable-baselines3, sb3-contrib and gymnasium.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from peers import PeerError, ask
from rich.console import Console
from rich.table import Table

from algos.optim.small_batches import lower_for_options
from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.acting.random_streams import APART
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program, make_train_function

TASKS = (
    ("Pendulum-v1", "sac", -200.0),
    ("Pendulum-v1", "td3", -200.0),
    ("Pendulum-v1", "tqc", -200.0),
    ("Pendulum-v1", "ppo", -200.0),
    ("CartPole-v1", "ppo", 475.0),
    ("CartPole-v1", "a2c", 475.0),
)


def read(task: str, algo: str):
    """The run with the task's configuration."""
    config, _ = command_line.compose_config([f"env=gymnax/{task}", f"algo={algo}"])
    return build.build_run_config(config)


def ours(run, seeds: int) -> tuple[list[float], float, float]:
    """Mean returns of all seeds, trained as one program; seconds of running and of compiling."""
    program = make_program(run)
    train = make_train_function(run)

    def one(key):
        state, _ = train(key)
        result = program.evaluate(state, jax.random.fold_in(key, APART))
        return result.episode_return[program.role].mean()

    keys = jax.random.split(jax.random.key(0), seeds)
    begin = time.perf_counter()
    compiled = lower_for_options(jax.jit(jax.vmap(one)), keys).compile(
        compiler_options=program.compiler_options
    )
    middle = time.perf_counter()
    returns = np.asarray(compiled(keys))
    return returns.tolist(), time.perf_counter() - middle, middle - begin


def peer_settings(run, algo: str) -> dict:
    """Converts the settings to arguments of the peer library."""
    config = run.algo
    common = {"learning_rate": config.learning_rate, "gamma": config.gamma}
    widths = list(config.widths)
    if algo in ("sac", "td3", "tqc"):
        common |= {
            "batch_size": config.batch_size,
            "buffer_size": config.replay.capacity,
            "learning_starts": config.learning_starts,
            "tau": config.tau,
            "train_freq": 1,
            "gradient_steps": config.updates_per_step,
            "policy_kwargs": {"net_arch": widths},
        }
        if algo == "tqc":
            common["policy_kwargs"] |= {"n_critics": config.n_critics, "n_quantiles": config.n_quantiles}
            common["top_quantiles_to_drop_per_net"] = config.drop_per_critic
        return common
    common |= {
        "n_steps": config.horizon,
        "gae_lambda": config.gae_lambda,
        "policy_kwargs": {"net_arch": widths},
    }
    if algo == "ppo":
        batch = config.horizon * run.num_envs // config.num_minibatches
        common |= {"n_epochs": config.epochs, "batch_size": batch}
    return common


def peers(python: str, run, task: str, algo: str, seeds: int) -> tuple[list[float], float]:
    """Mean returns of the peer library's seeds, two processes at a time, and seconds per seed."""

    def one(seed):
        job = {
            "algo": algo,
            "env": task,
            "steps": run.total_env_steps,
            "seed": seed,
            "num_envs": run.num_envs,
            "settings": peer_settings(run, algo),
        }
        try:
            result = ask(python, "train", job)
        except PeerError as error:
            raise SystemExit(str(error)) from error
        print(task, algo, "SB3", seed, f"{result['mean']:.0f}, {result['seconds']:.0f} s", file=sys.stderr)
        return result

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(one, range(seeds)))
    return [r["mean"] for r in results], statistics.fmean(r["seconds"] for r in results)


def described(returns: list[float]) -> str:
    """Mean and minimum over seeds, as text."""
    return f"{statistics.fmean(returns):.0f} (worst {min(returns):.0f})"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer-seeds", type=int, default=None, help="default: as many as ours")
    parser.add_argument("--only", default=None, help="algorithms, separated by commas")
    parser.add_argument("--ours", action="store_true", help="leave the other library out")
    parser.add_argument("--peers", action="store_true", help="leave ours out")
    arguments = parser.parse_args()
    command_line.use_compilation_cache()
    table = Table(title="mean return of 20 deterministic episodes after training")
    for column in (
        "task",
        "algorithm",
        "steps",
        "wanted",
        "ours",
        "s for all",
        "compile s",
        "SB3",
        "s per seed",
    ):
        table.add_column(column, justify="right")
    for task, algo, wanted in TASKS:
        if arguments.only and algo not in arguments.only.split(","):
            continue
        run = read(task, algo)
        cells = ["-"] * 5
        if not arguments.peers:
            returns, seconds, compiling = ours(run, arguments.seeds)
            cells[:3] = [described(returns), f"{seconds:.0f}", f"{compiling:.0f}"]
            print(task, algo, [round(r) for r in returns], f"{seconds:.0f} s", file=sys.stderr)
        if not arguments.ours:
            number = arguments.peer_seeds or arguments.seeds
            others, each = peers(arguments.peer_python, run, task, algo, number)
            cells[3:] = [described(others), f"{each:.0f}"]
            print(task, algo, "SB3", [round(r) for r in others], f"{each:.0f} s each", file=sys.stderr)
        table.add_row(task, algo, f"{run.total_env_steps:,}", f"{wanted:.0f}", *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
