import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.nets.normalize import (
    exact_moments,
    explained_variance,
    init_moments,
    init_reward_scale,
    masked_mean_or_zero,
    merge_moments,
    normalize_by_moments,
    scale_reward,
    standardize,
    update_reward_scale,
)


def test_batches_merge_to_the_moments_of_everything():
    rng = np.random.default_rng(0)
    batches = [rng.normal(50.0, 3.0, size=(n, 2, 4)) for n in (5, 1, 30)]
    alive = [rng.random((n, 2)) < 0.7 for n in (5, 1, 30)]
    moments = init_moments((4,))
    for batch, keep in zip(batches, alive, strict=True):
        poisoned = np.where(keep[..., None], batch, np.nan)
        moments = merge_moments(moments, jnp.asarray(poisoned, jnp.float32), jnp.asarray(keep))
    pooled = np.concatenate([b[k] for b, k in zip(batches, alive, strict=True)])
    np.testing.assert_allclose(moments.mean, pooled.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.var, pooled.var(0), rtol=1e-4)
    assert moments.count == len(pooled)


@pytest.mark.parametrize("size", [1, 7, 1024])
@pytest.mark.parametrize("count", [2.0**24, 5e7, 2.0**34])
def test_moments_follow_every_batch_however_many_samples_came_before(count, size):
    """Updates agree with float64, also for skewed samples or a large mean."""
    rng = np.random.default_rng(0)
    batches = rng.exponential(1.0, (300, size, 2)).astype(np.float32) + np.array([0.0, 64.0], np.float32)
    mean, var, total = np.array([1.0, 65.0]), np.ones(2), count
    start = exact_moments(jnp.array(mean, jnp.float32), jnp.ones(2), jnp.float32(count))
    moments, _ = jax.jit(
        lambda m, x: jax.lax.scan(lambda m, b: (merge_moments(m, b, jnp.ones(size, bool)), None), m, x)
    )(start, batches)

    for batch in batches.astype(np.float64):
        shift, weight = batch.mean(0) - mean, size / (total + size)
        var = var + weight * (batch.var(0) - var + shift**2 * (1 - weight))
        mean, total = mean + weight * shift, total + size

    def moved(name, origin):
        kept = (np.asarray(getattr(moments, part), np.float64) for part in (name, f"{name}_rest"))
        return sum(kept, start=-np.asarray(origin, np.float64))

    scale = 300 * size / count
    np.testing.assert_allclose(moved("mean", [1.0, 65.0]) / scale, (mean - [1.0, 65.0]) / scale, atol=1e-4)
    np.testing.assert_allclose(moved("var", [1.0, 1.0]) / scale, (var - 1.0) / scale, atol=1e-3)
    assert moved("count", count) == 300 * size


def test_the_variance_of_the_first_batch_may_be_tiny():
    batch = jnp.array([[0.0], [2e-5]])
    moments = merge_moments(init_moments((1,)), batch, jnp.ones(2, bool))
    np.testing.assert_allclose(moments.var, 1e-10, rtol=1e-5)


def test_merging_no_samples_changes_nothing():
    moments = merge_moments(init_moments((3,)), jnp.arange(12.0).reshape(4, 3), jnp.ones(4, bool))
    same = merge_moments(moments, jnp.full((4, 3), jnp.nan), jnp.zeros(4, bool))
    jax.tree.map(np.testing.assert_array_equal, moments, same)
    x = jnp.array([0.5, -2.0, 3.0])
    np.testing.assert_allclose(normalize_by_moments(init_moments((3,)), x), x, rtol=1e-6)


def test_normalize_centres_scales_and_clips():
    moments = init_moments((2,)).replace(mean=jnp.array([1.0, 0.0]), var=jnp.array([4.0, 1e-12]))
    np.testing.assert_allclose(normalize_by_moments(moments, jnp.array([5.0, -1.0])), [2.0, -10.0], rtol=1e-6)


def test_reward_sums_are_carried_between_rollouts_and_reset_at_boundaries():
    rng = np.random.default_rng(1)
    reward = rng.normal(1.0, 5.0, size=(20, 3, 2))
    boundary = rng.random((20, 3, 2)) < 0.2
    alive = rng.random((20, 3, 2)) < 0.9
    scale = init_reward_scale(6)
    for part in (slice(0, 8), slice(8, 20)):
        poisoned = jnp.asarray(np.where(alive, reward, np.nan)[part], jnp.float32)
        scale = update_reward_scale(
            scale, poisoned, jnp.asarray(boundary[part]), jnp.asarray(alive[part]), 0.9
        )

    seen, sums = [], np.zeros((3, 2))
    for t in range(20):
        sums = np.where(alive[t], 0.9 * sums + reward[t], sums)
        seen.append(sums[alive[t]])
        sums = np.where(boundary[t], 0.0, sums)
    np.testing.assert_allclose(scale.moments.var, np.concatenate(seen).var(), rtol=1e-4)
    np.testing.assert_allclose(scale.sums.reshape(3, 2), sums, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        scale_reward(scale, jnp.array([0.0, 2.0, -4.0])),
        np.array([0.0, 2.0, -4.0]) / np.concatenate(seen).std(),
        rtol=1e-4,
    )


def test_masked_statistics_ignore_what_is_not_kept():
    x = jnp.array([1.0, jnp.nan, 3.0, 8.0])
    keep = jnp.array([True, False, True, True])
    assert masked_mean_or_zero(x, keep) == 4.0
    assert masked_mean_or_zero(x, jnp.zeros(4, bool)) == 0.0
    kept = standardize(x, keep)[np.asarray(keep)]
    np.testing.assert_allclose([kept.mean(), kept.std()], [0.0, 1.0], atol=1e-6)


def test_explained_variance():
    target = jnp.array([1.0, 2.0, 3.0, 100.0])
    keep = jnp.array([True, True, True, False])
    np.testing.assert_allclose(explained_variance(target + 5.0, target, keep), 1.0, atol=1e-6)
    np.testing.assert_allclose(explained_variance(jnp.zeros(4), target, keep), 0.0, atol=1e-6)
    np.testing.assert_allclose(explained_variance(-target, target, keep), -3.0, rtol=1e-6)
    assert explained_variance(target, jnp.ones(4), keep) == 0.0
