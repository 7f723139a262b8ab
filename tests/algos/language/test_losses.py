"""Terms of the losses: published numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from algos.language import losses

NEW, OLD = jnp.array([[-0.9, -0.2, -1.5]]), jnp.array([[-1.0, -0.5, -1.0]])
SAMPLED, EVERY, WIDTH = jnp.array([[-1.3, -0.45, -0.7]]), jnp.ones((1, 3), bool), 8


@pytest.mark.parametrize(
    ("advantage", "clip_high", "terms", "loss"),
    [
        (0.7, 0.2, [0.773619643, 0.84, 0.424571462], -0.254773888),
        (-0.7, 0.2, [-0.773619643, -0.944901165, -0.56], 0.284815101),
        (0.7, 0.28, [0.773619643, 0.896, 0.424571462], -0.261773888),
    ],
)
def test_clipped_token_ratios(advantage, clip_high, terms, loss):
    found = losses.clipped_ratio_terms(NEW, OLD, jnp.array([advantage]), EVERY, 0.2, clip_high)
    np.testing.assert_allclose(found[0], terms, atol=1e-6)
    np.testing.assert_allclose(-found.sum() / WIDTH, loss, atol=1e-6)


def test_one_ratio_per_answer():
    found = losses.sequence_ratio_terms(NEW, OLD, jnp.array([0.7]), EVERY, 0.2, 0.2)
    np.testing.assert_allclose(-found, [-0.677051270], atol=1e-6)


def test_places_without_a_choice_count_nothing():
    chosen = jnp.array([[True, False, False]])
    wild = jnp.array([[-0.9, -jnp.inf, jnp.nan]])
    for found in (
        losses.reinforce_terms(wild, jnp.array([0.7]), chosen),
        losses.clipped_ratio_terms(wild, OLD, jnp.array([0.7]), chosen, 0.2, 0.2),
        losses.divergence_terms(wild, OLD, chosen),
    ):
        assert np.all(np.isfinite(found)) and np.all(found[0, 1:] == 0)
    none = jnp.zeros((1, 3), bool)
    assert losses.sequence_ratio_terms(NEW, OLD, jnp.array([0.7]), none, 0.2, 0.2)[0] == 0


def test_the_gap_between_acting_and_learning():
    weights = losses.correction_weights(OLD, SAMPLED, EVERY)
    np.testing.assert_allclose(weights[0], [1.349858808, 0.951229425, 0.740818221], atol=1e-6)
    total, number, largest = losses.sampler_gap(OLD, SAMPLED, EVERY)
    np.testing.assert_allclose(total / number, 0.030635484, atol=1e-7)
    np.testing.assert_allclose(largest, 0.3, atol=1e-6)
    assert losses.correction_weights(OLD + 9, SAMPLED, EVERY).max() == losses.MAX_WEIGHT


def test_an_answer_is_weighted_by_the_mean_difference_of_its_tokens():
    few = jnp.array([[True, True, False], [True, True, True], [False, False, False]])
    shift = jnp.array([[0.0], [9.0], [9.0]])
    weights = losses.sequence_correction_weights(OLD + shift, SAMPLED, few)
    np.testing.assert_allclose(weights, [np.exp((0.3 - 0.05) / 2), losses.MAX_WEIGHT, 1.0], atol=1e-6)


@pytest.mark.parametrize(("difference", "expected"), [(0.3, 0.049858808), (-0.5, 0.106530660)])
def test_the_divergence_estimate(difference, expected):
    found = losses.divergence_terms(NEW, NEW + difference, EVERY)
    np.testing.assert_allclose(found, np.full((1, 3), expected), atol=1e-6)
