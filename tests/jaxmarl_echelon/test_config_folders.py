"""A folder of configurations of the user's own, other main configurations, and configurations shown."""

import sys
from importlib.util import find_spec

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from algos.defaults import config_directory
from jaxmarl_echelon import checkpoints, command_line, train
from jaxmarl_echelon.config_sources import Sources

FILES = {
    "env/mine.yaml": "defaults: [f110, _self_]\nlidar_beams: 12\n",
    "env/probe.yaml": "_target_: probes.TimeLimit\nhorizon: 4\n",
    "env/broken.yaml": "_target_: probes.TimeLimit\nhorizons: 4\n",
    "env/counting.yaml": "_target_: probes.Counting\nhorizon: 4\n",
    "env/unbounded.yaml": "_target_: probes.Unbounded\nhorizon: 4\n",
    "reward/mine.yaml": "defaults: [gaplock_simple, _self_]\n",
    "reward/other.yaml": "defaults: [gaplock_full]\n",
    "algo/mine.yaml": "defaults: [ppo, _self_]\nwidths: [8]\nhorizon: 4\nnum_minibatches: 1\nepochs: 1\n",
    "tuning/mine/mine.yaml": "# @package _global_\nnum_envs: 24\n",
    "tracking/mine.yaml": "defaults: [quiet, _self_]\n",
    "small.yaml": "defaults: [config, override env: mine, _self_]\ntotal_env_steps: 4096\n",
}
SIZES = ("num_envs=4", "total_env_steps=16", "eval_every=1", "eval_episodes=2", "window=4", "run_name=one")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # With a space and a quote, as folders have.
    top = tmp_path_factory.mktemp("user") / "my engineer's conf"
    for name, text in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Types a command in an empty folder and returns what it printed; of a wrong one, the error."""
    monkeypatch.chdir(tmp_path)

    def typed(*arguments, status=0):
        monkeypatch.setattr(sys, "argv", ["train", *map(str, arguments)])
        try:
            train.script()
        except SystemExit as ended:
            assert ended.code == status
            message = capsys.readouterr().err
            assert message.startswith("error: ") and message.count("\n") == 1
            return message
        assert status == 0
        return capsys.readouterr().out

    return typed


@pytest.mark.parametrize("multirun", [(), ("-m",), ("--multirun",)])
@pytest.mark.parametrize("flag", ["--config-dir", "-cd"])
def test_what_is_in_the_folder_is_chosen_like_the_packages_own(call, folder, tmp_path, multirun, flag):
    (shown,) = yaml.safe_load_all(call(*multirun, "--cfg", "job", flag, folder, "env=mine", "+algo=mine"))
    assert shown["env"]["lidar_beams"] == 12 and shown["env"]["map"] == "line2"
    assert shown["algo"]["widths"] == [8] and shown["algo"]["clip"] == 0.2
    # The reward and the tuning of an environment's name come with it.
    simple = OmegaConf.load(config_directory() / "reward" / "gaplock_simple.yaml")
    assert shown["reward"]["components"].keys() == simple.components.keys()
    assert shown["num_envs"] == 24
    assert list(tmp_path.iterdir()) == []


def test_tuning_of_a_user_folder_is_printed(folder):
    sources = Sources(folder)
    config, choices = command_line.compose_config(["env=mine", "algo=mine"], sources)
    assert command_line.tuning_lines(config, choices, sources) == [
        "tuning file mine/mine (disable with tuning=none): num_envs=24"
    ]


@pytest.mark.parametrize("multirun", [(), ("-m",)])
@pytest.mark.parametrize("name", ["small", "small.yaml"])
def test_another_main_configuration(call, folder, multirun, name):
    arguments = ("-c", "job", "--config-dir", folder, "--config-name", name, "seed=3")
    (shown,) = yaml.safe_load_all(call(*multirun, *arguments))
    assert (shown["total_env_steps"], shown["env"]["lidar_beams"], shown["seed"]) == (4096, 12, 3)


def test_every_run_of_a_sweep_is_shown(call, folder):
    arguments = ("env=mine,f110", "seed=range(0,2)", "algo=glob(m*)", "--cfg", "job", "--config-dir", folder)
    shown = list(yaml.safe_load_all(call("-m", *arguments)))
    assert [(run["env"]["lidar_beams"], run["seed"]) for run in shown] == [
        (12, 0),
        (12, 1),
        (108, 0),
        (108, 1),
    ]
    assert all(run["algo"]["widths"] == [8] for run in shown)


@pytest.mark.parametrize("multirun", [(), ("-m",)])
def test_a_part_is_shown(call, multirun):
    assert call(*multirun, "--cfg", "job", "-p", "algo.core", "algo.core.kind=gru").startswith("kind: gru\n")
    assert call(*multirun, "--cfg", "job", "--package", "algo.compute_dtype") == "float32\n"


@pytest.mark.parametrize("multirun", [(), ("-m",)])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["env=nine"], ["env=nine", "unknown env", "did you mean mine?"]),
        (["algo=nine"], ["algo=nine", "tqc", "mine"]),
        (["env=mine", "env.lidar_beems=3"], ["env.lidar_beems=3", "did you mean env.lidar_beams?"]),
        (["env=broken"], ["env", "horizons"]),
        (["env=probe", "env._target_=absent.Env"], ["env: ", "'absent.Env'", "No module named 'absent'"]),
        (["--config-name", "nine"], ["--config-name=nine", "allowed: config, small"]),
        (["hydra.searchpath=[elsewhere]"], ["hydra.searchpath=[elsewhere]", "--config-dir"]),
        (["--package", "algo"], ["--package=algo", "--cfg"]),
        (["--cfg", "job", "--package", "algo.cores"], ["--package=algo.cores", "did you mean algo.core?"]),
        (["--cfg", "jobs"], ["--cfg", "jobs", "job"]),
        (["--config"], ["--config"]),
        (["seed=interval(0,1)"], ["seed=interval(0,1)"]),
    ],
)
def test_what_is_wrong_is_one_line(call, folder, tmp_path, multirun, arguments, words):
    message = call(*multirun, "--config-dir", folder, *arguments, status=2)
    for word in words:
        assert word in message
    # Values are read when a run of a sweep begins, and Hydra has kept a note of the sweep by then.
    begun = ["multirun.yaml"] if multirun and arguments[0] in ("env=broken", "env=probe") else []
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == begun


@pytest.mark.parametrize("more", [(), ("seeds=2",)])
def test_an_environment_that_breaks_the_contract_is_one_line(call, folder, tmp_path, more):
    for env, words in (
        ("counting", "env=probes.Counting: step gives another program when it is traced again"),
        ("unbounded", "env=probes.Unbounded: spec.roles: 'player'.action has low=(0.0, -inf)"),
    ):
        message = call("--config-dir", folder, f"env={env}", *more, *SIZES, status=2)
        assert words in message and list(tmp_path.iterdir()) == []


def test_missing_and_shadowing_folders_are_rejected(call, tmp_path):
    assert "no such folder" in call("--config-dir", "nowhere", status=2)
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "f110.yaml").write_text("lidar_beams: 12\n")
    message = call("--config-dir", "conf", status=2)
    assert "conf: env/f110.yaml exists in the package" in message


@pytest.mark.thorough
def test_a_sweep_trains_and_resumes_without_the_folder(call, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "conclude_job", lambda *_: None)  # its pictures are not looked at
    chosen = ("--config-dir", folder, "env=probe", "algo=mine", "tracking=quiet")
    call("-m", *chosen, *SIZES)
    run = tmp_path / "outputs" / "probe" / "mine" / "one"
    assert checkpoints.has_checkpoint(run, "latest")
    again = ("--cfg", "job", f"resume={run}", "env=probe", "algo.gamma=0.5")
    (shown,) = yaml.safe_load_all(call(*again))
    assert shown["env"]["horizon"] == 4 and shown["algo"]["gamma"] == 0.5
    assert "tracking=mine" in call(*again, "tracking=mine", status=2)
    (shown,) = yaml.safe_load_all(call("--config-dir", folder, *again, "tracking=mine"))
    quiet, _ = command_line.compose_config(["tracking=quiet"])
    assert shown["tracking"] == OmegaConf.to_container(quiet.tracking)
    message = call("--config-dir", folder, f"resume={run}", "reward=mine", status=2)
    assert "a resumed run keeps its reward" in message


def test_composing_leaves_what_a_program_of_the_users_composes_alone(folder):
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(folder), version_base="1.3"):
        command_line.compose_config(["env=mine"], Sources(folder))
        assert compose("env/probe").env.horizon == 4


def test_the_launcher_of_slurm_is_hydras_and_no_group_of_runs(call):
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        typed = ["hydra/launcher=slurm", "hydra.launcher.tasks_per_node=8"]
        launcher = compose("config", overrides=typed, return_hydra_config=True).hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert (launcher.nodes, launcher.gpus_per_node, launcher.max_num_timeout) == (1, 8, 5)
    assert "hydra" not in command_line.config_groups()
    if find_spec("submitit") is None:
        message = call("-m", "hydra/launcher=slurm", "env=f110", status=2)
        assert "hydra/launcher=slurm: needs the package hydra-submitit-launcher" in message
