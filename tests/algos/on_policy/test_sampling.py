from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from algos.on_policy.segment_sampling import (
    MODES,
    choose_rows,
    find_rows,
    importance_exponent,
    log_shares,
    partition_rows,
)

S, M, T = 12, 4, 5
DRAWN = ("prioritized", "prioritized_replacement")


def of_sizes(sizes):
    """Advantages `[T, S]` whose magnitudes sum to these, with changing signs, all alive."""
    signs = np.where(np.arange(T) % 2, -1.0, 1.0)[:, None]
    return np.float32(signs * np.asarray(sizes) / T), np.ones((T, len(sizes)), bool)


def without(alive, place):
    """A copy with all agents dead there."""
    copy = np.array(alive)
    copy[place] = False
    return copy


def many(mode, advantage, alive, number=20000, size=M, alpha=0.8, beta=0.5):
    """Rows and weights `[number, size]` of minibatches drawn with different keys."""
    settings = {"alpha": np.float32(alpha), "beta": np.float32(beta)}
    return [np.asarray(x) for x in drawn(mode, number, size, advantage, alive, settings)]


@partial(jax.jit, static_argnums=(0, 1, 2))
def drawn(mode, number, size, advantage, alive, settings):
    keys = jax.random.split(jax.random.key(0), number)
    return jax.vmap(lambda key: choose_rows(key, mode, jnp.arange(size), advantage, alive, **settings))(keys)


SHARES = jax.jit(log_shares)


def probabilities(advantage, alive, alpha):
    share = np.exp(np.asarray(SHARES(advantage, alive, np.float32(alpha)), float))
    return share / np.asarray(alive).any(0).sum()


def test_example_of_the_original():
    advantage, alive = of_sizes([3.0, 0.0, 5.0, 1.0])
    beta = importance_exponent(0.2, 10 / 100, factor=0.8)
    np.testing.assert_allclose(beta, 0.264, rtol=1e-6)
    p = probabilities(advantage, alive, 0.8)
    np.testing.assert_allclose(p, [0.342461, 1.4e-7, 0.515335, 0.142205], rtol=2e-2)
    np.testing.assert_allclose(p[[0, 2, 3]], [0.342461, 0.515335, 0.142205], atol=1e-6)
    rows, weight = choose_rows(
        jax.random.key(0), "prioritized", jnp.arange(4), advantage, alive, alpha=0.8, beta=beta
    )
    np.testing.assert_allclose(weight[jnp.argsort(rows)], [0.92028, 44.5, 0.82616, 1.16061], rtol=1e-3)
    np.testing.assert_allclose(p.sum(), 1.0, rtol=1e-6)


def test_beta_goes_to_one():
    np.testing.assert_allclose(
        importance_exponent(0.2, jnp.array([0.0, 0.5, 1.0, 2.0])), [0.2, 0.6, 1.0, 1.0]
    )
    np.testing.assert_allclose(importance_exponent(0.2, 1.0, factor=0.5), 0.6)
    np.testing.assert_allclose(importance_exponent(0.2, 0.7, factor=0.0), 0.2)


def test_a_partition_holds_every_row_once_and_differs_from_key_to_key():
    parts = jax.jit(jax.vmap(lambda key: partition_rows(key, S, 3)))(jax.random.split(jax.random.key(0), 500))
    assert parts.shape == (500, 3, M)
    np.testing.assert_array_equal(jnp.sort(parts.reshape(500, -1)), np.tile(np.arange(S), (500, 1)))
    seen = np.zeros((3, S))
    np.add.at(seen, (np.arange(3)[None, :, None], np.asarray(parts)), 1)
    assert stats.chisquare(seen, axis=None).pvalue > 1e-3
    with pytest.raises(ValueError, match="minibatches=5: must divide the 12 segments of a rollout"):
        partition_rows(jax.random.key(0), S, 5)


def test_an_epoch_of_sequential_minibatches_covers_all_rows_with_weight_one():
    advantage, alive = of_sizes(np.full(S, np.nan))
    alive = without(alive, np.s_[:, 3])

    @jax.jit
    def epoch(key):
        order_key, minibatch_key = jax.random.split(key)

        def minibatch(carry, x):
            return carry, choose_rows(x[0], "sequential", x[1], advantage, alive, alpha=0.8, beta=0.5)

        return jax.lax.scan(
            minibatch, (), (jax.random.split(minibatch_key, 3), partition_rows(order_key, S, 3))
        )[1]

    rows, weight = epoch(jax.random.key(0))
    np.testing.assert_array_equal(np.sort(rows, axis=None), np.arange(S))
    np.testing.assert_array_equal(weight, np.ones((3, M)))


def test_uniform_minibatches_are_independent_draws_without_replacement():
    advantage, alive = of_sizes(np.arange(S))
    rows, weight = many("uniform", advantage, alive, 6000)
    assert (np.diff(np.sort(rows), axis=1) > 0).all()
    assert stats.chisquare(np.bincount(rows.ravel(), minlength=S)).pvalue > 1e-3
    np.testing.assert_array_equal(weight, np.ones_like(weight))
    missed = [len(set(three.ravel())) < S for three in np.asarray(rows).reshape(-1, 3, M)[:200]]
    assert np.mean(missed) > 0.9


def test_single_prioritised_draws_follow_the_probabilities():
    advantage, alive = of_sizes([3.0, 1.0, 0.5, 7.0, 0.0, 2.0])
    p = probabilities(advantage, alive, 0.8)
    for mode in DRAWN:
        rows, _ = many(mode, advantage, alive, 40000, size=1)
        counts = np.bincount(rows.ravel(), minlength=6)
        assert counts[4] == 0
        np.testing.assert_allclose(counts / 40000, p, atol=4 * np.sqrt(0.25 / 40000))
        kept = np.flatnonzero(counts)
        expected = p[kept] / p[kept].sum() * len(rows)
        assert stats.chisquare(counts[kept], expected).pvalue > 1e-3


def test_pairs_without_replacement_have_the_law_of_successive_draws():
    advantage, alive = of_sizes([4.0, 2.0, 1.0])
    p = probabilities(advantage, alive, 1.0)
    rows, _ = many("prioritized", advantage, alive, 30000, size=2, alpha=1.0)
    counts = np.zeros((3, 3))
    np.add.at(counts, tuple(np.asarray(rows).T), 1)
    expected = np.array([[0.0 if i == j else p[i] * p[j] / (1 - p[i]) for j in range(3)] for i in range(3)])
    off = ~np.eye(3, dtype=bool)
    assert (counts[~off] == 0).all()
    assert stats.chisquare(counts[off], expected[off] / expected.sum() * len(rows)).pvalue > 1e-3


def test_pairs_with_replacement_are_independent():
    advantage, alive = of_sizes([4.0, 2.0, 1.0])
    p = probabilities(advantage, alive, 1.0)
    rows, _ = many("prioritized_replacement", advantage, alive, 30000, size=2, alpha=1.0)
    counts = np.zeros((3, 3))
    np.add.at(counts, tuple(np.asarray(rows).T), 1)
    assert stats.chisquare(counts, np.outer(p, p) / p.sum() ** 2 * len(rows), axis=None).pvalue > 1e-3


def test_weights_undo_the_priorities_on_average():
    """With beta 1 the weighted mean of anything is its plain mean over the rows."""
    sizes = np.linspace(0.5, 6.0, S)
    advantage, alive = of_sizes(sizes)
    rows, weight = many("prioritized_replacement", advantage, alive, 20000, alpha=1.0, beta=1.0)
    np.testing.assert_allclose((weight * sizes[rows]).mean(), sizes.mean(), rtol=1e-2)
    assert abs(sizes[rows].mean() - sizes.mean()) > 0.5


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_exactly_one_at_alpha_zero(mode):
    """Holds for any advantages and with dead rows; the number of rows is not a power of 2."""
    advantage, alive = of_sizes([0.0, np.nan, 1e30, 3.0, np.inf, 1e-20, 2.0, 2.0, 2.0, 2.0, 5.0])
    alive = without(alive, np.s_[:, 7])
    _, weight = many(mode, advantage, alive, 200, alpha=0.0, beta=0.7)
    np.testing.assert_array_equal(weight, np.ones_like(weight))


@pytest.mark.parametrize("mode", DRAWN)
def test_alpha_zero_draws_uniformly(mode):
    advantage, alive = of_sizes(np.arange(S))
    rows, _ = many(mode, advantage, alive, 5000, alpha=0.0)
    assert stats.chisquare(np.bincount(rows.ravel(), minlength=S)).pvalue > 1e-3


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_rows_that_are_not_finite_count_as_zero_and_spoil_no_other(mode, poison):
    sizes = np.array([3.0, 1.0, 2.0, 0.0, 5.0, 4.0])
    advantage, alive = of_sizes(sizes)
    poisoned = np.where(np.arange(6) == 3, np.float32(poison), advantage)
    expected = probabilities(advantage, alive, 0.8)
    np.testing.assert_allclose(probabilities(poisoned, alive, 0.8), expected, rtol=1e-5)
    rows, weight = many(mode, poisoned, alive, 2000, size=3)
    assert (rows != 3).all() and np.isfinite(weight).all()


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("sizes", [np.zeros(S), np.full(S, np.nan)])
def test_without_any_priority_all_rows_are_equal(mode, sizes):
    advantage, alive = of_sizes(sizes)
    rows, weight = many(mode, advantage, alive, 5000)
    assert stats.chisquare(np.bincount(rows.ravel(), minlength=S)).pvalue > 1e-3
    np.testing.assert_array_equal(weight, np.ones_like(weight))


def test_huge_finite_priorities_do_not_overflow():
    advantage, alive = of_sizes([2e38, 1e38, 1e38, 0.0])
    np.testing.assert_allclose(probabilities(advantage, alive, 1.0), [0.5, 0.25, 0.25, 0.0], atol=1e-5)


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_dead_rows_are_never_drawn(mode, alpha):
    rng = np.random.default_rng(0)
    rows_total = 1000
    advantage, alive = of_sizes(rng.random(rows_total))
    dead = rng.random(rows_total) < 0.5
    advantage = np.where(dead, np.float32(np.nan), advantage)
    alive = alive & ~dead
    rows, weight = many(mode, advantage, alive, 300, size=300, alpha=alpha)
    assert not dead[rows].any()
    assert (weight > 0).all() and np.isfinite(weight).all()
    np.testing.assert_allclose(probabilities(advantage, alive, alpha).sum(), 1.0, rtol=1e-5)


def test_no_random_number_finds_a_dead_row():
    """Not 0, not the largest below 1, and none near any of the running sums."""
    rng = np.random.default_rng(3)
    dead = rng.random(3000) < 0.5
    dead[0] = dead[-1] = True
    share = np.float32(np.where(dead, -np.inf, rng.normal(size=3000)))
    sums = np.asarray(jax.jit(lambda share: jnp.cumsum(jnp.exp(share)))(share))
    near = sums[:, None] / sums[-1] * (1 + np.arange(-4, 5, dtype=np.float32) * np.float32(2.0**-24))
    uniform = np.clip(np.append(near, np.float32([0.0, 1.0])), 0.0, np.float32(1.0 - 2.0**-24))
    assert not dead[jax.jit(find_rows)(share, uniform)].any()


def test_random_numbers_in_order_give_every_row_its_part():
    share = jnp.log(jnp.array([0.5, 2.0, 1.0, 0.0, 0.5]))
    rows = find_rows(share, (jnp.arange(4000) + 0.5) / 4000)
    np.testing.assert_array_equal(np.bincount(rows, minlength=5), [500, 2000, 1000, 0, 500])


def test_only_alive_steps_count():
    advantage, alive = of_sizes([3.0, 3.0])
    half, spoilt = without(alive, (0, 1)), np.array(advantage)
    spoilt[0, 1] = np.nan
    expected = probabilities(*of_sizes([3.0, 3.0 * (T - 1) / T]), 1.0)
    np.testing.assert_allclose(probabilities(spoilt, half, 1.0), expected, rtol=1e-6)


@pytest.mark.parametrize("mode", DRAWN)
def test_too_few_living_rows_leave_gaps_of_weight_zero(mode):
    advantage, alive = of_sizes([1.0, 2.0, 3.0, 4.0])
    alive = without(alive, np.s_[:, 1:])
    rows, weight = many(mode, advantage, alive, 50)
    np.testing.assert_array_equal(weight, (rows == 0).astype(np.float32))
    assert (rows == 0).any(1).all()
    _, none = many(mode, advantage, np.zeros_like(alive), 50)
    np.testing.assert_array_equal(none, np.zeros_like(none))


def test_runs_side_by_side_equal_single_runs():
    advantage, alive = of_sizes(np.arange(1.0, S + 1))
    keys, alphas = jax.random.split(jax.random.key(1), 3), jnp.array([0.0, 0.5, 1.0])

    def draw(key, alpha):
        return choose_rows(key, "prioritized", jnp.arange(M), advantage, alive, alpha=alpha, beta=0.4)

    together, alone = jax.jit(jax.vmap(draw))(keys, alphas), jax.jit(draw)
    for i in range(3):
        rows, weight = alone(keys[i], alphas[i])
        np.testing.assert_array_equal(together[0][i], rows)
        np.testing.assert_allclose(together[1][i], weight, rtol=1e-6)


def test_an_unknown_mode():
    advantage, alive = of_sizes([1.0, 2.0])
    with pytest.raises(
        ValueError, match="mode=random: unknown; allowed: sequential, uniform, prioritized, pri"
    ):
        choose_rows(jax.random.key(0), "random", jnp.arange(2), advantage, alive, alpha=0.0, beta=0.0)


def test_idle_rows_come_last_and_change_nothing_where_there_are_none():
    key, rows = jax.random.key(3), 12
    parts = jax.jit(partition_rows, static_argnums=(1, 2))
    plain = np.asarray(parts(key, rows, 3))
    np.testing.assert_array_equal(parts(key, rows, 3, np.zeros(rows, bool)), plain)
    idle = np.arange(rows) % 3 == 0
    order = np.asarray(parts(key, rows, 3, idle)).ravel()
    assert sorted(order) == list(range(rows))
    assert not idle[order[:8]].any() and idle[order[8:]].all()
    np.testing.assert_array_equal(order[:8], [row for row in plain.ravel() if row % 3])


def test_uniform_draws_leave_out_rows_that_never_act():
    alive = np.broadcast_to(np.arange(8) % 2 == 1, (4, 8))
    rows, weight = many("uniform", np.ones((4, 8), np.float32), alive, 20, alpha=0.0, beta=1.0)
    assert (np.sort(rows) == [1, 3, 5, 7]).all() and (weight == 1.0).all()
