"""A ramp of the task's numbers: where it stands after so many updates or episodes, and what it refuses."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import staged_runs as runs
from echelon_battles import flat_bank
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxmarl_echelon.curricula.ramp import ramp_curriculum
from jaxmarl_echelon.envs.echelon.make import make
from jaxmarl_echelon.envs.echelon.rewards import make_battle_reward

CONF = Path(__file__).resolve().parents[3] / "conf"
NOTHING = runs.rollout([[False, False]], [[0, 0]], [[0, 0]], [[0, 0]])
THREE = runs.rollout([[True, False], [True, True]], [[0, 0]] * 2, [[1, 0]] * 2, [[0, 0]] * 2)


@pytest.fixture(scope="module")
def battles():
    return make(make_battle_reward(), blue=["scout"], red=["scout"], pages=0, bank=flat_bank())


def levels(curriculum, rollouts):
    """The level that is drawn at first and after each rollout."""
    state, found, update = curriculum.init(), [], runs.updater(curriculum)
    for rollout in (None, *rollouts):
        state = state if rollout is None else update(state, rollout)
        found.append(float(curriculum.draw(jax.random.key(0), state).params["level"]))
    return found


def test_updates_count_whether_or_not_episodes_end():
    curriculum = ramp_curriculum(runs.Settings(), {"level": 0.15}, {"level": 1.0}, updates=4)
    expected = [0.15, 0.3625, 0.575, 0.7875, 1.0, 1.0]
    np.testing.assert_allclose(
        levels(curriculum, [NOTHING, THREE, NOTHING, THREE, THREE]), expected, rtol=1e-6
    )


def test_episodes_count_from_the_end_of_the_warm_up():
    curriculum = ramp_curriculum(runs.Settings(), {"level": 8.0}, {"level": 2.0}, episodes=6, warmup=3)
    expected = [8.0, 8.0, 8.0, 5.0, 2.0, 2.0]
    assert levels(curriculum, [THREE, NOTHING, THREE, THREE, THREE]) == pytest.approx(expected)
    update = runs.updater(curriculum)
    state = update(update(curriculum.init(), THREE), THREE)
    assert curriculum.metrics(state)["curriculum/progress"] == pytest.approx(0.5)


def test_a_longer_ramp_continues_from_the_count_of_the_run():
    short = ramp_curriculum(runs.Settings(), {"level": 0.0}, {"level": 1.0}, updates=2)
    state, update = short.init(), runs.updater(short)
    for _ in range(6):
        state = update(state, NOTHING)
    longer = ramp_curriculum(runs.Settings(), {"level": 0.0}, {"level": 1.0}, updates=8)
    now = longer.retasked(state, longer.init())
    assert longer.metrics(now)["curriculum/progress"] == pytest.approx(0.75)


def test_the_run_is_scored_by_its_own_task():
    curriculum = ramp_curriculum(
        runs.Settings(), {"level": 0.0}, {"level": 1.0}, updates=2, evaluation={"level": 7.0}
    )
    assert curriculum.evaluation(curriculum.init())["level"] == 7.0
    unchanged = ramp_curriculum(runs.Settings(), {"level": 0.0}, {"level": 1.0}, updates=2)
    assert unchanged.evaluation(unchanged.init())["level"] == -1.0


def test_the_preset_ramps_the_fire_of_heuristic_teams(battles):
    curriculum = instantiate(OmegaConf.load(CONF / "curriculum" / "echelon_ramp.yaml"), _partial_=True)(
        battles
    )
    state = curriculum.init()
    fire = [
        curriculum.draw(jax.random.key(0), state.replace(count=jnp.int32(n))).params
        for n in (0, 10_000, 20_000)
    ]
    np.testing.assert_allclose(
        [p.fire_probability for p in fire], [[0.2] * 2, [0.6] * 2, [1.0] * 2], rtol=1e-6
    )
    kinds = [jax.tree.map(lambda x: (x.shape, x.dtype), p) for p in (fire[1], battles.default_params())]
    assert kinds[0] == kinds[1]
    assert curriculum.evaluation(state).fire_probability.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("curriculum.updates=None", "episodes=None")),
        ({"updates": 5, "episodes": 5}, ("curriculum.updates=5", "episodes=5")),
        ({"episodes": 0}, ("curriculum.episodes=0",)),
        ({"updates": 5, "warmup": -1}, ("curriculum.warmup=-1",)),
        ({"updates": 5, "start": {}}, ("curriculum.start={}",)),
        ({"updates": 5, "end": {"gravity": 1.0}}, ("fire_probability", "both")),
        ({"updates": 5, "start": {"fire_probability": 2}}, ("curriculum.start", "env.fire_probability=2")),
        ({"updates": 5, "end": {"fires": 1}, "start": {"fires": 0}}, ("curriculum.start", "env.fires")),
        (
            {"updates": 5, "start": {"observation": "full"}, "end": {"observation": "partial"}},
            ("curriculum.end.observation=partial", "full"),
        ),
        (
            {"updates": 5, "start": {"zone_seconds": 3.0}, "end": {"zone_seconds": "never"}},
            ("curriculum.end.zone_seconds=never", "3.0"),
        ),
    ],
)
def test_wrong_ramps_are_named_in_one_line(battles, changes, words):
    given = {"start": {"fire_probability": 0.2}, "end": {"fire_probability": 1.0}} | changes
    with pytest.raises(ValueError) as error:
        ramp_curriculum(battles, **given)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
