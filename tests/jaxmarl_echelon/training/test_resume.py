"""Stopping and resuming changes no bit, for every algorithm, with replay and with a curriculum."""

import jax
import mission_runs
import numpy as np
import probes
import pytest
from compiled_once import Once
from marked import mark_others

from algos.off_policy.teams import QMIXConfig
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.pqn import PQNConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.missions.curriculum import mission_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import loop

SMALL = {"horizon": 8, "widths": (16,), "learning_rate": 1e-3}
REPLAY = {
    "batch_size": 8,
    "learning_starts": 48,
    "replay": {
        "capacity": 160,
        "n_step": 2,
        "prioritized": True,
        "success_capacity": 32,
        "success_ratio": 0.25,
    },
}
ALGOS = {
    "ppo_lstm": PPOConfig(
        **SMALL,
        epochs=2,
        num_minibatches=2,
        sampling="prioritized",
        segments_per_agent=2,
        core={"kind": "lstm", "width": 8},
        priority_alpha=0.5,
        reward_centering=0.01,
    ),
    "a2c": A2CConfig(**SMALL, normalize_reward=True, policy_average=0.5),
    "tqc": TQCConfig(**SMALL, **REPLAY, n_critics=2, n_quantiles=5, drop_per_critic=1),
    "qmix": QMIXConfig(
        **SMALL | REPLAY | {"replay": {"capacity": 160, "n_step": 2}},
        hyper_widths=(8,),
        mixing_width=8,
        target_period=3,
    ),
    "pqn": PQNConfig(**SMALL, epochs=2, num_minibatches=2),
}


class Phased(probes.Probe):
    """A probe with a number that phases may set."""

    def task_params(self, settings):
        return self.default_params() | {name: np.float32(value) for name, value in settings.items()}


class Levels(Phased, probes.ContinuousTarget):
    """The same with continuous actions."""


class Losses(Phased, probes.DeadAgent):
    """The same with discrete actions of two agents, of whom one dies."""


def course(env):
    phases = [
        {"name": f"gain_{gain}", "settings": {"gain": gain}, "criteria": {"success_rate": 0.0}}
        for gain in (1, 2, 3)
    ]
    common = {
        "criteria": {"min_episodes": 40, "window_size": 20},
        "mixture": {"foundation": 0.1, "previous": 0.1},
    }
    return phased_curriculum(env, phases, common)


def orders(env):
    """Phases of missions, of which the first are left after a handful of episodes each."""
    sizes = {"window": 20, "dwell": 24, "nominal_episodes": 60, "blend_episodes": 30}
    return mission_curriculum(env, mission_runs.PHASES, **sizes)


# What a learner plays, and how it changes.
TASKS = {
    "ppo_lstm": (mission_runs.PlayedMissions, orders),
    "a2c": (Levels, course),
    "tqc": (Levels, course),
    "qmix": (Losses, course),
    "pqn": (Losses, course),
}


def configure(algo, updates=8):
    env, curriculum = TASKS[algo]
    return RunConfig(
        env=env(),
        algo=ALGOS[algo],
        curriculum=curriculum,
        total_env_steps=updates * 8 * 8,
        num_envs=8,
        eval_every=4,
        eval_episodes=8,
        checkpoint_every=4,
        window=16,
        episode_rows=16,
    )


def train(folder, config, once, resume=None, stop_after=None):
    folder.mkdir(exist_ok=True)
    tracker = Tracker({"csv": CsvSink()})
    program, by = once.program(config), once.compile
    return loop.train_run(config, program, {"seed": 0}, folder, tracker, resume, stop_after, compiled_by=by)


@pytest.mark.parametrize("algo", mark_others(ALGOS, "ppo_lstm", "tqc"))
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, algo):
    config, once = configure(algo), Once()
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    finished = train(whole, config, once)
    train(halved, config, once, stop_after=5)
    again = train(halved, config, once, resume=checkpoints.find_checkpoint(halved, "latest"))
    assert finished["stage"] == again["stage"] > 0 and finished["best"] == again["best"]

    like = jax.eval_shape(once.program(config).init, jax.random.key(0))
    first, second = (
        checkpoints.flatten_state(
            checkpoints.restore_state(checkpoints.find_checkpoint(folder, "latest"), like)
        )
        for folder in (whole, halved)
    )
    assert any("replay" in name for name in first) == (algo in ("tqc", "qmix"))
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name
    assert (whole / "eval.csv").read_text() == (halved / "eval.csv").read_text()
