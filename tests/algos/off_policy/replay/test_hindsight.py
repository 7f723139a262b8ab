from functools import cache

import jax
import numpy as np
import pytest
from marked import mark_others
from replay_model import (
    ACHIEVED,
    DESIRED,
    NUMBER,
    Model,
    cut,
    draws,
    experience,
    fill,
    goal,
    goal_reward,
    play,
    returns,
    window,
)
from scipy import stats

from algos.off_policy.replay.hindsight import steps_left
from algos.off_policy.replay.replay import ReplayConfig, make_replay

ROWS, SLOTS, GAMMA = 4, 13, 0.5


@cache
def make(batch_size=40, **settings):
    config = ReplayConfig(capacity=ROWS * SLOTS, **settings)
    sizes = {"rows": ROWS, "observation_size": 6, "action_size": 2}
    sizes |= {"batch_size": batch_size, "episode_limit": 100}
    return make_replay(config, **sizes, goal=goal(), between=True)


def relabelled_reward(spanned, new_goal):
    """The model's n-step return with the goal's part of every reward exchanged."""
    rewards = []
    for step in spanned:
        achieved, desired = step.next_obs[[ACHIEVED]], step.obs[[DESIRED]]
        rewards.append(step.reward - goal_reward(achieved, desired) + goal_reward(achieved, new_goal))
    return returns(spanned, GAMMA, rewards)


@pytest.mark.parametrize("prioritized", mark_others([False, True], True))
@pytest.mark.parametrize("strategy", ["future", "final"])
@pytest.mark.parametrize(("end", "n_step"), [(0.15, 1), (0.0, 3), (0.9, 3)])
def test_goals_are_reached_later_in_the_same_episode_and_rewards_follow(strategy, end, n_step, prioritized):
    """With `end` 0 episodes are longer than a row, with 0.9 most have one step."""
    replay = make(n_step=n_step, hindsight_ratio=0.6, hindsight_strategy=strategy, prioritized=prioritized)
    transitions = experience(7, 60, ROWS, end=end, alive=1.1 if end == 0.0 else 0.8)
    # How samples are drawn changes nothing about what is held.
    plainest = make(hindsight_ratio=0.6, prioritized=prioritized)
    state = play(plainest, plainest.init(), transitions)
    model = fill(Model(ROWS, SLOTS), transitions)
    batch = draws(replay, state, 8, GAMMA)
    relabelled = 24

    for k in range(8):
        for b in range(40):
            steps, place = model.find(batch.obs[k, b, NUMBER])
            spanned = window(steps, place, n_step)
            obs, next_obs = steps[place].obs.copy(), spanned[-1].next_obs.copy()
            reward, discount = returns(spanned, GAMMA)
            if b < relabelled:
                new_goal = batch.obs[k, b, [DESIRED]]
                rest = [step for step in steps[place:] if step.episode == steps[place].episode]
                reachable = [step.next_obs[ACHIEVED] for step in rest]
                assert new_goal[0] in (reachable if strategy == "future" else reachable[-1:])
                obs[DESIRED] = next_obs[DESIRED] = new_goal[0]
                reward, discount = relabelled_reward(spanned, new_goal)
            np.testing.assert_array_equal(batch.obs[k, b], obs)
            np.testing.assert_array_equal(batch.next_obs[k, b], next_obs)
            np.testing.assert_allclose(batch.reward[k, b], reward, rtol=1e-6)
            assert batch.discount[k, b] == discount
            for j, step in enumerate(spanned[1:]):
                passed = step.obs.copy()
                passed[DESIRED] = obs[DESIRED]
                if b < relabelled:
                    np.testing.assert_array_equal(batch.between.obs[k, b, j], passed)


def test_errors_of_relabelled_samples_do_not_become_priorities():
    replay = make(hindsight_ratio=0.6, prioritized=True, priority_exponent=1.0)
    state = play(replay, replay.init(), experience(7, 60, ROWS))
    state, batch = jax.jit(replay.sample)(state, jax.random.key(0), GAMMA)
    relabelled = np.arange(40) < 24
    np.testing.assert_array_equal(batch.index < 0, relabelled)
    after = jax.jit(replay.reprioritize)(state, batch.index, np.where(relabelled, 1e6, 0.5))
    assert after.choice.largest == 1.0
    priorities = after.choice.tree[-16:].ravel()[: ROWS * SLOTS]
    np.testing.assert_allclose(priorities[batch.index[24:]], 0.5, rtol=1e-5)
    assert priorities.max() == 1.0
    np.testing.assert_array_less(0.0, batch.weight)


def test_the_end_of_every_episode_is_known_at_all_times():
    replay = make(hindsight_ratio=0.5)
    transitions = experience(3, 72, ROWS, end=0.3, alive=0.9)
    state, model = replay.init(), Model(ROWS, SLOTS)
    left = jax.jit(lambda ends: steps_left(ends, *np.indices((ROWS, SLOTS)).reshape(2, -1)))
    for begin in range(0, 72, 3):
        state = play(replay, state, cut(transitions, begin, begin + 3))
        fill(model, cut(transitions, begin, begin + 3))
        table = np.asarray(left(state.ends)).reshape(ROWS, SLOTS)
        for row, steps in enumerate(model.rows):
            slots = (int(state.ring.cursor[row]) - len(steps) + np.arange(len(steps))) % SLOTS
            episodes = np.array([step.episode for step in steps], int)
            expected = [(episodes[place:] == episodes[place]).sum() - 1 for place in range(len(steps))]
            np.testing.assert_array_equal(table[row, slots], expected)


def test_future_goals_are_equally_likely_from_the_own_step_on():
    replay = make(hindsight_ratio=1.0)
    transitions = experience(0, SLOTS, ROWS, end=0.0, alive=1.1)
    state = play(replay, replay.init(), transitions)
    batch = draws(replay, state, 1000, GAMMA)
    begin = (batch.obs[..., NUMBER].astype(int) - 1) // ROWS
    reached = (batch.obs[..., DESIRED].astype(int) - 5001) // ROWS
    for place in (0, 5, 11):
        counts = np.bincount(reached[begin == place], minlength=SLOTS)
        assert (counts[:place] == 0).all()
        assert stats.chisquare(counts[place:]).pvalue > 1e-3
    assert (reached[begin == SLOTS - 1] == SLOTS - 1).all()
