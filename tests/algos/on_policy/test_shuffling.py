import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.on_policy.sample_epochs import INDEX_BITS, shuffle_rows

SHUFFLE = jax.jit(shuffle_rows)


@pytest.mark.parametrize("number", [1, 2, 3, 64, 1000, 2**INDEX_BITS, 2**INDEX_BITS + 1])
def test_every_row_comes_once_and_idle_rows_come_last(number):
    idle = np.random.default_rng(number).random(number) < 0.3
    rows = np.asarray(SHUFFLE(jax.random.key(number), jnp.asarray(idle)))
    assert sorted(rows) == list(range(number))
    np.testing.assert_array_equal(idle[rows], np.sort(idle))


def test_all_places_are_equally_likely():
    """Over 4,000 orders of 8 rows, each row is at each place within five standard deviations of an eighth."""
    keys = jax.random.split(jax.random.key(0), 4000)
    rows = np.asarray(jax.jit(jax.vmap(lambda key: shuffle_rows(key, jnp.zeros(8, bool))))(keys))
    counts = np.stack([(rows == row).sum(axis=0) for row in range(8)])
    assert np.abs(counts - 500).max() < 5 * np.sqrt(4000 / 8 * 7 / 8)


@pytest.mark.parametrize("number", [8192, 2**INDEX_BITS])
def test_rows_of_a_minibatch_are_spread_over_the_batch(number):
    """Few random bits make no block of neighbours: halves of two orders share half of their rows."""
    halves = [np.asarray(SHUFFLE(jax.random.key(i), jnp.zeros(number, bool)))[: number // 2] for i in (0, 1)]
    assert abs(len(np.intersect1d(*halves)) / (number // 2) - 0.5) < 0.02
    assert abs(np.mean(halves[0]) / number - 0.5) < 0.02
