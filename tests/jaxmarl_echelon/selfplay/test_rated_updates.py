"""Ratings over many updates: they settle where games say, and do not overshoot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.selfplay import ratings
from jaxmarl_echelon.selfplay.ratings import PairResults


def after_updates(name: str, score: np.ndarray, updates: int, graded: bool = False, **options) -> np.ndarray:
    """Ratings `[updates, n, D]` of a learner that meets others 512 times per update, at fixed scores."""
    system = ratings.rating_system(name, **options)
    wins = np.round(512 * score).astype(np.int32)
    counts = np.stack([wins, 0 * wins, 512 - wins], axis=-1)
    points = None
    if graded:
        # Every game is worth the same, a little more or less than half.
        points, counts = (
            512 * score.astype(np.float32),
            np.where(score[:, None] > 0.5, [512, 0, 0], [0, 0, 512]),
        )
    number = len(score)
    given = PairResults(np.zeros(number, np.int32), np.arange(1, number + 1), counts, points)
    pairs = jax.tree.map(jnp.asarray, given)
    start = np.tile(np.float32(system.prior), (number + 1, 1))
    moves = np.arange(number + 1) == 0

    def step(rating, key):
        rating = system.update(key, rating, pairs, moves)
        return rating, rating

    run = jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])
    return np.asarray(run(jax.random.split(jax.random.key(0), updates)))


SETTLED = [(name, most) for name in ("elo", "glicko2") for most in (8, 512)]


@pytest.mark.parametrize("name,most", SETTLED)
def test_many_games_in_an_update_do_not_overshoot(name, most):
    """At 64 % the difference comes steadily nearer to the one at which 64 % are expected."""
    found = after_updates(name, np.array([0.64]), 40, games_per_pair=most)
    apart = found[:, 0, 0] - found[:, 1, 0]
    right = 400.0 * np.log10(328 / 184)
    assert (np.abs(apart - right) < 20.0)[5:].all() and (np.diff(np.abs(apart - right)) < 0.1).all()
    # Glicko-2's is larger by what the deviations, which remain, take from the expected score.
    np.testing.assert_allclose(apart[-1], right, atol=1.0 if name == "elo" else 5.0)


@pytest.mark.parametrize("name", ["elo", "glicko2"])
def test_ratings_of_many_opponents_agree_with_their_scores(name):
    """Also against some that always win and some that always lose, whose ratings have no limit."""
    score = np.concatenate([np.linspace(0.1, 0.9, 9), np.zeros(5), np.ones(5)])
    rating = after_updates(name, score, 60)[-1]
    system = ratings.rating_system(name)
    expected = np.asarray(system.expected(rating[0], rating[1:]))
    np.testing.assert_allclose(expected, score, atol=0.03)
    assert np.abs(rating[:, 0] - 1500.0).max() < 1500.0


def test_glicko_recovers_from_games_that_contradict_certain_ratings():
    """A favourite by 3000 that loses everything: no step leaves what a new player's deviation allows."""
    system = ratings.rating_system("glicko2")
    rating = jnp.array([[3000.0, 60.0, 0.06], [0.0, 60.0, 0.06]])
    pairs = PairResults(jnp.array([0]), jnp.array([1]), jnp.array([[0, 0, 64]]))
    update = jax.jit(lambda rating: system.update(jax.random.key(0), rating, pairs, jnp.ones(2, bool)))
    for _ in range(20):
        rating = update(rating)
        assert np.isfinite(rating).all() and (rating[:, 1] <= 350.0).all()
    assert (np.abs(rating[:, 0] - 1500.0) < 2000.0).all() and rating[0, 0] < rating[1, 0]


@pytest.mark.parametrize("graded", [False, True])
def test_scores_between_eighths_are_not_rounded(graded):
    """On average over updates. TrueSkill awaits a tenth of draws, of which there are none: .01 too much."""
    score = np.array([0.56, 0.8, 0.94])
    found = after_updates("trueskill", score, 600, graded)[100:]
    system = ratings.rating_system("trueskill")
    expected = np.asarray(system.expected(found[:, :1], found[:, 1:])).mean(axis=0)
    np.testing.assert_allclose(expected, score, atol=0.015)


def test_games_that_count_are_drawn_in_proportion():
    """Each outcome's share of eight games is rounded up or down; on average it is exact."""
    counts = np.array([[328, 0, 184], [5, 2, 3], [1, 7, 0], [0, 0, 0], [100, 1, 1]])
    pairs = PairResults(np.zeros(5, int), np.arange(5), counts)
    points = np.float32([409.6, 2.5, 7.75, 0.0, 0.0])
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.jit(jax.vmap(lambda key, pairs: ratings.draw_outcomes(key, pairs, 8), (0, None)))
    found, graded = (np.asarray(draw(keys, one)) for one in (pairs, pairs._replace(points=points)))
    games = counts.sum(axis=1)
    kept = np.minimum(games, 8)
    share = kept[:, None] * counts / np.maximum(games, 1)[:, None]
    assert ((found >= np.floor(share)) & (found <= np.ceil(share))).all()
    np.testing.assert_array_equal(found.sum(axis=-1), np.broadcast_to(kept, found.shape[:2]))
    np.testing.assert_allclose(found.mean(axis=0), share, atol=0.03)
    np.testing.assert_array_equal(found[:, 2:4], np.broadcast_to(counts[2:4], (4000, 2, 3)))
    np.testing.assert_array_equal(graded.sum(axis=-1), found.sum(axis=-1))
    np.testing.assert_allclose(graded[..., 0].mean(axis=0), points * kept / np.maximum(games, 1), atol=0.03)
