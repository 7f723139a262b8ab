"""Settings of every learner: switches are true or false, numbers are finite."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from algos.nets.cores import CoreConfig
from algos.off_policy.replay.replay import ReplayConfig
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig

LEARNERS = (PPOConfig, A2CConfig, SACConfig, TD3Config, TQCConfig)


def fields_of(kind, classes):
    return [
        (settings, field.name)
        for settings in classes
        for field in fields(settings)
        if get_type_hints(settings)[field.name] == kind
    ]


@pytest.mark.parametrize(("settings", "name"), fields_of(bool, (*LEARNERS, CoreConfig, ReplayConfig)))
@pytest.mark.parametrize("value", ["maybe", 1, None])
def test_a_switch_is_true_or_false(settings, name, value):
    with pytest.raises(ValueError, match=rf"{name}={value}: must be true or false"):
        settings(**{name: value})


@pytest.mark.parametrize(("settings", "name"), fields_of(float, (*LEARNERS, ReplayConfig)))
@pytest.mark.parametrize("value", [float("inf"), float("nan"), True, "much"])
def test_a_number_is_finite(settings, name, value):
    with pytest.raises(ValueError, match=rf"{name}={value}: must be"):
        settings(**{name: value})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"widths": 16}, "widths=16: must be a list"),
        ({"widths": "wide"}, "widths=wide: must be a list"),
        ({"widths": [True]}, "positive whole numbers"),
        ({"initial_action": ["left", 0]}, "initial_action"),
        ({"initial_action": [float("nan"), 0]}, "initial_action"),
    ],
)
@pytest.mark.parametrize("learner", [PPOConfig, SACConfig])
def test_a_list_holds_what_it_should(learner, settings, words):
    if "initial_action" in settings and learner is PPOConfig:
        settings = settings | {"squash": True}
    with pytest.raises(ValueError, match=words):
        learner(**settings)
