"""Populations of learners with a replay: lineage, and a continued run."""

import csv
import sys

import chex
import jax
import numpy as np
import pytest

from jaxmarl_echelon import checkpoints, command_line, run_loading, train

SAC = (
    "+algo=sac", "env=gymnax/Pendulum-v1", "env.params.max_steps_in_episode=10", "tuning=none", "seeds=1",
    "num_envs=4", "eval_every=2", "eval_episodes=2", "checkpoint_every=2", "algo.widths=[16]",
    "algo.horizon=8", "algo.batch_size=16", "algo.learning_starts=32", "algo.replay.capacity=512",
    "tracking=quiet",
    "pbt={every: 2, keys: [algo.learning_rate], exploit: 0.5}",
    "variants={fast: {algo.learning_rate: 0.01}, slow: {algo.learning_rate: 0.00001}}",
)  # fmt: skip
UPDATE, MEMBERS = 4 * 8, 3


def command(monkeypatch, *overrides):
    monkeypatch.setattr(sys, "argv", ["jaxmarl-train", *map(str, overrides)])
    command_line.run_guarded(train.main)


def rows(path):
    return list(csv.DictReader(path.open()))


def group_state(folder):
    """The newest state of all members: learners, replays and episodes."""
    member = rows(folder / "members.csv")[0]["member"]
    *_, program, _ = run_loading.load_run(str(folder / member), "latest")
    one = jax.eval_shape(program.init, jax.random.key(0))
    every = jax.tree.map(lambda x: jax.ShapeDtypeStruct((MEMBERS, *x.shape), x.dtype), one)
    return checkpoints.restore_state(checkpoints.find_checkpoint(folder, "latest"), every)


@pytest.mark.thorough
def test_sac_continues_a_population_to_the_same_bits(tmp_path, monkeypatch):
    begun = (*SAC, f"output_dir={tmp_path}")
    command(monkeypatch, *begun, "run_name=whole", f"total_env_steps={8 * UPDATE}")
    command(monkeypatch, *begun, "run_name=halved", f"total_env_steps={4 * UPDATE}")
    whole, halved = (tmp_path / "gymnax_Pendulum-v1" / "sac" / name for name in ("whole", "halved"))
    command(monkeypatch, f"resume={halved}", f"total_env_steps={8 * UPDATE}")
    table = rows(whole / "pbt.csv")
    assert any(row["parent"] != row["member"] for row in table)
    assert table == rows(halved / "pbt.csv")
    ours, theirs = group_state(whole), group_state(halved)
    chex.assert_trees_all_equal(jax.device_get(ours), jax.device_get(theirs))
    (learner,) = ours.policies.values()
    rates = np.float32([row["algo.learning_rate"] for row in table[-MEMBERS:]])
    np.testing.assert_array_equal(np.ravel(learner.hyper["learning_rate"]), rates)
