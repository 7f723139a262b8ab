"""What a user types: the main commands, and one clear line for what is wrong."""

import os
import sys

import jax
import numpy as np
import pytest
from commands import TINY
from omegaconf import OmegaConf
from PIL import Image

from algos.optim.small_batches import choose_implementation
from jaxmarl_echelon import command_line, evaluate, train
from jaxmarl_echelon.config_path import config_directory
from jaxmarl_echelon.training import loop


class Stop(Exception):
    """Ends a run where a test has seen enough."""


def run(monkeypatch, main, *arguments):
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    command_line.guarded(main)


def rivals(folder):
    """What is typed to train a probe whose configuration is written into the folder."""
    (folder / "env").mkdir()
    (folder / "env" / "rivals.yaml").write_text("_target_: probes.Rivals\n")
    return ["--config-dir", folder, "env=rivals", *(a for a in TINY if not a.startswith("env."))]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("algo.gama=0.9", ["algo.gama=0.9", "did you mean algo.gamma?"]),
        ("lerning_rate=1", ["lerning_rate=1", "unknown key"]),
        ("pool.shares={magic: 1}", ["pool.shares={magic: 1}", "unknown key", "mirror, pfsp, fixed"]),
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
        ("env.reverse=backwards", ["env.reverse", "backwards", "true or false"]),
        ("env.spawns=[pinch_up]", ["pinch_up", "pinch_left"]),
        ("env.timeout=never", ["never", "terminal", "truncation"]),
        ("reward.components.terminal.target_crush=1", ["target_crush"]),
        ("controllers={defender: nobody}", ["nobody", "ftg", "learner"]),
        ("controllers.defender=nobody", ["nobody", "ftg", "learner"]),
        ("controllers={driver: learner}", ["driver", "attacker"]),
        ("resume=nowhere", ["nowhere", "no such folder"]),
        ("eval_every=3 updates_per_chunk=2", ["eval_every=3", "updates_per_chunk=2"]),
        ("controllers.defender=frozen:nowhere", ["nowhere", "no such folder"]),
        ("algos.defender.gamma=0.9", ["algos.defender", "learners: attacker"]),
        ("seeds=0", ["seeds=0", "at least 1"]),
        ("ablate=reward.kindness,reward.pressure", ["reward.kindness", "reward.forcing"]),
        ("variants.a={env.lidar_beams: 9}", ["variants.a"]),
        ("curriculum=phased99", ["curriculum=phased99", "phased26", "spawn"]),
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


REPLAY = ["algo=sac", "env.lidar_beams=12", "env.max_steps=60", "num_envs=8", "tracking=quiet"]
PHASES = [
    "curriculum=phased26",
    "env.lidar_beams=12",
    "num_envs=8",
    "algo.num_minibatches=1",
    "tracking=quiet",
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*REPLAY, "algo.replay.capacity=100"], ["replay.capacity=100", "at least 256", "batches of 256"]),
        ([*REPLAY, "algo.replay.capacity=100000000000"], ["replay.capacity", "GB are free"]),
        ([*REPLAY, "algo.replay.hindsight_ratio=0.5"], ["hindsight_ratio=0.5", "no goals"]),
        ([*REPLAY, "algo.replay.success_ratio=1.5"], ["success_ratio=1.5"]),
        pytest.param(
            ["algo=tqc", "env=gymnax/CartPole-v1"],
            ["algo=tqc", "continuous"],
            marks=pytest.mark.needs("gymnax"),
        ),
        (["env=gymnax/CartPole-v2"], ["env=gymnax/CartPole-v2", "gymnax/CartPole-v1"]),
        (
            [*PHASES, "curriculum.phases.18.settings.ftg.steering_gain=1.4"],
            ["4_ftg_weak", "steering_gain", "1.4"],
        ),
        (
            [*PHASES, "curriculum.phases.3.mixture={foundation: 0.7, previous: 0.6}"],
            ["1_lock300", "foundation"],
        ),
        ([*PHASES, "curriculum.phases.1.name=1_lock800"], ["1_lock800"]),
        (
            [*PHASES, "curriculum.phases.2.criteria={success_rate: 0.3, regress_success_rate: 0.5}"],
            ["1_lock400"],
        ),
        ([*PHASES, "curriculum.evaluation.ftg.steering_gain=2"], ["curriculum.evaluation", "steering_gain"]),
    ],
)
def test_what_cannot_be_learnt_is_one_line_and_writes_nothing(
    monkeypatch, capsys, tmp_path, arguments, words
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, train.main, *arguments)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("error: ")
    for word in words:
        assert word in message, message
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


def test_realism_needs_recordings(monkeypatch, capsys, finished_run, tmp_path):
    output = tmp_path / "none"
    with pytest.raises(SystemExit):
        run(monkeypatch, evaluate.main, finished_run, "--realism", "--output", output)
    assert "--realism: f110 has no recordings to compare with" in capsys.readouterr().err
    assert not output.exists()


def test_a_policy_is_scored_on_every_phase(monkeypatch, capsys, finished_run, tmp_path):
    # On another map than line2 the standing attacker comes unasked.
    words = ("env.map=track:3", "--ladder", "--episodes", "2", "--output", tmp_path)
    run(monkeypatch, evaluate.main, finished_run, *words)
    shown = capsys.readouterr().out
    assert "map track:3: counter-clockwise, 60.0 m, generated" in shown
    assert "standing" in shown and "untrained" not in shown
    assert "0 1_lock800" in shown and "25 4_ftg_expert" in shown
    with Image.open(tmp_path / "ladder.png") as picture:
        assert min(picture.size) > 300


def test_a_frozen_player_comes_from_another_run(monkeypatch, tmp_path):
    """Two programs: one of two learners, one of a learner and what the other run learnt."""
    monkeypatch.chdir(tmp_path)
    typed = rivals(tmp_path)
    run(monkeypatch, train.script, *typed, "run_name=both", "controllers.prey=learner")
    runs = tmp_path / "outputs" / "rivals" / "ppo"
    run(monkeypatch, train.script, *typed, "run_name=one", f"controllers.prey=frozen:{runs / 'both'}")
    assert (runs / "one" / "summary.json").is_file()
    saved = {"both": "best_eval", "one": "latest"}
    both, one = (evaluate.load(runs / name, which)[4].policies for name, which in saved.items())
    frozen = next(state for name, state in one.items() if name != "hunter")
    jax.tree.map(np.testing.assert_array_equal, frozen.params, both["prey"].params)
    # Also against what a run has learnt for the role itself.
    other = evaluate.load(runs / "both", "best_eval", [f"controllers.prey=frozen:{runs / 'both'}@hunter"])[4]
    jax.tree.map(np.testing.assert_array_equal, other.policies["prey"].params, both["hunter"].params)


@pytest.mark.parametrize(
    "words", [("env.lidar_beams=13", "--output", "other"), ("--output", "other", "env.lidar_beams=13")]
)
def test_evaluating_under_another_shape_is_one_line(monkeypatch, capsys, finished_run, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, evaluate.main, finished_run, *words)
    message = capsys.readouterr().err
    assert caught.value.code == 2 and "checkpoint of another configuration" in message
    assert message.count("\n") == 1


def test_resume_refuses_another_environment(monkeypatch, capsys, finished_run):
    with pytest.raises(SystemExit):
        run(monkeypatch, train.main, f"resume={finished_run}", "env=f110_race")
    message = capsys.readouterr().err
    assert "keeps its env=f110" in message and message.count("\n") == 1


def test_the_tuning_that_was_applied_is_told_value_by_value():
    """A comparison at other settings goes wrong where discounts come from a file that nobody named."""
    config, choices = command_line.compose_config(["env=gymnax/CartPole-v1", "algo=ppo", "algo.gamma=0.5"])
    told, otherwise = command_line.tuning_lines(config, choices)
    assert told.startswith("tuning gymnax/CartPole-v1/ppo (tuning=none leaves it out): ")
    assert f"num_envs={config.num_envs}" in told.split() and "algo.gamma" not in told
    assert otherwise.startswith("told otherwise: algo.gamma=0.5 (not 0.")


def test_no_tuning_leaves_the_values_of_the_algorithm():
    plain, choices = command_line.compose_config(["env=f110", "algo=ppo", "tuning=none"])
    tuned, _ = command_line.compose_config(["env=f110", "algo=ppo"])
    assert command_line.tuning_lines(plain, choices) == []
    told = command_line.leaves(OmegaConf.load(config_directory() / "tuning" / "f110" / "ppo.yaml"))
    own = OmegaConf.load(config_directory() / "algo" / "ppo.yaml")
    assert plain.num_envs == 1024 and plain.algo.gamma == 0.99
    assert told and {key: OmegaConf.select(tuned, key) for key in told} == told
    untold = {key for key in told if OmegaConf.select(plain, key) != told[key]}
    assert {"num_envs", "algo.gamma", "env.pose_jitter"} <= untold
    algo = [key for key in told if key.startswith("algo.")]
    assert [OmegaConf.select(plain, key) for key in algo] == [own[key.removeprefix("algo.")] for key in algo]


def test_the_cache_keeps_what_the_environment_asks_it_to_keep(monkeypatch):
    """As it does in tests, in their own process too: most of what they compile takes less than a second."""
    name = "jax_persistent_cache_min_compile_time_secs"
    command_line.use_compilation_cache()
    assert getattr(jax.config, name) == float(os.environ[name.upper()])
    monkeypatch.delenv(name.upper())
    told = []
    monkeypatch.setattr(jax.config, "update", lambda *setting: told.append(setting))
    command_line.use_compilation_cache()
    assert told == [(name, 1.0)]


@pytest.mark.parametrize("seeds", [1, 2])
def test_small_batches_are_compiled_with_the_options_that_their_products_need(monkeypatch, tmp_path, seeds):
    """One run and a group of runs; on a CPU, which is where tests run."""

    def compile_program(init, update, assess, arguments, world, updates_per_chunk, options, *where):
        assert options == choose_implementation(32, tuned=True).compiler_options != {}
        state = jax.eval_shape(init, *arguments, world)
        assert "optimization_barrier" in jax.jit(update).lower(state, world).as_text()
        raise Stop

    monkeypatch.setattr(loop, "compile_program", compile_program)
    typed = [*rivals(tmp_path), f"output_dir={tmp_path}", f"seeds={seeds}", "algo.widths=[64,64]"]
    with pytest.raises(Stop):
        run(monkeypatch, train.script, *typed)
