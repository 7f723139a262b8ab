"""What curricula of stages share: reading, drawing, and episodes one by one in time order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import staged_runs as runs
from flax import struct

from jaxmarl_echelon.curricula import stages
from jaxmarl_echelon.curricula.stages import Episode, Rules


@struct.dataclass
class Diary:
    """Rewards in the order in which they came; every third one moves on to the next stage."""

    stage: jax.Array
    count: jax.Array
    rewards: jax.Array


EMPTY = Diary(jnp.int32(0), jnp.int32(0), jnp.full(64, jnp.nan))


def note(diary, episode):
    count = diary.count + 1
    rewards = diary.rewards.at[diary.count].set(episode.reward)
    return Diary(diary.stage + (count % 3 == 0), count, rewards)


def expected_notes(rollout):
    stage, rewards = 0, []
    for own, _, reward in runs.in_order(rollout):
        if own == stage:
            rewards.append(reward)
            stage += len(rewards) % 3 == 0
    return stage, rewards


def made(rollout):
    return stages.read_episodes(rollout, runs.Settings().spec, "runner")


def test_episodes_come_in_time_order_and_only_those_of_the_present_stage():
    update = jax.jit(lambda rollout: stages.follow(note, EMPTY, made(rollout), rollout.mask))
    rng, moved = np.random.default_rng(0), 0
    for _ in range(30):
        rollout = runs.stream(rng, 4, 0, 0.5, shape=(8, 5))
        stage, rewards = expected_notes(rollout)
        diary = update(rollout)
        assert int(diary.stage) == stage
        np.testing.assert_array_equal(np.asarray(diary.rewards)[: len(rewards)], rewards)
        assert int(diary.count) == len(rewards)
        moved += stage
    assert moved > 10


def test_nothing_happens_without_an_episode_and_everything_with_all():
    for full in (False, True):
        rollout = runs.finished(np.full((4, 3), full), 0, 0, np.arange(12).reshape(4, 3))
        diary = stages.follow(
            lambda d, e: note(d, e).replace(stage=d.stage), EMPTY, made(rollout), rollout.mask
        )
        assert int(diary.count) == 12 * full
        np.testing.assert_array_equal(np.asarray(diary.rewards)[: 12 * full], np.arange(12 * full))


def test_runs_side_by_side_are_the_runs_alone():
    rng = np.random.default_rng(1)
    rollouts = [runs.stream(rng, 3, 0, 0.5, shape=(8, 5)) for _ in range(4)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rollouts)
    together = jax.vmap(lambda r: stages.follow(note, EMPTY, made(r), r.mask))(batch)
    for index, rollout in enumerate(rollouts):
        alone = stages.follow(note, EMPTY, made(rollout), rollout.mask)
        jax.tree.map(lambda a, b, i=index: np.testing.assert_array_equal(a[i], b), together, alone)


@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_ring_keeps_the_newest(length):
    ring, values = jnp.zeros(5), []
    for count in range(1, 14):
        values.append(float(count * count))
        ring = stages.push(ring, jnp.int32(count), jnp.float32(values[-1]))
        marked = stages.newest(5, jnp.int32(count), jnp.int32(length))
        assert sorted(np.asarray(ring)[np.asarray(marked)].tolist()) == values[-length:]
        assert float(stages.share(marked, ring)) == pytest.approx(np.mean(values[-length:]))
    assert np.isnan(float(stages.share(stages.newest(5, jnp.int32(0), jnp.int32(3)), ring)))


def curriculum(env, table, **options):
    rules = Rules(
        init=lambda: EMPTY,
        probabilities=lambda course: jnp.array([0.25, 0.0, 0.75]),
        step=note,
        metrics=lambda course: {},
    )
    return stages.staged(env, table, rules, options.get("evaluation"), options.get("role"))


def read(env=None, rows=None, common=None):
    rows = runs.table(3) if rows is None else rows
    return stages.read_stages(env or runs.Settings(), "curriculum.stages", rows, common, ("rule",))


def test_draws_follow_the_probabilities_and_carry_their_stage():
    made = curriculum(runs.Settings(), read())
    state = made.init()
    drawn = jax.jit(jax.vmap(made.draw, (0, None)))(jax.random.split(jax.random.key(0), 4000), state)
    stage = np.asarray(drawn.stage)
    assert drawn.stage.dtype == jnp.int32
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

    levels, scored = jax.vmap(run)(jnp.array([10.0, 20.0]))
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
    state = made.update(made.init(), runs.single(0, 0, 4.0))
    assert float(state.course.rewards[0]) == reward


def test_what_is_common_holds_unless_a_stage_says_otherwise():
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


def test_wrong_surroundings_get_one_line():
    for env, options, word in [
        (runs.Settings(success=None), {}, "no success"),
        (runs.Settings(), {"role": "driver"}, "guard, runner"),
        (runs.Settings(), {"evaluation": {"lvl": 1}}, "curriculum.evaluation: env.lvl"),
    ]:
        with pytest.raises(ValueError, match=word) as caught:
            curriculum(env, read(), **options)
        assert "\n" not in str(caught.value)


def test_reads_success_from_the_outcome():
    rollout = runs.finished([[True, True, False]], 1, [[0, 2, 0]], 3.0)
    episodes = made(rollout)
    assert isinstance(episodes, Episode)
    np.testing.assert_array_equal(episodes.success, [[True, False, False]])
    np.testing.assert_array_equal(episodes.stage, [[1, 1, 0]])
