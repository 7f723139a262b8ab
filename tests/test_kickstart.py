"""From a run to the one that it teaches, and on without it; `make learn` holds what it is worth."""

import csv
import shutil
import sys

import jax
import numpy as np
import pytest

from jaxmarl_echelon import command_line, train
from jaxmarl_echelon.run_loading import load_run
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key

pytestmark = pytest.mark.needs("gymnax")

SMALL = ("env=gymnax/CartPole-v1", "tracking=quiet", "tuning=none", "num_envs=16", "total_env_steps=512")


def trained(monkeypatch, tmp_path, name, *overrides):
    """Trains a few updates and returns the run's folder."""
    monkeypatch.setattr(
        sys, "argv", ["train", *SMALL, f"output_dir={tmp_path}", f"run_name={name}", *overrides]
    )
    command_line.run_guarded(train.main)
    (run,) = tmp_path.glob(f"*/*/{name}")
    return run


def test_a_policy_learns_from_another_run_and_acts_without_it(monkeypatch, tmp_path):
    sizes = ("algo.horizon=16", "algo.epochs=1", "algo.num_minibatches=2", "algo.widths=[16]")
    teacher = trained(monkeypatch, tmp_path, "teacher", "algo=ppo", *sizes)
    core = "algo.core={kind: gru, width: 8}"
    student = trained(
        monkeypatch, tmp_path, "student", "algo=ppo_rnn", *sizes, core, f"algo.teacher={teacher}"
    )
    with open(student / "metrics.csv") as file:
        shown = [row["losses/imitation_loss"] for row in csv.DictReader(file)]
    losses = [float(loss) for loss in shown if loss]
    assert len(losses) == 2 and all(np.isfinite(losses)) and losses[0] > 0
    shutil.rmtree(teacher)
    _, _, config, program, state = load_run(str(student), "latest")
    result = program.evaluate(state, stream_key(config.seed, Stream.FINAL), episodes=4)
    assert np.all(np.asarray(result.length) > 0)
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), result.episode_return))
