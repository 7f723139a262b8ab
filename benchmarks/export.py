"""Latency of exported policies compared with the compiled one in the same process, and their scores.

    python benchmarks/export.py [--formats numpy,stablehlo,onnx] [--rows 1] [--calls 2000]
    python benchmarks/export.py --run RUN [--episodes 64] [--checkpoint best_eval] [KEY=VALUE ...]

The policies have random numbers: 119 numbers, two layers of 256 and two actions, as for F110, and the same
with one layer of 128 below an LSTM of 128. Everything runs on one core, in rounds of 100 calls in turns, and
a call begins and ends with NumPy's arrays. With `--run`, episodes of a run are played by its policy as
`evaluate` plays them, and by its exports outside of the compiled program.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before NumPy is imported

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxmarl_echelon as je
from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import export, run_loading
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.exporting import contract, exported_folder, golden
from jaxmarl_echelon.exporting.closed_loop import make_exported_controller
from jaxmarl_echelon.exporting.formats import OPSET
from jaxmarl_echelon.training.acting.controllers import action_spec
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key

ROUND = 100
WARM_UP = 200
ROLE = Role("attacker", 1, Box((119,), -1.0, 1.0), Box((2,), (-0.46, -5.0), (0.46, 5.0)))
POLICIES = {
    "119-256-256-2": PPOConfig(widths=(256, 256)),
    "119-128, LSTM 128, 2": PPOConfig(
        widths=(128,), sampling="sequential", core={"kind": "lstm", "width": 128}
    ),
}


def random_policy(settings: PPOConfig) -> je.Policy:
    """A policy with random numbers, as before training."""
    agent = settings.make(ROLE.observation.shape, action_spec(ROLE.action), samples=64, updates=1)
    state = jax.jit(lambda key: agent.policy_state(agent.init(key)))(jax.random.key(0))
    return je.Policy(state, agent, ROLE)


def exports(policy: je.Policy, formats: list[str], folder: Path) -> dict:
    """Exports a policy to each format, which checks it, and loads the results; by format."""
    function = export.make_exported_function(policy.agent, policy.state, policy.role)
    vectors = golden.record_golden(function, policy.role, policy.state.observations, ())
    facts = {
        "role": policy.role.name,
        "carry": export.describe_carry(policy.agent),
        "action": contract.describe_action(policy.role.action),
        "observation": {"shape": list(policy.role.observation.shape)},
        "versions": {"exported": {}},
    }
    found = {}
    for name in formats:
        exported_folder.write_folder(folder / name, name, function, vectors, facts, OPSET)
        found[name] = je.load_policy(folder / name)
    return found


def milliseconds(policies: dict, rows: int, calls: int) -> dict[str, np.ndarray]:
    """Times of single calls by name, of policies called in turns."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1.0, 1.0, (ROUND, rows, 119)).astype(np.float32)
    memories = {name: policy.initial_memory((rows,)) for name, policy in policies.items()}
    reset, found = np.zeros(rows, bool), {name: [] for name in policies}
    for turn in range((calls + WARM_UP) // ROUND):
        for name, policy in policies.items():
            memory = memories[name]
            for one in obs:
                start = time.perf_counter()
                action, memory = policy(one, memory, reset)
                np.asarray(action)
                if turn >= WARM_UP // ROUND:
                    found[name].append(1e3 * (time.perf_counter() - start))
            memories[name] = memory
    return {name: np.array(times) for name, times in found.items()}


def latency_table(formats: list[str], rows: int, calls: int) -> Table:
    """Latencies of all policies and formats."""
    table = Table("policy", "form", "median, ms", "99 %, ms", title=f"one core, {rows} agents a call")
    for title, settings in POLICIES.items():
        policy = random_policy(settings)
        compiled = jax.jit(policy)

        class Compiled:
            initial_memory = policy.initial_memory
            __call__ = staticmethod(compiled)

        with tempfile.TemporaryDirectory() as folder:
            forms = {"jit": Compiled()} | exports(policy, formats, Path(folder))
            for name, times in milliseconds(forms, rows, calls).items():
                table.add_row(title, name, f"{np.median(times):.3f}", f"{np.quantile(times, 0.99):.3f}")
    return table


def closed_loop_table(arguments: argparse.Namespace, formats: list[str]) -> Table:
    """Successes of a run's policy and of its exports in the same episodes."""
    run, episodes = arguments.run, arguments.episodes
    _, _, config, program, state = run_loading.load_run(run, arguments.checkpoint, arguments.overrides)
    spec, key = program.env.spec, stream_key(config.seed, Stream.FINAL)

    def play(policy):
        def seats(parts):
            own = program.controllers(parts, True)
            role = spec.role(program.role)
            return (
                own
                if policy is None
                else own | {role.name: make_exported_controller(policy, parts.env, role)}
            )

        @jax.jit
        def evaluate(state, world):
            return program.evaluate_with_controllers(
                seats, state.policies, state, key, episodes=episodes, world=world
            )

        return jax.device_get(evaluate(state, program.world))

    table = Table("form", "successes", "episodes of equal length", "largest difference of a return")
    base = play(None)
    with tempfile.TemporaryDirectory() as folder:
        for name in (None, *formats):
            path = None if name is None else Path(folder) / name
            if path is not None:
                je.export_policy(run, path, format=name, checkpoint=arguments.checkpoint)
            result = base if path is None else play(je.load_policy(path))
            reached, counted = (float(np.sum(terms)) for terms in result.scores(spec))
            apart = np.abs(result.mean_return(program.role) - base.mean_return(program.role)).max()
            same = int((result.length == base.length).sum())
            table.add_row(name or "evaluate", f"{reached:g} of {counted:g}", str(same), f"{apart:.2g}")
    return table


def main() -> None:
    """Prints latencies, or with `--run` the scores of a run's exports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default="numpy,stablehlo,onnx")
    parser.add_argument("--rows", type=int, default=1, help="agents of a call")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--run", help="play episodes of this run")
    parser.add_argument("--checkpoint", default="best_eval")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for the environment of the episodes")
    arguments = parser.parse_intermixed_args()
    formats = arguments.formats.split(",")
    console = Console(width=110)
    if arguments.run is not None:
        console.print(closed_loop_table(arguments, formats))
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    console.print(latency_table(formats, arguments.rows, arguments.calls))


if __name__ == "__main__":
    main()
