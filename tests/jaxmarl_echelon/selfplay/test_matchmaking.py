"""Whom the learner meets: weights of every mode, the draw, and what it does to play that goes in circles."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.selfplay import matchmaking
from jaxmarl_echelon.selfplay.ratings import rating_system
from jaxmarl_echelon.selfplay.settings import PoolSettings

SYSTEM = rating_system("trueskill")
RATING = jnp.array([(30, 2), (27, 1.5), (24, 3), (31, 2.5), (20, 4), (25, 25 / 3)], float)
DISTINCT = jnp.array([1.0, 0.3, 0.1, 0.2, 0.0, 1.0])
WINS, DRAWS, LOSSES = (np.array(x) for x in ((30, 18, 5, 0), (5, 0, 2, 0), (15, 2, 13, 0)))


def settings(mode: str = "random", **options) -> PoolSettings:
    return PoolSettings(mode=mode, **options)


def example(**options) -> matchmaking.OpponentCandidates:
    """The learner, four candidates, and an empty slot."""
    games, points = np.zeros(6), np.zeros(6)
    games[1:5], points[1:5] = WINS + DRAWS + LOSSES, WINS + DRAWS / 2
    kinds = jnp.array([0, 1, 1, 1, 1, 0], bool), jnp.array([0, 1, 1, 1, 0, 0], bool)
    lag = jnp.array([9, 1, 2, 8, 9, 9])
    known = jnp.array(points, float), jnp.array(games, float), kinds, lag, DISTINCT
    return matchmaking.make_candidates(settings(**options), SYSTEM, RATING, *known)


def test_candidates_have_expected_quality_and_payoff():
    found = example()
    np.testing.assert_allclose(
        found.quality[1:5], [0.813140890, 0.565263495, 0.860046738, 0.299904146], atol=1e-5
    )
    np.testing.assert_allclose(
        found.payoff[1:5], [0.652680526, 0.885742219, 0.323144253, 0.917241071], atol=1e-5
    )
    np.testing.assert_allclose(
        SYSTEM.expected(RATING[0], RATING)[1:5],
        [0.686187097, 0.814453315, 0.438865521, 0.917241071],
        atol=1e-5,
    )
    urgency = matchmaking.ucb_values(found)[1:5]
    np.testing.assert_allclose(urgency, [0.9920414, 0.6919838, 1.1097568, 2.2893963], atol=1e-5)
    plain = example(prior="none").payoff
    np.testing.assert_allclose(plain[1:5], [0.65, 0.9, 0.3, 0.5], atol=1e-6)


MODES = [
    ("match-quality", {"temperature": 1.0}, (0.2917975, 0.2277350, 0.3058106, 0.1746569)),
    ("match-quality", {}, (0.3719910, 0.0311899, 0.5946233, 0.0021957)),
    (
        "match-quality",
        {"normalise": "plain"},
        np.array([0.813140890, 0.565263495, 0.860046738, 0.299904146]) / 2.538355269,
    ),
    ("ts-dist", {}, (0.3035029, 0.1433646, 0.5003916, 0.0527409)),
    ("exploration", {}, np.exp([3.0, 1.0, 2.0, 0.0]) / np.sum(np.exp([3.0, 1.0, 2.0, 0.0]))),
    # Pessimistically 22.5, 15 and 23.5; scripts are no past policies.
    ("top", {"top": 2}, (0.5, 0.0, 0.5, 0.0)),
    ("top", {"top": 1}, (0.0, 0.0, 1.0, 0.0)),
    (
        "pfsp",
        {"weight": "gaussian"},
        np.exp(-(np.array([3, 6, 1, 10]) ** 2) / 32) / np.sum(np.exp(-(np.array([3, 6, 1, 10]) ** 2) / 32)),
    ),
    ("ts-dist", {"normalise": "plain"}, (0.2833333, 0.2333333, 0.3166667, 0.1666667)),
    ("pfsp", {"weight": "hard"}, (0.2014986, 0.0218065, 0.7652545, 0.0114405)),
    ("pfsp", {"weight": "var"}, (0.3641447, 0.1625689, 0.3513474, 0.1219390)),
    ("pfsp", {"weight": "linear"}, (0.2844102, 0.0935625, 0.5542583, 0.0677690)),
    ("random", {}, (0.25, 0.25, 0.25, 0.25)),
    ("fixed", {"fixed": ("random",)}, (0, 0, 0, 1)),
    ("lagged", {}, (0.5, 0.5, 0, 0)),
    ("lagged", {"lag_range": (20, 30)}, (1, 0, 0, 0)),
]


@pytest.mark.parametrize("mode,options,expected", MODES)
def test_modes(mode, options, expected):
    chosen = settings(mode, **options)
    found = matchmaking.mixture_probabilities(chosen, example())
    np.testing.assert_allclose(found, [0, *expected, 0], atol=1e-5)


def test_capped_weight_and_mixtures():
    entries = example()
    capped = np.minimum(0.5, 1 - np.asarray(entries.payoff[1:5]))
    found = matchmaking.mixture_probabilities(settings("pfsp", weight="capped"), entries)
    np.testing.assert_allclose(found[1:5], capped / capped.sum(), atol=1e-5)
    mixed = PoolSettings(shares={"mirror": 0.5, "pfsp": 0.3, "random": 0.2})
    hard = np.array([0.2014986, 0.0218065, 0.7652545, 0.0114405])
    np.testing.assert_allclose(
        matchmaking.mixture_probabilities(mixed, entries)[1:5], 0.6 * hard + 0.1, atol=1e-5
    )
    assert mixed.mirrored == 4


def test_vanishing_weights_become_uniform():
    entries = example()._replace(payoff=jnp.ones(6))
    np.testing.assert_allclose(
        matchmaking.mixture_probabilities(settings("pfsp"), entries),
        [0, 0.25, 0.25, 0.25, 0.25, 0],
        atol=1e-6,
    )
    equal = entries._replace(distance=jnp.zeros(6))
    for normalise in ("softmax", "plain"):
        found = matchmaking.mixture_probabilities(settings("ts-dist", normalise=normalise), equal)
        np.testing.assert_allclose(found[1:5], 0.25, atol=1e-6)


def test_systematic_sampling():
    weights = jnp.array([0.3641447, 0.1625689, 0.3513474, 0.1219390])
    found = matchmaking.systematic_sample(weights, (jnp.arange(8) + 0.3) / 8)
    assert found.tolist() == [0, 0, 0, 1, 2, 2, 2, 3]


DRAWN = ("match-quality", "ts-dist", "pfsp", "ucb", "random", "lagged")


@pytest.mark.parametrize("mode", DRAWN)
def test_draws_follow_probabilities(mode):
    """Chi-square of the drawn entries; systematic draws vary less than independent ones, never more."""
    chances = matchmaking.mixture_probabilities(settings(mode), example())
    due = jnp.array([1, 0, 1, 1, 0, 1, 1, 0], bool)
    keys = jax.random.split(jax.random.key(1), 4000)
    drawn = np.asarray(jax.vmap(lambda key: matchmaking.draw_opponents(key, chances, due))(keys))[
        :, np.asarray(due)
    ]
    counts = np.bincount(drawn.ravel(), minlength=6)
    chances = np.asarray(chances)
    assert (counts[chances == 0] == 0).all()
    expected = drawn.size * chances[chances > 0]
    assert np.sum((counts[chances > 0] - expected) ** 2 / expected) < 15.1
    shares = chances * drawn.shape[1]
    per_draw = np.stack([(drawn == entry).sum(1) for entry in range(6)], axis=1)
    assert (per_draw >= np.floor(shares - 1e-4)).all() and (per_draw <= np.ceil(shares + 1e-4)).all()
    if chances.max() < 0.8:
        assert len({tuple(row) for row in drawn[:50]}) > 1


GAME = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def cycles(choose) -> tuple[float, float, float]:
    """Rock, paper, scissors by exact gradients; `choose` maps payoffs against the past to weights.

    Returns:
      mean and highest exploitability of the second half, and the mean of the worst score against the past.
    """
    game = jnp.array(GAME)
    most = 100

    def step(state, number):
        logits, past, filled = state
        p = jax.nn.softmax(logits)
        takes = number % 20 == 0
        past = jnp.where(takes, past.at[filled].set(p), past)
        filled = filled + takes
        there = jnp.arange(most) < filled
        score = past @ (p @ game)
        other = p if choose is None else past.T @ choose(0.5 + 0.5 * score, there)
        value = game @ other
        worst = jnp.min(jnp.where(there, score, 1.0))
        return (logits + 0.1 * (value - p @ value), past, filled), (jnp.max(game @ p), worst)

    start = (jnp.array([1.0, 0, 0]), jnp.zeros((most, 3)), 0)
    _, (exploitability, worst) = jax.lax.scan(step, start, jnp.arange(2000))
    late = slice(1000, None)
    return float(exploitability[late].mean()), float(exploitability[late].max()), float(worst[late].mean())


def by_mode(mode: str, **options):
    """Weights of a mode as matchmaking computes them, from payoffs alone."""
    chosen = settings(mode, **options)

    def weights(payoff, there):
        entries = matchmaking.OpponentCandidates(there, there, *(payoff for _ in range(7)), 4.0)
        return matchmaking.mixture_probabilities(chosen, entries)

    return weights


CIRCLES = [
    (None, 0.7008),
    (by_mode("pfsp"), 0.7453),
    (by_mode("pfsp", power=8.0), 0.2245),
    (by_mode("pfsp", weight="var"), 0.8706),
    (by_mode("random"), 0.9676),
]


@pytest.mark.parametrize("choose,expected", CIRCLES)
def test_modes_cycle_or_converge_in_a_non_transitive_game(choose, expected):
    mean, highest, worst = cycles(choose)
    np.testing.assert_allclose(mean, expected, atol=0.02)
    if expected == 0.2245:
        np.testing.assert_allclose((highest, worst), (0.2516, -0.18), atol=0.02)
    if choose is None:
        np.testing.assert_allclose((highest, worst), (0.9344, -0.60), atol=0.02)


WRONG = [
    ({"capacity": 0}, "pool.capacity=0: must be a whole number of at least 1"),
    ({"capacity": 1}, "pool.capacity=1: must be at least 2 with pool.anchor=initial"),
    ({"mode": "elo"}, "pool.mode=elo: unknown; allowed: mirror, "),
    ({"mode": "fixed"}, "pool.fixed=[]: must name opponents"),
    ({"shares": {"mirror": 1, "magic": 1}}, "pool.shares.magic=1: unknown mode; allowed: mirror, "),
    ({"gate": "rated", "rating": "elo"}, "pool.gate=rated: needs a rating with an uncertainty"),
    ({"groups": 1}, "pool.groups=1: too few for a mirror share of 0.5"),
    ({"hold": 0}, "pool.hold=0: must be a whole number of at least 1 or auto"),
    ({"hold": "episode"}, "pool.hold=episode: needs pool.acting=sorted or dense"),
    (
        {"hold": "episode", "acting": "sorted", "league": {"main": 2}},
        "pool.hold=episode: must be a whole number or auto with pool.league",
    ),
    ({"lag_range": (3, 2)}, "pool.lag_range=[3, 2]: must be two whole numbers"),
    ({"decay": 1.5}, "pool.decay=1.5: must be above 0 and at most 1"),
    ({"evict": "random"}, "pool.evict=random: unknown; allowed: oldest, spaced, weakest, similar, idle"),
]


@pytest.mark.parametrize("options,message", WRONG)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError) as error:
        replace(PoolSettings(), **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
