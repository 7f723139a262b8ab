import jax
import jax.numpy as jnp
import numpy as np
import pytest
from off_policy_cases import method_of, numpy_critics, numpy_soft_sample, perturbed, sample_of

from algos.off_policy.tqc import Atoms, TQCConfig, drop_largest, quantile_huber, quantile_loss

KEY = jax.random.key(3)
N, B, Q = 5, 6, 25


def quantiles_of(key, scale=3.0):
    return scale * jax.random.normal(jax.random.key(key), (N, B, Q))


def pairwise(quantiles, atoms):
    """The quantile Huber loss of one critic and sample, one pair after the other."""
    total = 0.0
    for i, quantile in enumerate(quantiles):
        level = (i + 0.5) / len(quantiles)
        for atom in atoms:
            error = atom - quantile
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            total += abs(level - float(error < 0)) * huber
    return total / len(quantiles) / len(atoms)


def test_the_largest_of_all_critics_together_are_dropped():
    quantiles = quantiles_of(0).at[2].add(100.0)
    atoms = drop_largest(quantiles, 10)
    assert atoms.value.shape == atoms.kept.shape == (B, 125)
    for b in range(B):
        pooled = np.asarray(quantiles[:, b]).ravel()
        kept = np.asarray(atoms.value[b])[np.asarray(atoms.kept[b]) == 1]
        np.testing.assert_array_equal(np.sort(kept), np.sort(pooled)[:115])


def test_the_exact_number_of_atoms_is_dropped_among_ties():
    assert jnp.all(drop_largest(jnp.ones((N, B, Q)), 10).kept.sum(-1) == 115)
    assert jnp.all(drop_largest(quantiles_of(1), 0).kept == 1)


def test_quantile_huber_equals_the_double_loop_over_kept_atoms():
    quantiles, target = quantiles_of(1), drop_largest(quantiles_of(2), 10)
    loss, td = jax.jit(quantile_loss)(quantiles, target)
    each = quantile_huber(quantiles, target).mean(-1)
    for b in range(B):
        kept = np.asarray(target.value[b])[np.asarray(target.kept[b]) == 1]
        expected = [pairwise(np.asarray(quantiles[n, b]), kept) for n in range(N)]
        np.testing.assert_allclose(each[:, b], expected, rtol=1e-4)
        np.testing.assert_allclose(loss[b], np.sum(expected), rtol=1e-4)
        gap = np.abs(np.asarray(quantiles[:, b]).mean(-1) - kept.mean())
        np.testing.assert_allclose(td[b], gap.mean(), rtol=1e-4)


def test_the_quantile_gradient_is_that_of_the_pairwise_form():
    quantiles, target = quantiles_of(1), drop_largest(quantiles_of(2), 10)
    level = (jnp.arange(Q) + 0.5) / Q

    def direct(quantiles):
        error = target.value[None, :, None, :] - quantiles[..., None]
        huber = jnp.where(jnp.abs(error) <= 1, 0.5 * jnp.square(error), jnp.abs(error) - 0.5)
        weighted = jnp.abs(level[:, None] - (error < 0)) * huber * target.kept[None, :, None, :]
        return (weighted.sum(-1) / 115).mean(-1).sum()

    grads = jax.jit(jax.grad(lambda x: quantile_loss(x, target)[0].sum()))(quantiles)
    np.testing.assert_allclose(grads, jax.jit(jax.grad(direct))(quantiles), rtol=1e-4, atol=1e-6)


def test_quantiles_regress_to_the_quantiles_of_the_atoms():
    """Levels 1/6, 1/2 and 5/6 of 0, 100, ..., 900 are 100, between 400 and 500, and 800."""
    atoms = Atoms(100.0 * jnp.arange(10.0)[None], jnp.ones((1, 10)))

    def step(x, i):
        return x - 20_000.0 / (i + 20.0) * jax.grad(lambda x: quantile_loss(x, atoms)[0].sum())(x), None

    x, _ = jax.lax.scan(step, jnp.full((1, 1, 3), 450.0), jnp.arange(4000.0))
    np.testing.assert_allclose(x[0, 0], [100.0, 450.0, 800.0], atol=55.0)
    np.testing.assert_allclose(x[0, 0, ::2], [100.0, 800.0], atol=5.0)


def test_target_subtracts_the_entropy_term_from_every_atom():
    method, state = method_of(TQCConfig, alpha=0.3, n_critics=3, n_quantiles=4)
    state, batch = perturbed(state), sample_of()
    alpha = float(jnp.exp(state.params["log_alpha"]))
    action, log_prob = numpy_soft_sample(state.params["actor"], batch.next_obs, KEY)
    values = numpy_critics(state.targets["critic"], np.asarray(batch.next_obs), action)
    pooled = np.sort(values.transpose(1, 0, 2).reshape(16, 12), -1)[:, :6]
    soft = pooled - alpha * log_prob[:, None]
    expected = np.asarray(batch.reward)[:, None] + np.asarray(batch.discount)[:, None] * soft
    target = jax.jit(method.target)(state, KEY, batch)
    for b in range(16):
        kept = np.sort(np.asarray(target.value[b])[np.asarray(target.kept[b]) == 1])
        np.testing.assert_allclose(kept, expected[b], rtol=1e-3, atol=1e-4)


def test_actor_maximises_the_mean_over_critics_and_quantiles():
    method, state = method_of(TQCConfig, alpha=0.3)
    state, batch = perturbed(state), sample_of()
    _, metrics = jax.jit(method.improve)(state, KEY, batch)
    alpha = float(jnp.exp(state.params["log_alpha"]))
    action, log_prob = numpy_soft_sample(state.params["actor"], batch.obs, KEY)
    values = numpy_critics(state.params["critic"], np.asarray(batch.obs), action)
    assert values.shape == (5, 16, 25)
    np.testing.assert_allclose(
        metrics["actor_loss"], (alpha * log_prob - values.mean((0, 2))).mean(), rtol=1e-3, atol=1e-4
    )
    assert set(state.targets) == {"critic"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drop_per_critic": 25}, "drop_per_critic=25: must be a whole number from 0 to 24"),
        ({"drop_per_critic": -1}, "drop_per_critic=-1: must be a whole number"),
        ({"n_quantiles": 0}, "n_quantiles=0: must be a whole number of at least 1"),
        ({"n_critics": 0}, "n_critics=0: must be a whole number of at least 1"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        TQCConfig(**settings)
