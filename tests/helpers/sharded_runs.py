"""Short runs on several devices, in a process that has them; `test_shards` reads what it writes.

    python tests/helpers/sharded_runs.py PART FOLDER

PART is one of `PARTS`. JAX must have been told to cut the CPU into `DEVICES` devices.
"""

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import mission_runs
import numpy as np
import probes
from compiled_once import Once
from jax.sharding import PartitionSpec

from algos import collectives, compiler
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.types import Goal
from jaxmarl_echelon import checkpoints, command_line, train
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.missions.curriculum import mission_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.envs.textgames.games import tictactoe
from jaxmarl_echelon.selfplay.credit import TransformSettings
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import group_members, loop, memory, vectorized_runs
from jaxmarl_echelon.training.host.compile import Compiled, compile_program
from jaxmarl_echelon.training.host.devices import ALONE, DeviceLayout
from jaxmarl_echelon.training.program.program import Program, evaluation_as_in_training, make_program

DEVICES = SHARDS = 8
UPDATES, LENGTH = 3, 4
NUM_ENVS = 16
PLACE, ASKED = 0, 1


class Reach(probes.ContinuousTarget):
    """Three steps; one feature that the action moves, one that asks for it, and tasks with other gains."""

    horizon = 3
    observation = Box((2,), -10.0, 10.0)
    goals = {
        probes.ROLE: Goal(
            achieved=lambda obs: obs[..., PLACE : PLACE + 1],
            desired=lambda obs: obs[..., ASKED : ASKED + 1],
            replace=lambda obs, goal: obs.at[..., ASKED].set(goal[..., 0]),
            reward=lambda achieved, desired: -jnp.square(achieved - desired)[..., 0],
        )
    }

    def task_params(self, settings):
        return self.default_params() | {name: np.float32(value) for name, value in settings.items()}

    def observe(self, state, params):
        return jnp.stack([jnp.broadcast_to(state.level, state.cue.shape), state.cue], -1)

    def reward(self, state, action, params):
        return -jnp.square(self._moved(state, action) - state.cue)

    def step(self, key, state, actions, params):
        after, time = super().step(key, state, actions, params)
        after = after.replace(level=self._moved(state, actions[probes.ROLE])[0])
        shown = {probes.ROLE: self.observe(after, params)}
        return after, time.replace(obs=shown)

    def _moved(self, state, action):
        return state.level + 0.5 * action[..., 0] + action[..., 1]


def course(env):
    """Three tasks, which a handful of episodes each lead through."""
    phases = [
        {"name": f"gain_{gain}", "settings": {"gain": gain}, "criteria": {"success_rate": 0.0}}
        for gain in (1, 2, 3)
    ]
    common = {
        "criteria": {"min_episodes": 40, "window_size": 20},
        "mixture": {"foundation": 0.2, "previous": 0.2},
    }
    return phased_curriculum(env, phases, common)


def compiler_flags(devices: int) -> str:
    """Flags of XLA for a process of tests with so many devices.

    Those of all tests, with the older emitters, which compile sooner and which runs on several devices avoid
    (`algos.compiler`); results on several devices are compared with those on one.
    """
    return f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"


SMALL = {"horizon": 8, "widths": (16,), "learning_rate": 1e-3}
REPLAY = {
    "batch_size": 16,
    "learning_starts": 100,
    "replay": {"capacity": 512, "n_step": 2, "prioritized": True},
}
HINDSIGHT = {"replay": REPLAY["replay"] | {"hindsight_ratio": 0.5}}
ALGOS = {
    "ppo": PPOConfig(**SMALL, epochs=2, num_minibatches=2, target_kl=0.05),
    "ppo_rnn": PPOConfig(
        **SMALL,
        epochs=2,
        num_minibatches=4,
        sampling="prioritized",
        segments_per_agent=2,
        core={"kind": "lstm", "width": 8},
        priority_alpha=0.5,
    ),
    "a2c": A2CConfig(**SMALL, normalize_reward=True),
    "sac": SACConfig(**SMALL, **REPLAY),
    "td3": TD3Config(**SMALL, **REPLAY | {"replay": {"capacity": 512}}),
    "tqc": TQCConfig(**SMALL, **REPLAY | HINDSIGHT, n_critics=2, n_quantiles=5, drop_per_critic=1),
}
EVALUATED = "ppo"
# Most of the time goes to compiling: one learner for all tests, the others for thorough ones.
# Parts of this file, with the numbers of devices on which each runs the learners that it has.
RUNS = {
    "rollouts": {EVALUATED: (1, DEVICES)},
    "more_rollouts": {EVALUATED: (1, 2, 4), "ppo_rnn": (1, DEVICES), "a2c": (1, DEVICES)},
    "more_replays": dict.fromkeys(("sac", "td3", "tqc"), (1, DEVICES)),
}


def orders(env):
    """Mission phases, of which the first are left after a handful of episodes each."""
    sizes = {"window": 20, "dwell": 24, "nominal_episodes": 60, "blend_episodes": 30}
    return mission_curriculum(env, mission_runs.PHASES, **sizes)


# What the runs play and how it changes; one of them missions, whose phases need every shard's episodes.
TASKS = dict.fromkeys(ALGOS, (Reach, course)) | {"a2c": (mission_runs.PlayedMissions, orders)}


def configure(name: str, shards: int = SHARDS) -> RunConfig:
    """A short run of an algorithm; of one length, since programs know it."""
    env, curriculum = TASKS[name]
    return RunConfig(
        env=env(),
        algo=ALGOS[name],
        curriculum=curriculum,
        total_env_steps=LENGTH * NUM_ENVS * ALGOS[name].horizon * ALGOS[name].segments,
        num_envs=NUM_ENVS,
        shards=shards,
        eval_episodes=8,
        window=64,
        episode_rows=64,
    )


def unevaluated(state, world):
    """Stands for an evaluation where there is none."""
    return state.curriculum, state.updates


class Sharded(NamedTuple):
    """A run's program on some devices."""

    config: RunConfig
    program: Program
    layout: DeviceLayout
    compiled: Compiled


def sharded(name: str, devices: int, shards: int = SHARDS) -> Sharded:
    """An algorithm's run on the first so many devices."""
    return spread(configure(name, shards), devices, evaluated=name == EVALUATED)


def spread(config: RunConfig, devices: int, *, evaluated: bool = False) -> Sharded:
    """A run on the first so many devices."""
    program = make_program(config)
    layout = DeviceLayout.over(jax.devices()[:devices])
    assess = evaluation_as_in_training(program, config.seed) if evaluated else unevaluated

    def init(key, world):
        return program.init(key, world=world)

    # They run a few times: on one device, with what compiles soonest, but for the program of `write_moves`.
    options = {} if evaluated else compiler.quick_compile_options(devices)
    key = (run_key(config.seed),)
    compiled = compile_program(
        init, program.update, assess, key, program.world, 1, options, layout, program.local
    )
    return Sharded(config, program, layout, compiled)


def arrays(tree) -> dict[str, np.ndarray]:
    """Key path to array, on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(raw(leaf)) for path, leaf in leaves}


def raw(leaf):
    """A leaf, or the data of a key."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def unlike(state, local) -> list[str]:
    """Names of the leaves without an axis of shards whose copies on the devices differ in a bit."""
    marks = jax.tree.leaves(local)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    found = []
    for mark, (path, leaf) in zip(marks, leaves, strict=True):
        copies = [np.asarray(part.data).tobytes() for part in raw(leaf).addressable_shards]
        if not mark and len(set(copies)) > 1:
            found.append(jax.tree_util.keystr(path))
    return found


def write_run(name: str, devices: int, folder: Path) -> None:
    """Writes the state after the first and the last update, the first report, and what replicas say."""
    one = sharded(name, devices)
    state = one.compiled.init()
    for number in range(1, UPDATES + 1):
        state, report = one.compiled.chunk(state)
        if number == 1:
            np.savez(folder / f"{name}_{devices}_first.npz", **arrays((state, report)))
    _, result = one.compiled.assess(state)
    np.savez(folder / f"{name}_{devices}_last.npz", **arrays((state, result)))
    differing = unlike(state, one.program.local(state))
    (folder / f"{name}_{devices}.json").write_text(json.dumps({"differing": differing}))
    if devices == DEVICES:
        (folder / f"{name}.hlo").write_text(one.compiled.executable().as_text())


def pooled() -> RunConfig:
    """A game against a pool on two shards: opponents drawn by their moves, advantages from transforms."""
    return RunConfig(
        env=tictactoe.make(),
        algo=PPOConfig(horizon=8, widths=(8,), epochs=1, num_minibatches=1),
        curriculum=constant_curriculum,
        total_env_steps=10_000,
        num_envs=NUM_ENVS,
        shards=2,
        controllers={"player": "pool:player"},
        pool=PoolSettings(
            capacity=2,
            groups=4,
            snapshot_every=1,
            fixed=("random",),
            shares={"mirror": 0.5, "exploration": 0.5},
            hold=1,
        ),
        transforms=TransformSettings(final=["RoleAdvantage"], sampling=["Normalize"]),
    )


def write_pool(folder: Path) -> None:
    """The states of a run against a pool on one device and on two, after every update."""
    for devices in (1, 2):
        one = spread(pooled(), devices)
        state = one.compiled.init()
        for number in range(UPDATES):
            state, report = one.compiled.chunk(state)
            np.savez(folder / f"pool_{devices}_{number}.npz", **arrays((state, report)))
        differing = unlike(state, one.program.local(state))
        (folder / f"pool_{devices}.json").write_text(json.dumps({"differing": differing}))


def write_moves(name: str, folder: Path) -> None:
    """A run that goes on with another number of devices after every update, and one that keeps all."""
    once, config = Once(), configure(name)  # what both do on the same devices is compiled once
    program, resolved, by = once.program(config), {"seed": config.seed}, once.compile
    for run, places in {"moved": (8, 1, 8, 1), "kept": (8,)}.items():
        resume = None
        for number, devices in enumerate(places, 1):
            layout, until = DeviceLayout.over(jax.devices()[:devices]), number if run == "moved" else None
            place = folder / run, Tracker({}), resume, until, layout
            loop.train_run(config, program, resolved, *place, compiled_by=by)
            resume = checkpoints.find_checkpoint(folder / run, "latest")
        like = jax.eval_shape(program.init, run_key(config.seed))
        np.savez(folder / f"{run}.npz", **arrays(checkpoints.restore_state(resume, like)))


def write_seeds(folder: Path) -> None:
    """Four seeds, each on two devices, and the same on one."""
    places = {"spread": DeviceLayout.over(jax.devices(), 4, grouped=True), "together": ALONE}
    for run, layout in places.items():
        members = []
        for seed in range(4):
            config = replace(
                configure("ppo", 2), algo=ALGOS["a2c"], seed=seed, curriculum=constant_curriculum
            )
            members.append(group_members.Member(f"seed_{seed}", "baseline", config, {"seed": seed}))
        vectorized_runs.train_group(members, {"seed": 0}, folder / run, Tracker({}), layout=layout)


def told(arguments: Sequence[str], folder: Path) -> dict:
    """What a command line ends with, says, and leaves, begun in an empty folder."""
    folder.mkdir(parents=True)
    out, errors, status = StringIO(), StringIO(), 0
    typed = mock.patch.object(sys, "argv", ["train", *arguments])
    with typed, chdir(folder), redirect_stdout(out), redirect_stderr(errors):
        try:
            command_line.run_guarded(train.main)
        except SystemExit as end:
            status = end.code
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {"status": status, "out": out.getvalue(), "errors": errors.getvalue(), "left": left}


TINY = (
    "env=fickle",
    "algo=ppo",
    "tuning=none",
    "algo.horizon=8",
    "algo.widths=[8]",
    "algo.epochs=1",
    "algo.num_minibatches=2",
    "tracking=quiet",
    "num_envs=16",
    "eval_every=1",
    "eval_episodes=8",
    "checkpoint_every=1",
)
LENGTH_TYPED = "total_env_steps=384"


def write_environment(folder: Path) -> list[str]:
    """Writes the configuration of the environment of `TINY`; what is typed so that it is found."""
    (folder / "env").mkdir(parents=True, exist_ok=True)
    (folder / "env" / "fickle.yaml").write_text("_target_: probes.Fickle\n")
    return ["--config-dir", str(folder)]


REFUSED = {
    "envs": ("num_envs=12", "devices=8"),
    "episodes": ("eval_episodes=12", "devices=8"),
    "absent": ("devices=9",),
    "shards": ("shards=8", "devices=3"),
}


def write_lines(folder: Path) -> None:
    """What the command line says: of a run on four devices, of its continuation, and of what is refused."""
    tiny = [*write_environment(folder / "conf"), *TINY]
    heard = {name: told([*tiny, *more], folder / name) for name, more in REFUSED.items()}
    with mock.patch.object(memory, "available_bytes", lambda devices: 1_000_000):
        heard["memory"] = told([*tiny, "num_envs=131072", "devices=8"], folder / "memory")
    begun = [*tiny, "devices=4", LENGTH_TYPED, "run_name=run", f"output_dir={folder / 'outputs'}"]
    heard["begun"] = told(begun, folder / "begun")
    run = folder / "outputs" / "fickle" / "ppo" / "run"
    shutil.copytree(run, folder / "before", symlinks=True)
    heard["three"] = told([f"resume={run}", "devices=3"], folder / "three")
    (folder / "lines.json").write_text(json.dumps(heard))


def write_runs(part: str, folder: Path) -> None:
    """`write_run` of every learner of a part on every number of devices."""
    for name, places in RUNS[part].items():
        for devices in places:
            write_run(name, devices, folder)


def write_rollouts(folder: Path) -> None:
    """A learner from rollouts, and a run that moves.

    It moves at once after the runs of its algorithm, whose programs are in the cache then: others that are
    traced between change how jax shares functions, and by that the programs' text.
    """
    write_runs("rollouts", folder)
    write_moves(EVALUATED, folder)


def exchange(x):
    """A program of one shard whose exchanges do not depend on each other, in and beside a loop."""
    gathered = [collectives.gather_shards(jnp.sort(jnp.sin(x * (i + 1)))) for i in range(6)]
    summed = [collectives.sum_over_shards(jnp.cumsum(jnp.cos(x * (i + 1)))) for i in range(6)]

    def step(total, i):
        return total + collectives.sum_over_shards(x * i), collectives.gather_shards(x + i).sum()

    looped = collectives.run_in_order(functools.partial(jax.lax.scan, step), x, jnp.arange(4.0))
    later = collectives.gather_shards(jnp.tanh(x))
    return sum(jnp.sort(y).sum() for y in (*gathered, later)), sum(summed), looped


def write_exchanges(folder: Path) -> None:
    """Exchanges of one program that XLA could start in any order, many times."""
    rows = np.random.default_rng(0).uniform(size=(DEVICES, 64)).astype(np.float32)
    layout = DeviceLayout.over(jax.devices())
    one = jax.shard_map(
        lambda x: jax.tree.map(lambda y: y[None], exchange(x[0])),
        mesh=layout.mesh,
        in_specs=PartitionSpec(collectives.DEVICES),
        out_specs=PartitionSpec(collectives.DEVICES),
        check_vma=False,
    )
    run = jax.jit(one)
    for _ in range(100):
        found = run(rows)
    np.savez(folder / "exchanges.npz", *map(np.asarray, jax.tree.leaves(found)), rows=rows)


def write_rest(folder: Path) -> None:
    """Exchanges, and the command line."""
    write_exchanges(folder)
    write_lines(folder)


PARTS: dict[str, Callable[[Path], None]] = {
    "rollouts": write_rollouts,
    "more_rollouts": functools.partial(write_runs, "more_rollouts"),
    "pool": write_pool,
    "more_replays": functools.partial(write_runs, "more_replays"),
    "seeds": write_seeds,
    "rest": write_rest,
}


if __name__ == "__main__":
    part, where = sys.argv[1:]
    compiler.provide_collective_threads()
    if len(jax.devices()) != DEVICES:
        raise SystemExit(f"XLA_FLAGS={os.environ.get('XLA_FLAGS')}: must make {DEVICES} devices")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    command_line.raise_gc_thresholds()
    PARTS[part](Path(where))
