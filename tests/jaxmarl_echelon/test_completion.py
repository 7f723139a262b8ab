"""Completion of overrides in a shell."""

import shutil
import subprocess
import sys

import pytest
from commands import write_environments

from jaxmarl_echelon.completion import complete_override


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("jaxmarl-train env=f110", ["env=f110", "env=f110_race"]),
        ("jaxmarl-train env=gymnax/Cart", ["env=gymnax/CartPole-v1"]),
        ("jaxmarl-train +algo=td", ["+algo=td3"]),
        ("jaxmarl-train env=f110 env.lidar_b", ["env.lidar_beams="]),
        ("jaxmarl-train env=echelon env.lidar_b", []),
        ("jaxmarl-train -m algo=sac,ppo algo.ta", ["algo.target_entropy=", "algo.tau="]),
        ("jaxmarl-train seeds=[1,2] no_such=1,2 env.lid", []),
    ],
)
def test_the_last_word_is_completed_for_the_chosen_options(line, completed):
    assert complete_override(line) == completed


def test_a_folder_of_ones_own_is_searched(tmp_path):
    folder = write_environments(tmp_path, {"mine": "defaults: [echelon, _self_]\nspawn_jitter: 0.5\n"})
    line = f"jaxmarl-train --config-dir {folder} env=mi"
    assert complete_override(line) == ["env=mine"]
    assert complete_override(f"{line}ne env.spawn_j") == ["env.spawn_jitter="]


def test_it_does_not_import_jax():
    code = "import sys; from jaxmarl_echelon.completion import complete_override as ask; " + (
        "print(ask('jaxmarl-train algo.learning_ra'), 'jax' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("['algo.learning_rate='") and said.endswith("False\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_shell_function_completes():
    text = f"""eval "$({sys.executable} -m jaxmarl_echelon.completion)"
    COMP_LINE="jaxmarl-train env=f110 algo=td --more" COMP_POINT=30
    _jaxmarl_train
    echo ${{COMPREPLY[@]}}"""
    said = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert said.stdout == "algo=td3\n"
