"""Ends, flags, ghosts, goals and the record of learners. docs/reference/drive.md 8, 13.1."""

import jax
import numpy as np
import pytest
from drive_runs import programs, scripted
from drive_scenes import CAR, bank_of
from drive_scenes import FOLLOWING as PAIR
from drive_scenes import MIXED as TRAFFIC
from drive_scenes import scene as make_scene

MIXED, FOLLOWING, NEAR_GOALS = range(3)


@pytest.fixture(scope="module")
def shared():
    """The default program on the small scenes."""
    return programs()


@pytest.fixture(scope="module")
def idle(shared):
    """Actions that neither accelerate nor steer."""
    return scripted(shared.env, "idle")


def flags(times):
    """Terminated and truncated flags `[T, A]` after each decision."""
    return tuple(
        np.stack([np.asarray(getattr(time, name)["vehicle"]) for time in times[1:]])
        for name in ("terminated", "truncated")
    )


def reward(times):
    """Rewards `[T, A]`."""
    return np.stack([np.asarray(time.reward["vehicle"]) for time in times[1:]])


def info(time, name):
    """One entry of the info of a time step."""
    return np.asarray(time.info[name])


def test_ninety_decisions_end_with_one_truncation_per_learner(shared, idle):
    states, times = shared.play(idle, MIXED)
    terminated, truncated = flags(times)
    assert len(times) == 91 and not terminated.any()
    assert truncated[-1].all() and not truncated[:-1].any()
    assert np.asarray(times[-1].obs["vehicle"]).any(axis=1).all(), "the final observation is a true one"
    assert not np.asarray(states[-1].alive).any()


def test_a_learner_respawns_as_a_ghost_and_is_rewarded_again(shared, idle):
    states, times = shared.play(idle, NEAR_GOALS)
    ghosts = np.stack([np.asarray(state.ghost) for state in states])
    first = int(ghosts[:, 0].argmax())
    # 25 m at 8 m/s, less the radius of 2 m: the first step at which it is nearer.
    assert first == 29 and np.isclose(reward(times)[first - 1, 0], 1.0)
    back = jax.tree.map(lambda x: x[0], states[first].motion)
    start = jax.tree.map(lambda x: x[0], states[0].motion)
    np.testing.assert_array_equal(back, start)
    assert info(times[-1], "goals")[0] == 3 and info(times[-1], "time_to_goal")[0] == pytest.approx(2.9)
    assert bool(times[first].alive["vehicle"][0]) and not flags(times)[0].any()


@pytest.mark.parametrize("behavior, present", [("stop", True), ("remove", False)])
def test_goals_can_end_a_trajectory(shared, idle, behavior, present):
    states, times = shared.play(idle, NEAR_GOALS, goal_behavior=behavior)
    terminated, truncated = flags(times)
    assert (terminated.sum(0) + truncated.sum(0) == 1).all()
    end = int(terminated[:, 0].argmax())
    after = states[end + 1]
    assert bool(after.present[0]) is present and float(after.motion.speed[0]) == 0.0
    assert not reward(times)[end + 1 :, 0].any()
    assert not np.asarray(times[end + 1].obs["vehicle"])[0].any()


def test_first_attempts_cannot_tell_respawn_from_removal(shared):
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 91, (90, 4)).astype(np.int32)
    actions[:, :2] = 45
    plays = [
        shared.play(lambda step, state: actions[step], NEAR_GOALS, goal_behavior=behavior)
        for behavior in ("respawn", "remove")
    ]
    first = [np.stack([np.asarray(state.record.first & state.alive) for state in play[0]]) for play in plays]
    shorter = min(map(len, first))
    np.testing.assert_array_equal(first[0][:shorter], first[1][:shorter])
    assert first[0][-10:-1].any(), "somebody is still on the first attempt"
    for step in range(shorter):
        there = first[0][step]
        seen = [np.asarray(play[1][step].obs["vehicle"])[there] for play in plays]
        np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize("behavior", ["ignore", "stop", "remove"])
def test_collisions_are_penalised_every_step_or_end_both_trajectories(shared, idle, behavior):
    def actions(step, state):
        # The second car of the lane drives into the first, which stands.
        return np.array([0, 90, 45, 45], np.int32) // 13 * 13 + 6

    states, times = shared.play(actions, FOLLOWING, collision_behavior=behavior, early_end=False)
    terminated, _truncated = flags(times)
    hit = np.stack([np.asarray(state.condition.colliding) for state in states[1:]])
    assert hit[:, :2].any()
    begin = int(hit[:, 0].argmax())
    assert hit[begin, 1], "contact is mutual"
    if behavior == "ignore":
        np.testing.assert_allclose(reward(times)[hit[:, 0], 0], -0.5)
        assert not terminated.any()
    else:
        assert terminated[begin, :2].all() and terminated.sum() == 2
        assert len(times) == begin + 2, "with nobody alive the episode is over"


def test_leaving_the_road_is_penalised_and_counted(shared):
    def actions(step, state):
        return np.full(4, 3 * 13 + 12, np.int32)

    states, times = shared.play(actions, MIXED)
    out = np.stack([np.asarray(state.condition.offroad) for state in states[1:]])
    assert out.any(0).all() and info(times[-1], "offroad_all").all()
    np.testing.assert_array_equal(info(times[-1], "offroad_steps"), out.sum(0))
    edges = out & ~np.concatenate([np.zeros((1, 4), bool), out[:-1]])
    np.testing.assert_array_equal(info(times[-1], "offroad_events"), edges.sum(0))


def test_what_lasts_from_the_start_is_an_event_too(shared, idle):
    # The first learner starts across the lower edge.
    edge = make_scene(((10.0, -3.5, 0.0, 8.0, CAR, 0), *TRAFFIC[1:]))
    bank = bank_of(edge, make_scene(PAIR), make_scene(TRAFFIC, goal=25.0))
    state, time = shared._reset(jax.random.key(0), shared.in_scene(MIXED), bank)
    assert bool(state.condition.offroad[0])
    for step in range(3):
        state, time = shared._step(jax.random.key(0), state, idle, shared.in_scene(MIXED), bank)
        np.testing.assert_array_equal(info(time, "offroad_steps"), [step + 1, 0, 0, 0])
        np.testing.assert_array_equal(info(time, "offroad_events"), [1, 0, 0, 0])
        assert (info(time, "infractions") >= info(time, "infraction")).all()


def test_score_unfinished_and_infraction_add_up_to_one(shared):
    rng = np.random.default_rng(1)
    for scene in (MIXED, NEAR_GOALS):
        _, times = shared.play(lambda step, state: rng.integers(0, 91, 4).astype(np.int32), scene)
        for time in times:
            total = info(time, "score") + info(time, "dnf") + info(time, "infraction")
            np.testing.assert_array_equal(total, 1.0)


def test_early_end_stops_after_all_first_attempts(shared, idle):
    _, times = shared.play(idle, NEAR_GOALS, early_end=True)
    terminated, truncated = flags(times)
    # The slowest drives 25 m at 8 m/s.
    assert len(times) == 30 and not terminated.any() and truncated[-1].all()


def test_goals_can_require_a_low_speed(shared, idle):
    _, times = shared.play(idle, NEAR_GOALS, goal_speed=9.5)
    np.testing.assert_array_equal(info(times[-1], "completion"), [1, 0, 0, 1])
    assert info(times[-1], "speed_at_goal")[0] == pytest.approx(8.0)
