"""The gates of the mission curriculum at full size: configuration, and counts of successes that open them."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import mission_runs as runs
import numpy as np
import pytest
from hydra.utils import instantiate
from mission_reference import same
from mission_runs import METRICS
from omegaconf import OmegaConf

from jaxmarl_echelon.curricula.missions import significance, transitions
from jaxmarl_echelon.curricula.missions.curriculum import mission_curriculum
from jaxmarl_echelon.envs.echelon.missions.state import VERBS

CONF = Path(__file__).resolve().parents[3] / "conf" / "curriculum" / "missions4.yaml"


def test_the_configuration_has_its_values():
    config = OmegaConf.load(CONF)
    curriculum = instantiate(config, _partial_=True)(runs.Missions())
    plan, given = (
        jax.device_get(curriculum.init().plan),
        mission_curriculum(runs.Missions(), config_phases(config)).init(),
    )
    same(plan, given.plan)
    assert curriculum.stages == ("mechanics", "objective", "execution", "terminal")
    asked = [dict(phase.criteria) for phase in config.phases]
    assert asked == [
        {"survival": 0.6, "attempt": 0.7},
        {"completed": 0.5, "efficiency": 0.4},
        {"win": 0.6, "variance": 0.04},
        {},
    ]
    np.testing.assert_allclose(plan.difficulty, [[0, 0.4], [0.2, 0.6], [0.4, 0.8], [0.5, 1]], atol=1e-6)
    assert (plan.dwell, plan.nominal, plan.blend) == (500, 2000, 200)
    assert curriculum.init().course.history.score.shape == (500,)
    np.testing.assert_allclose(
        [plan.advance_margin, plan.regress_margin, plan.effect], [0.1, 0.3, 0.1], atol=1e-6
    )


@pytest.mark.parametrize(
    ("phase", "changed", "first"),
    [(0, "attempt", 419), (1, "completed", 324), (2, "win", 372)],
)
def test_successes_that_advance_at_full_size(phase, changed, first):
    moved = at_full_size(phase, changed)
    np.testing.assert_array_equal(moved == 1, np.arange(501) >= first)


@pytest.mark.parametrize(
    ("phase", "changed", "last"),
    [
        (1, "survival", 130),
        (1, "attempt", 178),
        (2, "completed", 83),
        (2, "efficiency", 38),
    ],
)
def test_successes_that_regress_at_full_size(phase, changed, last):
    moved = at_full_size(phase, changed, others=0.5)
    np.testing.assert_array_equal(moved == -1, np.arange(501) <= last)


@cache
def full_size():
    curriculum = instantiate(OmegaConf.load(CONF), _partial_=True)(runs.Missions())
    quantiles = significance.t_quantiles(500)
    decide = jax.vmap(
        lambda plan, course: transitions.decide_transition(plan, quantiles, course)[0].phase,
        in_axes=(None, 0),
    )
    return curriculum.init(), jax.jit(decide)


@pytest.mark.parametrize(("weak", "even"), [(0.4, False), (0.8, True)])
def test_uneven_orders_keep_a_run_in_its_phase(weak, even):
    """Three of seven orders succeed less than the others: at 0.4 their variance is 0.09, at 0.8 0.01."""
    verb = np.arange(500) % len(VERBS)
    moved = at_full_size(2, "win", verb=verb, score=np.where(verb < 3, weak, 1.0))
    np.testing.assert_array_equal(moved == 1, even & (np.arange(501) >= 372))


def at_full_size(phase, changed, others=1.0, verb=0, score=1.0):
    """By how much the phase changes with 0, 1, ... 500 successes of one metric; `others` of the others."""
    state, decide = full_size()
    every = np.arange(501)[:, None] > np.arange(500)
    rows = {name: np.broadcast_to(np.arange(500) < 500 * others, every.shape) for name in METRICS} | {
        changed: every
    }
    marks = transitions.EpisodeMetrics(
        metrics={name: jnp.asarray(values, jnp.float32) for name, values in rows.items()},
        counts={name: jnp.ones(every.shape, bool) for name in METRICS},
        score=jnp.broadcast_to(jnp.float32(score), every.shape),
        verb=jnp.broadcast_to(jnp.int32(verb), every.shape),
    )
    course = jax.tree.map(lambda x: jnp.broadcast_to(x, (501, *x.shape)), state.course)
    full = jnp.full(501, 500, jnp.int32)
    course = course.replace(phase=jnp.full(501, phase), episodes=full, judged=full, history=marks)
    return np.asarray(decide(state.plan, course)) - phase


def config_phases(config):
    return OmegaConf.to_container(config)["phases"]
