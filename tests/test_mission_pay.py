"""Benchmarks of missions: acting pays more than idling, for every verb; what scripts reach by phase."""

import importlib

import numpy as np
import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build

TASK = ("env=echelon_missions_small", "curriculum=missions4", "env.maps=8", "env.telemetry=false")
# Of the 28 episodes of a phase every verb has four.
EPISODES, GAMMA = 28, 0.99


@pytest.fixture
def missions(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    return importlib.import_module("missions")


def test_criteria_compare_what_episodes_reach_with_what_the_phase_asks_for(missions):
    results = {
        "mission": np.array([1.0, 0.5, 0.0, 0.4]),
        "task": np.array([0, 0, 1, 1]),
        "survival": np.array([1.0, 1.0, 0.5, 0.0]),
    }
    told = {
        "curriculum/criteria/survival/above": np.float32(0.7),
        "curriculum/criteria/win/above": np.float32(np.nan),
        "curriculum/criteria/variance/at_most": np.float32(0.04),
    }
    shown = missions.reached_and_asked(results, told)
    verbs = f"{np.var([0.75, 0.2]):.3f} (0.04)"
    assert shown == {"score": "0.47", "variance": verbs, "survival": "0.62 (0.7)", "win": "0.50"}


@pytest.mark.thorough
def test_carrying_out_an_order_pays_more_than_doing_nothing(missions):
    """In the first phase, where shaping has most of the weight, and in the last, where success has."""
    config, _ = command_line.compose_config(TASK)
    run = build.build_run_config(config)
    curriculum = run.curriculum(run.env)
    paid, score = missions.rewards_for_acting(run.env, curriculum, EPISODES, GAMMA, phases=(0, 3))
    acting = paid[0] - paid[1]
    names = np.array(run.env.registry.names)
    assert score.shape == (2, 2, len(names)) and np.isfinite(paid).all()
    low = {(name, phase): acting[phase, i] for phase in (0, 1) for i, name in enumerate(names)}
    wrong = {key: round(float(value), 3) for key, value in low.items() if value <= 0.0}
    assert not wrong
