"""Whatever the kind of a wrong value, reading a configuration says what is wrong in one line."""

import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training import variants


def read(*arguments):
    config, choices = command_line.compose_config(command_line.plain(arguments))
    command_line.new_run_folder(config, choices, "now")
    return variants.members(config, choices) if variants.is_group(config) else config_lib.read(config)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("reward.components.pressure.bonus=inf", ["reward.components.pressure.bonus=inf", "finite"]),
        ("env.spawn_points.a={offset: [1, .nan, 0]}", ["env.spawn_points.a.offset"]),
        ("curriculum.evaluation.spawn_speed=nan", ["curriculum.evaluation.spawn_speed=nan"]),
        ("tracking.sinks.terminal.every_seconds=-inf", ["every_seconds=-inf"]),
        ("env=null", ["env"]),
        ("env=3", ["env=3", "f110"]),
        ("algos=3", ["algos=3", "mapping"]),
        ("algos.attacker=3", ["algos.attacker=3", "mapping"]),
        ("controllers=3", ["controllers=3", "mapping"]),
        ("controllers.defender=3", ["controllers.defender=3"]),
        ("controllers.defender=[ftg]", ["controllers.defender"]),
        ("env._target_=builtins.dict", ["builtins.dict", "makes no env"]),
        ("algo._target_=builtins.dict", ["builtins.dict", "makes no algo"]),
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
        ("env.gains=[1]", ["env.gains"]),
        ("reward.components=3", ["reward"]),
        ("seeds=[true]", ["seeds=[True]"]),
        ("ablate=5", ["ablate=5"]),
        ("variants=3", ["variants=3"]),
        ("variants={..: {env.spawn_speed: 0.1}}", ["variants..."]),
        ("run_name=../../etc", ["run_name=../../etc", "name of a folder"]),
        ("run_name=..", ["run_name=.."]),
        ("run_name=a/b", ["run_name=a/b"]),
        ("run_name=''", ["run_name="]),
        ("output_dir=null", ["output_dir=None"]),
    ],
)
def test_it_is_one_line(argument, words):
    with pytest.raises(ValueError) as caught:
        read(argument, "num_envs=8", "env.lidar_beams=12")
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
