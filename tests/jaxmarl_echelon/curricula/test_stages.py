"""Shared parts of staged curricula: parsing, drawing, and the order of episodes and their windows."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import staged_runs as runs
from flax import struct

from jaxmarl_echelon.curricula import stages
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.curricula.spawn import spawn_curriculum
from jaxmarl_echelon.curricula.stages import EpisodeResult, StageRules
from jaxmarl_echelon.envs.episodes import EpisodeEvents
from jaxmarl_echelon.envs.results import Result


@struct.dataclass
class Diary:
    """Rewards in the order in which they came; every third one moves on to the next stage."""

    stage: jax.Array
    count: jax.Array
    rewards: jax.Array


EMPTY = Diary(jnp.int32(0), jnp.int32(0), jnp.full(64, jnp.nan))


def note(diary, episodes, number):
    index = jnp.arange(episodes.reward.size)
    seen, moved = stages.find_first_true((diary.count + index + 1) % 3 == 0, number)
    place = jnp.where(index < seen, diary.count + index, diary.rewards.size)
    rewards = diary.rewards.at[place].set(episodes.reward, mode="drop")
    return Diary(diary.stage + moved, diary.count + seen, rewards)


def diary():
    return curriculum(runs.Settings(), read(rows=runs.table(4)))


def test_episodes_come_in_time_order_up_to_a_move_and_only_those_of_the_present_stage():
    made = diary()
    update, rng, stage, rewards = runs.updater(made), np.random.default_rng(0), 0, []
    state = made.init()
    for _ in range(30):
        rollout = runs.stream(rng, 4, stage, 0.2, shape=(2, 4))
        before = stage
        for own, _, reward in runs.in_order(rollout):
            if own == stage == before:
                rewards.append(reward)
                stage += len(rewards) % 3 == 0
        state = update(state, rollout)
        assert (int(state.course.stage), int(state.course.count)) == (stage, len(rewards))
        np.testing.assert_array_equal(np.asarray(state.course.rewards)[: len(rewards)], rewards)
    assert stage > 10


def test_nothing_happens_without_an_episode():
    made = diary()
    rollout = runs.rollout(np.zeros((4, 3), bool), 0, 0, 1.0)
    state, tickets = jax.jit(made.update)(made.init(), made.tickets(3), rollout)
    jax.tree.map(np.testing.assert_array_equal, (state, tickets), (made.init(), made.tickets(3)))


def test_a_transition_discards_episodes_that_began_before_it():
    """Environment 1 holds up what 0 has done since; its end moves on at the second of those three."""
    made = diary()
    begins = jnp.array([[True, True], [True, False], [True, False]])
    over = jnp.array([[True, False]] * 3)
    done = runs.finished(over, 0, 0, np.arange(6).reshape(3, 2))
    zero = jnp.zeros_like(done.tags["stage"])
    update = jax.jit(made.update)
    state, tickets = update(made.init(), made.tickets(2), EpisodeEvents(begins, {"stage": zero}, over, done))
    assert int(state.course.stage) == 0 and tickets.held.tolist() == [-1, 0]
    ends = jnp.array([[False, True]])
    late = EpisodeEvents(
        jnp.array([[True, False]]), {"stage": zero[:1]}, ends, runs.finished(ends, 0, 0, 9.0)
    )
    state, tickets = update(state, tickets, late)
    assert (int(state.course.stage), int(state.course.count)) == (1, 3)
    assert state.course.rewards[:3].tolist() == [0.0, 9.0, 2.0]
    assert tickets.held.tolist() == [-1, -1] and int(tickets.length) == 0


def phased(rows):
    criteria = {"success_rate": 1.0, "min_episodes": 3, "window_size": 3}
    return phased_curriculum(runs.Settings(), rows, {"criteria": criteria})


def spawning(rows, alpha=0.0):
    counts = {"window": 3, "activation_samples": 3, "min_episode": 0, "enable_patience": 3, "cooldown": 0}
    return spawn_curriculum(runs.Settings(), rows, {"enable_rate": 1.0}, ema_alpha=alpha, **counts)


@pytest.mark.parametrize("build", [phased, spawning, partial(spawning, alpha=0.5)])
def test_episodes_of_a_task_that_has_changed_no_longer_count(build):
    """Two were won and one was running in the easier one, when the run was resumed."""

    def made(level):
        first, second = runs.table(2)
        return build([first | {"settings": {"level": level}}, second])

    first = made(0.0)
    update = jax.jit(first.update)

    def playing(state, tickets, begins, over):
        """Plays a decision of three environments; whatever ends is won."""
        begins, over = jnp.array([begins]), jnp.array([over])
        done = runs.finished(over, 0, 0, 1.0)
        zero = {"stage": jnp.zeros((1, 3), jnp.int32)}
        return update(state, tickets, EpisodeEvents(begins, zero, over, done))

    none, one, every = [False] * 3, [True, False, False], [True] * 3
    begun = playing(first.init(), first.tickets(3), every, [True, True, False])
    assert int(begun[0].course.episodes) == 2

    def resumed(level):
        (state, tickets), course = begun, made(level)
        fresh = course.init()
        return course.retasked(state, fresh), course.requeued(tickets, state, fresh)

    jax.tree.map(np.testing.assert_array_equal, resumed(0.0), begun)
    for level, tags in ((0.0, [1, 0, 1]), (9.0, [1, -1, 1])):
        course = made(level)
        drawn = course.retagged({"stage": jnp.array([1, 0, 1])}, begun[0], course.init())
        assert drawn["stage"].tolist() == tags
    state, tickets = playing(*resumed(9.0), none, [False, False, True])
    assert (int(state.course.stage), int(state.course.episodes)) == (0, 0)
    metrics = first.metrics(state)
    assert np.isnan([metrics["curriculum/rolling_success"], metrics["curriculum/decided_success"]]).all()
    found = []
    for _ in range(3):
        state, tickets = playing(state, tickets, one, one)
        found.append(int(state.course.stage))
    assert found == [0, 0, 1] and float(state.params["level"][0]) == 9.0


@pytest.mark.parametrize("length", [1, 3, 5])
def test_means_over_a_window_are_those_of_each_moment(length):
    rng = np.random.default_rng(length)
    history, count, values = jnp.zeros((5, 2)), 0, []
    for number in (0, 1, 2, 7, 3, 0, 4):
        new = rng.integers(-100, 100, (7, 2)).astype(np.float32)
        means = stages.sliding_mean(history, jnp.int32(count), jnp.asarray(new), jnp.int32(length))
        for index in range(number):
            values.append(new[index])
            np.testing.assert_allclose(means[index], np.mean(values[-length:], axis=0), rtol=1e-6)
        history, count = stages.append_newest(history, jnp.asarray(new), jnp.int32(number)), count + number
        marked = np.asarray(stages.newest_mask(5, jnp.int32(count), jnp.int32(length)))
        np.testing.assert_array_equal(np.asarray(history)[marked], values[-length:] if values else new[:0])
    assert np.isnan(
        float(stages.mean_of_marked(stages.newest_mask(5, jnp.int32(0), jnp.int32(3)), history[:, 0]))
    )


def test_streaks_continue_from_the_previous_update():
    holds = jnp.array([True, True, False, True, True])
    assert stages.streak_lengths(holds, jnp.int32(4)).tolist() == [5, 6, 0, 1, 2]
    assert stages.streak_lengths(~holds, jnp.int32(4)).tolist() == [0, 0, 1, 0, 0]


def curriculum(env, table, **options):
    rules = StageRules(
        init=lambda: EMPTY,
        probabilities=lambda course: jnp.array([0.25, 0.0, 0.75]),
        advance=note,
        metrics=lambda course: {},
        window=3,
        restarted=lambda course: EMPTY,
    )
    return stages.build_staged_curriculum(env, table, rules, options.get("evaluation"), options.get("role"))


def read(env=None, rows=None, common=None):
    rows = runs.table(3) if rows is None else rows
    return stages.read_stages(env or runs.Settings(), "curriculum.stages", rows, common, ("rule",))


def test_draws_follow_the_probabilities_and_carry_their_stage():
    made = curriculum(runs.Settings(), read())
    state = made.init()
    drawn = jax.jit(jax.vmap(made.draw, (0, None)))(jax.random.split(jax.random.key(0), 4000), state)
    stage = np.asarray(drawn.tags["stage"])
    assert drawn.tags["stage"].dtype == jnp.int32
    np.testing.assert_array_equal(drawn.params["level"], stage)
    assert drawn.params["pair"].shape == (4000, 2)
    shares = np.bincount(stage, minlength=3) / 4000
    np.testing.assert_allclose(shares, [0.25, 0.0, 0.75], atol=0.03)
    assert shares[1] == 0.0


def test_variants_of_the_state_run_side_by_side_and_share_the_evaluation():
    made = curriculum(runs.Settings(), read(), evaluation={"level": 7.0})

    def run(amount):
        state = made.init()
        state = state.replace(params=state.params | {"level": state.params["level"] + amount})
        own = [made.stage_params(state, index)["level"] for index in range(3)]
        return jnp.stack(own), made.evaluation(state)["level"]

    levels, scored = jax.jit(jax.vmap(run))(jnp.array([10.0, 20.0]))
    np.testing.assert_array_equal(levels, [[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
    np.testing.assert_array_equal(scored, [7.0, 7.0])


def test_names_and_the_evaluation_by_default():
    made = curriculum(runs.Settings(), read())
    assert made.stages == ("s0", "s1", "s2")
    state = made.init()
    assert int(made.stage(state)) == 0
    assert float(made.evaluation(state)["level"]) == -1.0


@pytest.mark.parametrize(("role", "reward"), [(None, 4.0), ("runner", 4.0), ("guard", 1e6)])
def test_returns_are_those_of_the_learner_unless_another_role_is_named(role, reward):
    made = curriculum(runs.Settings(), read(), role=role)
    state = runs.updater(made)(made.init(), runs.single(0, 0, 4.0))
    assert float(state.course.rewards[0]) == reward


def test_common_settings_apply_unless_a_stage_overrides_them():
    common = {"settings": {"level": 4.0}, "rule": {"a": 1, "b": {"c": 2, "d": 3}}}
    rows = [{"name": "x"}, {"name": "y", "settings": {"level": 5.0}, "rule": {"b": {"c": 7}}}]
    first, second = read(rows=rows, common=common)
    assert [float(stage.params["level"]) for stage in (first, second)] == [4.0, 5.0]
    assert first.rules == {"rule": {"a": 1, "b": {"c": 2, "d": 3}}}
    assert second.rules == {"rule": {"a": 1, "b": {"c": 7, "d": 3}}}
    assert common["rule"]["b"]["c"] == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ["curriculum.stages=[]", "at least one"]),
        ({"name": "x"}, ["must be a list"]),
        (["x"], ["curriculum.stages.0", "name"]),
        ([{"settings": {}}], ["curriculum.stages.0", "name"]),
        ([{"name": 3}], ["curriculum.stages.0", "name"]),
        ([{"name": "x"}, {"name": "x"}], ["curriculum.stages.1.name=x", "another"]),
        ([{"name": "x", "rul": 1}], ["curriculum.stages.0 (x)", "rul=1", "settings, rule"]),
        ([{"name": "x", "settings": 3}], ["(x)", "settings=3", "mapping"]),
        ([{"name": "x", "settings": {"lvl": 3}}], ["(x)", "lvl", "allowed: level"]),
    ],
)
def test_wrong_tables_get_one_line(rows, words):
    with pytest.raises(ValueError) as caught:
        read(rows=rows)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_unsuitable_environments_get_one_line():
    for env, options, word in [
        (runs.Settings(success=()), {}, "no score"),
        (runs.Settings(), {"role": "driver"}, "guard, runner"),
        (runs.Settings(), {"evaluation": {"lvl": 1}}, "curriculum.evaluation: env.lvl"),
    ]:
        with pytest.raises(ValueError, match=word) as caught:
            curriculum(env, read(), **options)
        assert "\n" not in str(caught.value)


def test_an_episode_without_scored_agents_is_neither_success_nor_failure():
    env = runs.Settings()
    reached = Result("reached", role="runner", kind="rate")
    env.spec = dataclasses.replace(env.spec, results=(*env.spec.results, reached), score="reached")
    made = curriculum(env, read())
    flow = runs.rollout([[True, True]], 0, 0, [[1.0, 2.0]])
    done = flow.finished.replace(
        present=flow.finished.present | {"runner": np.array([[[False, False], [True, False]]])},
        results=flow.finished.results | {"reached": np.ones((1, 2, 2), np.float32)},
    )
    state = runs.updater(made)(made.init(), flow.replace(finished=done))
    assert int(state.course.count) == 1 and float(state.course.rewards[0]) == 1.0


def test_reads_success_from_the_outcome():
    done = runs.finished([[True, True, False]], 1, [[0, 2, 0]], 3.0)
    episodes = stages.read_episodes(done, runs.Settings().spec, "runner")
    assert isinstance(episodes, EpisodeResult)
    np.testing.assert_array_equal(episodes.success, [[True, False, False]])
