import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxmarl_echelon.curricula.missions import significance

WINDOW = 500
QUANTILES = significance.t_quantiles(WINDOW)


def estimate_masked(values, mask):
    """The estimate of `values [..., W]` where `mask [..., W]` is set, from their moments."""
    count = jnp.sum(mask, axis=-1, dtype=jnp.float32)
    some, values = jnp.maximum(count, 1.0), jnp.where(mask, values, 0.0)
    mean, square = jnp.sum(values, axis=-1) / some, jnp.sum(jnp.square(values), axis=-1) / some
    return significance.estimate_mean(count, mean, square, QUANTILES)


@jax.jit
def of_counts(successes):
    """Estimates of Bernoulli windows with that many successes each."""
    values = (jnp.arange(WINDOW) < successes[:, None]).astype(jnp.float32)
    return estimate_masked(values, jnp.ones_like(values, bool))


EVERY = of_counts(np.arange(WINDOW + 1))


def test_quantiles_are_those_of_students_t():
    expected = stats.t.ppf(0.975, np.arange(1, WINDOW))
    np.testing.assert_allclose(QUANTILES[2:], expected, rtol=1e-7, atol=1e-6)
    assert np.all(np.isinf(QUANTILES[:2])), "no interval from fewer than two values"
    assert QUANTILES[WINDOW] == pytest.approx(1.964729, abs=1e-6)
    np.testing.assert_allclose(significance.t_quantiles(9, 0.8)[2:], stats.t.ppf(0.9, np.arange(1, 9)), 1e-6)


@pytest.mark.parametrize(
    ("target", "by_interval", "by_both"), [(0.6, 322, 324), (0.7, 370, 372), (0.8, 417, 419)]
)
def test_the_first_counts_of_successes_that_advance(target, by_interval, by_both):
    interval = np.asarray(significance.significantly_above(EVERY, target, -np.inf))
    both = np.asarray(significance.significantly_above(EVERY, target, 0.1))
    assert np.argmax(interval) == by_interval and np.all(interval[by_interval:])
    assert np.argmax(both) == by_both and np.all(both[by_both:])


@pytest.mark.parametrize(("target", "most"), [(0.3, 130), (0.4, 178), (0.2, 83), (0.1, 38)])
def test_the_last_counts_of_successes_that_regress(target, most):
    below = np.asarray(significance.significantly_below(EVERY, target))
    assert np.all(below[: most + 1]) and not np.any(below[most + 1 :])


@pytest.mark.parametrize(("successes", "low", "high"), [(310, 0.5773, 0.6627), (325, 0.6080, 0.6920)])
def test_intervals_of_examples(successes, low, high):
    assert EVERY.low[successes] == pytest.approx(low, abs=5e-5)
    assert EVERY.high[successes] == pytest.approx(high, abs=5e-5)


def test_masked_windows_match_scipy():
    rng = np.random.default_rng(0)
    values, mask = rng.beta(2.0, 3.0, (7, WINDOW)).astype(np.float32), rng.random((7, WINDOW)) < 0.3
    found = estimate_masked(jnp.asarray(values), jnp.asarray(mask))
    for row in range(7):
        own = values[row, mask[row]].astype(np.float64)
        low, high = stats.t.interval(0.95, own.size - 1, loc=own.mean(), scale=stats.sem(own))
        assert found.count[row] == own.size
        np.testing.assert_allclose(
            [found.mean[row], found.std[row], found.low[row], found.high[row]],
            [own.mean(), own.std(ddof=1), low, high],
            rtol=1e-4,
        )
        assert significance.effect_size(found, 0.3)[row] == pytest.approx(
            (own.mean() - 0.3) / own.std(ddof=1), rel=1e-3
        )


def test_too_few_and_equal_values_decide_nothing_by_accident():
    values = jnp.ones((4, WINDOW))
    mask = jnp.arange(WINDOW) < jnp.array([0, 1, 2, WINDOW])[:, None]
    found = estimate_masked(values, mask)
    above = significance.significantly_above(found, 0.7, 0.1)
    np.testing.assert_array_equal(above, [False, False, True, True])
    assert not np.any(significance.significantly_above(found, 1.0, 0.1)), "equal is not above"
    none = estimate_masked(jnp.zeros((4, WINDOW)), mask)
    np.testing.assert_array_equal(significance.significantly_below(none, 0.3), [False, False, True, True])
    assert np.isnan(found.mean[0]) and np.isinf(found.low[1])
