"""Games for stakes are scored by what was won, not by how often: points, payoffs, tournaments, exploiters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon import exploit
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.envs.textgames.analysis import exploitability
from jaxmarl_echelon.envs.textgames.env import GameState
from jaxmarl_echelon.envs.textgames.games import kuhn, leduc, liarsdice, rps, tictactoe
from jaxmarl_echelon.selfplay.pool import make_pool
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.opponents import pool_role
from jaxmarl_echelon.training.program import round_robin

ROLE = "player"
SEAT = pool_role.PoolRole(ROLE, ROLE, ROLE, make_pool(PoolSettings(capacity=3), 3, 3))
DEALS = np.repeat(kuhn.DEALS, 2, axis=0)
# In each game the seat of the player who knows that the other one always bets and calls.
REPLIES = np.arange(12) % 2


@pytest.fixture(scope="module")
def games() -> Finished:
    """All deals of Kuhn poker from both seats: a best reply against one that always bets and calls."""
    env, nobody = kuhn.make(), np.full(12, -1, np.int32)
    start = GameState(
        kuhn.State(DEALS, np.full((12, 3), -1, np.int32)), np.zeros(12, np.int32), nobody, nobody
    )
    own = DEALS[np.arange(12), REPLIES]

    @jax.jit
    def play(state, ply):
        # The reply gives up jacks only.
        bold = (ply % 2 != REPLIES) | (own > 0)
        faces = jax.vmap(env.rules.legal)(state.game)[:, kuhn.CALL]
        bets, calls = jnp.where(bold, kuhn.BET, kuhn.CHECK), jnp.where(bold, kuhn.CALL, kuhn.FOLD)
        actions = jnp.broadcast_to(jnp.where(faces, calls, bets)[:, None], (12, 2))
        step = jax.vmap(env.step, (None, 0, 0, None))
        return step(jax.random.key(0), state, {ROLE: actions}, env.default_params())

    state = start
    for ply in range(3):
        state, time = play(state, ply)
    tags = {pool_role.TAG: np.full(12, 2), pool_role.SEAT: REPLIES}
    return Finished(np.asarray(time.over), {}, {}, np.full(12, 3), jax.device_get(time.info), tags)


def of_replies(values: np.ndarray) -> np.ndarray:
    return np.asarray(values)[np.arange(12), REPLIES]


def test_always_betting_is_exploited_in_chips_but_not_in_wins(games):
    """NashConv 2/3: a reply wins a third of a chip per game, and no more hands than it loses."""
    tree = exploitability.build_tree(kuhn.Kuhn())
    policy = np.zeros(tree.legal.shape)
    policy[:, [kuhn.BET, kuhn.CALL]] = tree.legal[:, [kuhn.BET, kuhn.CALL]]
    assert exploitability.nash_conv(tree, policy) == pytest.approx(2 / 3)
    assert games.mask.all() and of_replies(games.results["payoff"]).mean() == pytest.approx(1 / 3)
    assert of_replies(games.results["win"]).mean() == 0.5
    points = of_replies(games.results["points"])
    np.testing.assert_allclose(points, 0.5 + of_replies(games.results["payoff"]) / 4.0)
    found = exploit.summarize_scores(points, kuhn.make().spec.stakes)
    assert found["score"] == pytest.approx(7 / 12) and found["payoff"] == pytest.approx(1 / 3)


def test_payoffs_of_pools_and_tournaments_are_those_of_the_stakes(games):
    spec = kuhn.make().spec
    counts, points = (
        np.asarray(told(spec, SEAT, games)) for told in (pool_role.count_outcomes, pool_role.sum_rival_scores)
    )
    np.testing.assert_array_equal(counts, [[6, 0, 6] if entry == 2 else [0, 0, 0] for entry in range(4)])
    np.testing.assert_array_equal(points, [0, 0, 7, 0])
    scores = of_replies(games.results["points"])
    assert round_robin.mean_scores(scores) == pytest.approx(7 / 12)
    np.testing.assert_array_equal(round_robin.count_results(scores), [6, 0, 6])
    none = games.replace(tags=games.tags | {pool_role.TAG: np.zeros(12, int)})
    np.testing.assert_array_equal(pool_role.sum_rival_scores(spec, SEAT, none), 0.0)


def test_reward_transforms_use_the_winner_not_the_stakes(games):
    """`WinDrawLoss` pays 1, 0 and -1 also where games are for more or less."""
    beaten = np.asarray(kuhn.make().spec.beaten(games.results))
    np.testing.assert_array_equal(beaten, np.sign(games.results["payoff"]) / 2 + 0.5)


def test_three_seats_between_equals_share_the_points():
    """Who wins one game of three has half of all points, not a third."""
    spec = liarsdice.make(seats=3).spec
    points = np.float32([[1, 0.25, 0.25], [0.25, 1, 0.25], [0.25, 0.25, 1]])
    tags = {pool_role.TAG: np.full(3, 1), pool_role.SEAT: np.zeros(3, int)}
    finished = Finished(np.ones(3, bool), {}, {}, np.ones(3, int), {"points": points}, tags)
    np.testing.assert_array_equal(pool_role.sum_rival_scores(spec, SEAT, finished), [0, 1.5, 0, 0])
    assert pool_role.sum_rival_scores(tictactoe.make().spec, SEAT, finished) is None


STAKES = [
    (kuhn.make(), 2.0),
    (rps.make(worth=[2, 1, 3], margin=True), 3.0),
    (rps.make(worth=[0, 0, 0], margin=True), 1.0),
    (rps.make(worth=[2, 1, 1]), 0.0),
    (tictactoe.make(), 0.0),
]


@pytest.mark.parametrize("env,stakes", STAKES)
def test_stakes_are_the_largest_possible_score(env, stakes):
    assert env.spec.stakes == stakes and env.spec.graded == (stakes > 0)
    if stakes and any(getattr(env.rules, "worth", (1,))):
        scores = np.concatenate(
            [level.scores[level.over] for level in exploitability.build_tree(env.rules).levels]
        )
        assert np.abs(scores).max() == stakes


def test_leduc_where_both_raise_as_often_as_they_may():
    rules = leduc.Leduc()

    @jax.jit
    def bold(state):
        action = jnp.where(rules.legal(state)[leduc.RAISE], leduc.RAISE, leduc.CALL)
        after = rules.apply(None, state, action)
        return jax.tree.map(lambda old, new: jnp.where(rules.over(state), old, new), state, after)

    state = rules.init(jax.random.key(0))
    for _ in range(rules.plies):
        state = bold(state)
    assert bool(rules.over(state)) and state.chips.tolist() == [rules.stakes] * 2
