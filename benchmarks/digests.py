"""Comparison of short runs before and after a change: every column that they write.

    python benchmarks/digests.py [JOB ...] --write FILE       # before a change
    python benchmarks/digests.py [JOB ...] --against FILE     # after it

A job is one training, and for some an evaluation of its last checkpoint. Compared are the columns of
`metrics.csv`, `eval.csv`, `episodes.csv` and `eval_episodes.csv` and the numbers of `evaluation.json`, as
text, except for times. New columns are counted but are not differences. A column that differs is named
with the first row in which it does and the largest relative difference of its numbers. The exit status is 1
if anything recorded differs or is missing. Programs are compiled without optimisation, which takes less
time and makes results depend less on rounding. Records are valid for one machine and one version of jax.
"""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

HERE = Path(__file__).resolve().parent.parent
ALL = ("num_envs=16", "eval_every=1", "checkpoint_every=1", "eval_episodes=8", "window=16", "tracking=quiet")
PPO = ("algo.horizon=64", "algo.epochs=2", "algo.num_minibatches=4", "algo.widths=[32]")
SAC = ("algo.horizon=32", "algo.widths=[32]", "algo.batch_size=32", "algo.learning_starts=256")
F110 = ("env=f110", "env.lidar_beams=24", "env.max_steps=90", "total_env_steps=4096")
REPLAYED = (*F110, *SAC, "algo.replay.capacity=4096", "total_env_steps=2048")
PHASES = tuple(
    f"curriculum.common.criteria.{rule}" for rule in ("success_rate=0.0", "min_episodes=8", "window_size=8")
)
ECHELON = ("env=echelon", "env.time_limit=15", "env.maps=4", "total_env_steps=4096", "algo=ppo", *PPO)
RNN = (*F110, "algo=ppo_rnn", "algo.horizon=32", "algo.widths=[32]")
GOAL = "env.goal={low: [0.5, -0.5], high: [2.0, 0.5]}"
GAME = ("algo=ppo", "algo.horizon=16", "algo.widths=[16]", "total_env_steps=4096")
POOL = (*GAME, "controllers.player=pool:player", "pool.capacity=2", "pool.groups=4", "pool.snapshot_every=2")
MISSIONS = ("env=echelon_missions_small", "env.maps=4", "total_env_steps=4096")
SEGMENTS = ("algo.horizon=32", "algo.widths=[32]", "algo.minibatch_size=1024")
DRIVE = ("env=drive", "env.agents=4", "env.maps=8", "env.eval_maps=4", "total_env_steps=4096")
EVALUATED = ("f110_ppo", "f110_two_learners", "race", "echelon", "ppo_rnn", "pool", "missions", "drive")
JOBS: dict[str, tuple[str, ...]] = {
    "f110_ppo": (*F110, "algo=ppo", *PPO),
    "f110_a2c": (*F110, "algo=a2c", "algo.widths=[32]"),
    "f110_tqc": (*REPLAYED, "algo=tqc"),
    "f110_hindsight": (*REPLAYED, "algo=sac", GOAL, "algo.replay.hindsight_ratio=0.5"),
    "f110_prioritized": (*REPLAYED, "algo=td3", "algo.replay.prioritized=true"),
    "f110_two_learners": (*F110, "algo=ppo", *PPO, "controllers.defender=learner"),
    "f110_seeds": (*F110, "algo=ppo", *PPO, "seeds=2"),
    "phased26": (*F110, "algo=ppo", *PPO, "curriculum=phased26", *PHASES),
    "spawn": (*F110, "algo=ppo", *PPO, "curriculum=spawn", "curriculum.min_episode=4"),
    "race": (*F110, "env=f110_race", "algo=ppo", *PPO),
    "echelon": ECHELON,
    "echelon_shared": (*ECHELON, "controllers.red=shared:blue"),
    "ppo_rnn": (*RNN, "algo.core={kind: lstm, width: 16}"),
    "teacher": (*RNN, "algo.core={kind: gru, width: 16}", "algo.teacher=RUNS/f110_ppo"),
    "cartpole": ("env=gymnax/CartPole-v1", "algo=ppo", "total_env_steps=4096", *PPO),
    "self_play": (*GAME, "env=textgames/tictactoe"),
    "pool": (*POOL, "env=textgames/kuhn", "pool=pfsp", "transforms=clean"),
    "league": (*POOL, "env=textgames/kuhn", "pool=league"),
    "echelon_pool": (*ECHELON, "controllers.red=pool:blue", "pool.capacity=2", "pool.snapshot_every=1"),
    "missions": (*MISSIONS, "algo=ppo", *PPO, "curriculum=missions4"),
    "drive": (*DRIVE, "algo=ppo", *PPO),
    "drive_recurrent": (*DRIVE, "env.layout=puffer", "algo=ppo_rnn_drive", *SEGMENTS),
}  # fmt: skip
TABLES = ("metrics.csv", "eval.csv", "episodes.csv", "eval_episodes.csv")
CLOCKS = ("time/",)
FLAGS = "--xla_backend_optimization_level=0"


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(JOBS)}; without any all")
    parser.add_argument("--write", type=Path, help="where to record what the jobs wrote")
    parser.add_argument("--against", type=Path, help="a record to compare with")
    parser.add_argument("--checkout", type=Path, default=HERE, help="whose code runs (default: this one's)")
    return parser.parse_args()


def run(checkout: Path, module: str, *arguments: str) -> None:
    """Runs one of the command lines of a checkout; exits with its output if it fails."""
    paths = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", f"jaxmarl_echelon.{module}", *arguments],
        env={"XLA_FLAGS": FLAGS} | os.environ | {"PYTHONPATH": paths},
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(arguments)}\n{done.stdout}{done.stderr}")


def written(folder: Path) -> dict[str, dict[str, list[str]]]:
    """The output of a run or of a group's members: columns by table."""
    tables = {}
    for path in sorted(folder.rglob("*.csv")):
        if path.name in TABLES:
            with path.open(newline="", encoding="utf-8") as file:
                names, *rows = csv.reader(file)
            tables[str(path.relative_to(folder))] = {
                name: [row[i] for row in rows] for i, name in enumerate(names) if not name.startswith(CLOCKS)
            }
    for path in sorted(folder.rglob("evaluation.json")):
        actors = json.loads(path.read_text())
        tables[str(path.relative_to(folder))] = {
            f"{actor}: {name}": [repr(value)]
            for actor, values in actors.items()
            for name, value in values.items()
        }
    return tables


def record(checkout: Path, names: list[str], runs: Path) -> dict:
    """Runs the jobs in order; returns the output of each."""
    found = {}
    for name in names:
        overrides = [part.replace("RUNS", str(runs)) for part in (*ALL, *JOBS[name])]
        run(checkout, "train", *overrides, f"output_dir={runs / 'outputs'}", f"run_name={name}")
        folder = next((runs / "outputs").glob(f"*/*/{name}"))
        (runs / name).symlink_to(folder)
        if name in EVALUATED:
            run(
                checkout, "evaluate", str(folder), "--checkpoint", "latest", "--episodes", "16", "--baselines"
            )
        found[name] = written(folder)
        print(f"{name}: {sum(map(len, found[name].values()))} columns", flush=True)
    return found


def apart(ours: str, theirs: str) -> float:
    """Relative difference of two cells; infinite if one is not a number."""
    try:
        a, b = float(ours), float(theirs)
    except ValueError:
        return math.inf
    if math.isnan(a) and math.isnan(b):
        return 0.0
    difference = abs(a - b) / max(abs(a), abs(b), 1e-12)
    return difference if math.isfinite(difference) else math.inf


def differences(before: dict, after: dict) -> tuple[list[str], list[str]]:
    """Differences of a job from its record, and its new columns; one line each."""
    lines, new = [], []
    for table, columns in before.items():
        for name, cells in columns.items():
            now = after.get(table, {}).get(name)
            if now is None:
                lines.append(f"{table}: {name} is gone")
            elif now != cells:
                if len(now) != len(cells):
                    lines.append(f"{table}: {name} has {len(now)} rows, not {len(cells)}")
                    continue
                rows = [i for i, (a, b) in enumerate(zip(now, cells, strict=True)) if a != b]
                most = max(apart(now[i], cells[i]) for i in rows)
                lines.append(
                    f"{table}: {name} differs in {len(rows)} rows from {rows[0]} on, by up to {most:.1e}"
                )
    for table, columns in after.items():
        new += [f"{table}: {name}" for name in columns if name not in before.get(table, {})]
    return lines, new


def main() -> None:
    """Entry point."""
    given = parse()
    for name in given.jobs:
        if name not in JOBS:
            raise SystemExit(f"{name}: unknown job; allowed: {', '.join(JOBS)}")
    if given.write is None and given.against is None:
        raise SystemExit("nothing to do: give --write FILE or --against FILE")
    known = json.loads(given.against.read_text()) if given.against else None
    if known and known["jax"] != jax.__version__:
        raise SystemExit(f"{given.against}: recorded with jax {known['jax']}, this is {jax.__version__}")
    names = given.jobs or [name for name in JOBS if known is None or name in known["jobs"]]
    if "teacher" in names and "f110_ppo" not in names:
        names = ["f110_ppo", *names]
    with tempfile.TemporaryDirectory() as folder:
        found = record(given.checkout.resolve(), list(names), Path(folder))
    if given.write:
        given.write.write_text(json.dumps({"jax": jax.__version__, "jobs": found}) + "\n")
    failed = False
    for name in names if known else ():
        if name not in known["jobs"]:
            continue
        lines, new = differences(known["jobs"][name], found[name])
        failed = failed or bool(lines)
        print(f"{name}: {'the same' if not lines else f'{len(lines)} columns differ'}, {len(new)} new")
        for line in lines:
            print(f"  {line}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
