"""`python -m jaxmarl_echelon` lists the commands; unknown names are answered with the closest ones."""

import sys
from importlib.metadata import distribution

import pytest
from omegaconf import OmegaConf

import jaxmarl_echelon as je
from algos import checks
from jaxmarl_echelon import __main__ as commands
from jaxmarl_echelon import command_line
from jaxmarl_echelon.config_keys import complete_key, unknown_key_message


def test_every_console_script_is_listed_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["__main__"])
    commands.main()
    printed = capsys.readouterr().out
    scripts = [one for one in distribution("jaxmarl_echelon").entry_points if one.name.startswith("jaxmarl-")]
    assert len(scripts) >= 7
    for script in scripts:
        module = script.module.removesuffix(".__main__")
        head, summary = printed.partition(f"python -m {module}, {script.name}\n")[1:]
        assert head and len(summary.splitlines()[0].strip()) > 20
    assert (
        "python -m jaxmarl_echelon.train, jaxmarl-train\n    trains, logs, checkpoints, resumes." in printed
    )


def test_an_argument_is_answered_with_the_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["__main__", "evaluat"])
    with pytest.raises(SystemExit) as ended:
        command_line.run_guarded(commands.main)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "evaluate" in message


def test_environments_are_listed_with_one_line_each():
    listed = je.list_environments()
    assert {"f110", "f110_race", "echelon", "drive", "textgames/kuhn", "gymnax/CartPole-v1"} <= set(listed)
    assert all(10 < len(line) < 120 and not line.startswith("#") for line in listed.values())
    assert listed["textgames/nim"] == "Nim: taking the last object wins."


def test_environments_of_a_folder_are_listed_too(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text("# One of mine.\n_target_: mine.make\n")
    assert je.list_environments(tmp_path)["mine"] == "One of mine."


def test_an_environment_is_shown_in_one_line():
    shown = repr(je.make("textgames/kuhn"))
    assert shown.startswith("TextGame(") and "kuhn" in shown and "player: 2 x " in shown
    assert len(shown) < 200 and "\n" not in shown


MANY = [f"other_{n}" for n in range(20)]


@pytest.mark.parametrize(
    ("name", "many", "said"),
    [
        ("f11", ["f110", *MANY], "did you mean f110?"),
        ("CARTPOLE", ["CartPole-v1", *MANY], "did you mean CartPole-v1?"),
        ("f11", ["f110", "drive"], "allowed: f110, drive"),
        ("zz", ["first", *MANY], "allowed: first, other_0, other_1"),
    ],
)
def test_names_are_suggested_only_among_many(name, many, said):
    assert checks.suggest_names(name, many).startswith(said)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--episods", "3"], "--episods: unknown option; allowed: --help, --episodes, --seed"),
        (["--episods=3"], "--episods: unknown option; allowed: --help, --episodes, --seed"),
        (["-e"], "-e: unknown option; allowed: --help, --episodes, --seed"),
        (["run", "extra"], "unrecognized arguments: extra"),
        (["--episodes"], "argument --episodes: expected one argument"),
    ],
)
def test_unknown_options_are_answered_with_those_that_exist(typed, said):
    parser = command_line.Parser()
    parser.add_argument("--episodes")
    parser.add_argument("--seed")
    parser.add_argument("run", nargs="?")
    with pytest.raises(command_line.UsageError) as caught:
        parser.parse_args(typed)
    assert str(caught.value) == said


CONFIG = {
    "env": {f"setting_{n}": n for n in range(20)} | {"lidar_beams": 108, "lidar_beam": 1},
    "algo": {"gamma": 0.99, "core": {"width": 4}},
    "seed": 0,
}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("env.lidar_beems", "unknown key; did you mean env.lidar_beams?"),
        (
            "lidar_beems",
            "unknown key; did you mean env.lidar_beams or env.lidar_beam? Allowed here: env, algo, seed",
        ),
        ("lidar_beams", "unknown key; did you mean env.lidar_beams? Allowed here: env, algo, seed"),
        ("width", "unknown key; did you mean algo.core.width? Allowed here: env, algo, seed"),
        ("algo.gama", "unknown key; did you mean algo.gamma? Allowed here: gamma, core"),
        ("env.gamma", "unknown key; did you mean algo.gamma?"),
        ("env.seen", "unknown key. Allowed here: " + ", ".join(CONFIG["env"])),  # not `seed`
        ("algo.zzz", "unknown key. Allowed here: gamma, core"),
    ],
)
def test_keys_are_suggested_from_the_whole_configuration(key, said):
    message = unknown_key_message(f"{key}=1", key, OmegaConf.create(CONFIG))
    assert message == f"{key}=1: {said}"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("gamma=2: must be", "algo."),
        ("width=0: must be", "algo.core."),
        ("core.width=0: must be", "algo."),
        ("kind=lsmt: unknown", "algo.core."),  # by its value
        ("kind=3: unknown", ""),
        ("env.gamma=2: must be", ""),
        ("horizon=3: must be", ""),
    ],
)
def test_messages_name_a_setting_by_its_whole_key(message, place):
    settings = {"gamma": 0.99, "core": {"width": 4, "kind": "lsmt"}, "encoder": {"kind": "none"}}
    assert complete_key(message, settings, "algo") == place + message
