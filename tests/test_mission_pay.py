"""Rewards of missions: doing what an order says pays more than doing nothing, for every verb."""

import numpy as np
import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build

TASK = ("env=echelon_missions_small", "curriculum=missions4", "env.maps=8", "env.telemetry=false")
# Of the 28 episodes of a phase every verb has four.
EPISODES, GAMMA = 28, 0.99


@pytest.mark.thorough
def test_carrying_out_an_order_pays_more_than_doing_nothing(repository, monkeypatch):
    """In the first phase, where shaping has most of the weight, and in the last, where success has."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import missions

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
