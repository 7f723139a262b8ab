"""Errors of configurations are one line for every kind of wrong value."""

import functools
import pickle

import pytest
from commands import TINY
from omegaconf import OmegaConf

from jaxmarl_echelon import command_line, train
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.host import variants

SMALL = tuple(argument for argument in TINY if argument != "tracking=quiet")
REPLAY = ("algo=sac", "env.lidar_beams=12", "env.max_steps=60", "num_envs=8")
PHASES = ("curriculum=phased26", "env.lidar_beams=12", "num_envs=8", "algo.num_minibatches=1")

WRONG = [
    ("reward.components.pressure.bonus=inf", ["reward.components.pressure.bonus=inf", "finite"]),
    ("env.spawn_points.a={offset: [1, .nan, 0]}", ["env.spawn_points.a.offset"]),
    ("curriculum.evaluation.spawn_speed=nan", ["curriculum.evaluation.spawn_speed=nan"]),
    ("tracking.sinks.terminal.every_seconds=-inf", ["every_seconds=-inf"]),
    ("algos=3", ["algos=3", "mapping"]),
    ("algos.attacker=3", ["algos.attacker=3", "mapping"]),
    ("controllers=3", ["controllers=3", "mapping"]),
    ("controllers.defender=3", ["controllers.defender=3"]),
    ("controllers.defender=[ftg]", ["controllers.defender"]),
    ("env._target_=builtins.dict", ["builtins.dict", "valid env"]),
    ("algo._target_=builtins.dict", ["builtins.dict", "valid algo"]),
    ("algo._target_=nowhere.Thing", ["nowhere"]),
    ("algo.squash=maybe", ["squash=maybe", "true or false"]),
    ("env.ftg.u_shape=maybe", ["u_shape", "true or false"]),
    ("env.ftg.window_size=true", ["window_size"]),
    ("env.observe_target=maybe", ["observe_target", "true or false"]),
    ("env.base_poses=3", ["env.base_poses=3"]),
    ("env.base_poses.line2=[[1, 2]]", ["env.base_poses.line2"]),
    ("env.finish_lines=3", ["env.finish_lines=3"]),
    ("env.finish_lines.line2=[1, 2]", ["env.finish_lines.line2"]),
    ("env.spawn_points=3", ["env.spawn_points=3"]),
    ("env.spawn_points.a={offset: 3}", ["env.spawn_points.a.offset=3"]),
    ("env.car=3", ["env.car=3"]),
    ("reward.components=3", ["reward"]),
    ("seeds=[true]", ["seeds=[True]"]),
    ("ablate=5", ["ablate=5"]),
    ("variants=3", ["variants=3"]),
    ("variants={..: {env.spawn_speed: 0.1}}", ["variants..."]),
    ("run_name=../../etc", ["run_name=../../etc", "a folder name"]),
    ("run_name=..", ["run_name=.."]),
    ("run_name=a/b", ["run_name=a/b"]),
    ("run_name=''", ["run_name="]),
    ("output_dir=null", ["output_dir=None"]),
    ("+lerning_rate=1", ["lerning_rate=1", "unknown key"]),
    ("+algo.lerning_rate=1", ["algo", "lerning_rate"]),
    ("seed=-1", ["seed=-1"]),
    ("num_envs=many", ["num_envs=many", "whole number"]),
    ("total_env_steps=1.5", ["total_env_steps=1.5", "whole number"]),
    ("algo.gamma=1.5", ["gamma=1.5"]),
    ("algo.learning_rate=fast", ["learning_rate", "fast"]),
    ("env.lidar_beams=0", ["lidar_beams", "0"]),
    ("env.map=nowhere.yaml", ["nowhere.yaml"]),
    ("env.map=track:x", ["track:x"]),
    ("env.reverse=backwards", ["env.reverse", "backwards", "true or false"]),
    ("env.unknown=wall", ["env.unknown", "wall", "free, occupied"]),
    ("env.centerline=nowhere.csv", ["env.centerline", "nowhere.csv", "line2"]),
    ("env.centerline=[null,a.csv]", ["env.centerline=[None, 'a.csv']", "for each map"]),
    ("env.spawns=[pinch_up]", ["pinch_up", "pinch_left"]),
    ("env.timeout=never", ["never", "terminal", "truncation"]),
    ("reward.components.terminal.target_crush=1", ["target_crush"]),
    ("controllers={driver: learner}", ["driver", "attacker"]),
    ("algos.defender.gamma=0.9", ["algos.defender", "learners: attacker"]),
    ("ablate=reward.kindness,reward.pressure", ["reward.kindness", "reward.forcing"]),
    ("variants.a={env.lidar_beams: 9}", ["variants.a"]),
]
NOT_LEARNT = [
    (SMALL, "algo.num_minibatches=7", ["7", "8"]),
    (SMALL, "controllers={defender: nobody}", ["nobody", "ftg", "learner"]),
    (SMALL, "controllers.defender=nobody", ["nobody", "ftg", "learner"]),
    (REPLAY, "algo.replay.capacity=100", ["replay.capacity=100", "at least 256", "batches of 256"]),
    (REPLAY, "algo.replay.hindsight_ratio=0.5", ["hindsight_ratio=0.5", "no goals"]),
    (REPLAY, "algo.replay.success_ratio=1.5", ["success_ratio=1.5"]),
    (
        PHASES,
        "curriculum.phases.18.settings.ftg.steering_gain=1.4",
        ["4_ftg_weak", "steering_gain", "1.4"],
    ),
    (PHASES, "curriculum.phases.1.name=1_lock800", ["1_lock800"]),
    (
        PHASES,
        "curriculum.phases.2.criteria={success_rate: 0.3, regress_success_rate: 0.5}",
        ["1_lock400"],
    ),
    (
        PHASES,
        "curriculum.evaluation.ftg.steering_gain=2",
        ["curriculum.evaluation", "steering_gain"],
    ),
]


@functools.cache
def composed(*arguments):
    """A composed configuration and its choices, pickled, which is copied fastest."""
    return pickle.dumps(command_line.compose_config(command_line.normalize_overrides(arguments)))


def value_of(argument):
    """The key and the value of what is typed."""
    (typed,) = command_line.normalize_overrides([argument])
    return typed.lstrip("+").partition("=")[0], command_line.parse_override_value(typed)


def told(base, *arguments):
    """The configuration of the base with values put into it, and the choices.

    To compose takes most of a refusal's time; that it puts values there as well is a test of its own.
    """
    config, choices = pickle.loads(composed(*base))
    for argument in arguments:
        OmegaConf.update(config, *value_of(argument), merge=True, force_add=True)
    return config, choices


def apart(arguments):
    """The arguments in groups, in none of which a key is another's or lies within it."""
    groups = []
    for argument in arguments:
        key = f"{value_of(argument)[0]}."
        free = (group for group in groups if not any(key.startswith(k) or k.startswith(key) for k in group))
        group = next(free, None)
        if group is None:
            groups.append(group := {})
        group[key] = argument
    return [list(group.values()) for group in groups]


@pytest.mark.parametrize(
    ("base", "arguments"),
    [
        (SMALL, [argument for argument, _ in WRONG]),
        (SMALL, [argument for base, argument, _ in NOT_LEARNT if base == SMALL]),
        (REPLAY, [argument for base, argument, _ in NOT_LEARNT if base == REPLAY]),
        (PHASES, [argument for base, argument, _ in NOT_LEARNT if base == PHASES]),
    ],
    ids=["read", "made", "replay", "phases"],
)
def test_a_value_is_put_where_composing_puts_it(base, arguments):
    for group in apart(arguments):
        whole, _ = pickle.loads(composed(*base, *group))
        # As texts, since not a number equals nothing.
        assert OmegaConf.to_yaml(whole) == OmegaConf.to_yaml(told(base, *group)[0]), group


@pytest.mark.parametrize(("argument", "words"), WRONG)
def test_errors_in_values_are_one_line(argument, words):
    config, choices = told(SMALL, argument)
    with pytest.raises(ValueError) as caught:
        command_line.new_run_folder(config, choices, "now")
        _ = (
            variants.expand_members(config, choices)
            if variants.is_group(config)
            else build.build_run_config(config)
        )
    require_line(caught.value, words)


@pytest.mark.parametrize(("base", "argument", "words"), NOT_LEARNT)
def test_errors_of_learners_are_one_line(base, argument, words):
    config, choices = told(base, argument)
    with pytest.raises(ValueError) as caught:
        train.read_job(config, choices)
    require_line(caught.value, words)


@pytest.mark.parametrize(
    ("argument", "words"),
    [("env=null", ["env"]), ("env=3", ["env=3", "f110"]), ("env.gains=[1]", ["env.gains"])],
)
def test_errors_of_composing_are_one_line(argument, words):
    with pytest.raises(ValueError) as caught:
        command_line.compose_config([*SMALL, argument])
    require_line(caught.value, words)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n123"])
def test_an_unreadable_map_is_one_line(tmp_path, content):
    (tmp_path / "m.png").write_bytes(content)
    (tmp_path / "m.yaml").write_text(
        "image: m.png\nresolution: 0.05\norigin: [0, 0, 0]\n"
        "negate: 0\noccupied_thresh: 0.65\nfree_thresh: 0.2\n"
    )
    config, _ = told(SMALL, f"env.map={tmp_path / 'm.yaml'}")
    with pytest.raises(ValueError) as caught:
        build.build_run_config(config)
    require_line(caught.value, ["m.png"])


def require_line(error, words):
    """Checks that an error is one line with these words."""
    assert "\n" not in str(error)
    for word in words:
        assert word in str(error)
