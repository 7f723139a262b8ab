"""Ratings against published values and against each other."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.selfplay import elo, ratings, trueskill
from jaxmarl_echelon.selfplay.ratings import PairResults
from jaxmarl_echelon.selfplay.trueskill import TrueSkillSettings

RULES = TrueSkillSettings()
TAU = 25.0 / 300.0
NEW = (25.0, 25.0 / 3.0)
FIRST, DRAWN, SECOND = ratings.WIN, ratings.DRAW, ratings.LOSS

rate_teams = jax.jit(trueskill.rate_teams, static_argnums=0)
rate_seats = jax.jit(trueskill.rate_seats, static_argnums=0)


@cache
def ranking():
    return jax.jit(ratings.rating_system("trueskill", tau=TAU).rank)


@cache
def rate_glicko():
    return jax.jit(elo.rate_glicko)


PAIRS = [
    (NEW, NEW, FIRST, (29.424433080, 7.152194395), (20.575566920, 7.152194395)),
    (NEW, NEW, DRAWN, (25.0, 6.423050045), (25.0, 6.423050045)),
    ((29, 5), (21, 3), FIRST, (30.007229484, 4.605566481), (20.637218373, 2.917967726)),
    ((29, 5), (21, 3), SECOND, (24.127215673, 4.164380104), (22.755068390, 2.830652674)),
    ((29, 5), (21, 3), DRAWN, (25.977213613, 3.944374377), (22.088740335, 2.789473676)),
    ((0, 1), (60, 1), FIRST, (1.813572106, 0.988633336), (58.186427894, 0.988633336)),
    ((60, 1), (0, 1), DRAWN, (58.231744744, 0.988557281), (1.768255256, 0.988557281)),
    ((60, 1), (0, 1), FIRST, (60.0, 1.003466215), (0.0, 1.003466215)),
]


@pytest.mark.parametrize("ours,theirs,outcome,new_ours,new_theirs", PAIRS)
def test_two_players(ours, theirs, outcome, new_ours, new_theirs):
    found = rate_teams(RULES, np.float32([ours]), np.float32([theirs]), (TAU, TAU), outcome)
    np.testing.assert_allclose(np.concatenate(found), [new_ours, new_theirs], atol=1e-4)


def test_drift_of_the_winner_only():
    found = rate_teams(RULES, jnp.array([NEW]), jnp.array([NEW]), (TAU, 0.0), FIRST)
    expected = [(29.424526779, 7.152141954), (20.575915629, 7.151912275)]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-4)


TEAMS = [
    (
        [(28, 6), (24, 4)],
        [(26, 5), (25, 7)],
        FIRST,
        [(30.084734572, 5.626981089), (24.926772071, 3.892101104)],
        [(24.552144803, 4.786613400), (22.162589802, 6.399993698)],
    ),
    (
        [(28, 6), (24, 4)],
        [(26, 5), (25, 7)],
        DRAWN,
        [(27.810853133, 5.403364106), (23.915914459, 3.828967466)],
        [(26.131363138, 4.660681681), (25.257436730, 6.032475185)],
    ),
    (
        [(35, 6)],
        [(20, 5), (18, 3)],
        FIRST,
        [(38.439301288, 5.314090892)],
        [(17.611393648, 4.610907125), (17.139677190, 2.919061683)],
    ),
]


@pytest.mark.parametrize("first,second,outcome,new_first,new_second", TEAMS)
def test_teams(first, second, outcome, new_first, new_second):
    found = rate_teams(RULES, np.float32(first), np.float32(second), (TAU, TAU), outcome)
    np.testing.assert_allclose(np.concatenate(found), [*new_first, *new_second], atol=1e-4)


SERIES = [
    ((FIRST, FIRST, SECOND, DRAWN, FIRST), (26.912388992, 4.042683804), (23.087611008, 4.042683804)),
    ((FIRST,) * 20, (35.407290666, 4.404356684), (14.592709334, 4.404356684)),
]


@pytest.mark.parametrize("outcomes,ours,theirs", SERIES)
def test_series(outcomes, ours, theirs):
    pair = jnp.array([NEW]), jnp.array([NEW])
    for outcome in outcomes:
        pair = rate_teams(RULES, *pair, (TAU, TAU), outcome)
    np.testing.assert_allclose(np.concatenate(pair), [ours, theirs], atol=1e-4)


THREE = [(25, 25 / 3), (28, 4), (22, 6)]
RANKED = [
    (
        (0, 1, 2),
        [(32.549943660, 6.117997154), (27.424424504, 3.629525893), (19.380478369, 5.135075697)],
    ),
    (
        (0, 1, 1),
        [(31.014746635, 6.240681558), (25.999933998, 3.512950240), (23.380729574, 4.406878513)],
    ),
    (
        (0, 0, 0),
        [(25.473346139, 4.869565626), (26.791509482, 3.468425227), (24.473042870, 4.339200487)],
    ),
    (
        (2, 0, 1),
        [(17.402531812, 6.225838310), (29.404210559, 3.705585840), (22.780181112, 4.791553894)],
    ),
]


@pytest.mark.parametrize("ranks,expected", RANKED)
def test_seats_of_different_players(ranks, expected):
    """The same as without anybody who has two seats, and one game of a batch of which one place is empty."""
    found = rate_seats(RULES, np.float32(THREE), np.array(ranks), TAU, np.eye(3, dtype=bool))
    np.testing.assert_allclose(found, expected, atol=2e-4)
    nobody = np.zeros(3, int)
    games = ratings.RankedGames(
        np.stack([nobody, np.arange(3)]), np.stack([nobody, np.array(ranks)]), np.array([False, True])
    )
    batch = ranking()(np.float32(THREE), games, np.ones(3, bool))
    np.testing.assert_allclose(batch, expected, atol=2e-4)


@pytest.fixture(scope="module")
def two_million():
    """Skills `[2, N]` of two players, and performances `[3, N]` of seats, of which the second has two."""
    rng, number = np.random.default_rng(0), 2_000_000
    skills = np.stack([rng.normal(*one, number) for one in TWO])
    return skills, skills[[0, 1, 1]] + rng.normal(0.0, RULES.beta, (3, number))


TWO = (27.0, 4.0), (24.0, 3.0)


margin_of = jax.jit(RULES.margin)


@pytest.mark.parametrize("ranks", [(0, 1, 2), (1, 0, 2), (2, 0, 0)])
def test_a_player_with_two_seats(ranks, two_million):
    """Against two million games of drawn skills and performances, of those that end so."""
    skills, played = two_million
    margin = float(margin_of(2.0))
    order = np.argsort(ranks, kind="stable")
    so = np.ones(played.shape[1], bool)
    for better, worse in itertools.pairwise(order):
        ahead = played[better] - played[worse]
        so &= (np.abs(ahead) <= margin) if ranks[better] == ranks[worse] else (ahead > margin)
    same = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1]], bool)
    rating = np.float32([TWO[0], TWO[1], TWO[1]])
    found = np.asarray(rate_seats(RULES, rating, np.array(ranks), 0.0, same))
    np.testing.assert_allclose(found[2], found[1], atol=1e-5)
    exact = [(skill[so].mean(), skill[so].std()) for skill in skills]
    assert so.sum() > 50_000
    np.testing.assert_allclose(found[:2], exact, atol=0.05)


def test_free_for_all_of_five():
    found = rate_seats(RULES, jnp.array([NEW] * 5), jnp.arange(5), TAU, jnp.eye(5, dtype=bool))
    upper = [(34.414396819, 6.097259715), (29.078469026, 5.481323106), (25.0, 5.362246377)]
    lower = [(50.0 - mu, sigma) for mu, sigma in upper[1::-1]]
    np.testing.assert_allclose(found, [*upper, *lower], atol=2e-4)


def test_margins_and_quality():
    np.testing.assert_allclose(
        margin_of(np.float32([2.0, 3.0, 4.0])), [0.710847923954, 0.870607349202, 1.005290774841], atol=1e-6
    )
    found = trueskill.trueskill_quality(RULES, jnp.array([29.0, 5.0]), jnp.array([21.0, 3.0]))
    np.testing.assert_allclose(found, 0.428781461, atol=1e-6)


def test_moments_are_finite_and_ordered_far_out():
    t, e = np.meshgrid(np.linspace(-100.0, 100.0, 401, dtype=np.float32), np.float32([1e-3, 0.05, 0.7, 3.0]))
    won, drawn = (
        [np.asarray(x) for x in jax.jit(moments)(t, e)]
        for moments in (trueskill.win_moments, trueskill.draw_moments)
    )
    for v, w in (won, drawn):
        assert np.isfinite(v).all() and np.isfinite(w).all()
        assert (w >= 0).all() and (w <= 1).all()
    v, _ = won
    assert (np.diff(v, axis=1) <= 1e-5).all() and (np.asarray(v) >= 0).all()
    far, _ = jax.jit(trueskill.win_moments)(np.float32(-10.0), np.float32(0.0))
    np.testing.assert_allclose(far, 10.0980932, rtol=1e-6)


def test_elo():
    np.testing.assert_allclose(elo.elo_expected(1510.0, 1630.0), 0.333860575, atol=1e-6)
    rules = elo.EloSettings()
    games = [
        (1.0, 1.0, 1525.987346, 1614.012654),
        (0.5, 1.0, 1513.987346, None),
        (6.5, 10.0, 1585.873462, None),
    ]
    for score, number, ours, theirs in games:
        found = elo.rate_elo(rules, 1510.0, 1630.0, score, number)
        np.testing.assert_allclose(found[0], ours, atol=1e-3)
        if theirs is not None:
            np.testing.assert_allclose(found[1], theirs, atol=1e-3)


PERIODS = [
    (
        (1650, 120, 0.05),
        [(1500, 80), (1700, 60), (1620, 200)],
        (1, 0, 0.5),
        (1, 1, 1),
        (1639.691187, 105.787585, 0.0499964247),
    ),
    (
        (1500, 90, 0.06),
        [(1580, 70), (1430, 110)],
        (14.5, 9),
        (20, 12),
        (1633.955600, 52.890462, 0.0600760092),
    ),
    ((1500, 60, 0.06), [(1300, 50)], (0,), (10,), (1369.139222, 55.136454, 0.0604970536)),
    ((1600, 80, 0.06), [(1500, 80)], (0,), (0,), (1600.0, 80.676145, 0.06)),
    # Here the equation of the volatility has several roots, of which Glickman's bracket holds one.
    ((1500, 60, 0.06), [(2000, 60)], (32,), (64,), (1927.911575, 51.596062, 0.0670089735)),
]


@pytest.mark.parametrize("player,others,score,games,expected", PERIODS)
def test_glicko(player, others, score, games, expected):
    others = np.float32([(*one, 0.06) for one in others])
    found = rate_glicko()(np.float32(player), others, np.float32(score), np.float32(games))
    np.testing.assert_allclose(found[:2], expected[:2], atol=2e-3)
    np.testing.assert_allclose(found[2], expected[2], atol=1e-7)


ORDERS = [
    ((3, 1, 2), 6, "WLWDLW"),
    ((4, 2, 2), 8, "WDLWWDLW"),
    ((4, 1, 1), 6, "WWDWLW"),
    ((1, 0, 1), 6, "WL"),
]


@pytest.mark.parametrize("counts,most,expected", ORDERS)
def test_order_of_games(counts, most, expected):
    found = ratings.interleave_outcomes(jnp.array([counts]), most)[:, 0]
    assert "".join("WDL"[x] for x in found if x >= 0) == expected


def test_batch_of_two_defaults():
    system = ratings.rating_system("trueskill", games_per_pair=6, tau_frozen=TAU)
    rating = jnp.array([NEW, NEW])
    pair = PairResults(jnp.array([0]), jnp.array([1]), jnp.array([[3, 1, 2]]))
    found = system.update(jax.random.key(0), rating, pair, jnp.array([True, False]))
    np.testing.assert_allclose(found, [(25.704725425, 3.533151166), (24.295274576, 3.533151166)], atol=1e-4)


@pytest.mark.parametrize("name", sorted(ratings.SYSTEMS))
def test_every_system_orders_players_and_ignores_the_idle(name):
    system = ratings.rating_system(name)
    rating = np.tile(np.float32(system.prior), (4, 1))
    counts = np.array([[3, 1, 0], [0, 1, 3], [0, 0, 0]])
    pairs = PairResults(np.zeros(3, np.int32), np.array([1, 2, 3]), counts)

    @jax.jit
    def updated(rating, *given):
        found = system.update(jax.random.key(0), rating, *given)
        return found, system.expected(found[2], found[:2]), system.quality(found[2], found[:2])

    moves = np.array([True, False, False, False])
    found, chances, quality = (np.asarray(x) for x in updated(rating, pairs, moves))
    assert found[2, 0] > found[0, 0] > found[1, 0]
    np.testing.assert_array_equal(found[3], rating[3])
    assert (chances > 0.5).all() and (quality < 1).all()


def test_random_games_recover_true_skills():
    skills = np.arange(10.0, 36.0, 5.0)
    random = np.random.default_rng(0)
    rating = np.tile(np.array(NEW), (6, 1)).astype(np.float32)
    first, second, outcomes = [], [], []
    for _ in range(600):
        i, k = random.choice(6, 2, replace=False)
        difference = random.normal(skills[i], 4.0) - random.normal(skills[k], 4.0)
        drawn = abs(difference) < float(RULES.margin(2.0))
        first.append(i), second.append(k)
        outcomes.append(DRAWN if drawn else FIRST if difference > 0 else SECOND)

    def rate(rating, game):
        i, k, outcome = game
        ours, theirs = trueskill.rate_teams(RULES, rating[i][None], rating[k][None], (TAU, TAU), outcome)
        return rating.at[i].set(ours[0]).at[k].set(theirs[0]), None

    games = (jnp.array(first), jnp.array(second), jnp.array(outcomes))
    found = np.asarray(jax.jit(lambda rating: jax.lax.scan(rate, rating, games)[0])(rating))
    assert (np.diff(found[:, 0]) > 0).all()
    centred = found[:, 0] - found[:, 0].mean() - (skills - skills.mean())
    assert np.sqrt(np.mean(centred**2)) < 2.5
    assert 0.98 < found[:, 1].mean() < 1.16
