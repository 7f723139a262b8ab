"""From training to an evaluation with pictures, on a probe; `test_first_run` does so with README's run."""

import json
import sys

import jax
import pytest
from loaded_policies import check_loaded_policies
from PIL import Image
from recorded_runs import check_loads_nothing
from sketched import train_sketched

from jaxmarl_echelon import checkpoints, evaluate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_sketched(tmp_path_factory.mktemp("sketched"))


def test_a_run_leaves_its_folder(run):
    for name in ("config.yaml", "metrics.csv", "eval.csv", "summary.json", "learning_curve.png"):
        assert (run / name).stat().st_size > 0
    for name in ("latest", "best_eval"):
        assert (checkpoints.find_checkpoint(run, name) / "metadata.json").is_file()
    assert jax.devices()[0].platform in json.loads((run / "summary.json").read_text())["device"]
    with Image.open(run / "learning_curve.png") as picture:
        assert min(picture.size) > 300
    page = (run / "report.html").read_text()
    check_loads_nothing(page)
    assert "<h2>Replay</h2>" in page and "<td>algo.horizon</td><td>128</td><td>8</td>" in page


def test_evaluate_reproduces_the_score_and_draws(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["evaluate", str(run), "--baselines", "--output", str(tmp_path)])
    evaluate.main()
    said = " ".join(capsys.readouterr().out.split())
    for word in ("trained policy", "untrained policy", "lazy", "reproduced exactly"):
        assert word in said
    scores = json.loads((tmp_path / "evaluation.json").read_text())
    best = checkpoints.read_metadata(checkpoints.find_checkpoint(run, "best_eval"))["scores"]
    name = "eval_agg/avg_reward"
    assert scores["trained policy"][name] == pytest.approx(best[name])
    with Image.open(tmp_path / "trajectories.png") as picture:
        assert picture.size[1] == 6  # a row for the start and for every decision
    (animation,) = tmp_path.glob("*.gif")
    with Image.open(animation) as picture:
        assert picture.n_frames == 6
    assert (tmp_path / "replay.html").read_text() == "<p>[0, 1, 2, 3, 4, 5]</p>"


def test_a_loaded_policy_is_that_of_its_checkpoint(run):
    check_loaded_policies(run, "player", "goalkeeper")
