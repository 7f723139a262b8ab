"""Cost of opponents from a pool, compared with mirror play on the same environments.

    python benchmarks/pool.py [KEY=VALUE ...] [--capacities 2 8 32] [--updates 8] [--json FILE]

Arms are mirror play (the learner plays all seats) and pools of K past policies in G groups, half of which
are mirror groups. Printed per arm: compile seconds, the median time of an update and its ratio to mirror
play, bytes of the bank and of the program's temporaries, and floating point operations as compiled, loop
bodies once. Learning is minimal: one epoch, one minibatch. Updates of the arms alternate, so that other load
of the machine affects all of them.
"""

import argparse
import json
import statistics
import time

import jax

from algos.optim.small_batches import lower_for_options
from jaxmarl_echelon import command_line
from jaxmarl_echelon.command_line import PACKAGED
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program.program import Program, make_program

USUAL = (
    "env=textgames/tictactoe",
    "algo=ppo",
    "num_envs=1024",
    "algo.horizon=16",
    "algo.widths=[256,256]",
    "algo.epochs=1",
    "algo.num_minibatches=1",
    "tracking=quiet",
    "pool.groups=8",
    "pool.snapshot_every=1",
)


def configured(overrides: list[str]) -> RunConfig:
    """Reads the run with these overrides, on one shard."""
    typed = command_line.normalize_overrides([*USUAL, *overrides], PACKAGED)
    config, _ = command_line.compose_config(typed, PACKAGED)
    config.shards = 1
    return build.build_run_config(config)


def arms(overrides: list[str], capacities: list[int]) -> dict[str, RunConfig]:
    """Returns runs by name: mirror play, and a pool of each capacity."""
    roles = [role.name for role in configured(overrides).env.spec.roles]
    pooled, owner = roles[-1], roles[0]
    mirror = [] if len(roles) == 1 else [f"controllers.{pooled}=shared:{owner}"]
    found = {"mirror": configured([*overrides, *mirror])}
    for capacity in capacities:
        chosen = [f"controllers.{pooled}=pool:{owner}", f"pool.capacity={capacity}"]
        found[f"pool of {capacity}"] = configured([*overrides, *chosen])
    return found


class Arm:
    """One compiled program with its state."""

    def __init__(self, config: RunConfig):
        self.program: Program = make_program(config)
        self.state = jax.jit(self.program.init)(jax.random.key(0))
        begin = time.perf_counter()
        lowered = lower_for_options(
            jax.jit(self.program.update, donate_argnums=0), self.state, self.program.world
        )
        self.update = lowered.compile(compiler_options=self.program.compiler_options)
        self.compile_seconds = time.perf_counter() - begin
        self.seconds: list[float] = []

    def advance(self) -> None:
        """One timed update."""
        begin = time.perf_counter()
        self.state, _ = jax.block_until_ready(self.update(self.state, self.program.world))
        self.seconds.append(time.perf_counter() - begin)

    def row(self) -> dict[str, float]:
        """Returns the measurements, without the first update."""
        memory, pool = self.update.memory_analysis(), self.state.pool
        bank = 0 if pool is None else sum(x.nbytes for x in jax.tree.leaves(pool.bank))
        return {
            "compile_seconds": round(self.compile_seconds, 2),
            "update_ms": round(1e3 * statistics.median(self.seconds[1:]), 2),
            "bank_mb": round(bank / 1e6, 2),
            "temporary_mb": round(memory.temp_size_in_bytes / 1e6, 1),
            "update_gflop": round(self.update.cost_analysis().get("flops", 0.0) / 1e9, 3),
        }


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--capacities", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--json")
    arguments = parser.parse_intermixed_args()
    running = {name: Arm(config) for name, config in arms(arguments.overrides, arguments.capacities).items()}
    for _ in range(arguments.updates + 1):
        for arm in running.values():
            arm.advance()
    rows = {name: arm.row() for name, arm in running.items()}
    for name, row in rows.items():
        row["ratio"] = round(row["update_ms"] / rows["mirror"]["update_ms"], 3)
        print(f"{name:14}", "  ".join(f"{key} {value}" for key, value in row.items()))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
