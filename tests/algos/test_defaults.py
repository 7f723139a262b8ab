"""Settings made in Python have the values of the YAML files, which list every setting."""

import dataclasses
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from algos.defaults import FROM_FILE, config_directory, read_defaults
from algos.language.settings import LanguageSettings
from algos.nets.cores import CoreConfig
from algos.off_policy.dqn import DQNConfig
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.teams import QMIXConfig, VDNConfig
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.pqn import PQNConfig
from algos.on_policy.pqn_vdn import PQNVDNConfig
from jaxmarl_echelon.selfplay.settings import PoolSettings

FILES = {
    "algo/a2c": A2CConfig,
    "algo/dqn": DQNConfig,
    "algo/ppo": PPOConfig,
    "algo/pqn": PQNConfig,
    "algo/pqn_vdn": PQNVDNConfig,
    "algo/qmix": QMIXConfig,
    "algo/reinforce_lm": LanguageSettings,
    "algo/sac": SACConfig,
    "algo/td3": TD3Config,
    "algo/tqc": TQCConfig,
    "algo/vdn": VDNConfig,
    "pool/default": PoolSettings,
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_makes_the_settings_that_python_makes(file):
    values = OmegaConf.load(config_directory() / f"{file}.yaml")
    assert set(read_defaults(file)) | {"transforms"} >= {one.name for one in dataclasses.fields(FILES[file])}
    assert values["_target_"] == f"{FILES[file].__module__}.{FILES[file].__name__}"
    given = {key: value for key, value in read_defaults(file).items() if "${" not in str(value)}
    assert FILES[file](**given) == FILES[file]()
    assert FROM_FILE not in vars(FILES[file]()).values()


def test_values_are_the_same_before_hydra_registers_its_resolvers():
    """In a process of its own: Hydra registers resolvers when it composes."""
    code = "from algos.defaults import read_defaults as f; print(f('config')['window'], len(f('algo/ppo')))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [
        str(read_defaults("config")["window"]),
        str(len(read_defaults("algo/ppo"))),
    ]


def test_a_value_that_refers_to_the_main_configuration_is_that_keys_default():
    values = OmegaConf.load(config_directory() / "algo" / "ppo.yaml")
    assert OmegaConf.to_container(values)["compute_dtype"] == "${precision}"
    assert PPOConfig().compute_dtype == read_defaults("config")["precision"] == "float32"


def test_given_values_win_over_those_of_the_file():
    assert PPOConfig().clip == read_defaults("algo/ppo")["clip"] != 0.5
    assert PPOConfig(clip=0.5).clip == 0.5
    assert dataclasses.replace(PPOConfig(clip=0.5), epochs=3).clip == 0.5
    assert CoreConfig("gru", 32) == CoreConfig(width=32, kind="gru")
    assert CoreConfig("gru", 32).layers == read_defaults("algo/ppo:core")["layers"]
