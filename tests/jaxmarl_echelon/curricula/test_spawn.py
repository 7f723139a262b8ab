"""Spawn stages: every rule against a plain reading of it, episode by episode."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import staged_runs as runs
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxmarl_echelon.curricula.spawn import spawn_curriculum

CONF = Path(__file__).resolve().parents[3] / "conf"
WON, CRASHED = 0, 1


class Reference:
    """The rules of `spawn_curriculum` for one episode after the other, in plain Python."""

    def __init__(self, table, options):
        self.table, self.options = table, options
        self.decided = None
        self.total = self.advances = self.regressions = self.cooldown = self.came_from = self.stage = 0
        self.enter(0)

    def enter(self, stage):
        self.came_from, self.stage = self.stage, stage
        self.history, self.rate, self.above, self.below = [], None, 0, 0

    def episode(self, stage, outcome, _):
        if stage != self.stage:
            return
        o, won = self.options, float(outcome == WON)
        self.total += 1
        self.history.append(won)
        lately = self.history[-o["window"] :]
        alpha = o["ema_alpha"]
        if alpha:
            self.rate = won if self.rate is None else (1 - alpha) * self.rate + alpha * won
        else:
            self.rate = sum(lately) / len(lately)
        following = self.table[stage + 1] if stage + 1 < len(self.table) else None
        high = following is not None and self.rate >= following.get("enable_rate", 0.7)
        low = self.rate < self.table[stage].get("disable_rate", 0.0)
        self.above = self.above + 1 if high else 0
        self.below = self.below + 1 if low else 0
        self.decided, free = self.rate, self.cooldown == 0
        self.cooldown = max(self.cooldown - 1, 0)
        ripe = self.total >= o["min_episode"] and len(lately) >= o["activation_samples"]
        if free and ripe and high and self.above >= following.get("enable_patience", o["enable_patience"]):
            self.advances += 1
            self.cooldown = o["cooldown"]
            self.enter(stage + 1)
        elif free and stage > 0 and low and self.below >= self.table[stage].get("disable_patience", 3):
            self.regressions += 1
            self.cooldown = o["cooldown"]
            self.enter(stage - 1)

    def standing(self):
        count = len(self.history)
        return self.stage, self.came_from, count, self.total, self.advances, self.regressions, self.cooldown


OPTIONS = {
    "window": 12,
    "activation_samples": 8,
    "min_episode": 25,
    "enable_patience": 4,
    "disable_patience": 3,
    "cooldown": 6,
    "ema_alpha": 0.2,
}
STAGES = [
    {},
    {"enable_rate": 0.55, "disable_rate": 0.25},
    {"enable_rate": 0.61, "disable_rate": 0.31, "enable_patience": 2, "disable_patience": 5},
    {"enable_rate": 0.52, "disable_rate": 0.41},
    {"disable_rate": 0.37},
]


def build(table=STAGES, env=None, **options):
    rows = [row | own for row, own in zip(runs.table(len(table)), table, strict=True)]
    return spawn_curriculum(env or runs.Settings(), rows, **options)


def standing(state):
    c = state.course
    return tuple(
        int(x) for x in (c.stage, c.came_from, c.episodes, c.total, c.advances, c.regressions, c.cooldown)
    )


def follow(curriculum, update, options, seed, rollouts=150):
    """Plays a run of random rollouts with both; yields after each."""
    rng = np.random.default_rng(seed)
    reference, state = Reference(STAGES, options), curriculum.init()
    for _ in range(rollouts):
        rollout = runs.stream(rng, len(STAGES), reference.stage, rng.choice([0.05, 0.5, 0.9]))
        state = update(state, rollout)
        runs.judge(reference, rollout)
        yield reference, state, rollout


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.2), (1, 0.05), (2, 0.0)])
def test_every_episode_moves_the_stages_as_the_rules_say(seed, alpha):
    options = OPTIONS | {"ema_alpha": alpha}
    curriculum = build(**options)
    visited = {0}
    for reference, state, _ in follow(curriculum, runs.updater(curriculum), options, seed):
        assert standing(state) == reference.standing()
        if reference.rate is not None:
            shown = float(curriculum.metrics(state)["curriculum/stage_success_rate"])
            assert shown == pytest.approx(reference.rate, abs=1e-5)
        if not reference.history and reference.decided is not None:
            decided = float(curriculum.metrics(state)["curriculum/decided_success"])
            assert decided == pytest.approx(reference.decided, abs=1e-5)
        visited.add(reference.stage)
    assert visited == set(range(len(STAGES)))
    assert reference.advances > 6 and reference.regressions > 6


def test_vectorized_runs_equal_separate_runs():
    curriculum = build(**OPTIONS)
    update = runs.updater(curriculum)
    histories = [list(follow(curriculum, update, OPTIONS, seed, rollouts=25)) for seed in (5, 6, 7)]
    together = jax.tree.map(lambda *x: jnp.stack(x), *[curriculum.init()] * 3)
    step = jax.vmap(runs.updater(curriculum))
    for moment in zip(*histories, strict=True):
        together = step(together, jax.tree.map(lambda *x: jnp.stack(x), *(r for _, _, r in moment)))
        alone = jax.tree.map(lambda *x: jnp.stack(x), *(state for _, state, _ in moment))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), together, alone)


def test_episodes_of_other_stages_count_for_nothing():
    curriculum = build([{}, {"disable_rate": 0.5}], **OPTIONS | {"min_episode": 0, "cooldown": 0})
    update = runs.updater(curriculum)
    state = runs.play(curriculum, curriculum.init(), [WON] * 7, update=update)
    state = runs.play(curriculum, state, [WON] * 9, stage=1, update=update)
    assert int(curriculum.stage(state)) == 0
    state = runs.play(curriculum, state, [WON], update=update)
    assert int(curriculum.stage(state)) == 1
    state = runs.play(curriculum, state, [CRASHED] * 9, stage=0, update=update)
    assert (int(curriculum.stage(state)), int(state.course.episodes)) == (1, 0)
    state = runs.play(curriculum, state, [CRASHED] * 3, update=update)
    assert int(curriculum.stage(state)) == 0


def test_the_stage_that_was_left_fades_out():
    options = OPTIONS | {"blend_previous_prob": 0.4, "blend_decay_episodes": 10, "min_episode": 0}
    curriculum = build(**options)
    update = runs.updater(curriculum)
    keys = jax.random.split(jax.random.key(3), 8000)
    draw = jax.jit(lambda state: jax.vmap(curriculum.draw, (0, None))(keys, state))

    def shares(state):
        drawn = draw(state)
        np.testing.assert_array_equal(drawn.params["level"], drawn.tags["stage"])
        return np.bincount(drawn.tags["stage"], minlength=len(STAGES)) / len(keys)

    state = curriculum.init()
    np.testing.assert_array_equal(shares(state), [1, 0, 0, 0, 0])
    assert float(curriculum.metrics(state)["curriculum/blend_probability"]) == 0.0, "no stage was left"
    state = runs.play(curriculum, state, [WON] * 8, update=update)
    for episodes, left in ((0, 0.4), (5, 0.2), (9, 0.04), (10, 0.0), (15, 0.0)):
        now = runs.play(curriculum, state, ([CRASHED, WON] * 8)[:episodes], update=update)
        assert (int(now.course.stage), int(now.course.episodes)) == (1, episodes)
        np.testing.assert_allclose(shares(now), [left, 1 - left, 0, 0, 0], atol=0.02)
        shown = curriculum.metrics(now)["curriculum/blend_probability"]
        assert float(shown) == pytest.approx(left, abs=1e-6)
    back = runs.play(curriculum, state, [CRASHED] * 7, update=update)
    assert int(back.course.stage) == 0
    np.testing.assert_allclose(shares(back), [0.6, 0.4, 0, 0, 0], atol=0.02)
    never = build(**OPTIONS | {"blend_decay_episodes": 0, "min_episode": 0})
    moved = runs.play(never, never.init(), [WON] * 8)
    assert float(never.metrics(moved)["curriculum/blend_probability"]) == 0.0


def test_metrics_are_nan_where_unknown():
    curriculum = build(**OPTIONS)
    start = {
        name.removeprefix("curriculum/"): value
        for name, value in curriculum.metrics(curriculum.init()).items()
    }
    assert {name for name, value in start.items() if np.isnan(value)} == {
        "rolling_success",
        "stage_success_rate",
        "decided_success",
    }
    assert float(start["enable_rate"]) == pytest.approx(0.55)
    assert (int(start["total_stages"]), float(start["progress"])) == (5, 0.0)
    state = curriculum.init()
    last = curriculum.metrics(state.replace(course=state.course.replace(stage=jnp.int32(4))))
    assert np.isnan(last["curriculum/enable_rate"])
    assert float(last["curriculum/progress"]) == 1.0
    assert float(last["curriculum/disable_rate"]) == pytest.approx(0.37)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"enable_rate": 1.2}, ["curriculum.stages.1 (bad): enable_rate=1.2", "from 0 to 1"]),
        ({"disable_rate": "low"}, ["(bad): disable_rate=low"]),
        ({"enable_patience": 0}, ["(bad): enable_patience=0", "at least 1"]),
        ({"disable_patience": 1.5}, ["(bad): disable_patience=1.5", "whole"]),
        ({"disable_rate": 0.7}, ["(bad): disable_rate=0.7", "next stage's enable_rate=0.7"]),
        ({"enable": 0.7}, ["(bad): enable=0.7", "unknown", "enable_rate"]),
        ({"settings": {"lvl": 1}}, ["(bad)", "lvl"]),
    ],
)
def test_wrong_stages_get_one_line_with_their_name(stage, words):
    with pytest.raises(ValueError) as caught:
        spawn_curriculum(runs.Settings(), [{"name": "fine"}, {"name": "bad"} | stage, {"name": "last"}])
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"window": 10**6},
        {"activation_samples": 201},
        {"activation_samples": 0},
        {"min_episode": -1},
        {"enable_patience": 0},
        {"disable_patience": None},
        {"cooldown": 1.5},
        {"ema_alpha": 1.5},
        {"blend_previous_prob": -0.1},
        {"blend_decay_episodes": "never"},
        {"stages": []},
        {"evaluation": {"lvl": 1}},
    ],
)
def test_wrong_numbers_get_one_line(options):
    with pytest.raises(ValueError) as caught:
        spawn_curriculum(runs.Settings(), **{"stages": runs.table(2)} | options)
    assert "\n" not in str(caught.value)
    assert next(iter(options)) in str(caught.value)


def test_the_shipped_stages_start_easy_and_end_hard():
    node = OmegaConf.merge(OmegaConf.load(CONF / "env" / "f110.yaml"), {"lidar_beams": 12})
    paid = instantiate(OmegaConf.load(CONF / "reward" / "gaplock_simple.yaml"), _convert_="all")
    env = instantiate(node, _partial_=True)(reward=paid)
    made = instantiate(OmegaConf.load(CONF / "curriculum" / "spawn.yaml"), _partial_=True, _convert_="all")(
        env
    )
    state = made.init()
    stages = [made.stage_params(state, index) for index in range(len(made.stages))]
    assert made.stages[0] == "pinch_lock800" and made.stages[-1] == "all_spawns_medium"
    assert [int(p.lock_steps) for p in stages] == [800, 300, 0, 0, 0, 0, 0, 0]
    assert [int((p.spawn_weights > 0).sum()) for p in stages] == [2, 2, 2, 2, 2, 3, 6, 6]
    speeds = [[round(float(x), 2) for x in p.speed_range] for p in stages]
    assert speeds == [[0.44, 0.44], [0.44, 0.44], [0.25, 0.44], [0.0, 0.25]] + [[0.0, 0.0]] * 4
    assert [round(float(p.ftg.steering_gain), 2) for p in stages] == [0.25] * 7 + [0.35]
    scored = made.evaluation(state)
    assert float(scored.ftg.max_speed) == 1.0 and int(scored.lock_steps) == 0
    assert float(scored.ftg.steering_gain) == pytest.approx(0.35)
