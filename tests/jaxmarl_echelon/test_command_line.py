"""What a user types: the main commands, and one clear line for what is wrong."""

import sys

import pytest
from PIL import Image

from jaxmarl_echelon import command_line, evaluate, train

TINY = [
    "num_envs=8",
    "total_env_steps=128",
    "algo.horizon=8",
    "algo.num_minibatches=2",
    "algo.epochs=1",
    "algo.widths=[16]",
    "eval_every=1",
    "eval_episodes=4",
    "env.lidar_beams=12",
    "env.max_steps=60",
    "tracking=quiet",
]


def run(monkeypatch, main, *arguments):
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    command_line.guarded(main)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("algo.gama=0.9", ["algo.gama=0.9", "did you mean algo.gamma?"]),
        ("lerning_rate=1", ["lerning_rate=1", "unknown key"]),
        ("+lerning_rate=1", ["lerning_rate=1", "unknown key"]),
        ("+algo.lerning_rate=1", ["algo", "lerning_rate"]),
        ("algo=ddpg", ["algo=ddpg", "unknown algo", "ppo"]),
        ("env=f111", ["env=f111", "f110", "f110_race"]),
        ("reward=gaplock", ["reward=gaplock", "gaplock_full"]),
        ("algo", ["algo", "KEY=VALUE"]),
        ("seed=[1", ["seed=[1"]),
        ("seed=-1", ["seed=-1"]),
        ("num_envs=0", ["num_envs=0", "at least 1"]),
        ("num_envs=many", ["num_envs=many", "whole number"]),
        ("total_env_steps=1.5", ["total_env_steps=1.5", "whole number"]),
        ("algo.gamma=1.5", ["gamma=1.5"]),
        ("algo.learning_rate=fast", ["learning_rate", "fast"]),
        ("algo.num_minibatches=7", ["7", "8"]),
        ("env.lidar_beams=0", ["lidar_beams", "0"]),
        ("env.map=nowhere.yaml", ["nowhere.yaml"]),
        ("env.map=track:x", ["track:x"]),
        ("env.spawns=[pinch_up]", ["pinch_up", "pinch_left"]),
        ("env.timeout=never", ["never", "terminal", "truncation"]),
        ("reward.components.terminal.target_crush=1", ["target_crush"]),
        ("controllers={defender: nobody}", ["nobody", "ftg", "learner"]),
        ("controllers.defender=nobody", ["nobody", "ftg", "learner"]),
        ("controllers={driver: learner}", ["driver", "attacker"]),
        ("resume=nowhere", ["nowhere", "no such folder"]),
        ("eval_every=3 updates_per_chunk=2", ["eval_every=3", "updates_per_chunk=2"]),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(monkeypatch, capsys, tmp_path, argument, words):
    monkeypatch.chdir(tmp_path)
    arguments = argument.split(" ") if argument.count("=") > 1 and "{" not in argument else [argument]
    tiny = [a for a in TINY if a.partition("=")[0] not in argument]
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, train.main, *tiny, *arguments)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("error: ")
    for word in words:
        assert word in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n123"])
def test_a_map_that_is_no_image_is_one_line(monkeypatch, capsys, tmp_path, content):
    (tmp_path / "m.png").write_bytes(content)
    (tmp_path / "m.yaml").write_text(
        "image: m.png\nresolution: 0.05\norigin: [0, 0, 0]\n"
        "negate: 0\noccupied_thresh: 0.65\nfree_thresh: 0.2\n"
    )
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, train.main, *TINY, f"env.map={tmp_path / 'm.yaml'}")
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "m.png" in message


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        run(monkeypatch, train.main, "+algo=ppo", "env=f110", "run_name=tiny", *TINY)
    return folder / "outputs" / "f110" / "ppo" / "tiny"


def test_a_run_leaves_its_folder(finished_run):
    for name in ("config.yaml", "metrics.csv", "eval.csv", "summary.json", "learning_curve.png"):
        assert (finished_run / name).stat().st_size > 0
    for name in ("latest", "best_eval"):
        assert (finished_run / "checkpoints" / name / "metadata.json").is_file()
    with Image.open(finished_run / "learning_curve.png") as picture:
        assert min(picture.size) > 300


def test_the_same_name_twice_is_refused(monkeypatch, capsys, finished_run):
    monkeypatch.chdir(finished_run.parents[3])
    with pytest.raises(SystemExit):
        run(monkeypatch, train.main, "run_name=tiny", *TINY)
    assert "exists already" in capsys.readouterr().err


def test_evaluate_reproduces_the_score_and_draws(monkeypatch, capsys, finished_run, tmp_path):
    run(monkeypatch, evaluate.main, finished_run, "--baselines", "--output", tmp_path)
    shown = capsys.readouterr().out
    for word in ("trained policy", "untrained policy", "random", "standing", "reproduced exactly"):
        assert word in shown
    with Image.open(tmp_path / "trajectories.png") as picture:
        assert min(picture.size) > 200
    (animation,) = tmp_path.glob("*.gif")
    with Image.open(animation) as picture:
        assert picture.n_frames > 5
    assert (tmp_path / "evaluation.json").is_file()


def test_resume_refuses_another_environment(monkeypatch, capsys, finished_run):
    with pytest.raises(SystemExit):
        run(monkeypatch, train.main, f"resume={finished_run}", "env=f110_race")
    message = capsys.readouterr().err
    assert "keeps its env=f110" in message and message.count("\n") == 1
