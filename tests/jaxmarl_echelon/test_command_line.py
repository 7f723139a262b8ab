"""What a user types: the main commands, and one clear line for what is wrong."""

import os
import shlex
import sys

import jax
import numpy as np
import pytest
from commands import TINY, begin
from marked import thorough
from omegaconf import OmegaConf

from algos import compiler
from algos.defaults import config_directory
from algos.optim.small_batches import small_batch_options, traced_for_options
from jaxmarl_echelon import command_line, optional_packages, run_loading, train
from jaxmarl_echelon.config_keys import flatten_leaves
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.envs.drive.scenes import library
from jaxmarl_echelon.training.host import loop


class Stop(Exception):
    """Ends a run where a test has seen enough."""


def run(monkeypatch, main, *arguments):
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    command_line.run_guarded(main)


def rivals(folder):
    """What is typed to train a probe whose configuration is written into the folder."""
    (folder / "env").mkdir()
    (folder / "env" / "rivals.yaml").write_text("_target_: probes.Rivals\n")
    return ["--config-dir", folder, "env=rivals", *(a for a in TINY if not a.startswith("env."))]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("algo.gama=0.9", ["algo.gama=0.9", "did you mean algo.gamma?"]),
        ("algo.learning_rate=fast", ["error: algo.learning_rate=fast: must be a number from 0 to 1"]),
        ("algo.num_minibatches=7", ["error: algo.num_minibatches=7: must divide"]),
        (
            "curriculum.phases.3.criteria.patience=9",
            ["curriculum.phases={'3'", "unknown to constant"],
        ),
        ("algo.widths=64", ["error: algo.widths=64: must be a list"]),
        ("algo.core=lstm", ["error: algo.core=lstm: must be a mapping, with the keys kind, "]),
        ("algo.widths.7=3", ["algo.widths.7=3: list index out of range"]),
        ("lerning_rate=1", ["lerning_rate=1", "unknown key"]),
        ("pool.shares={magic: 1}", ["pool.shares={magic: 1}", "unknown key", "mirror, pfsp, fixed"]),
        ("algo=ddpg", ["algo=ddpg", "unknown algo", "ppo"]),
        ("env=f111", ["env=f111", "unknown env; did you mean f110?"]),
        ("reward=gaplock", ["reward=gaplock", "gaplock_full"]),
        ("algo", ["algo", "KEY=VALUE"]),
        ("seed=[1", ["seed=[1"]),
        ("num_envs=0", ["num_envs=0", "at least 1"]),
        ("resume=nowhere", ["nowhere", "no such folder"]),
        ("eval_every=3 updates_per_chunk=2", ["eval_every=3", "updates_per_chunk=2"]),
        ("controllers.defender=frozen:nowhere", ["controllers.defender=frozen:nowhere: no such folder"]),
        (f"output_dir={300 * 'a'}", ["output_dir: cannot create aaa", "File name too long"]),
        ("output_dir=/proc/x", ["output_dir: cannot create /proc/x/"]),
        ("reward.components.pressur.bonus=1", ["reward.components.pressur: unknown component; allowed: "]),
        ("reward.components.pressure=3", ["reward.components.pressure=3: must be a mapping from "]),
        ("reward.components=3", ["reward.components=3: must be a mapping from names to weights"]),
        ("seeds=0", ["seeds=0", "at least 1"]),
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
        ([*REPLAY, "algo.replay.capacity=100000000000"], ["replay.capacity", "GB are free"]),
        pytest.param(
            ["algo=tqc", "env=gymnax/CartPole-v1"],
            ["algo=tqc", "continuous"],
            marks=pytest.mark.needs("gymnax"),
        ),
        (["env=gymnax/CartPole-v2"], ["env=gymnax/CartPole-v2", "did you mean gymnax/CartPole-v1"]),
        (["env=jaxmarl/MPE_spread"], ["env=jaxmarl/MPE_spread", "jaxmarl/MPE_simple_spread_v3"]),
        (["env=snakes"], ["env=snakes", "f110, ", "playground/NAME, "]),
        (["env=gymnasium/CartPole-v1"], ["steps on the host", "env=gymnax/CartPole-v1", "environments.md"]),
        (["env=gymnasium/HalfCheetah-v5"], ["steps on the host", "env=brax/halfcheetah"]),
        (["env=gymnasium/Taxi-v3"], ["steps on the host", "env=gymnax/NAME or env=brax/NAME"]),
        (
            [*PHASES, "curriculum.phases.3.mixture={foundation: 0.7, previous: 0.6}"],
            ["1_lock300", "foundation"],
        ),
    ],
)
def test_untrainable_configuration_is_one_line_and_writes_nothing(
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


@pytest.mark.thorough
def test_a_frozen_player_comes_from_another_run(monkeypatch, tmp_path):
    """Two programs: one of two learners, one of a learner and what the other run has saved."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "conclude_job", lambda *_: None)  # pictures that are not looked at
    typed, both = rivals(tmp_path), tmp_path / "both"
    arguments = command_line.normalize_overrides([*typed[2:], "controllers.prey=learner"])
    begun = begin(both, *command_line.compose_config(arguments, Sources(tmp_path))).policies
    run(monkeypatch, train.script, *typed, "run_name=one", f"controllers.prey=frozen:{both}")
    one = tmp_path / "outputs" / "rivals" / "ppo" / "one"
    assert (one / "summary.json").is_file()
    saved = run_loading.load_run(one, "latest")[4].policies
    frozen = next(state for name, state in saved.items() if name != "hunter")
    jax.tree.map(np.testing.assert_array_equal, frozen.params, begun["prey"].params)
    # Also against what a run has learnt for the role itself.
    other = run_loading.load_run(both, "best_eval", [f"controllers.prey=frozen:{both}@hunter"])[4]
    jax.tree.map(np.testing.assert_array_equal, other.policies["prey"].params, begun["hunter"].params)


def test_applied_tuning_is_printed_value_by_value():
    """A comparison at other settings goes wrong where discounts come from a file that nobody named."""
    config, choices = command_line.compose_config(["env=gymnax/CartPole-v1", "algo=ppo", "algo.gamma=0.5"])
    told, otherwise = command_line.tuning_lines(config, choices)
    assert told.startswith("tuning file gymnax/CartPole-v1/ppo (disable with tuning=none): ")
    assert f"num_envs={config.num_envs}" in told.split() and "algo.gamma" not in told
    assert otherwise.startswith("overridden: algo.gamma=0.5 (tuning file: 0.")


def test_no_tuning_leaves_the_values_of_the_algorithm():
    plain, choices = command_line.compose_config(["env=f110", "algo=ppo", "tuning=none"])
    tuned, _ = command_line.compose_config(["env=f110", "algo=ppo"])
    assert command_line.tuning_lines(plain, choices) == []
    told = flatten_leaves(OmegaConf.load(config_directory() / "tuning" / "f110" / "ppo.yaml"))
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


@pytest.mark.parametrize(("seeds", "compilation"), [("null", "full"), thorough(2, "full"), (2, "quick")])
def test_updates_are_compiled_with_options_of_their_batches_and_of_the_run(
    monkeypatch, tmp_path, seeds, compilation
):
    """Small products need options; one run and a group of runs, on a CPU, which is where tests run."""
    monkeypatch.setenv("XLA_FLAGS", "")
    chosen = compiler.evaluation_compile_options() if compilation == "quick" else {}

    def compile_program(init, update, assess, arguments, world, updates_per_chunk, options, *where):
        assert small_batch_options(32) and (chosen or compilation == "full")
        assert options == small_batch_options(32) | chosen
        state = jax.eval_shape(init, *arguments, world)
        with traced_for_options():
            assert "optimization_barrier" in str(jax.make_jaxpr(update)(state, world))
        raise Stop

    monkeypatch.setattr(loop, "compile_program", compile_program)
    typed = [*rivals(tmp_path), f"output_dir={tmp_path}", f"seeds={seeds}", f"compilation={compilation}"]
    typed.append("algo.widths=[64,64]")
    with pytest.raises(Stop):
        run(monkeypatch, train.script, *typed)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("total_env_steps=1e6", 1_000_000),
        ("total_env_steps=1.5E+3", 1_500),
        ("algo.learning_rate=1e-3", 0.001),
        ("algo.learning_rate=0.5", 0.5),
        ("algo.widths=[16]", [16]),
        ("env.map=[track:1,line2]", ["track:1", "line2"]),
        ("output_dir=runs/a=b", "runs/a=b"),
        ("output_dir=größe/[1]", "größe/[1]"),
        ("output_dir=here, it's/ours", "here, it's/ours"),
        ("run_name=größe", "größe"),
        ("tuning='none'", "none"),
    ],
)
def test_numbers_and_paths_are_read_as_they_are_meant(typed, read):
    assert command_line.parse_override_value(command_line.quote_for_hydra(typed)) == read


def test_existing_path_with_commas_is_not_a_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "[a,b]").mkdir()
    assert command_line.parse_override_value(command_line.quote_for_hydra("env.map=[a,b]")) == "[a,b]"
    assert command_line.parse_override_value(command_line.quote_for_hydra("env.map=[a,c]")) == ["a", "c"]


def test_sweeps_keep_their_values_and_faults_stay_faults():
    assert command_line.quote_for_hydra("seed=1e1,2e1") == "seed=10,20"
    assert command_line.quote_for_hydra("seed=[1") == "seed=[1"


@pytest.mark.parametrize(
    ("typed", "override"),
    [("--algo.gamma=0.9", "algo.gamma=0.9"), ("--seed=3", "seed=3"), ("seed=3", "seed=3")],
)
def test_overrides_may_begin_with_dashes(typed, override):
    assert train.parse_train_arguments([typed]).overrides == [override]


def test_options_keep_their_dashes():
    read = train.parse_train_arguments(["--config-name=mine", "--cfg=job", "--package=algo", "--seed=3"])
    assert (read.config_name, read.cfg, read.package, read.overrides) == ("mine", "job", "algo", ["seed=3"])


def test_only_sweepers_that_search_take_intervals():
    interval = "algo.gamma=interval(0.9,0.99)"
    with pytest.raises(command_line.UsageError, match="intervals need"):
        command_line.expand_sweep([interval], Sources())
    searched = command_line.expand_sweep([interval, "hydra/sweeper=optuna"], Sources())
    assert [chosen[0] for chosen in searched] == ["algo.gamma=0.9", "algo.gamma=0.99"]


def test_a_missing_sweeper_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(optional_packages, "find_spec", lambda module: None)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, train.main, "-m", "hydra/sweeper=optuna", "algo.gamma=interval(0.9,0.99)")
    assert caught.value.code == 2
    assert "pip install hydra-optuna-sweeper" in capsys.readouterr().err


@pytest.mark.parametrize("failure", [RuntimeError("Unable to initialize backend"), AssertionError()])
def test_a_platform_without_a_device_is_one_line(monkeypatch, capsys, failure):
    def nothing():
        raise failure

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", nothing)
    with pytest.raises(SystemExit) as caught:
        command_line.run_guarded(jax.devices)
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "error: JAX_PLATFORMS=cuda: device not found on this machine; allowed: cpu, or leave it unset\n"
    )


def test_program_failures_are_not_reported_as_missing_devices():
    def fail():
        raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        command_line.run_guarded(fail)


def test_double_precision_is_refused_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(True), pytest.raises(SystemExit) as caught:
        run(monkeypatch, train.main, *TINY)
    assert caught.value.code == 2 and capsys.readouterr().err.startswith("error: JAX_ENABLE_X64=1: must be")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("num_envs=0", "num_envs=0: must be"),
        ("algo.gamma=2", "gamma=2"),
        ("env.goal_behavior=dance", "goal_behavior"),
        ("env.lights=enforce", "lights"),
    ],
)
def test_scenes_are_built_after_all_other_settings_were_read(monkeypatch, capsys, wrong, words):
    def build(*_):
        raise AssertionError("scenes are built")

    monkeypatch.setattr(library, "load_scenes", build)
    with pytest.raises(SystemExit):
        run(monkeypatch, train.main, "env=drive", wrong)
    assert words in capsys.readouterr().err


def test_a_run_says_when_whole_chunks_make_it_longer():
    asked = {"total_env_steps": 256, "updates_per_chunk": 100}
    line = train.describe_rounding(asked, 6400)
    assert line.startswith("total_env_steps=256: rounded up to 6,400, ") and "updates_per_chunk=100" in line
    assert train.describe_rounding(asked | {"total_env_steps": 6000}, 6400) is None


def test_stopped_run_prints_how_to_continue(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train, "draw_learning_curve", lambda _folder: None)
    folder = tmp_path / ("long" * 30) / "it's"
    job = train.Job({}, None, None, 0, (), {}, None)
    train.conclude_job(job, folder, {"status": "stopped"})
    (hint,) = [line for line in capsys.readouterr().out.splitlines() if "continue" in line]
    assert shlex.split(hint.partition("continue with ")[2]) == [f"resume={folder}"]
    train.conclude_job(job, folder, {"status": "finished"})
    assert "continue" not in capsys.readouterr().out
