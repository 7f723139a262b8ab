"""Parameters that the mission curriculum draws and evaluates with, and its settings."""

import jax
import jax.numpy as jnp
import mission_runs as runs
import numpy as np
import pytest
from mission_reference import SMALL
from mission_runs import PHASES

from jaxmarl_echelon.command_line import compose_config
from jaxmarl_echelon.curricula.missions.curriculum import mission_curriculum
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.state import VERBS
from jaxmarl_echelon.envs.trees import layout_difference, strip_weak_types
from jaxmarl_echelon.training.config import build

KEYS = jax.random.split(jax.random.key(0), 2000)


def test_parameters_of_drawn_episodes():
    curriculum = mission_curriculum(runs.Missions(), **SMALL, verbs={"scout": 3.0, "hold": 1.0})
    draw = jax.jit(jax.vmap(curriculum.draw, in_axes=(0, None)))
    for phase, (low, high) in enumerate([(0.0, 0.4), (0.2, 0.6), (0.4, 0.8), (0.5, 1.0)]):
        state = curriculum.init()
        state = state.replace(course=state.course.replace(phase=jnp.int32(phase), episodes=jnp.int32(77)))
        drawn = draw(KEYS, state)
        given, levers = jax.device_get((drawn.params.weights, drawn.params.levers))
        assert np.all(drawn.tags["stage"] == phase) and np.all(given.phase == phase + 1)
        expected = {"scout": 3.0, "hold": 1.0}
        np.testing.assert_array_equal(levers.mission[0], [expected.get(verb, 0.0) for verb in VERBS])
        assert np.mean(given.fire_low == 1.0) == pytest.approx(0.5 if phase > 1 else 0.0, abs=0.05)
        assert set(np.unique(given.fire_low)) <= {np.float32(0.2), np.float32(1.0)}
        np.testing.assert_array_equal(given.fire_high, 1.0)
        np.testing.assert_allclose(
            [given.difficulty_low[0], given.difficulty_high[0]], [low, high], atol=1e-6
        )
        np.testing.assert_allclose(given.components.sum(axis=1) + given.terminal, 1.0, atol=1e-5)
        np.testing.assert_allclose(given.progress, (phase + 77 / 200) / 4, atol=1e-6)
        np.testing.assert_array_equal(given.credit, 1.0)
        np.testing.assert_array_equal(drawn.params.level, 1.0)
        fade = 0.05 * min(1.0, 2.0 * (1.0 - given.progress[0]))
        np.testing.assert_allclose(given.calibration, fade, atol=1e-6)


def test_tasks_of_evaluations():
    curriculum = mission_curriculum(runs.Missions(), **SMALL, evaluation={"level": 7.0})
    state = curriculum.init()
    scored = curriculum.evaluation(state)
    assert scored.level == 7.0 and scored.weights.progress == 1.0
    assert (scored.weights.fire_low, scored.weights.fire_high, scored.weights.difficulty_low) == (
        1.0,
        1.0,
        0.5,
    )
    assert scored.weights.terminal == pytest.approx(0.966, abs=5e-4)
    for index in (0, 2):
        own = curriculum.stage_params(state, jnp.int32(index))
        assert own.level == 1.0
        assert own.weights.fire_low == pytest.approx(1.0 if index else 0.2)
        np.testing.assert_array_equal(own.levers.mission, np.ones(len(VERBS)))


class MissionsOfVerbs(runs.Missions):
    """Offers the setting `mission`, the name of a verb, as well."""

    def task_params(self, settings):
        params = super().task_params({key: value for key, value in settings.items() if key != "mission"})
        chosen = np.array([settings.get("mission") in (None, verb) for verb in VERBS], np.float32)
        return params.replace(levers=runs.Levers(chosen))


@pytest.mark.parametrize("verbs", [None, {"hold": 1.0}])
def test_evaluations_may_have_verbs_of_their_own(verbs):
    curriculum = mission_curriculum(
        MissionsOfVerbs(), **SMALL, verbs=verbs, evaluation={"mission": "scout", "level": 7.0}
    )
    state = curriculum.init()
    scored, drawn = curriculum.evaluation(state), curriculum.draw(KEYS[0], state).params
    np.testing.assert_array_equal(scored.levers.mission, np.array(VERBS) == "scout")
    np.testing.assert_array_equal(drawn.levers.mission, [verbs is None or verb == "hold" for verb in VERBS])


def test_arms_of_an_experiment_are_scored_on_one_task():
    """On the first one's, whatever their own verbs, difficulties and settings are: none has an easier one."""
    last = PHASES[-1] | {"difficulty": [0.0, 0.1]}
    easy = {"verbs": {"hold": 1.0}, "schedule": "terminal", "phases": [*PHASES[:-1], last]}
    changes = {}, easy, {"evaluation": {"level": 7.0}}
    arms = [mission_curriculum(runs.Missions(), **SMALL | change) for change in changes]
    alone = arms[0].evaluation(arms[0].init())
    for arm in arms:
        jax.tree.map(np.testing.assert_array_equal, arms[0].evaluation(arm.init()), alone)


def test_arms_of_an_experiment_differ_in_array_values_only():
    """Schedules and credits are arrays: their arms run side by side in one program."""
    changes = [{"schedule": name} for name in weights.SCHEDULES]
    changes += [{"credit": "terminal", "schedule": "document"}, {"floor": 0.2}]
    arms = [mission_curriculum(runs.Missions(), **(SMALL | change)) for change in changes]
    states = [arm.init() for arm in arms]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    later = stacked.replace(course=stacked.course.replace(phase=jnp.full(len(arms), 3)))
    draw = jax.jit(jax.vmap(arms[0].draw, in_axes=(None, 0)))
    drawn = draw(KEYS[0], later).params.weights
    # At the beginning of the last phase.
    np.testing.assert_allclose(drawn.terminal[:5], [0.935, 1.0, 1.0, 0.4, 0.935], atol=5e-4)
    np.testing.assert_allclose(drawn.credit[:6], [1, 1, 1, 1, 1, drawn.terminal[5]], atol=1e-6)
    np.testing.assert_allclose(drawn.components[2], 0.0, atol=1e-6)
    assert drawn.terminal[6] < drawn.terminal[0]
    early = draw(KEYS[0], stacked).params.weights
    assert early.credit[5] == pytest.approx(0.25), "never less"
    # A run that is continued with other numbers keeps its progress.
    kept = arms[6].retasked(jax.tree.map(lambda x: x[0], later), states[6])
    assert kept.course.phase == 3 and kept.plan.floor == pytest.approx(0.2)


def phase(index, **changes):
    return {"phases": [PHASES[i] | changes if i == index else PHASES[i] for i in range(4)]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate": "exams"}, "curriculum.gate=exams: unknown; allowed: training, evaluation"),
        ({"schedule": "steep"}, "curriculum.schedule=steep: unknown; allowed: continuous, table, terminal"),
        ({"window": 1}, "curriculum.window=1: must be a whole number from 2"),
        ({"confidence": 1.5}, "curriculum.confidence=1.5: must be a number from"),
        ({"verbs": {"dance": 1}}, "curriculum.verbs.dance=1: unknown; allowed: assault"),
        ({"verbs": {"hold": 0}}, "curriculum.verbs={'hold': 0}: one of them must be above 0"),
        ({"base": {"speed": 1}}, "curriculum.base.speed=1: unknown; allowed: survival"),
        ({"totals": [1, 2]}, "curriculum.totals=[1, 2]: must be one number for each"),
        ({"credit": "half"}, "curriculum.credit=half: must be a number or terminal"),
        ({"fire": [1.0, 0.2]}, "curriculum.fire=[1.0, 0.2]: the first number must not exceed the second"),
        ({"evaluation": {"speed": 1}}, "curriculum.evaluation: env.speed: unknown"),
        ({"evaluation": {"difficulty": 0.2}}, "curriculum.evaluation.difficulty=0.2: has no effect; the"),
        ({"phases": []}, "curriculum.phases=[]: must be a list of at least one phase"),
        (phase(0, name=""), "must be a mapping with a name"),
        (phase(1, name="one"), "curriculum.phases: one: another phase has this name"),
        (phase(1, level=1), "curriculum.phases.1.level=1: unknown; allowed: name"),
        (phase(1, difficulty=[0.2, 1.2]), "curriculum.phases.1.difficulty=1.2: must be a number from 0 to 1"),
        (phase(1, criteria={"speed": 0.5}), "phases.1.criteria: speed: unknown result of missions"),
        (phase(1, criteria={}), "curriculum.phases.1 (two): criteria: must name a result"),
        (phase(1, criteria={"efficiency": 0.9}), "efficiency=0.9: with advance_margin=0.1 must be below 1"),
        (phase(2, exams=0.0), "curriculum.phases.2 (three): criteria.win: counts at full fire only"),
        (
            phase(2, criteria={"win": 0.5, "variance": 0.25}),
            "curriculum.phases.2.criteria.variance=0.25: means in [0, 1] vary by 0.25 at most",
        ),
        (phase(3, criteria={"win": 0.5}), "curriculum.phases.3 (four): criteria: the last phase has none"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(ValueError) as caught:
        mission_curriculum(runs.Missions(), **(SMALL | changes))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["task", "survival"])
def test_environments_that_do_not_report_enough_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: unknown result of missions"):
        mission_curriculum(runs.Missions(without=(name,)), **SMALL)


def test_parameters_are_those_of_the_environment():
    """Drawn and evaluated parameters have the layout of the environment's own, in one composed run."""
    given = ["env=echelon_missions", "env.maps=1", "env.terrain=open", "env.mission=scout", "env.cache=null"]
    run = build.build_run_config(
        compose_config([*given, "curriculum=missions4", "curriculum.gate=evaluation"])[0]
    )
    curriculum, own = run.curriculum(run.env), strip_weak_types(run.env.default_params())
    state = curriculum.init()
    posed = curriculum.evaluation(state), curriculum.stage_params(state, jnp.int32(2))
    for params in (curriculum.draw(KEYS[0], state).params, *posed):
        assert layout_difference(jax.tree.map(jnp.asarray, own), strip_weak_types(params)) is None
        np.testing.assert_array_equal(params.levers.mission, np.array(VERBS) == "scout")


def test_odds_change_thresholds_and_windows_alone():
    """The curriculum for weaker enemies keeps the phases' names, difficulties and exams, and all weights."""
    plain, odds = (
        compose_config(["env=echelon_missions", f"curriculum={name}"])[0].curriculum
        for name in ("missions4", "missions4_odds")
    )
    changed = {key for key in plain if plain[key] != odds[key]}
    assert changed == {"phases", "window", "dwell"} and set(plain) == set(odds)
    kept = ("name", "difficulty", "exams")
    for one, other in zip(plain.phases, odds.phases, strict=True):
        assert all(one[key] == other[key] for key in kept)
        assert set(one.criteria) == set(other.criteria)
        assert all(other.criteria[key] <= value for key, value in one.criteria.items())
