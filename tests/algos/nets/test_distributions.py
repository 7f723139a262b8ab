import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from algos.nets.distributions import Gaussian, MultiCategorical, SquashedGaussian, kl_divergence

MEAN = jnp.array([[0.3, -1.0], [0.0, 2.0]])
LOG_STD = jnp.array([-0.5, 0.2])


def test_gaussian_agrees_with_scipy():
    distribution = Gaussian(MEAN, LOG_STD)
    action = jnp.array([[0.1, 0.4], [-1.0, 1.0]])
    reference = stats.norm(np.asarray(MEAN), np.exp(LOG_STD))
    np.testing.assert_allclose(distribution.log_prob(action), reference.logpdf(action).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), reference.entropy().sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(), MEAN)


def test_gaussian_samples_have_its_moments():
    samples = jax.jit(jax.vmap(Gaussian(MEAN, LOG_STD).sample))(jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(samples.mean(0), MEAN, atol=0.03)
    np.testing.assert_allclose(samples.std(0), np.broadcast_to(np.exp(LOG_STD), (2, 2)), rtol=0.03)


def test_squashed_density_integrates_to_one_and_gives_the_entropy():
    distribution = SquashedGaussian(jnp.array([0.4]), jnp.array([-0.3]))
    grid = jnp.tanh(jnp.linspace(-7.0, 7.0, 20_001))[:, None]
    grid = np.asarray(grid)
    density = np.exp(np.asarray(jax.jit(jax.vmap(distribution.log_prob))(grid), float))
    np.testing.assert_allclose(np.trapezoid(density, grid[:, 0]), 1.0, atol=1e-3)
    entropy = -np.trapezoid(density * np.log(density), grid[:, 0])
    np.testing.assert_allclose(distribution.entropy(), entropy, atol=2e-3)


def test_squashed_samples_keep_their_log_probability_even_when_saturated():
    distribution = SquashedGaussian(jnp.array([12.0, -0.5]), jnp.array([0.5, 0.0]))
    action = distribution.sample(jax.random.key(1))
    assert jnp.all(jnp.abs(action) < 1.0)
    assert jnp.isfinite(distribution.log_prob(action))
    grads = jax.jit(jax.grad(lambda m: SquashedGaussian(m, distribution.log_std).log_prob(action)))(
        distribution.mean
    )
    assert jnp.all(jnp.isfinite(grads))


def test_squashed_entropy_has_the_gradient_of_its_value():
    def entropy(mean):
        return SquashedGaussian(jnp.array([mean]), jnp.array([-0.3])).entropy()

    slope = (entropy(0.51) - entropy(0.49)) / 0.02
    np.testing.assert_allclose(jax.jit(jax.grad(entropy))(0.5), slope, rtol=1e-2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_illegal_options_are_impossible_and_everything_stays_finite(dtype):
    logits = jnp.array([[1.0, 50.0, -2.0, 0.3, 7.0], [0.0, 0.0, 0.0, -30.0, 1.0]], dtype)
    mask = np.array([[True, False, True, True, False], [False, True, False, True, True]])
    build = lambda x: MultiCategorical.masked(x, (3, 2), mask)  # noqa: E731

    def looks(logits):
        one = build(logits)
        return one.probabilities(), one.entropy(), one.mode(), one.log_prob(one.mode())

    def total(logits):
        _, entropy, _, log_prob = looks(logits)
        return (entropy + log_prob).sum().astype(jnp.float32)

    @jax.jit
    def found(logits):
        probabilities, entropy, action, _ = looks(logits)
        chances = probabilities.astype(jnp.float32)
        return chances, chances[:, :3].sum(-1), jnp.isfinite(entropy), action, jax.grad(total)(logits)

    probabilities, whole, finite, action, grads = (np.asarray(x) for x in found(logits))
    assert (probabilities[~mask] == 0.0).all()
    np.testing.assert_allclose(whole, 1.0, atol=1e-2)
    assert finite.all()
    assert mask[1, 3:][action[1, 1]] and action[0, 0] == 0
    grads = grads.astype(np.float32)
    assert np.isfinite(grads).all()
    assert (grads[~mask] == 0.0).all()

    draw = jax.jit(lambda logits, keys: jax.vmap(build(logits).sample)(keys))
    samples = np.asarray(draw(logits, jax.random.split(jax.random.key(0), 500)))
    assert mask[0, :3][samples[:, 0, 0]].all() and mask[0, 3:][samples[:, 0, 1]].all()
    assert samples.dtype == np.int32


def test_multi_discrete_adds_up_its_choices():
    logits = np.float32([0.5, -1.0, 2.0, 0.1, 0.7])

    @jax.jit
    def found(logits, action):
        distribution = MultiCategorical.masked(logits, (3, 2), None)
        return distribution.log_prob(action), distribution.entropy()

    first, second = special.log_softmax(logits[:3]), special.log_softmax(logits[3:])
    log_prob, entropy = found(logits, np.array([2, 1]))
    np.testing.assert_allclose(log_prob, first[2] + second[1], rtol=1e-6)
    expected = -(np.exp(first) * first).sum() - (np.exp(second) * second).sum()
    np.testing.assert_allclose(entropy, expected, rtol=1e-6)


def test_a_choice_without_legal_options_is_uniform():
    distribution = MultiCategorical.masked(jnp.array([1.0, 2.0, 3.0]), (3,), jnp.zeros(3, bool))
    np.testing.assert_allclose(distribution.probabilities(), np.full(3, 1 / 3), rtol=1e-6)
    assert jnp.isfinite(distribution.entropy())


def test_divergences_are_what_samples_say():
    key = jax.random.key(0)

    @jax.jit
    def compared(a, b):
        actions = jax.vmap(a.sample)(jax.random.split(key, 40_000))
        return kl_divergence(a, b), (a.log_prob(actions) - b.log_prob(actions)).mean(), kl_divergence(a, a)

    first = Gaussian(jnp.array([0.3, -0.2]), jnp.array([-0.5, 0.1]))
    second = Gaussian(jnp.array([0.0, 0.4]), jnp.array([0.2, -0.3]))
    for family in (Gaussian, SquashedGaussian):
        a, b = family(first.mean, first.log_std), family(second.mean, second.log_std)
        found, sampled, none = compared(a, b)
        np.testing.assert_allclose(found, sampled, rtol=0.02)
        np.testing.assert_allclose(none, 0.0, atol=1e-6)
    a, b = (MultiCategorical(jax.random.normal(k, (5,)), (2, 3)) for k in jax.random.split(key))
    found, sampled, _ = compared(a, b)
    np.testing.assert_allclose(found, sampled, rtol=0.05)
