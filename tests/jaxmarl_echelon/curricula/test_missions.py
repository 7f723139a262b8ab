"""The mission curriculum against a plain reading of its rules, episode by episode."""

from collections import deque
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import mission_runs as runs
import numpy as np
import pytest
from hydra.utils import instantiate
from mission_runs import METRICS, PHASES
from omegaconf import OmegaConf
from scipy import stats

from jaxmarl_echelon.command_line import compose_config
from jaxmarl_echelon.curricula import campaign, significance
from jaxmarl_echelon.curricula.missions import missions
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.types import VERBS
from jaxmarl_echelon.envs.trees import layout_difference, strong
from jaxmarl_echelon.training import config as config_lib

CONF = Path(__file__).resolve().parents[3] / "conf" / "curriculum" / "missions4.yaml"
WINDOW, DWELL = 60, 80
SMALL = {"phases": PHASES, "window": WINDOW, "dwell": DWELL, "nominal_episodes": 200, "blend_episodes": 20}
SHAPE = (6, 10)
KEYS = jax.random.split(jax.random.key(0), 2000)


class Reference:
    """The rules for one episode after the other, in plain Python."""

    def __init__(self, window, dwell):
        self.window, self.dwell = window, dwell
        self.phase, self.moves = 0, [0, 0]
        self.clear()

    def clear(self):
        self.episodes, self.rows = 0, deque(maxlen=self.window)

    def bounds(self, name):
        values = [row[name] for row in self.rows if name != "win" or row["full_fire"]]
        if len(values) < 2:
            return np.nan, np.nan, np.nan, -np.inf, np.inf
        mean, std = np.mean(values), np.std(values, ddof=1)
        margin = stats.t.ppf(0.975, len(values) - 1) * std / np.sqrt(len(values))
        return len(values), mean, std, mean - margin, mean + margin

    def variance(self):
        by_verb = [[row["mission"] for row in self.rows if row["task"] == v] for v in range(len(VERBS))]
        return np.var([np.mean(values) for values in by_verb if values])

    def asked(self, phase):
        criteria = dict(PHASES[phase].get("criteria", {}))
        return criteria.pop("variance", np.inf), criteria

    def passes(self):
        most, criteria = self.asked(self.phase)
        for name, threshold in criteria.items():
            _, mean, std, low, _ = self.bounds(name)
            target = threshold + 0.1
            if not (low > target and mean - target >= 0.1 * std):
                return False
        return self.phase < 3 and self.variance() <= most

    def fails(self):
        if self.phase == 0:
            return False
        return any(
            self.bounds(name)[4] < least - 0.3 for name, least in self.asked(self.phase - 1)[1].items()
        )

    def episode(self, row):
        self.episodes += 1
        self.rows.append(row)
        if self.episodes < self.dwell or len(self.rows) < self.window:
            return
        step = 1 if self.passes() else -1 if self.fails() else 0
        if step:
            self.phase += step
            self.moves[step < 0] += 1
            self.clear()

    def play(self, mask, tags, results):
        """Episodes of a rollout; those of another phase, or after a transition, are ignored."""
        begun = self.phase
        for place in zip(*np.nonzero(mask), strict=True):
            if self.phase == begun and tags["stage"][place] == begun:
                self.episode({name: values[place] for name, values in (tags | results).items()})


@cache
def made(gate="training"):
    """A small curriculum with its functions compiled: `(curriculum, update, metrics)`."""
    curriculum = missions(runs.Missions(), gate=gate, **SMALL)

    @jax.jit
    def update(state, flow):
        return curriculum.update(state, curriculum.tickets(flow.begins.shape[1]), flow)[0]

    return curriculum, update, jax.jit(curriculum.metrics)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def agree(reference, course):
    assert int(course.phase) == reference.phase
    assert int(course.episodes) == reference.episodes
    assert [int(course.advances), int(course.regressions)] == reference.moves


def shares(plan, course):
    return np.asarray(campaign.payment(plan, course))


def test_bernoulli_episodes_go_through_all_phases_and_back():
    """Skill rises and falls; phases, counts, estimates and weights are those of the plain reading."""
    curriculum, update, metrics = made()
    pay = jax.jit(campaign.payment)
    rng, reference, state = np.random.default_rng(3), Reference(WINDOW, DWELL), curriculum.init()
    visited, paid = [0], [np.asarray(pay(state.plan, state.course))]
    skills = [0.5] * 5 + [0.97] * 12 + [0.6] * 4 + [0.05] * 14 + [0.55] * 4
    for number, skill in enumerate(skills):
        # A few episodes belong to other phases, as just after a transition.
        stage = np.where(rng.random(SHAPE) < 0.1, rng.integers(0, 4, SHAPE), reference.phase)
        batch = runs.episodes(rng, SHAPE, stage, skill, share=0.9)
        reference.play(*batch)
        state = update(state, runs.rollout(*batch))
        agree(reference, state.course)
        visited.append(reference.phase)
        paid.append(np.asarray(pay(state.plan, state.course)))
        if number % 6 == 0 and len(reference.rows) > 1:
            compare(reference, metrics(state))
    assert list(dict.fromkeys(visited)) == [0, 1, 2, 3] and visited[-1] == 0
    assert reference.moves == [3, 3]
    np.testing.assert_allclose(np.sum(paid, axis=0)[:3].sum(), len(paid), atol=1e-3)


def compare(reference, found):
    for name in METRICS:
        number, mean, _, low, high = reference.bounds(name)
        if number > 1:
            values = [found[f"curriculum/criteria/{name}/{end}"] for end in ("rate", "low", "high")]
            np.testing.assert_allclose(values, [mean, low, high], atol=1e-4)
    np.testing.assert_allclose(found["curriculum/criteria/variance/number"], reference.variance(), atol=1e-5)
    scores = sorted(row["mission"] for row in reference.rows)
    worst = np.mean(scores[: -(-len(scores) // 10)])
    np.testing.assert_allclose(found["curriculum/worst_decile"], worst, atol=1e-5)
    assert found["curriculum/criteria/window/count"] == len(reference.rows)


def test_a_phase_is_never_left_before_its_dwell():
    curriculum, update, _ = made()
    state = curriculum.init()
    for done in range(WINDOW, DWELL + 1, 20):
        batch = runs.episodes(np.random.default_rng(0), SHAPE, 0, 1.0)
        first = np.arange(60).reshape(SHAPE) < (WINDOW if done == WINDOW else 20)
        state = update(state, runs.rollout(first, *batch[1:]))
        assert int(state.course.phase) == (done == DWELL), done
    assert int(state.course.episodes) == 0 and int(state.course.judged) == 0


def test_only_episodes_at_full_fire_count_for_a_win():
    curriculum, update, metrics = made()
    state = curriculum.init()
    state = state.replace(course=state.course.replace(phase=jnp.int32(2)))
    for _ in range(6):
        mask, tags, results = runs.episodes(np.random.default_rng(1), SHAPE, 2, 0.9)
        # Success against enemies that hold their fire, and none against those that do not.
        results["win"] = np.zeros(SHAPE)
        results["completed"] = 1.0 - results["full_fire"]
        state = update(state, runs.rollout(mask, tags, results))
    assert int(state.course.phase) == 2
    found = metrics(state)
    assert found["curriculum/criteria/win/rate"] == 0.0 and found["curriculum/criteria/win/met"] == 0.0


def test_verbs_that_differ_too_much_keep_the_phase():
    curriculum, update, metrics = made()
    state = curriculum.init()
    state = state.replace(course=state.course.replace(phase=jnp.int32(2)))
    mask, tags, results = runs.episodes(np.random.default_rng(1), SHAPE, 2, 1.0)
    results["task"] = np.arange(60).reshape(SHAPE) % len(VERBS)
    for score, phase in (((results["task"] < 4), 2), (np.ones(SHAPE), 3)):
        results["mission"] = score.astype(np.float32)
        after = state
        for _ in range(2):
            found = metrics(after)["curriculum/criteria/variance/number"]
            after = update(after, runs.rollout(mask, tags, results))
        assert int(after.course.phase) == phase
        assert found == pytest.approx(np.var([1, 1, 1, 1, 0, 0, 0]) if phase == 2 else 0.0, abs=1e-6)


def test_the_weights_go_over_without_a_jump():
    curriculum, *_ = made()
    plan = curriculum.init().plan
    course = curriculum.init().course

    @jax.jit
    def along(course):
        each = jax.vmap(lambda n: campaign.payment(plan, course.replace(episodes=n)))
        return each(jnp.arange(300)), each(jnp.arange(300) + 100)

    entered = course.replace(
        phase=jnp.int32(1), before=jnp.array([0.9, 0.1, 0.0, 0.05]), advances=jnp.int32(1)
    )
    paid = np.asarray(along(entered)[0])
    np.testing.assert_allclose(paid[0], entered.before, atol=1e-6)
    np.testing.assert_allclose(paid[:, :3].sum(axis=1), 1.0, atol=1e-5)
    # In 20 episodes from (0.9, 0.1, 0) to what the schedule says; afterwards only the schedule moves.
    steps = np.abs(np.diff(paid, axis=0)).max(axis=1)
    assert steps[:20].min() > 0.015 and steps[20:].max() < 0.01
    exact = [weights.shares(0, campaign.progress(plan, 1, n)) for n in (0, 10, 20, 250)]
    np.testing.assert_allclose(paid[10, :3], 0.5 * (entered.before[:3] + exact[1]), atol=1e-5)
    np.testing.assert_allclose(paid[[20, 250], :3], exact[2:], atol=1e-6)
    # Progress does not leave a phase by itself.
    far = campaign.progress(plan, jnp.arange(4), 10**6)
    assert np.all(far < np.arange(1, 5) / 4) and np.all(far > np.arange(1, 5) / 4 - 0.001)
    # Before the first transition there is nothing to blend from.
    np.testing.assert_allclose(
        along(course)[0][5, :3], weights.shares(0, campaign.progress(plan, 0, 5)), atol=1e-6
    )


def test_how_rollouts_are_cut_does_not_matter():
    curriculum, update, _ = made()
    rng = np.random.default_rng(5)
    batches = [runs.episodes(rng, SHAPE, 0, 0.99) for _ in range(3)]
    joined = [jax.tree.map(lambda *x: np.concatenate(x), *(b[i] for b in batches)) for i in range(3)]
    one = two = curriculum.init()
    for batch in batches:
        one = update(one, runs.rollout(*batch))
    two = update(two, runs.rollout(*joined))
    assert int(one.course.phase) == 1
    same(one, two)


def test_resuming_is_exact_within_a_phase():
    """All progress is arrays: written out and read back, with episodes under way, nothing differs."""
    curriculum, *_ = made()
    step = jax.jit(curriculum.update)
    rng, phase = np.random.default_rng(7), 0
    state, tickets = curriculum.init(), curriculum.tickets(SHAPE[1])
    twin = (state, tickets)
    for number in range(9):
        flow = runs.rollout(*runs.episodes(rng, SHAPE, phase, 0.95))
        # Every other episode goes on into the next rollout.
        begins = np.asarray(flow.begins).copy()
        over = begins.copy()
        over[-1, ::2] = False
        begins[0, ::2] = number == 0
        mask = jnp.asarray(over)
        done = flow.finished.replace(mask=flow.finished.mask & mask)
        flow = flow.replace(begins=jnp.asarray(begins), over=mask, finished=done)
        state, tickets = step(state, tickets, flow)
        twin = step(*jax.tree.map(jnp.asarray, jax.device_get(twin)), flow)
        same((state, tickets), twin)
        phase = int(state.course.phase)
    assert phase > 0 and int(tickets.length) > 0
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))


def test_evaluations_judge_where_they_are_the_gate():
    curriculum, update, metrics = made("evaluation")
    judge = jax.jit(curriculum.evaluated)
    rng, state = np.random.default_rng(2), curriculum.init()

    def evaluation(skill, counted):
        _, _, results = runs.episodes(rng, (80,), 0, skill)
        return runs.finished(rng.permutation(80) < counted, {}, results)

    for _ in range(2):
        state = update(state, runs.rollout(*runs.episodes(rng, SHAPE, 0, 1.0)))
    assert int(state.course.episodes) == 120 and int(state.course.judged) == 0, "training is not judged"
    for counted in (WINDOW - 1, WINDOW - 1, 70):
        state = judge(state, jnp.float32(0.5), evaluation(0.99, counted))
        assert int(state.course.judged) == counted, "each evaluation is judged alone, without the quarantined"
        assert int(state.course.phase) == 0, "a transition waits for the update"
        found = metrics(state)["curriculum/criteria/survival/met"]
        state = update(state, runs.rollout(*runs.episodes(rng, SHAPE, 0, 0.0)))
        assert int(state.course.phase) == (counted >= WINDOW)
    assert found == 1.0 and int(state.course.judged) == 0
    with pytest.raises(ValueError, match="eval_episodes=59: curriculum.gate=evaluation needs at least"):
        curriculum.evaluated(state, 0.5, runs.finished(*runs.episodes(rng, (59,), 0, 1.0)))
    training = made()[0]
    before = training.init()
    same(before, training.evaluated(before, jnp.float32(1.0), evaluation(1.0, 80)))


def test_what_an_episode_is_drawn_with():
    curriculum = missions(runs.Missions(), **SMALL, verbs={"scout": 3.0, "hold": 1.0})
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
    curriculum = missions(runs.Missions(), **SMALL, evaluation={"level": 7.0})
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


def test_arms_of_an_experiment_differ_in_numbers_only():
    """Schedules and credits are arrays: their arms run side by side in one program."""
    changes = [{"schedule": name} for name in weights.SCHEDULES] + [{"credit": "terminal"}, {"floor": 0.2}]
    arms = [missions(runs.Missions(), **(SMALL | change)) for change in changes]
    states = [arm.init() for arm in arms]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    later = stacked.replace(course=stacked.course.replace(phase=jnp.full(len(arms), 3)))
    draw = jax.jit(jax.vmap(arms[0].draw, in_axes=(None, 0)))
    drawn = draw(KEYS[0], later).params.weights
    # At the beginning of the last phase.
    np.testing.assert_allclose(drawn.terminal[:4], [0.935, 1.0, 1.0, 0.4], atol=5e-4)
    np.testing.assert_allclose(drawn.credit[:5], [1, 1, 1, 1, drawn.terminal[4]], atol=1e-6)
    np.testing.assert_allclose(drawn.components[2], 0.0, atol=1e-6)
    assert drawn.terminal[5] < drawn.terminal[0]
    early = draw(KEYS[0], stacked).params.weights
    assert early.credit[4] == pytest.approx(0.25), "never less"
    # A run that is continued with other numbers keeps its progress.
    kept = arms[5].retasked(jax.tree.map(lambda x: x[0], later), states[5])
    assert kept.course.phase == 3 and kept.plan.floor == pytest.approx(0.2)


def test_the_configuration_is_the_specs():
    config = OmegaConf.load(CONF)
    curriculum = instantiate(config, _partial_=True)(runs.Missions())
    plan, given = (
        jax.device_get(curriculum.init().plan),
        missions(runs.Missions(), config_phases(config)).init(),
    )
    same(plan, given.plan)
    assert curriculum.stages == ("mechanics", "objective", "execution", "terminal")
    asked = [dict(phase.criteria) for phase in config.phases]
    assert asked == [
        {"survival": 0.6, "attempt": 0.7},
        {"completed": 0.5, "efficiency": 0.4},
        {"win": 0.6, "variance": 0.2},
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
        lambda plan, course: campaign.decide(plan, quantiles, course)[0].phase, in_axes=(None, 0)
    )
    return curriculum.init(), jax.jit(decide)


def at_full_size(phase, changed, others=1.0):
    """By how much the phase changes with 0, 1, ... 500 successes of one metric; `others` of the others."""
    state, decide = full_size()
    every = np.arange(501)[:, None] > np.arange(500)
    rows = {name: np.broadcast_to(np.arange(500) < 500 * others, every.shape) for name in METRICS} | {
        changed: every
    }
    marks = campaign.Marks(
        metrics={name: jnp.asarray(values, jnp.float32) for name, values in rows.items()},
        counts={name: jnp.ones(every.shape, bool) for name in METRICS},
        score=jnp.ones(every.shape),
        verb=jnp.zeros(every.shape, jnp.int32),
    )
    course = jax.tree.map(lambda x: jnp.broadcast_to(x, (501, *x.shape)), state.course)
    full = jnp.full(501, 500, jnp.int32)
    course = course.replace(phase=jnp.full(501, phase), episodes=full, judged=full, history=marks)
    return np.asarray(decide(state.plan, course)) - phase


def config_phases(config):
    return OmegaConf.to_container(config)["phases"]


def phase(index, **changes):
    return {"phases": [PHASES[i] | changes if i == index else PHASES[i] for i in range(4)]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate": "exams"}, "curriculum.gate='exams': unknown; allowed: training, evaluation"),
        ({"schedule": "steep"}, "curriculum.schedule='steep': unknown; allowed: continuous, table, terminal"),
        ({"window": 1}, "curriculum.window=1: must be a whole number from 2"),
        ({"confidence": 1.5}, "curriculum.confidence=1.5: must be a number in"),
        ({"verbs": {"dance": 1}}, "curriculum.verbs.dance=1: unknown; allowed: assault"),
        ({"verbs": {"hold": 0}}, "curriculum.verbs={'hold': 0}: one of them must be above 0"),
        ({"base": {"speed": 1}}, "curriculum.base.speed=1: unknown; allowed: survival"),
        ({"totals": [1, 2]}, "curriculum.totals=[1, 2]: must be one number for each"),
        ({"credit": "half"}, "curriculum.credit=half: must be a number or terminal"),
        ({"fire": [1.0, 0.2]}, "curriculum.fire=[1.0, 0.2]: the first number must not exceed the second"),
        ({"evaluation": {"speed": 1}}, "curriculum.evaluation: env.speed: unknown"),
        ({"phases": []}, "curriculum.phases=[]: must be a list of at least one phase"),
        (phase(0, name=""), "must be a mapping with a name"),
        (phase(1, name="one"), "curriculum.phases: one: another phase has this name"),
        (phase(1, level=1), "curriculum.phases.1.level=1: unknown; allowed: name"),
        (phase(1, difficulty=[0.2, 1.2]), "curriculum.phases.1.difficulty=1.2: must be a number in [0, 1]"),
        (phase(1, criteria={"speed": 0.5}), "curriculum.phases.1.criteria: speed: no result of missions"),
        (phase(1, criteria={}), "curriculum.phases.1 (two): criteria: must name a result"),
        (phase(1, criteria={"efficiency": 0.9}), "efficiency=0.9: with advance_margin=0.1 must be below 1"),
        (phase(2, exams=0.0), "curriculum.phases.2 (three): criteria.win: counts at full fire only"),
        (phase(3, criteria={"win": 0.5}), "curriculum.phases.3 (four): criteria: the last phase has none"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(ValueError) as caught:
        missions(runs.Missions(), **(SMALL | changes))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["task", "survival"])
def test_environments_that_do_not_report_enough_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: no result of missions"):
        missions(runs.Missions(without=(name,)), **SMALL)


def test_parameters_are_those_of_the_environment():
    """What is drawn and evaluated has the layout of the environment's own parameters, in one composed run."""
    given = ["env=echelon_missions", "env.maps=1", "env.terrain=open", "env.mission=scout", "env.cache=null"]
    run = config_lib.read(compose_config([*given, "curriculum=missions4", "curriculum.gate=evaluation"])[0])
    curriculum, own = run.curriculum(run.env), strong(run.env.default_params())
    state = curriculum.init()
    posed = curriculum.evaluation(state), curriculum.stage_params(state, jnp.int32(2))
    for params in (curriculum.draw(KEYS[0], state).params, *posed):
        assert layout_difference(jax.tree.map(jnp.asarray, own), strong(params)) is None
        np.testing.assert_array_equal(params.levers.mission, np.array(VERBS) == "scout")
