"""Phases: every rule against a plain reading of it, episode by episode."""

from collections import deque
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import staged_runs as runs
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.f110.rewards import make_reward

CONF = Path(__file__).resolve().parents[3] / "conf"
WON, CRASHED, LATE = range(3)
PINCH = ("pinch_right", "pinch_left")


class Reference:
    """The rules of `phased_curriculum` for one episode after the other, in plain Python."""

    def __init__(self, criteria):
        self.criteria, self.stage = criteria, 0
        self.advances = self.forced = self.regressions = 0
        self.decided = None
        self.enter(0)

    def enter(self, stage):
        self.stage, self.history, self.below, self.evaluations = stage, [], 0, deque()

    def episode(self, stage, outcome, reward):
        if stage != self.stage:
            return
        c = self.criteria[stage]
        self.history.append((outcome, reward))
        count = len(self.history)
        back = c.get("regress_success_rate")
        poor = back is not None and count >= c.get("regress_min_episodes", c["min_episodes"])
        poor = poor and self.success(c.get("regress_window_size", c["window_size"])) < back
        self.below = self.below + 1 if poor else 0
        self.decided = self.success(c["window_size"])
        if stage < len(self.criteria) - 1:
            if count >= c["min_episodes"] and self.mastered(c):
                self.advances += 1
                return self.enter(stage + 1)
            if c.get("patience") is not None and count >= c["patience"]:
                self.advances, self.forced = self.advances + 1, self.forced + 1
                return self.enter(stage + 1)
        if stage > 0 and self.below >= c.get("regress_patience", 1):
            self.regressions += 1
            self.decided = self.success(c.get("regress_window_size", c["window_size"]))
            self.enter(stage - 1)

    def success(self, window):
        lately = self.history[-window:]
        return sum(outcome == WON for outcome, _ in lately) / len(lately)

    def mastered(self, c):
        lately = self.history[-c["window_size"] :]
        shares = {
            runs.OUTCOMES[code]: sum(outcome == code for outcome, _ in lately) / len(lately)
            for code in range(3)
        }
        mean = sum(reward for _, reward in lately) / len(lately)
        runs_ = c.get("eval_required_runs", 2)
        gate = c.get("eval_success_rate")
        return (
            shares["won"] >= c["success_rate"]
            and (c.get("avg_reward") is None or mean >= c["avg_reward"])
            and all(shares[name] <= cap for name, cap in c.get("max_rates", {}).items())
            and (
                gate is None
                or (
                    len(self.evaluations) >= runs_
                    and all(rate >= gate for rate in list(self.evaluations)[-runs_:])
                )
            )
        )

    def standing(self):
        decided = np.nan if self.history or self.decided is None else np.float32(self.decided)
        moves = self.advances, self.forced, self.regressions
        return self.stage, len(self.history), *moves, self.below, decided


CRITERIA = [
    {"success_rate": 0.6, "min_episodes": 8, "window_size": 10},
    {"success_rate": 0.5, "min_episodes": 4, "window_size": 5, "patience": 30, "avg_reward": 2.6},
    {
        "success_rate": 0.55, "min_episodes": 6, "window_size": 9, "patience": 45,
        "regress_success_rate": 0.35, "regress_min_episodes": 7, "regress_window_size": 13,
        "regress_patience": 3,
    },
    {
        "success_rate": 0.6, "min_episodes": 5, "window_size": 12, "regress_success_rate": 0.2,
        "max_rates": {"crashed": 0.25, "late": 0.3},
    },
    {"success_rate": 0.5, "min_episodes": 6, "window_size": 6, "eval_success_rate": 0.5, "patience": 60},
    {"success_rate": 0.7, "min_episodes": 5, "window_size": 5, "regress_success_rate": 0.45},
]  # fmt: skip
COUNTERS = ("advances", "forced_advances", "regressions")


def build(criteria, env=None, **options):
    rows = [row | {"criteria": c} for row, c in zip(runs.table(len(criteria)), criteria, strict=True)]
    return phased_curriculum(env or runs.Settings(), rows, **options)


def standing(measured, state):
    """Metrics and stage of a run, by `(state) -> (metrics, stage)`."""
    metrics, stage = jax.device_get(measured(state))
    assert int(metrics["curriculum/current_stage"]) == int(stage)
    counters = (int(metrics[f"curriculum/{name}"]) for name in COUNTERS)
    course = state.course
    decided = metrics["curriculum/decided_success"]
    return int(course.stage), int(course.episodes), *counters, int(course.below), decided


def follow(curriculum, update, evaluated, seed, rollouts=120):
    """Plays a run of random rollouts with both; yields after each."""
    rng = np.random.default_rng(seed)
    reference, state = Reference(CRITERIA), curriculum.init()
    for index in range(rollouts):
        skill = rng.choice([0.1, 0.5, 0.8])
        rollout = runs.stream(rng, len(CRITERIA), reference.stage, skill)
        state = update(state, rollout)
        runs.judge(reference, rollout)
        if index % 3 == 0:
            success = rng.random(4) < 0.6
            state = evaluated(state, np.float32(success.mean()), None)
            reference.evaluations.append(success.mean())
        yield reference, state, rollout


@pytest.fixture(scope="module")
def machine():
    curriculum = build(CRITERIA)
    return curriculum, runs.updater(curriculum), jax.jit(curriculum.evaluated)


@pytest.fixture(scope="module")
def measured(machine):
    curriculum, _, _ = machine
    return jax.jit(lambda state: (curriculum.metrics(state), curriculum.stage(state)))


@pytest.mark.parametrize("seed", range(3))
def test_every_episode_moves_the_phases_as_the_rules_say(machine, measured, seed):
    visited = {0}
    for reference, state, _ in follow(*machine, seed):
        np.testing.assert_allclose(standing(measured, state), reference.standing(), rtol=1e-6)
        visited.add(reference.stage)
    assert visited == set(range(len(CRITERIA)))
    assert reference.advances - reference.forced > 5 and reference.forced > 0 and reference.regressions > 3


def test_vectorized_runs_equal_separate_runs(machine):
    curriculum, update, evaluated = machine
    histories = [list(follow(curriculum, update, evaluated, seed, rollouts=20)) for seed in (7, 8, 9)]
    together = jax.tree.map(lambda *x: np.stack(x), *[curriculum.init()] * 3)
    step = jax.jit(jax.vmap(update))
    for index, moment in enumerate(zip(*histories, strict=True)):
        rollouts = jax.tree.map(lambda *x: np.stack(x), *(rollout for _, _, rollout in moment))
        together = step(together, rollouts)
        alone = jax.tree.map(lambda *x: np.stack(x), *(state for _, state, _ in moment))
        if index % 3 == 0:
            course = together.course.replace(
                eval_streak=alone.course.eval_streak, eval_success=alone.course.eval_success
            )
            together = together.replace(course=course)
        jax.tree.map(np.testing.assert_array_equal, together, alone)


def test_the_next_phase_comes_at_the_threshold_and_not_before():
    curriculum = build([{"success_rate": 0.7, "min_episodes": 10, "window_size": 10}] * 2)
    update = runs.updater(curriculum)
    state = runs.play(curriculum, curriculum.init(), [CRASHED] * 3 + [WON] * 6, update=update)
    assert int(curriculum.stage(state)) == 0
    assert int(curriculum.stage(runs.play(curriculum, state, [WON], update=update))) == 1
    state = runs.play(curriculum, state, [LATE], update=update)
    assert int(curriculum.stage(state)) == 0
    assert int(curriculum.stage(runs.play(curriculum, state, [WON], update=update))) == 1


def test_episodes_of_other_phases_count_for_nothing():
    curriculum = build([{"min_episodes": 2, "window_size": 2, "regress_success_rate": 0.5}] * 3)
    update = runs.updater(curriculum)
    state = runs.play(curriculum, curriculum.init(), [WON] * 2, update=update)
    assert int(curriculum.stage(state)) == 1
    for stage, outcome in ((0, WON), (2, WON), (0, CRASHED), (2, CRASHED)):
        state = runs.play(curriculum, state, [outcome] * 5, stage=stage, update=update)
        assert int(curriculum.stage(state)) == 1
        assert int(state.course.episodes) == 0


def test_patience_forces_the_next_phase_through_a_closed_gate():
    gated = {"min_episodes": 2, "window_size": 4, "patience": 5, "eval_success_rate": 1.0}
    curriculum = build([gated] * 2)
    update = runs.updater(curriculum)
    state = runs.play(curriculum, curriculum.init(), [CRASHED] * 4, update=update)
    assert int(curriculum.stage(state)) == 0
    state = runs.play(curriculum, state, [CRASHED], update=update)
    assert (int(curriculum.stage(state)), int(state.course.forced), int(state.course.advances)) == (1, 1, 1)
    state = runs.play(curriculum, state, [WON] * 9, update=update)
    assert int(curriculum.stage(state)) == 1


def test_the_gate_requires_consecutive_good_evaluations_of_this_phase():
    gated = {"min_episodes": 1, "window_size": 1, "eval_success_rate": 0.75, "eval_required_runs": 2}
    curriculum = build([gated] * 3)
    assert (
        curriculum.needs_evaluations
        and not build([gated | {"eval_success_rate": None}] * 3).needs_evaluations
    )
    update = runs.updater(curriculum)

    def evaluate(state, *shares):
        for share in shares:
            state = curriculum.evaluated(state, jnp.float32(share), None)
        return state

    def stage_after_a_win(state):
        return int(curriculum.stage(runs.play(curriculum, state, [WON], update=update)))

    start = curriculum.init()
    assert stage_after_a_win(start) == 0
    assert stage_after_a_win(evaluate(start, 1.0)) == 0
    assert stage_after_a_win(evaluate(start, 1.0, 0.5, 0.75)) == 0
    passed = evaluate(start, 0.5, 0.75, 1.0)
    assert stage_after_a_win(passed) == 1
    metrics = curriculum.metrics(passed)
    assert float(metrics["curriculum/eval_success_streak"]) == 2
    assert float(metrics["curriculum/eval_success_rate"]) == 1.0
    entered = runs.play(curriculum, passed, [WON], update=update)
    assert int(entered.course.eval_streak) == 0
    assert stage_after_a_win(evaluate(entered, 1.0)) == 1
    assert stage_after_a_win(evaluate(entered, 1.0, 1.0)) == 2


def test_a_cap_holds_a_phase_back():
    capped = {"success_rate": 0.5, "min_episodes": 4, "window_size": 4, "max_rates": {"crashed": 0.25}}
    curriculum = build([capped] * 2)
    update = runs.updater(curriculum)
    for outcomes, stage in (([WON, WON, CRASHED, CRASHED], 0), ([WON, WON, CRASHED, LATE], 1)):
        assert (
            int(curriculum.stage(runs.play(curriculum, curriculum.init(), outcomes, update=update))) == stage
        )


def test_metrics_have_every_criterion_that_can_hold_a_phase_back():
    curriculum = build([{"avg_reward": 40.0, "max_rates": {"crashed": 0.25}}, {}])
    state = curriculum.init()
    names = [f"curriculum/criteria_{name}" for name in ("avg_reward", "max_crashed_rate")]
    assert [float(curriculum.metrics(state)[name]) for name in names] == [40.0, 0.25]
    later = curriculum.metrics(state.replace(course=state.course.replace(stage=jnp.int32(1))))
    assert all(np.isnan(later[name]) for name in names)
    assert "curriculum/criteria_max_late_rate" not in later, "no phase caps it"


@pytest.mark.parametrize(
    ("mixture", "shares_by_stage"),
    [
        (
            {"foundation": 0.2, "previous": 0.3},
            [[1, 0, 0, 0], [0.2, 0.8, 0, 0], [0.2, 0.3, 0.5, 0], [0.2, 0, 0.3, 0.5]],
        ),
        (
            {"previous": 0.1, "rehearsal": 0.3},
            [[1, 0, 0, 0], [0.3, 0.7, 0, 0], [0.15, 0.25, 0.6, 0], [0.1, 0.1, 0.2, 0.6]],
        ),
    ],
)
def test_mixtures_are_drawn_as_often_as_they_say(mixture, shares_by_stage):
    rows = [row | {"mixture": mixture} for row in runs.table(4)]
    curriculum = phased_curriculum(runs.Settings(), rows)
    keys = jax.random.split(jax.random.key(1), 20_000)
    draw = jax.jit(lambda state: jax.vmap(curriculum.draw, (0, None))(keys, state))
    state = curriculum.init()
    for stage, shares in enumerate(shares_by_stage):
        drawn = draw(state.replace(course=state.course.replace(stage=jnp.int32(stage))))
        counts = np.bincount(drawn.tags["stage"], minlength=4) / len(keys)
        np.testing.assert_allclose(counts, shares, atol=0.015)
        np.testing.assert_array_equal(counts == 0, np.array(shares) == 0)
        np.testing.assert_array_equal(drawn.params["level"], drawn.tags["stage"])


def test_metrics_are_nan_where_unknown():
    criteria = {"success_rate": 0.9, "min_episodes": 3, "window_size": 2, "patience": 50}
    curriculum = build([criteria, {"eval_success_rate": 0.8}, {}])
    start = curriculum.metrics(curriculum.init())
    unknown = {name for name, value in start.items() if np.isnan(value)}
    assert unknown == {
        f"curriculum/{name}"
        for name in (
            "rolling_success", "phase_success_rate", "avg_reward", "crashed_rate", "late_rate",
            "eval_success_rate", "eval_success_streak", "criteria_eval_success_rate", "decided_success",
            "criteria_avg_reward",
        )
    }  # fmt: skip
    state, update = curriculum.init(), runs.updater(curriculum)
    for outcome, reward in ((WON, 100.0), (WON, 4.0), (CRASHED, 6.0)):
        state = update(state, runs.single(0, outcome, reward))
    metrics = {name.removeprefix("curriculum/"): float(v) for name, v in curriculum.metrics(state).items()}
    expected = {
        "current_stage": 0, "phase_idx": 0, "total_phases": 3, "progress": 0, "episodes_in_stage": 3,
        "rolling_success": 0.5, "phase_success_rate": 0.5, "avg_reward": 5.0, "crashed_rate": 0.5,
        "late_rate": 0.0, "criteria_success_rate": 0.9, "criteria_min_episodes": 3, "patience": 50,
        "criteria_eval_required_runs": 0,
    }  # fmt: skip
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert np.isnan(metrics["eval_success_streak"])  # the phase has no such criterion
    later = curriculum.metrics(state.replace(course=state.course.replace(stage=jnp.int32(1))))
    assert float(later["curriculum/progress"]) == 0.5
    assert float(later["curriculum/criteria_eval_success_rate"]) == pytest.approx(0.8)
    assert float(later["curriculum/criteria_eval_required_runs"]) == 2
    assert np.isnan(later["curriculum/patience"])


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ({"criteria": {"succes_rate": 0.5}}, ["succes_rate=0.5", "unknown", "success_rate"]),
        ({"criteria": {"success_rate": 1.4}}, ["success_rate=1.4", "from 0 to 1"]),
        ({"criteria": {"success_rate": None}}, ["success_rate=None"]),
        ({"criteria": {"success_rate": True}}, ["success_rate=True"]),
        ({"criteria": {"regress_success_rate": 0.7}}, ["regress_success_rate=0.7", "below success_rate=0.7"]),
        ({"criteria": {"patience": 99}}, ["patience=99", "at least min_episodes=100"]),
        ({"criteria": {"patience": 0}}, ["patience=0"]),
        ({"criteria": {"min_episodes": 2.5}}, ["min_episodes=2.5", "whole number"]),
        ({"criteria": {"window_size": 0}}, ["window_size=0"]),
        ({"criteria": {"window_size": 10**6}}, ["window_size=1000000", "10000"]),
        ({"criteria": {"regress_window_size": "all"}}, ["regress_window_size=all"]),
        ({"criteria": {"avg_reward": "high"}}, ["avg_reward=high"]),
        ({"criteria": {"max_rates": {"won": 0.5}}}, ["max_rates.won=0.5", "crashed, late"]),
        ({"criteria": {"max_rates": {"late": 2}}}, ["max_rates.late=2"]),
        ({"criteria": {"max_rates": 0.2}}, ["max_rates=0.2", "mapping"]),
        ({"criteria": {"eval_success_rate": -0.1}}, ["eval_success_rate=-0.1"]),
        ({"criteria": {"eval_success_rate": 0.5, "eval_required_runs": 0}}, ["eval_required_runs=0"]),
        ({"criteria": [0.5]}, ["criteria=[0.5]", "mapping"]),
        (
            {"mixture": {"foundation": 0.6, "previous": 0.5}},
            ["foundation + previous + rehearsal = 1.1", "below 1"],
        ),
        ({"mixture": {"foundation": -0.1}}, ["foundation=-0.1"]),
        ({"mixture": {"future": 0.1}}, ["future=0.1", "foundation, previous, rehearsal"]),
        ({"criterion": {}}, ["criterion={}", "criteria"]),
        ({"settings": {"lvl": 1}}, ["lvl", "level"]),
    ],
)
def test_wrong_phases_get_one_line_with_their_name(phase, words):
    with pytest.raises(ValueError) as caught:
        phased_curriculum(runs.Settings(), [{"name": "fine"}, {"name": "bad"} | phase])
    message = str(caught.value)
    assert "\n" not in message and message.startswith("curriculum.phases.1 (bad): "), message
    assert all(word in message for word in words), message


def test_missing_phases_and_missing_rewards_get_one_line():
    for env, phases, word in [
        (runs.Settings(), [], "at least one"),
        (runs.Settings(), [{"name": "a"}, {"name": "a"}], "another stage has this name"),
        (
            runs.Settings(components=()),
            [{"name": "a", "criteria": {"avg_reward": 1.0}}],
            "has no reward components",
        ),
    ]:
        with pytest.raises(ValueError, match=word) as caught:
            phased_curriculum(env, phases)
        assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def env():
    node = OmegaConf.merge(OmegaConf.load(CONF / "env" / "f110.yaml"), {"lidar_beams": 12, "max_steps": 60})
    paid = instantiate(OmegaConf.load(CONF / "reward" / "gaplock_simple.yaml"), _convert_="all")
    return instantiate(node, _partial_=True)(reward=paid)


def shipped(env, name, **changes):
    node = OmegaConf.merge(OmegaConf.load(CONF / "curriculum" / f"{name}.yaml"), changes)
    return instantiate(node, _partial_=True, _convert_="all")(env)


def rows(env, curriculum):
    """Lock, lowest and highest speed, number of spawn points, gain, bubble radius, farthest."""
    state = curriculum.init()
    for index in range(len(curriculum.stages)):
        p = jax.tree.map(np.asarray, curriculum.stage_params(state, index))
        used = tuple(env.spec.tasks[i] for i in np.flatnonzero(p.spawn_weights))
        assert set(PINCH) <= set(used)
        numbers = (*p.speed_range, p.ftg.steering_gain, p.ftg.bubble_radius)
        low, high, gain, bubble = (round(float(x), 4) for x in numbers)
        yield int(p.lock_steps), low, high, len(used), gain, bubble, bool(p.ftg.farthest)


LOCKED = [(lock, 0.44, 0.44, 2, 0.25, 2.0, False) for lock in (800, 600, 400, 300, 200, 100, 0)]
SLOWER = [
    (0, low, high, 2, 0.25, 2.0, False)
    for low, high in ((0.44, 0.44), (0.35, 0.35), (0.25, 0.25), (0.15, 0.15), (0.0, 0.1), (0.0, 0.0))
]
WIDER = [(0, 0.0, 0.0, spawns, 0.25, 2.0, False) for spawns in range(2, 7)]
HARDER = [
    (0, 0.0, 0.0, 6, gain, bubble, gain >= 0.4)
    for gain, bubble in zip(
        (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6), (2.0, 2.2, 2.5, 2.8, 3.0, 3.2, 3.4, 3.5), strict=True
    )
]
TABLE26 = LOCKED + SLOWER + WIDER[:4] + WIDER[4:] + HARDER
TABLE13 = [(lock, 0.44, 0.44, 2, 0.25, 2.0, False) for lock in (800, 600, 400, 200, 100, 50, 0)]
TABLE13 += [
    (0, low, high, 2, 0.25, 2.0, False)
    for low, high in ((0.35,) * 2, (0.25,) * 2, (0.15,) * 2, (0.05,) * 2, (0.0, 0.1), (0.0, 0.0))
]
TABLE21 = TABLE13 + [(0, 0.0, 0.0, n, 0.25, 2.0, False) for n in (3, 4, 5, 6, 6)]
TABLE21 += [(0, 0.0, 0.0, 6, g, b, False) for g, b in ((0.3, 2.2), (0.35, 2.4), (0.4, 2.6))]
MIXTURE21 = [
    (0, 0),
    (0.1, 0),
    (0.1, 0.15),
    (0.12, 0.18),
    (0.12, 0.2),
    (0.15, 0.2),
    (0.15, 0.22),
    (0.15, 0.22),
]
MIXTURE21 += [(0.18, 0.22), (0.18, 0.25), (0.2, 0.25), (0.2, 0.25), (0.2, 0.25), (0.2, 0.25), (0.2, 0.25)]
MIXTURE21 += [(0.22, 0.25), (0.22, 0.25), (0.25, 0.25), (0.25, 0.25), (0.25, 0.25), (0.25, 0.25)]


@pytest.mark.parametrize(
    ("name", "expected"), [("phased26", TABLE26), ("phased21", TABLE21), ("phased13", TABLE13)]
)
def test_shipped_phases_are_those_of_the_table(env, name, expected):
    curriculum = shipped(env, name)
    assert list(rows(env, curriculum)) == expected
    scored = curriculum.evaluation(curriculum.init())
    assert np.all(np.asarray(scored.spawn_weights) == 1.0) and int(scored.lock_steps) == 0
    np.testing.assert_array_equal(scored.speed_range, [0.0, 0.0])
    gains = (scored.ftg.max_speed, scored.ftg.bubble_radius, scored.ftg.steering_gain)
    assert [float(x) for x in gains] == pytest.approx([1.0, 3.0, 0.35])
    assert not bool(scored.ftg.farthest)


@pytest.mark.parametrize(("name", "number"), [("phased21", 21), ("phased13", 13)])
def test_shipped_mixtures_are_those_of_the_table(env, name, number):
    curriculum = shipped(env, name)
    state = curriculum.init()
    assert len(curriculum.stages) == number
    keys = jax.random.split(jax.random.key(2), 4000)
    draw = jax.jit(
        lambda course: jax.vmap(curriculum.draw, (0, None))(keys, state.replace(course=course)).tags["stage"]
    )
    for stage, (foundation, previous) in enumerate(MIXTURE21[:number]):
        drawn = np.asarray(draw(state.course.replace(stage=jnp.int32(stage))))
        if stage > 0:
            assert np.mean(drawn == 0) == pytest.approx(foundation, abs=0.03)
        if stage > 1:
            assert np.mean(drawn == stage - 1) == pytest.approx(previous, abs=0.03)


def test_a_user_can_reorder_and_replace_phases(env):
    plain = OmegaConf.to_container(OmegaConf.load(CONF / "curriculum" / "phased26.yaml"))
    phases = plain["phases"]
    new = {"name": "noisy", "settings": {"lidar_noise": 0.05, "reward": {"terminal": {"timeout": -50.0}}}}
    plain["phases"] = [phases[20], new, phases[0]]
    curriculum = phased_curriculum(env, plain["phases"], plain["common"], {"ftg": {"steering_gain": 0.6}})
    assert curriculum.stages == ("4_ftg_medium", "noisy", "1_lock800")
    medium, noisy, locked = (curriculum.stage_params(curriculum.init(), i) for i in range(3))
    assert float(medium.ftg.steering_gain) == pytest.approx(0.35)
    assert (int(noisy.lock_steps), int(locked.lock_steps)) == (0, 800)
    assert float(noisy.lidar_noise) == pytest.approx(0.05)
    assert (float(noisy.reward["terminal"]["timeout"]), float(locked.reward["terminal"]["timeout"])) == (
        -50,
        -100,
    )
    assert float(curriculum.evaluation(curriculum.init()).ftg.steering_gain) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ftg": {"steering_gain": 1.4}}, "ftg steering_gain is 1.4; it must be between 0 and 1"),
        ({"ftg": {"window_size": 9}}, "ftg.window_size=9: is fixed"),
        ({"lidar_beams": 20}, "env.lidar_beams: cannot change between episodes"),
        ({"max_steps": 61}, "max_steps=61"),
    ],
)
def test_wrong_settings_get_one_line_with_the_phase(env, settings, words):
    with pytest.raises(ValueError) as caught:
        phased_curriculum(env, [{"name": "fine"}, {"name": "odd", "settings": settings}])
    message = str(caught.value)
    assert message.startswith("curriculum.phases.1 (odd): ") and words in message and "\n" not in message


def test_a_reward_criterion_needs_a_reward(env):
    node = OmegaConf.merge(OmegaConf.load(CONF / "env" / "f110.yaml"), {"lidar_beams": 12})
    unpaid = instantiate(node, _partial_=True)(reward=make_reward({}))
    with pytest.raises(ValueError, match="avg_reward=50: f110 has no reward components"):
        shipped(unpaid, "phased13")
    assert shipped(env, "phased13").stages[0] == "1_foundation_lock800"


@pytest.mark.thorough
def test_phases_drive_real_episodes(env):
    """Episodes of the environment begin under their phase's parameters and report its number."""
    small = [{"success_rate": 0.0, "min_episodes": 1, "window_size": 1}] * 3
    settings = [{"max_steps": 60}, {"max_steps": 40}, {"max_steps": 20}]
    table = [
        {"name": f"p{i}", "settings": s, "criteria": c}
        for i, (s, c) in enumerate(zip(settings, small, strict=True))
    ]
    curriculum = phased_curriculum(env, table)

    @jax.jit
    def rollout(key, state, tickets, running):
        def step(carry, key):
            before, begins = carry
            actions = {role.name: jnp.zeros((4, 1, 2)) for role in env.spec.roles}
            after, moved = episodes.step_episodes(
                env, key, before, actions, lambda k: curriculum.draw(k, state)
            )
            over = moved.reset_next
            return (after, over), episodes.EpisodeEvents(begins, before.tags, over, moved.finished)

        (running, _), flow = jax.lax.scan(step, running, jax.random.split(key, 30))
        return *curriculum.update(state, tickets, flow), (running, flow.over[-1]), flow.finished

    state, tickets = curriculum.init(), curriculum.tickets(4)
    start = jax.jit(lambda key: episodes.start_episodes(env, key, lambda k: curriculum.draw(k, state), 4))
    running = start(jax.random.key(0)), jnp.ones(4, bool)
    lengths = {0: 30, 1: 20, 2: 10}
    seen = []
    for number in range(4):
        state, tickets, running, done = rollout(jax.random.key(number), state, tickets, running)
        stage = np.asarray(done.tags["stage"])[np.asarray(done.mask)]
        length = np.asarray(done.length)[np.asarray(done.mask)]
        assert [lengths[s] for s in stage] == length.tolist()
        seen.append(set(stage.tolist()))
    assert seen[0] == {0} and 1 in seen[1] | seen[2] and 2 in seen[3]
    assert int(curriculum.stage(state)) == 2
