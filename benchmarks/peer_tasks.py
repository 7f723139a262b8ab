"""Tasks of JaxMARL and brax: our training at their published settings, and their own, in turns.

    python benchmarks/peer_tasks.py [spread spread_mappo spread_vdn spread_vdn_hidden spread_vdn_next
        spread_iql spread_qmix spread_pqn spread_pqn_vdn
        3m 3m_mappo 3m_iql 3m_vdn 3m_qmix 3m_pqn 3m_pqn_vdn
        2s3z 2s3z_mappo 2s3z_iql 2s3z_vdn 2s3z_qmix 2s3z_pqn 2s3z_pqn_vdn pendulum]
        [--seeds 5] [--steps N] [--turns 1] [--rates] [--peer-python PATH --peer-scripts FOLDER]
        [--write FILE] [--ours algo.optimizer=adam ...] [--theirs alg.HIDDEN_SIZE=128 ...]

Ours are the tuning files of `conf/tuning/jaxmarl` and `conf/tuning/brax`, several seeds as one vmapped
program; of value learners the settings below.
Brax's side is its own `ppo.train`, one seed after another in one process; its compiling is the first seed's
time to the end of its first epoch, less that of a later one. Both sides' last policies play 128
deterministic episodes. Of JaxMARL, FOLDER is `baselines` of a checkout of JaxMARL 0.2; PATH a Python with
jaxmarl, its extra `algs`, and jax. The scripts report to wandb only, so they import a module of that name
that writes down what they log; nothing else of them is changed, except that `vdn_ff.py` asks what it logs
for `update_step`, which must read `update_steps` for it to run. It and `qmix_rnn.py` need flashbax.
Returns are sums over agents, win rates shares of battles, both of the sampled policy over the last tenth of
the updates; of value learners those of 512 episodes of the last greedy policy. Steps per second exclude
compilation, which is the time from the script's call of `wandb.init` to the end of its first update, less
that of the second one. Theirs are of the second half of the updates: their replays hold back learning until
there are BUFFER_BATCH_SIZE rollouts, 65,536 decisions in battles. Steps per second of processor time are the
better measure where other programs share the cores. JaxMARL's value learners play test games during training;
`--rates` turns these off, as ours are timed without any, and prints no scores of theirs. Settings:
baselines/IPPO/config/ippo_ff_mpe.yaml, ippo_rnn_smax.yaml,
baselines/MAPPO/config/mappo_homogenous_rnn_smax.yaml and _mpe.yaml,
baselines/QLearning/config/alg/vdn_ff_mpe.yaml, ql_rnn_mpe.yaml, ql_rnn_smax.yaml, pqn_vdn_ff_mpe.yaml
and pqn_vdn_rnn_smax.yaml; brax's notebook on training.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from algos.optim.small_batches import lower_for_options
from jaxmarl_echelon import command_line
from jaxmarl_echelon.envs.results import read_result
from jaxmarl_echelon.tracking.statistics import student_interval
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program, make_train_function

# Stands in for wandb in JaxMARL's processes: one line of JSON per call, with the times; that of `init` first.
RECORDER = """
import json, os, time
_file = open(os.environ["PEER_LOG"], "a")
def init(*args, **kwargs): _file.write(json.dumps({"begin": time.time()}) + chr(10)); _file.flush()
def log(metrics, *args, **kwargs):
    numbers = {name: float(x) for name, x in metrics.items() if getattr(x, "size", 1) == 1}
    times = {"time": time.time(), "processor": time.process_time()}
    _file.write(json.dumps(times | numbers) + chr(10)); _file.flush()
"""


# Trains by brax's own PPO; arguments: environment, decisions, seeds. Only the first of two epochs compiles.
BRAX = """
import json, os, sys, time
from brax import envs
from brax.training.agents.ppo import train as ppo
name, steps, seeds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
_file = open(os.environ["PEER_LOG"], "a")
for seed in range(seeds):
    def log(step, metrics):
        numbers = {"rate": metrics.get("training/sps", 0), "return": metrics["eval/episode_reward"]}
        row = {name: float(x) for name, x in numbers.items()} | {"time": time.time(), "step": int(step)}
        _file.write(json.dumps(row) + chr(10)); _file.flush()
    ppo.train(
        environment=envs.get_environment(name), num_timesteps=steps, num_evals=3, seed=seed,
        num_envs=2048, unroll_length=5, batch_size=1024, num_minibatches=32, num_updates_per_batch=4,
        learning_rate=3e-4, entropy_cost=1e-2, discounting=0.97, reward_scaling=10, episode_length=1000,
        normalize_observations=True, action_repeat=1, num_eval_envs=128, deterministic_eval=True,
        progress_fn=log,
    )
"""


class Task(NamedTuple):
    """One task of JaxMARL or brax.

    Attributes:
      ours: overrides of our command line.
      script: JaxMARL's, in `baselines`; empty for brax.
      theirs: its overrides.
      vmapped: whether it trains its seeds as one program, else one after another.
      measure: our metric, and theirs in what they log; of brax the environment's name and "return".
      agents: factor of our metric; theirs is summed over agents.
      greedy: whether the last policies are scored by their best actions, else the sampled ones over time.
      group: of JaxMARL's configuration, where it keeps the settings of the algorithm, with a dot.
      shares: our settings that are numbers of decisions, as shares of those of the run.
    """

    ours: tuple[str, ...]
    script: str
    theirs: tuple[str, ...] = ()
    vmapped: bool = False
    measure: tuple[str, str] = ("train/success_rate", "win_rate")
    agents: int = 1
    greedy: bool = False
    group: str = ""
    shares: tuple[tuple[str, float], ...] = ()


def battle(scenario: str, central: bool) -> Task:
    """Returns a battle of SMAX, with decentralised or centralised critics (IPPO, MAPPO)."""
    name = "MAPPO/mappo_rnn_smax.py" if central else "IPPO/ippo_rnn_smax.py"
    # The tuning file has IPPO's numbers; these are MAPPO's.
    numbers = {"learning_rate": 0.002, "clip": 0.2, "value_clip": 0.2, "entropy_coefficient": 0.0}
    ours = ("env=jaxmarl/HeuristicEnemySMAX", "algo=ppo_rnn", f"env.scenario={scenario}")
    return Task(
        (
            *ours,
            f"env.critic={'state' if central else 'own'}",
            f"algo.shared={'false' if central else 'true'}",
            f"algo.critic_core={'true' if central else 'false'}",
            *(f"algo.{key}={value}" for key, value in numbers.items() if central),
        ),
        name,
        (f"MAP_NAME={scenario}", "WANDB_MODE=disabled"),
        vmapped=not central,
    )


# Value learners in battles; about `num_envs` see `SPREAD_REPLAY`.
BATTLE_VALUES = {
    "num_envs": "256",
    "eval_episodes": "512",
    "algo.horizon": "128",
    "algo.gamma": "0.99",
    "algo.normalize_observation": "false",
    "algo.reward_scale": "10",
    "algo.optimizer": "radam",
    "algo.learning_rate": "5e-5",
    "algo.max_grad_norm": "10",
    "algo.tau": "1",
    "algo.target_period": "80",
    "algo.widths": "[512]",
    "algo.core.kind": "gru",
    "algo.core.width": "512",
    "algo.replay.sequence": "128",
}
BATTLE_VDN = BATTLE_VALUES | {
    "algo.team_reward": "mean",
    "algo.batch_size": "32",
    "algo.learning_starts": "10000",
    "algo.replay.capacity": "640000",
}
BATTLE_QMIX = BATTLE_VDN | {"algo.mixing_width": "64", "algo.hyper_widths": "[256]"}
# Of pqn_vdn_rnn_smax.yaml; ours normalise layers where theirs normalise batches.
BATTLE_PQN = {
    "num_envs": "128",
    "eval_episodes": "512",
    "algo.horizon": "128",
    "algo.gamma": "0.99",
    "algo.gae_lambda": "0.85",
    "algo.reward_scale": "10",
    "algo.optimizer": "radam",
    "algo.learning_rate": "2.5e-4",
    "algo.learning_rate_schedule": "linear",
    "algo.max_grad_norm": "1",
    "algo.epochs": "4",
    "algo.num_minibatches": "16",
    "algo.epsilon_end": "0.01",
    "algo.exploration_fraction": "0.1",
    "algo.widths": "[512,512]",
    "algo.core.kind": "gru",
    "algo.core.width": "512",
}
BATTLE_PQN_VDN = BATTLE_PQN | {"algo.team_reward": "mean"}
# Agents of a battle.
SIZES = {"3m": 3, "2s3z": 5}
# Numbers that count an environment's decisions; those of independent learners count decisions of agents.
COUNTS = ("algo.batch_size", "algo.learning_starts", "algo.replay.capacity")

# Value learners in `spread`: what their settings have in common.
SPREAD_VALUES = {
    "algo.optimizer": "radam",
    "algo.gamma": "0.9",
    "algo.normalize_observation": "false",
    "eval_episodes": "512",
}
# Of learners with a replay, whose targets are copies. `num_envs` is the number of decisions after which the
# peer's script takes one gradient step: ours takes one after each decision of all environments.
SPREAD_REPLAY = SPREAD_VALUES | {
    "algo.batch_size": "32",
    "algo.learning_rate": "0.005",
    "algo.learning_rate_end": "0",
    "algo.max_grad_norm": "25",
    "algo.learning_starts": "10000",
    "algo.tau": "1",
    "algo.target_period": "200",
}
REPLAY_SHARES = (("algo.epsilon_transitions", 0.1), ("algo.learning_rate_transitions", 1.0))
SPREAD_VDN = SPREAD_REPLAY | {
    "num_envs": "512",
    "algo.horizon": "16",
    "algo.widths": "[64]",
    "algo.double": "false",
    "algo.replay.capacity": "100000",
}
HIDDEN = "alg.NUM_LAYERS=3"
SPREAD_MEMORY = SPREAD_REPLAY | {
    "num_envs": "208",
    "algo.horizon": "26",
    "algo.widths": "[64]",
    "algo.core.kind": "gru",
    "algo.core.width": "64",
    "algo.replay.sequence": "26",
}
SPREAD_QMIX = SPREAD_MEMORY | {
    "algo.replay.capacity": "130000",
    "algo.mixing_width": "32",
    "algo.hyper_widths": "[128]",
}
# Independent learners count decisions of agents, of which there are three.
SPREAD_IQL = SPREAD_MEMORY | {
    "algo.batch_size": "96",
    "algo.learning_starts": "30000",
    "algo.replay.capacity": "390000",
}
# Their script otherwise logs each agent under a name of its own.
TOGETHER = "alg.LOG_AGENTS_SEPARATELY=false"
# Of mappo_homogenous_rnn_mpe.yaml; its networks have relu whatever ACTIVATION is.
SPREAD_MAPPO = {
    "env.critic": "state",
    "num_envs": "16",
    "algo.shared": "false",
    "algo.critic_core": "true",
    "algo.separate_clipping": "true",
    "algo.core": "{kind: gru, width: 128}",
    "algo.widths": "[128]",
    "algo.head_widths": "[128]",
    "algo.activation": "relu",
    "algo.horizon": "128",
    "algo.epochs": "4",
    "algo.num_minibatches": "4",
    "algo.learning_rate": "2e-3",
    "algo.learning_rate_schedule": "linear",
    "algo.value_clip": "0.2",
    "algo.entropy_coefficient": "0.01",
    "algo.normalize_observation": "false",
}
SPREAD_PQN = SPREAD_VALUES | {
    "num_envs": "256",
    "algo.horizon": "16",
    "algo.epochs": "4",
    "algo.num_minibatches": "16",
    "algo.learning_rate": "5e-4",
    "algo.max_grad_norm": "1",
    "algo.epsilon_end": "0.1",
    "algo.exploration_fraction": "0.1",
    "algo.gae_lambda": "0.3",
}


def value_task(
    env: tuple[str, ...],
    algorithm: str,
    script: str,
    config: str,
    ours: dict[str, str],
    theirs: tuple[str, ...],
) -> Task:
    """Returns a task of value learning in a team of three, at the settings of one of JaxMARL's files."""
    return Task(
        (*env, f"algo={algorithm}", "tuning=none", *(f"{key}={value}" for key, value in ours.items())),
        f"QLearning/{script}.py",
        (f"+alg={config}", "++HYP_TUNE=false", "++WANDB_MODE=online", "SAVE_PATH=null", *theirs),
        vmapped=True,
        measure=("train/return", "test_returned_episode_returns"),
        agents=3,
        greedy=True,
        group="alg.",
        shares=() if algorithm.startswith("pqn") else REPLAY_SHARES,
    )


def spread(
    algorithm: str, script: str, config: str, ours: dict[str, str], theirs: tuple[str, ...] = ()
) -> Task:
    """Returns a task of value learning in `spread`."""
    return value_task(("env=jaxmarl/MPE_simple_spread_v3",), algorithm, script, config, ours, theirs)


def battle_values(scenario: str, algorithm: str, script: str, config: str, ours: dict[str, str]) -> Task:
    """Returns a task of value learning in a battle of SMAX, scored by battles won."""
    env = "env=jaxmarl/HeuristicEnemySMAX", f"env.scenario={scenario}", "env.critic=state"
    agents = SIZES[scenario] if algorithm == "dqn" else 1
    ours = ours | {key: str(agents * int(ours[key])) for key in COUNTS if key in ours}
    if algorithm == "dqn":
        del ours["algo.team_reward"]
    typed = f"alg.MAP_NAME={scenario}", "alg.TEST_NUM_ENVS=512"
    task = value_task(env, algorithm, script, config, ours, typed)
    measure = "train/success_rate", "test_returned_won_episode"
    # The learning rate of theirs with a replay is constant here.
    shares = tuple((key, agents * share) for key, share in task.shares[:1])
    return task._replace(measure=measure, agents=1, shares=shares)


TASKS = {
    "spread": Task(
        ("env=jaxmarl/MPE_simple_spread_v3", "algo=ppo"),
        "IPPO/ippo_ff_mpe.py",
        vmapped=True,
        measure=("train/return", "returned_episode_returns"),
        agents=3,
    ),
    "spread_vdn": spread("vdn", "vdn_ff", "vdn_ff_mpe", SPREAD_VDN),
    # Their network is linear with NUM_LAYERS=2, which is published; with 3 it has one hidden layer, as ours.
    "spread_vdn_hidden": spread("vdn", "vdn_ff", "vdn_ff_mpe", SPREAD_VDN, (HIDDEN,)),
    # Their replay pairs an observation with that of NUM_STEPS decisions later; with 1 it is the next one.
    "spread_vdn_next": spread(
        "vdn", "vdn_ff", "vdn_ff_mpe", SPREAD_VDN, (HIDDEN, "alg.NUM_STEPS=1", "alg.NUM_ENVS=512")
    ),
    "spread_mappo": Task(
        (
            "env=jaxmarl/MPE_simple_spread_v3",
            "algo=ppo_rnn",
            "tuning=none",
            *(f"{key}={value}" for key, value in SPREAD_MAPPO.items()),
        ),
        "MAPPO/mappo_rnn_mpe.py",
        ("WANDB_MODE=disabled",),
        measure=("train/return", "returns"),
        agents=3,
    ),
    "spread_iql": spread("dqn", "iql_rnn", "ql_rnn_mpe", SPREAD_IQL, (TOGETHER,))._replace(
        shares=tuple((key, 3 * share) for key, share in REPLAY_SHARES)
    ),
    "spread_qmix": spread("qmix", "qmix_rnn", "ql_rnn_mpe", SPREAD_QMIX),
    "spread_pqn": spread("pqn", "pqn_vdn_ff", "pqn_vdn_ff_mpe", SPREAD_PQN),
    "spread_pqn_vdn": spread("pqn_vdn", "pqn_vdn_ff", "pqn_vdn_ff_mpe", SPREAD_PQN),
    "3m": battle("3m", central=False),
    "3m_mappo": battle("3m", central=True),
    "3m_iql": battle_values("3m", "dqn", "iql_rnn", "ql_rnn_smax", BATTLE_VDN),
    "3m_vdn": battle_values("3m", "vdn", "vdn_rnn", "ql_rnn_smax", BATTLE_VDN),
    "3m_qmix": battle_values("3m", "qmix", "qmix_rnn", "ql_rnn_smax", BATTLE_QMIX),
    "3m_pqn": battle_values("3m", "pqn", "pqn_vdn_rnn", "pqn_vdn_rnn_smax", BATTLE_PQN),
    "3m_pqn_vdn": battle_values("3m", "pqn_vdn", "pqn_vdn_rnn", "pqn_vdn_rnn_smax", BATTLE_PQN_VDN),
    "2s3z": battle("2s3z", central=False),
    "2s3z_mappo": battle("2s3z", central=True),
    "2s3z_iql": battle_values("2s3z", "dqn", "iql_rnn", "ql_rnn_smax", BATTLE_VDN),
    "2s3z_vdn": battle_values("2s3z", "vdn", "vdn_rnn", "ql_rnn_smax", BATTLE_VDN),
    "2s3z_qmix": battle_values("2s3z", "qmix", "qmix_rnn", "ql_rnn_smax", BATTLE_QMIX),
    "2s3z_pqn": battle_values("2s3z", "pqn", "pqn_vdn_rnn", "pqn_vdn_rnn_smax", BATTLE_PQN),
    "2s3z_pqn_vdn": battle_values("2s3z", "pqn_vdn", "pqn_vdn_rnn", "pqn_vdn_rnn_smax", BATTLE_PQN_VDN),
    "pendulum": Task(("env=brax/inverted_pendulum", "algo=ppo"), "", measure=("inverted_pendulum", "return")),
}


class Measured(NamedTuple):
    """Results of one side: by seed, and of all seeds together; of brax without processor time."""

    scores: list[float]
    steps_per_second: float
    compile_seconds: float
    steps_per_processor_second: float = math.nan


def measure_ours(task: Task, seeds: int, steps: int) -> Measured:
    """Trains one seed as a run does, several as one vmapped program."""
    shares = [f"{key}={round(share * steps)}" for key, share in task.shares]
    typed = [*task.ours, *shares, f"total_env_steps={steps}", "tracking=quiet"]
    config, _ = command_line.compose_config(command_line.normalize_overrides(typed))
    run = build.build_run_config(config)
    program = make_program(run)
    train, options = make_train_function(run), program.compiler_options
    greedy = task.greedy or not task.script

    def one(key):
        last, reports = train(key)
        return last if greedy else reports.metrics[task.measure[0]]

    def score(last, key):
        played = program.evaluate(last, key)
        if task.measure[0] == "train/success_rate":
            won = read_result(program.env.spec.results, played.results, "success")
            return won.mean()
        (returns,) = played.episode_return.values()
        return returns.mean()

    keys = jax.random.split(jax.random.key(0), seeds)
    trained, given = (one, keys[0]) if seeds == 1 else (jax.vmap(one), keys)
    begin = time.perf_counter()
    compiled = lower_for_options(jax.jit(trained), given).compile(compiler_options=options)
    middle, used = time.perf_counter(), time.process_time()
    found = jax.block_until_ready(compiled(given))
    decisions = run.updates * run.num_envs * run.algo.horizon * seeds
    rates = decisions / (time.perf_counter() - middle), decisions / (time.process_time() - used)
    if seeds == 1:
        found = jax.tree.map(lambda x: x[None], found)
    if greedy:
        scores = np.asarray(jax.jit(jax.vmap(score, (0, None)))(found, jax.random.key(1)))
    else:
        scores = last_tenth(np.asarray(found))
    scores = task.agents * scores
    return Measured(scores.tolist(), rates[0], middle - begin, rates[1])


def last_tenth(values: np.ndarray) -> np.ndarray:
    """Returns each seed's mean over the last tenth of its updates, `[S, updates]` to `[S]`."""
    return np.nanmean(values[:, -max(1, values.shape[1] // 10) :], axis=1)


def measure_theirs(task: Task, python: str, scripts: Path | None, seeds: int, steps: int) -> Measured:
    """Runs JaxMARL's script, for all seeds at once or for one after another, or brax's training."""
    if not task.script:
        name, result = task.measure
        begin, rows = run_peer([python, "-c", BRAX, name, str(steps), str(seeds)])
        last = [row[result] for row in rows if row["step"] == max(row["step"] for row in rows)]
        # The first row is the untrained policy's; the first epoch includes compiling.
        rate = statistics.median(row["rate"] for row in rows if row["step"] > rows[1]["step"])
        first, later = (rows[k + 1]["time"] - rows[k]["time"] for k in (0, 1))
        return Measured(last, rate, rows[0]["time"] - begin + first - later)
    assert scripts is not None, "--peer-scripts is needed for JaxMARL's tasks"
    typed = [*task.theirs, f"{task.group}TOTAL_TIMESTEPS={steps}"]
    if task.vmapped:
        runs = [run_peer([python, str((scripts / task.script).resolve()), *typed, f"++NUM_SEEDS={seeds}"])]
    else:
        script = str((scripts / task.script).resolve())
        runs = [run_peer([python, script, *typed, f"SEED={seed}"]) for seed in range(seeds)]
    together = seeds if task.vmapped else 1
    scores, rates, busy, compiled = [], [], [], []
    for begin, rows in runs:
        # Vmapped callbacks report one seed after another, update by update.
        values = np.array([row.get(task.measure[1], np.nan) for row in rows]).reshape(-1, together).T
        times = [row["time"] for row in rows][::together]
        scores += (values[:, -1] if task.greedy else last_tenth(values)).tolist()
        used = [row["processor"] for row in rows][::together]
        later = len(times) - 1 - len(times) // 2
        decisions = later * steps * together / len(times)
        rates.append(decisions / (times[-1] - times[-1 - later]))
        busy.append(decisions / (used[-1] - used[-1 - later]))
        compiled.append(2 * times[0] - begin - times[1])
    return Measured(scores, *(statistics.fmean(x) for x in (rates, compiled, busy)))


def run_peer(command: list[str]) -> tuple[float, list[dict]]:
    """Runs a command of a peer; returns when it began to train and what it logged, a row per call.

    Where no call of `wandb.init` marks the beginning, it is the start of the process.

    Raises:
      SystemExit: with the last line of its error, if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "wandb.py").write_text(RECORDER)
        log = Path(folder) / "log.jsonl"
        places = [folder, os.environ.get("PEER_PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places)), "PEER_LOG": str(log)}
        begin = time.time()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command[:2]}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    begins = [row["begin"] for row in rows if "begin" in row]
    return next(iter(begins), begin), [row for row in rows if "begin" not in row]


def describe(scores: list[float]) -> str:
    """Formats the mean of the seeds' scores, its 95 % interval by Student's t, and their range."""
    mean = f"{statistics.fmean(scores):.3g}"
    if len(scores) == 1:
        return mean
    low, high = student_interval(scores)
    return f"{mean} [{low:.3g}, {high:.3g}] ({min(scores):.3g} to {max(scores):.3g})"


def main() -> None:
    """Measures the chosen tasks and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000_000, help="decisions per seed, over environments")
    parser.add_argument("--turns", type=int, default=1, help="measurements of each side, alternating")
    parser.add_argument(
        "--rates", action="store_true", help="speeds alone, of theirs without test games during training"
    )
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-scripts", type=Path)
    parser.add_argument("--ours", nargs="*", default=[], metavar="KEY=VALUE", help="more overrides of ours")
    parser.add_argument("--theirs", nargs="*", default=[], metavar="KEY=VALUE", help="and of their script")
    parser.add_argument("--write", type=Path, help="file for all measurements, as JSON")
    given = parser.parse_args()
    fixed = [name for name in given.names or TASKS if not TASKS[name].script]
    if given.theirs and fixed:
        parser.error(
            f"--theirs={given.theirs[0]}: for tasks of JaxMARL; brax's training of {fixed[0]} is fixed"
        )
    table = Table("task", "side", "score: mean [95 %] (range)", "steps/s", "per processor s", "compile s")
    rows = []
    for name in given.names or TASKS:
        task = TASKS[name]
        ours, theirs = (*task.ours, *given.ours), (*task.theirs, *given.theirs)
        if given.rates and task.group:
            theirs = (*theirs, f"{task.group}TEST_DURING_TRAINING=false")
        if given.rates and task.shares:
            # Learns from the first decisions on, so that a short run is as fast as a long one.
            ours = (*ours, "algo.learning_starts=1")
        task = task._replace(ours=ours, theirs=theirs)
        for turn in range(given.turns):
            sides = {"ours": partial(measure_ours, task, given.seeds, given.steps)}
            if given.peer_python:
                peer = task, given.peer_python, given.peer_scripts, given.seeds, given.steps
                sides["peer"] = partial(measure_theirs, *peer)
            for side, measure in sides.items():
                one = measure()
                rows.append({"task": name, "side": side, "turn": turn, **one._asdict()})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                speeds = one.steps_per_second, one.steps_per_processor_second, one.compile_seconds
                table.add_row(name, side, describe(one.scores), *(f"{x:,.0f}" for x in speeds))
    if given.write:
        given.write.write_text(json.dumps(rows, indent=1))
    Console().print(table)


if __name__ == "__main__":
    main()
