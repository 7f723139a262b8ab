"""Runs on environments of other libraries: through the command, a folder, and a resumed run."""

import sys

import numpy as np
import pytest

from jaxmarl_echelon import train
from jaxmarl_echelon.tracking.csv_sink import read_columns

SMALL = [
    "algo=ppo",
    "tuning=none",
    "tracking=quiet",
    "num_envs=4",
    "algo.horizon=8",
    "algo.widths=[8]",
    "algo.epochs=1",
    "algo.num_minibatches=2",
    "eval_every=2",
    "checkpoint_every=2",
    "eval_episodes=4",
]


def trained(monkeypatch, folder, *typed):
    """Trains in a folder; returns that of the run."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["train", *typed])
    train.main()
    (run,) = folder.glob(f"outputs/*/ppo/{typed[-1].partition('=')[2]}")
    return run


@pytest.mark.needs("jaxmarl")
def test_a_run_of_spread_goes_on_to_the_same_bits(monkeypatch, tmp_path):
    typed = ["env=jaxmarl/MPE_simple_spread_v3", "env.critic=state", *SMALL]
    whole = trained(monkeypatch, tmp_path, *typed, "total_env_steps=128", "run_name=whole")
    half = trained(monkeypatch, tmp_path, *typed, "total_env_steps=64", "run_name=half")
    again = trained(monkeypatch, tmp_path, f"resume={half}", "total_env_steps=128", "as=again")
    for name in ("metrics.csv", "eval.csv", "eval_episodes.csv", "summary.json"):
        assert (whole / name).is_file(), name
    expected, got = (read_columns(run / "metrics.csv") for run in (whole, again))
    for name in ("losses/policy_loss", "losses/value_loss", "train/return"):
        np.testing.assert_array_equal(expected[name][-2:], got[name][-2:])
    assert read_columns(whole / "eval.csv")["avg_reward"].max() < 0


@pytest.mark.needs("pgx")
def test_a_run_of_a_game_of_pgx_is_scored_against_random_players(monkeypatch, tmp_path):
    typed = ["env=pgx/kuhn_poker", *SMALL]
    run = trained(monkeypatch, tmp_path, *typed, "total_env_steps=128", "run_name=game")
    scores = read_columns(run / "eval.csv")
    assert 0 <= scores["points_rate"][-1] <= 1
    games = read_columns(run / "eval_episodes.csv")
    assert set(np.abs(games["score/0"])) <= {1, 2} and (games["score/0"] == -games["score/1"]).all()
