"""Advantages from reward transforms, in whole runs and by hand."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from duels import LIMIT, Duel
from marked import mark_others

from algos.off_policy.dqn import DQNConfig
from algos.on_policy.ppo import PPOConfig
from algos.types import Rollout
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.textgames.games import nim, tictactoe
from jaxmarl_echelon.selfplay.credit import TrajectoryInfo, TransformSettings, make_advantage_transforms
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program import agents
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.rollouts import collect

TAU = 0.01
BASELINE = {"name": "RoleAdvantage", "tau": TAU}
POOL = PoolSettings(capacity=2, groups=2, snapshot_every=1, hold=1)
ALGO = PPOConfig(horizon=8, widths=(4,), num_minibatches=1, epochs=1)
UPDATES = 3


def test_final_rewards_reach_all_decisions_of_a_trajectory():
    """Two stories of one agent: the second is broken off; the third has not ended within the rollout."""
    settings = TransformSettings(
        final=["WinDrawLoss", BASELINE], step=[{"name": "Discount", "gamma": 0.5}], sampling=["Normalize"]
    )
    credit = make_advantage_transforms(settings, seats=2)
    ended = np.array([0, 0, 1, 0, 0, 0], bool)[:, None, None]
    over = ended | (np.arange(6) == 4)[:, None, None]
    alive = np.array([1, 1, 0, 1, 1, 1], bool)[:, None, None]
    rollout = experience(np.arange(6, dtype=np.float32)[:, None, None], ended, over, alive)
    story = TrajectoryInfo(np.ones((6, 1, 1), np.int32), ended, ended.astype(np.float32))
    state = credit.init(1)
    state = state.replace(stages=state.stages | {"final": ((), np.float32([[9.0, 0.25]]))})
    state, found = jax.device_get(jax.jit(credit.apply)(state, rollout, story))
    # The winner's 1, minus the average of its role; its first of two decisions is worth half; then centred.
    paid = np.array([0.75 * 0.5, 0.75])
    np.testing.assert_allclose(found.advantage[:, 0, 0], [*(paid - paid.mean()), 0, 0, 0, 0], atol=1e-6)
    np.testing.assert_array_equal(found.alive[:, 0, 0], [1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(state.stages["final"][1], [[9.0, 0.25 * (1 - TAU) + TAU]], rtol=1e-6)
    np.testing.assert_allclose(state.running, [5.0])


def test_a_win_by_the_others_invalid_answer_can_be_left_out():
    """Two games of one seat; the first was won by an invalid answer, the second by play."""
    ended = (np.arange(4) % 2 == 1)[:, None, None]
    alive = np.ones((4, 1, 1), bool)
    rollout = experience(np.float32([0, 1, 0, 1])[:, None, None], ended, ended, alive)
    given = (np.arange(4) == 1)[:, None, None]
    story = TrajectoryInfo(np.zeros((4, 1, 1), np.int32), ended, ended, won_by_invalid=given)

    def learnt(**settings):
        credit = make_advantage_transforms(TransformSettings(final=[BASELINE], **settings), seats=2)
        state, found = jax.device_get(jax.jit(credit.apply)(credit.init(1), rollout, story))
        return found.alive[:, 0, 0].tolist(), state.stages["final"][0][0, 0]

    kept, average = learnt()
    assert kept == [True] * 4
    left, average_of_left = learnt(filter_opponent_invalid=True)
    assert left == [False, False, True, True]
    assert 0 < average_of_left < average


def experience(reward, ended, over, alive) -> Rollout:
    return Rollout(
        obs=None,
        action=None,
        extras=None,
        reward=reward,
        reset=np.concatenate([np.ones_like(over[:1]), over[:-1]]),
        discount=np.where(ended, np.float32(0.0), np.float32(1.0)),
        boundary=over,
        bootstrap=None,
        alive=alive,
        mask=None,
        carry=(),
        last_value=None,
        skip=~alive,
    )


RUNS = {
    "turns": (tictactoe.make(), {"player": "pool:player"}),
    # Games of a single ply, which the opponent can win before the learner's first decision.
    "short": (nim.make(piles=[2]), {"player": "pool:player"}),
    "teams": (Duel(), {"red": "pool:blue"}),
}


def configured(name: str, **changes) -> RunConfig:
    env, controllers = RUNS[name]
    given = {"total_env_steps": 10_000, "num_envs": 8, "pool": POOL, "stagger": False}
    chosen = TransformSettings(final=[BASELINE], **changes)
    return RunConfig(env, ALGO, constant_curriculum, controllers=controllers, transforms=chosen, **given)


def learnt_from(config: RunConfig) -> list[tuple[Rollout, Rollout, object]]:
    """Per update what the learner was given, and the run's transforms afterwards."""
    learner, agent = next(iter(agents.make_agents(config).items()))
    agent = agent._replace(update=lambda state, key, rollout: (state, {"given": rollout}))
    program = make_program(config, {learner: agent})
    update, run, found = jax.jit(program.update), jax.jit(program.init)(jax.random.key(0)), []
    for _ in range(UPDATES):
        run, report = update(run)
        found.append(jax.device_get((report.metrics["losses/given"], run.credit[learner])))
    return found


@pytest.mark.parametrize("name", mark_others(RUNS, "turns", "short"))
def test_run_trains_on_final_rewards_minus_the_role_baseline(name):
    """Every decision has its story's whole reward minus the average of its seat, told apart by NumPy.

    Games all begin with a rollout here, or a ply later, for the seat that is due; episodes of teams run on.
    """
    config = configured(name, whole_games=name != "teams")
    baseline, running, learnt, undecided = np.zeros(2), None, 0, False
    for given, state in learnt_from(config):
        columns = given.reward.shape[1:]
        assert given.reset[0].all() or name == "teams"
        running = np.zeros(columns) if running is None else running
        finals, expected = [], np.full(given.reward.shape, np.nan)
        for column in np.ndindex(columns):
            rows = []
            for t in range(len(given.reward)):
                at = (t, *column)
                if given.reset[at]:
                    running[column], rows = 0.0, []
                rows.append(t)
                running[column] += given.reward[at]
                if given.discount[at] == 0 and given.alive[rows, *column].any():
                    seat = role_of(name, column, rows, given)
                    finals.append((seat, running[column]))
                    for row in rows:
                        expected[(row, *column)] = running[column] - baseline[seat]
                if given.boundary[at]:
                    rows = []
        np.testing.assert_allclose(given.advantage[given.alive], expected[given.alive], atol=1e-5)
        known = np.isfinite(expected)
        assert not given.alive[~known].any() and given.alive[known].mean() > 0.5
        learnt += given.alive.sum()
        waits = np.zeros_like(given.alive) if given.skip is None else given.skip
        undecided |= ((given.discount == 0) & ~given.alive & ~waits).any()
        for seat in range(2):
            mine = [reward for role, reward in finals if role == seat]
            kept = (1 - TAU) ** len(mine)
            baseline[seat] = kept * baseline[seat] + (1 - kept) * np.mean(mine) if mine else baseline[seat]
        np.testing.assert_allclose(state.stages["final"][0][0], baseline, atol=1e-5)
        assert np.abs(baseline).max() > 0
    assert learnt > 50 and undecided == (name == "short")


def role_of(name, column, rows, given) -> int:
    """Of teams: the mirror's columns `[E, A]` follow the learner's own. Of games: told by the first stone."""
    if name == "teams":
        return int(column[0] >= 2 * 8)
    if name == "short":
        return int(given.obs[(rows[0], *column)][-1])
    own, other = given.obs[(rows[0], *column)][:9], given.obs[(rows[0], *column)][9:18]
    return int(given.obs[(rows[0], *column)][19] > 0 or own.sum() != other.sum())


class Mortal(Duel):
    """Blue's second agent terminates before the last decision of each episode, whose result is not known yet.

    In episodes of one decision it is not there.
    """

    def _time(self, state, gain):
        time, last = super()._time(state, gain), state.left <= 1
        alive = time.alive["blue"].at[1].set(~last)
        ended = time.terminated["blue"].at[1].set(state.left == 1)
        return time.replace(alive=time.alive | {"blue": alive}, terminated=time.terminated | {"blue": ended})


def test_eliminated_agents_receive_the_reward_of_their_team():
    """By `WinDrawLoss`: 1, 0 or -1 as for the teammate that lives, if the episode ends in the rollout."""
    given = {"total_env_steps": 10_000, "num_envs": 8, "stagger": False}
    config = RunConfig(
        Mortal(), ALGO, constant_curriculum, transforms=TransformSettings(final=["WinDrawLoss"]), **given
    )
    lead, paid = np.zeros(8), []
    for rollout, _ in learnt_from(config):
        both = np.round(rollout.obs[..., 0, 0] * LIMIT) > 1
        for values in (rollout.alive, rollout.advantage):
            np.testing.assert_array_equal(values[..., 1][both], values[..., 0][both])
        assert not rollout.alive[..., 1][~both].any()
        for t, over in enumerate(rollout.boundary[..., 0]):
            lead += rollout.reward[t, :, 0]
            assert rollout.alive[t, over, 0].all()
            np.testing.assert_array_equal(rollout.advantage[t, over, 0], np.sign(lead[over]))
            lead[over] = 0.0
        paid.append(rollout.advantage[..., 1][rollout.alive[..., 1]])
    assert set(np.concatenate(paid)) == {-1.0, 0.0, 1.0}


class Deserted(Duel):
    """Nobody is red in about half of the episodes, in which blue leads by a quarter from the start."""

    @property
    def spec(self):
        plain = super().spec
        blue, red = plain.roles
        edge = results.Result("edge", kind="rate", role="red")
        return dataclasses.replace(
            plain, roles=(blue, dataclasses.replace(red, score="edge")), results=(*plain.results, edge)
        )

    def reset(self, key, params):
        state, _ = super().reset(key, params)
        alone = jax.random.bernoulli(jax.random.fold_in(key, 1))
        state = state.replace(lead=jnp.where(alone, 0.25, 0.0))
        return state, self._time(state, jnp.float32(0.0))

    def _time(self, state, gain):
        time, there = super()._time(state, gain), state.lead % 1 == 0
        red = {"alive": time.alive["red"] & there, "terminated": time.terminated["red"] & there}
        red |= {"reward": time.reward["red"] * there, "present": jnp.full(2, there)}
        parts = {name: getattr(time, name) | {"red": value} for name, value in red.items()}
        edge = jnp.full(2, state.lead < 0).astype(jnp.float32)
        return time.replace(**parts, info=time.info | {"edge": edge})


def test_games_in_which_the_other_role_had_no_agent_are_not_learnt_from():
    """They have no result: `WinDrawLoss` gave their decisions a NaN, with which the run stopped."""
    given = {"total_env_steps": 10_000, "num_envs": 8, "stagger": False}
    config = RunConfig(
        Deserted(), ALGO, constant_curriculum, transforms=TransformSettings(final=["WinDrawLoss"]), **given
    )
    for rollout, _ in learnt_from(config):
        alone = np.arctanh(rollout.obs[..., 0, 1]) % 1
        alone = np.abs(alone - 0.25) < 0.01
        assert 0.1 < alone.mean() < 0.9
        assert not rollout.alive[alone].any() and rollout.alive[~alone].mean() > 0.3
        assert np.isfinite(rollout.advantage).all() and (rollout.advantage[rollout.alive] != 0).any()


def test_agents_with_own_scores_are_ranked_by_them():
    env = probes.Comings()
    share = {"share": np.float32([[1.0, 0.25, 0.5]])}
    finished = SimpleNamespace(results=share, mask=np.array([True]))
    np.testing.assert_array_equal(collect._won(env.spec, probes.ROLE, finished), [[1.0, 0.0, 0.5]])


WRONG = [
    ({"final": ["WinDraw"]}, "transforms.final=WinDraw: unknown transform; allowed: WinDrawLoss, Role"),
    ({"step": "Discount"}, "transforms.step=Discount: must be a list"),
    ({"final": [{"name": "RoleAdvantage", "seats": 3}]}, "transforms.final.RoleAdvantage.seats=3: unknown"),
    ({"sampling": [{"name": "Normalize", "z": 2}]}, "transforms.sampling.Normalize.z=2: must be true or fal"),
    ({"whole_games": "yes"}, "transforms.whole_games=yes: must be true or false"),
    ({"filter_opponent_invalid": True}, "transforms.filter_opponent_invalid=true: needs a transform"),
    ({"filter_opponent_invalid": 1}, "transforms.filter_opponent_invalid=1: must be true or false"),
]


@pytest.mark.parametrize("given,message", WRONG)
def test_wrong_transforms(given, message):
    with pytest.raises(ValueError) as error:
        TransformSettings(**given)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_transforms_that_do_not_fit_the_run_are_rejected():
    run = {"total_env_steps": 100, "num_envs": 8, "transforms": TransformSettings(final=["WinDrawLoss"])}
    with pytest.raises(ValueError, match="^algo=dqn: blue learns from a replay; reward transforms"):
        RunConfig(Duel(), DQNConfig(), constant_curriculum, **run)
    left = run | {"transforms": TransformSettings(final=["WinDrawLoss"], filter_opponent_invalid=True)}
    with pytest.raises(ValueError, match="^transforms.filter_opponent_invalid=true: no action of tic"):
        RunConfig(tictactoe.make(), ALGO, constant_curriculum, **left)
    whole = run | {"transforms": TransformSettings(whole_games=True)}
    with pytest.raises(ValueError, match="^transforms.whole_games=true: duel is not turn-based"):
        RunConfig(Duel(), ALGO, constant_curriculum, **whole)
    short = dataclasses.replace(ALGO, horizon=4)
    message = "games of tictactoe have up to 9 plies, a rollout of horizon=4 has 8; needs horizon=5$"
    with pytest.raises(ValueError, match=f"^transforms.whole_games=true: {message}"):
        RunConfig(tictactoe.make(), short, constant_curriculum, **whole)
