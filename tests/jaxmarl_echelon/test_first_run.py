"""What README.md begins with: the first command, what it leaves, and what is made of that."""

import csv
import json
import re
import shlex
import shutil
import sys

import jax
import numpy as np
import pytest
from commands import begin
from loaded_policies import check_loaded_policies
from PIL import Image
from recorded_runs import check_loads_nothing
from replay_pages import embedded

import jaxmarl_echelon as je
from jaxmarl_echelon import checkpoints, command_line, evaluate, report, train


@pytest.fixture(scope="module")
def shown(repository):
    """README.md's shortest training command and its Python code."""
    text = (repository / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"^jaxmarl-train (.*)$", text, re.MULTILINE)
    return shlex.split(command), code


@pytest.fixture(scope="module")
def first_run(shown, tmp_path_factory):
    """The folder in which README.md's command was typed, and what came of it."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["jaxmarl-train", *shown[0]])
        train.script()
    return folder, folder / "outputs" / "f110" / "ppo" / "first"


@pytest.fixture(scope="module")
def begun(shown, tmp_path_factory):
    """As `first_run`, before the first update."""
    folder = tmp_path_factory.mktemp("begun")
    config, choices = command_line.compose_config(command_line.normalize_overrides(shown[0]))
    place = command_line.run_folder(config, choices, config.run_name)
    begin(folder / place, config, choices)
    saved = folder / place / "checkpoints"
    shutil.copy(saved / "best_eval", saved / "latest")
    return folder, folder / place


def run(monkeypatch, main, *arguments):
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    command_line.run_guarded(main)


def keep_result(monkeypatch, name, keep):
    """Lets a function of the command `evaluate` hand its arguments and its result to `keep` as well."""
    function = getattr(evaluate, name)

    def kept(*arguments, **named):
        result = function(*arguments, **named)
        keep(arguments, result)
        return result

    monkeypatch.setattr(evaluate, name, kept)


@pytest.mark.thorough
def test_a_run_leaves_its_folder(first_run):
    _, folder = first_run
    for name in ("config.yaml", "metrics.csv", "eval.csv", "summary.json", "learning_curve.png"):
        assert (folder / name).stat().st_size > 0
    for name in ("latest", "best_eval"):
        assert (checkpoints.find_checkpoint(folder, name) / "metadata.json").is_file()
    device = jax.devices()[0]
    assert device.platform in json.loads((folder / "summary.json").read_text())["device"]
    with Image.open(folder / "learning_curve.png") as picture:
        assert min(picture.size) > 300
    page = (folder / "report.html").read_text()
    check_loads_nothing(page)
    assert "<h2>Replay</h2>" in page and "<td>env.lidar_beams</td><td>108</td><td>36</td>" in page


@pytest.mark.thorough
def test_a_replay_of_an_old_run_is_played(monkeypatch, capsys, first_run, tmp_path):
    """A run that has no page: its best policy plays."""
    _, folder = first_run
    old = shutil.copytree(folder, tmp_path / "old", ignore=shutil.ignore_patterns("*.html", "*.png"))
    run(monkeypatch, report.main, old)
    assert f"report: {old / 'report.html'}" in capsys.readouterr().out
    assert embedded((old / "replay.html").read_text())["events"]
    assert "<h2>Replay</h2>" in (old / "report.html").read_text()
    with Image.open(old / "learning_curve.png") as picture:
        assert picture.size[0] >= 1000


def test_the_same_name_twice_is_refused(monkeypatch, capsys, shown, begun):
    monkeypatch.chdir(begun[0])
    with pytest.raises(SystemExit):
        run(monkeypatch, train.main, *shown[0])
    assert "already exists" in capsys.readouterr().err


@pytest.mark.thorough
def test_evaluate_reproduces_the_score_and_draws(monkeypatch, capsys, first_run, tmp_path):
    seen = {}
    keep_result(monkeypatch, "play_actors", lambda _, played: seen.update(table=played["trained policy"]))
    run(monkeypatch, evaluate.main, first_run[1], "--baselines", "--episode", "1", "--output", tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    for word in ("trained policy", "untrained policy", "random", "standing", "reproduced exactly"):
        assert word in said
    with Image.open(tmp_path / "trajectories.png") as picture:
        assert min(picture.size) > 200
    (animation,) = tmp_path.glob("*.gif")
    with Image.open(animation) as picture:
        assert picture.n_frames > 5
    assert (tmp_path / "evaluation.json").is_file()
    # Pictures and rows are of the episodes of the table.
    scored = seen["table"]
    assert animation.name == "episode_1.gif" and scored.frames is not None
    with (tmp_path / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    returns = np.asarray(scored.episode_return["attacker"])[:, 0]
    np.testing.assert_allclose([float(row["reward"]) for row in rows], returns, rtol=1e-6)
    assert [row["episode"] for row in rows] == [str(number) for number in range(len(returns))]
    assert f"episode 1: {rows[1]['task']}, {rows[1]['outcome']}, return {returns[1]:.1f}" in said
    assert len(np.unique(returns)) > 1


def test_realism_needs_recordings(monkeypatch, capsys, begun, tmp_path):
    output = tmp_path / "none"
    with pytest.raises(SystemExit):
        run(monkeypatch, evaluate.main, begun[1], "--realism", "--output", output)
    assert "--realism: f110 has no recordings to compare with" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.thorough
def test_a_policy_is_scored_on_every_phase(monkeypatch, capsys, first_run, tmp_path):
    # On another map than line2 the standing attacker comes unasked. What is drawn of episodes is shown above.
    monkeypatch.setattr(evaluate, "show_episodes", lambda *_, **__: None)
    words = ("env.map=track:3", "env.max_steps=60", "--ladder", "--episodes", "2", "--output", tmp_path)
    run(monkeypatch, evaluate.main, first_run[1], *words)
    said = capsys.readouterr().out
    assert "map track:3: counter-clockwise, 60.0 m, generated" in said
    assert "standing" in said and "untrained" not in said
    assert "0 1_lock800" in said and "25 4_ftg_expert" in said
    with Image.open(tmp_path / "ladder.png") as picture:
        assert min(picture.size) > 300


@pytest.mark.parametrize(
    "words", [("env.lidar_beams=13", "--output", "other"), ("--output", "other", "env.lidar_beams=13")]
)
def test_evaluating_under_another_shape_is_one_line(monkeypatch, capsys, begun, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, evaluate.main, begun[1], *words)
    message = capsys.readouterr().err
    assert caught.value.code == 2 and "checkpoint of another configuration" in message
    assert message.count("\n") == 1


def test_resume_refuses_another_environment(monkeypatch, capsys, begun):
    with pytest.raises(SystemExit):
        run(monkeypatch, train.main, f"resume={begun[1]}", "env=f110_race")
    message = capsys.readouterr().err
    assert "keeps its env=f110" in message and message.count("\n") == 1


@pytest.mark.thorough
def test_the_code_at_the_top_of_the_readme(monkeypatch, shown, first_run):
    monkeypatch.chdir(first_run[0])
    names = {}
    exec(compile(shown[1], "README.md", "exec"), names)
    assert names["je"] is je and int(names["run"].updates) > 0
    assert names["env"].spec.role("attacker").action.contains(names["actions"]["attacker"][0])
    lines = [line for line in shown[1].splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 15


@pytest.mark.thorough
def test_a_loaded_policy_is_that_of_its_checkpoint(first_run):
    check_loaded_policies(first_run[1], "attacker", "defender")
