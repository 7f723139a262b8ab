"""The plain case: PPO and SAC on gymnax's CartPole and Pendulum beside rejax, compilation and speed.

    python benchmarks/plain.py [CASE ...] --peer-python PATH [--turns 9]

Both compile the whole training as one function of a key, without evaluations, and then run it three times;
the fastest run counts. Every turn is a process of its own for each library, in random order. `--peer-python`
is a Python with `rejax==0.1.3 gymnax==0.0.9`. Our program also returns its reports: losses and finished
episodes of every update.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from typing import NamedTuple

from peers import ask, time_program
from rich.console import Console
from rich.table import Table

RUNS = 3


class Case(NamedTuple):
    """A task of both libraries.

    Attributes:
      env: gymnax's name.
      total: environment steps.
      algorithm: rejax's class; ours has its name in lower case.
      ours: overrides of our command line beside those.
      theirs: arguments of rejax beside those.
    """

    env: str
    total: int
    algorithm: str
    ours: dict
    theirs: dict


def ppo_case(
    env: str,
    num_envs: int,
    num_steps: int,
    epochs: int,
    minibatches: int,
    total: int,
    learning_rate: float = 2.5e-4,
) -> Case:
    """Returns PPO of two layers of 64 at settings that both libraries have."""
    ours = {
        "num_envs": num_envs,
        "algo.horizon": num_steps,
        "algo.epochs": epochs,
        "algo.num_minibatches": minibatches,
        "algo.widths": "[64,64]",
        "algo.learning_rate": learning_rate,
        "algo.normalize_observation": "false",
    }
    theirs = {
        "num_envs": num_envs,
        "num_steps": num_steps,
        "num_epochs": epochs,
        "num_minibatches": minibatches,
        "learning_rate": learning_rate,
        "max_grad_norm": 0.5,
        "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": [64, 64]},
    }
    return Case(env, total, "PPO", ours, theirs)


# SAC at the settings of the peer's example: one gradient step per step of one environment.
SAC_PENDULUM = Case(
    "Pendulum-v1",
    10_000,
    "SAC",
    {
        "num_envs": 1,
        "stagger": "false",
        "algo.horizon": 200,
        "algo.widths": "[64,64]",
        "algo.activation": "silu",
        "algo.batch_size": 256,
        "algo.learning_starts": 256,
        "algo.learning_rate": 0.01,
        "algo.tau": 0.02,
        "algo.replay.capacity": 10_000,
    },
    {
        "num_envs": 1,
        "agent_kwargs": {"activation": "swish"},
        "buffer_size": 10_000,
        "fill_buffer": 256,
        "batch_size": 256,
        "learning_rate": 0.01,
        "num_epochs": 1,
        "gamma": 0.99,
        "polyak": 0.98,
        "target_entropy_ratio": None,
        "normalize_observations": True,
    },
)


CASES = {
    "cartpole": ppo_case("CartPole-v1", 64, 128, 4, 4, 524_288),
    # PureJaxRL's settings.
    "cartpole_4": ppo_case("CartPole-v1", 4, 128, 4, 4, 131_072),
    # The settings of the peer's example.
    "pendulum": ppo_case("Pendulum-v1", 5, 100, 10, 10, 150_000, 1e-3),
    "pendulum_sac": SAC_PENDULUM,
}


def ours(case: Case) -> list[str]:
    """Returns our overrides of a case."""
    fixed = f"env=gymnax/{case.env}", f"algo={case.algorithm.lower()}", "tuning=none"
    return [*fixed, f"total_env_steps={case.total}", *(f"{key}={value}" for key, value in case.ours.items())]


def theirs(case: Case) -> dict:
    """Returns the arguments of `peers.plain` for a case."""
    fixed = {"algorithm": case.algorithm, "runs": RUNS, "env": case.env, "total_timesteps": case.total}
    return fixed | case.theirs


def measure(name: str) -> dict:
    """Measures our side of a case in this process."""
    import jaxmarl_echelon as je

    return time_program(je.make_train(*ours(CASES[name])), RUNS)


def main() -> None:
    """Measures the cases in turns and prints medians, with the least and the most."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; without any all")
    parser.add_argument("--peer-python", help="a Python with rejax")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [name for name in given.cases if name not in CASES]:
        raise SystemExit(f"{unknown[0]}: unknown case; allowed: {', '.join(CASES)}")
    if given.measure:
        print(json.dumps(measure(given.cases[0])))
        return
    table = Table(title="Median (least to most) over turns")
    for column in ("case", "", "compile s", "compile CPU-s", "steps/s"):
        table.add_column(column)
    for name in given.cases or CASES:
        found = {"ours": [], "rejax": []} if given.peer_python else {"ours": []}
        for _ in range(given.turns):
            for side in random.sample(list(found), len(found)):
                if side == "rejax":
                    found[side].append(ask(given.peer_python, "plain", theirs(CASES[name])))
                    continue
                command = [sys.executable, __file__, name, "--measure"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
        columns = {side: columns_of(runs, CASES[name].total) for side, runs in found.items()}
        for side, values in columns.items():
            table.add_row(name, side, *(describe(value) for value in values))
        if given.peer_python:
            pairs = zip(columns["ours"], columns["rejax"], strict=True)
            ratios = [[a / b for a, b in zip(*pair, strict=True)] for pair in pairs]
            table.add_row(name, "ours over rejax", *(describe(ratio) for ratio in ratios))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def columns_of(runs: list[dict], steps: int) -> list[list[float]]:
    """Compile seconds, compile CPU-seconds, and steps per second of the fastest run, by turn."""
    rates = [steps / min(run["seconds"]) for run in runs]
    return [[run["compiling"] for run in runs], [run["processor"] for run in runs], rates]


def describe(values: list[float]) -> str:
    """Formats the median, the least and the most."""
    shown = [statistics.median(values), min(values), max(values)]
    middle, low, high = (f"{x:,.0f}" if x >= 100 else f"{x:.2f}" for x in shown)
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
