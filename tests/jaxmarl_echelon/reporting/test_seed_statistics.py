import numpy as np
import pytest
from scipy import stats

from jaxmarl_echelon.reporting import seed_statistics as statistics


def test_interquartile_mean_leaves_out_the_outer_quarters():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 9.0))
    assert statistics.interquartile_mean(scores) == 4.5
    assert statistics.interquartile_mean(np.array([0.0, 5.0, 5.0, 1000.0])) == 5.0
    assert statistics.interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0
    for number in range(1, 14):
        scores = np.random.default_rng(number).normal(size=(3, number))
        expected = stats.trim_mean(scores, 0.25, axis=-1)
        np.testing.assert_allclose(statistics.interquartile_mean(scores), expected, rtol=1e-12)


def test_statistics_by_hand():
    scores = np.array([0.25, 0.5, 1.5])
    assert statistics.optimality_gap(scores) == pytest.approx((0.75 + 0.5) / 3)
    assert statistics.STATISTICS["median"](scores) == 0.5
    assert statistics.STATISTICS["mean"](scores) == 0.75
    np.testing.assert_allclose(statistics.score_profile(scores, np.array([0.0, 0.5, 2.0])), [1.0, 1 / 3, 0.0])


def test_probability_of_improvement_counts_pairs_and_half_of_ties():
    ours, theirs = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    # 1 beats 0; 2 ties 2 and beats 0; 3 beats both.
    assert statistics.improvement_probability(ours, theirs) == 4.5 / 6
    assert statistics.improvement_probability(theirs, ours) == 1.5 / 6
    estimate = statistics.estimate_improvement([ours, ours], [theirs, ours], (0, 1), 200)
    assert estimate.value == pytest.approx((4.5 / 6 + 0.5) / 2)
    assert 0.0 <= estimate.low < estimate.value < estimate.high <= 1.0


def test_intervals_of_the_bootstrap_cover_as_often_as_they_say():
    rng, sets = np.random.default_rng(1), 2000
    covered = 0
    for number, scores in enumerate(rng.normal(size=(sets, 20))):
        estimate = statistics.estimate_statistic([scores], statistics.interquartile_mean, number, 200)
        covered += estimate.low <= 0.0 <= estimate.high
    assert 0.90 <= covered / sets <= 0.97


def test_runs_are_drawn_within_their_task():
    tasks = [np.zeros(5), np.ones(15)]
    drawn = statistics.resample_runs(tasks, 0, 50)
    assert [part.shape for part in drawn] == [(50, 5), (50, 15)]
    assert not drawn[0].any() and drawn[1].all()
    estimate = statistics.estimate_statistic(tasks, statistics.STATISTICS["mean"], 0, 50)
    assert estimate == (0.75, 0.75, 0.75)


def test_a_single_run_of_a_task_has_no_interval():
    """Resamples of it are all the same, but other seeds would not be."""
    several = [np.array([0.1, 0.2, 0.4]), np.array([0.5, 0.6])]
    alone = [np.array([0.3]), np.array([0.7, 0.9])]
    mean = statistics.STATISTICS["mean"]
    for estimate in (
        statistics.estimate_statistic(alone, mean, 0, 50),
        statistics.estimate_difference(several, alone, mean, (0, 1), 50),
        statistics.estimate_improvement(alone, several, (0, 1), 50),
        statistics.estimate_curve([np.ones((1, 4))], mean, 0, 50),
    ):
        assert np.isfinite(estimate.value).all() and np.isnan([estimate.low, estimate.high]).all()
    assert statistics.estimate_statistic(several, mean, 0, 50).low > 0.0


def test_draws_follow_their_seed():
    scores = [np.random.default_rng(2).normal(size=12)]
    first, again, other = (
        statistics.estimate_statistic(scores, statistics.interquartile_mean, seed, 300) for seed in (5, 5, 6)
    )
    assert first == again
    assert first.value == other.value and first != other


def test_differences_of_paired_runs_are_free_of_what_seeds_share():
    theirs = [np.random.default_rng(3).normal(size=16)]
    ours = [theirs[0] + 0.1]
    paired, unpaired = (
        statistics.estimate_difference(ours, theirs, statistics.interquartile_mean, seeds, 300)
        for seeds in ((0, 0), (0, 1))
    )
    np.testing.assert_allclose(paired, 0.1, rtol=1e-12)
    assert unpaired.value == pytest.approx(0.1)
    assert unpaired.low < -0.2 and unpaired.high > 0.4


def test_points_of_a_curve_are_estimated_from_the_same_runs():
    curves = np.random.default_rng(4).normal(size=(6, 3))
    curve = statistics.estimate_curve([curves], statistics.interquartile_mean, 7, 200)
    for point in range(3):
        single = statistics.estimate_statistic([curves[:, point]], statistics.interquartile_mean, 7, 200)
        assert tuple(part[point] for part in curve) == single
