"""A trained F110 policy, distilled into a smaller recurrent one, from command line to evaluation."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial

import jax
import pytest

from jaxmarl_echelon.evaluate import load
from jaxmarl_echelon.training.keys import Stream, stream_key


def trained(folder, name, *overrides):
    """Trains the default F110 task and returns the run's folder and summary."""
    command = [sys.executable, "-m", "jaxmarl_echelon.train", "env=f110", "tracking=quiet"]
    subprocess.run(
        [*command, f"run_name={name}", *overrides],
        cwd=folder,
        env=os.environ,
        check=True,
        capture_output=True,
    )
    (run,) = folder.glob(f"outputs/f110/*/{name}")
    return run, json.loads((run / "summary.json").read_text())


def success(run):
    """Deterministic success of the best policy, on 64 episodes."""
    _, _, config, program, state = load(str(run), "best_eval")
    result = jax.jit(partial(program.evaluate, episodes=64))(state, stream_key(config.seed, Stream.FINAL))
    return float(program.env.spec.succeeded(result.outcome).mean())


@pytest.mark.slow
def test_a_smaller_recurrent_policy_takes_over_what_another_one_learnt(tmp_path):
    """An eighth of the width, and fewer decisions: alone it is nowhere by then (docs/results.md)."""
    teacher, _ = trained(tmp_path, "teacher", "algo=ppo", "total_env_steps=393216")
    wanted = success(teacher)
    assert wanted >= 0.5
    small = ("algo=ppo_rnn", "algo.core={kind: gru, width: 32}", "algo.widths=[32]", "total_env_steps=262144")
    student, summary = trained(tmp_path, "student", *small, f"algo.teacher={teacher}")
    assert summary["env_steps"] == 262144
    shutil.rmtree(teacher)
    assert success(student) >= 0.9 * wanted
