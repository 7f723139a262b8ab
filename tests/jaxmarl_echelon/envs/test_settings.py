"""Settings of environments: files list them all, and bad values are named."""

import dataclasses

import pytest
import yaml

from jaxmarl_echelon.envs.echelon.missions.settings import MissionSettings
from jaxmarl_echelon.envs.echelon.settings import EchelonSettings
from jaxmarl_echelon.envs.f110.gap_parameters import FTGOptions, FTGParams
from jaxmarl_echelon.envs.f110.settings import CARS, GAINS, GaplockSettings, RaceSettings
from jaxmarl_echelon.envs.settings import flatten_settings, unflatten_settings

FILES = {one.FILE: one for one in (GaplockSettings, RaceSettings, EchelonSettings, MissionSettings)}
MODELS = {"car": CARS, "gains": GAINS}


def load(repository, name):
    values = yaml.safe_load((repository / "conf" / f"{name}.yaml").read_text())
    return {key: value for key, value in values.items() if key not in ("_target_", "_convert_", "defaults")}


@pytest.mark.parametrize("kind", FILES.values(), ids=FILES)
def test_files_list_every_setting(kind, repository):
    assert set(load(repository, kind.FILE)) == set(flatten_settings(unflatten_settings(kind, {})))


def test_the_driver_s_file_lists_every_gain_and_option(repository):
    # `farthest` is spelt as a target mode, and the field of view is the lidar's.
    driver = {one.name for kind in (FTGParams, FTGOptions) for one in dataclasses.fields(kind)}
    assert set(load(repository, "env/f110")["ftg"]) == driver - {"farthest", "fov"}


@pytest.mark.parametrize("name", ["f110", "f110_race"])
@pytest.mark.parametrize("key", MODELS)
def test_models_list_every_parameter(name, key, repository):
    listed = load(repository, f"env/{name}")[key]
    model = MODELS[key][listed.pop("model")]()
    assert set(listed) == {one.name for one in dataclasses.fields(model)}


def test_a_variant_changes_known_settings_only(repository):
    for name, kind in (("echelon_10v10", EchelonSettings), ("echelon_missions_small", MissionSettings)):
        assert set(load(repository, f"env/{name}")) < set(flatten_settings(unflatten_settings(kind, {})))


@pytest.mark.parametrize("kind", FILES.values(), ids=FILES)
def test_flat_keys_survive_a_round_trip(kind):
    settings = unflatten_settings(kind, {})
    given = flatten_settings(settings)
    assert unflatten_settings(kind, given) == settings
    concerns = [
        set(one.name for one in dataclasses.fields(getattr(settings, group.name)))
        for group in dataclasses.fields(kind)
    ]
    assert sum(map(len, concerns)) == len(given)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (GaplockSettings, {"lidar": 3}, "env.lidar: unknown; did you mean lidar_fov or "),
        (GaplockSettings, {"dt": 1}, "env.dt=1: must be a number from 0.0001 to 0.1"),
        (GaplockSettings, {"integrator": "rk5"}, "env.integrator=rk5: unknown; allowed: "),
        (RaceSettings, {"cars": 1.5}, "env.cars=1.5: must be a whole number"),
        (RaceSettings, {"spawns": "all"}, "env.spawns: unknown"),
        (EchelonSettings, {"telemetry": 1}, "env.telemetry=1: must be true or false"),
        (EchelonSettings, {"size": [40, 40]}, "env.size=[40, 40]: must be 3 numbers"),
        (EchelonSettings, {"cache": 3}, "env.cache=3: must be a folder"),
    ],
)
def test_wrong_settings_say_what_is_allowed(kind, given, message):
    with pytest.raises(ValueError) as error:
        unflatten_settings(kind, given)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
