"""Means of metrics over gradient steps and learners, of which some have nothing to say."""

import jax.numpy as jnp
import numpy as np
import pytest

from algos.metrics import mean_over_learners, mean_over_steps, step_count_name


def metrics_of(**columns):
    return {name: jnp.asarray(values, jnp.float32) for name, values in columns.items()}


def test_the_steps_that_a_metric_is_of():
    names = {"losses/car/actor_steps", "losses/car/gradient_steps", "losses/bus/actor_loss"}
    assert step_count_name("losses/car/actor_loss", names) == "losses/car/actor_steps"
    assert step_count_name("losses/car/critic_loss", names) == "losses/car/gradient_steps"
    assert step_count_name("losses/bus/actor_loss", names) is None
    assert (
        step_count_name("losses/car/parameter_norm", names)
        is step_count_name("losses/car/actor_steps", names)
        is None
    )
    assert step_count_name("alpha", {"gradient_steps"}) == "gradient_steps"


def test_a_loss_is_a_mean_over_the_steps_of_its_own_part():
    """A delay of two and five decisions with steps: the actor steps in the second and in the fourth."""
    metrics = metrics_of(
        gradient_steps=[0, 1, 1, 1, 1, 1],
        actor_steps=[0, 0, 1, 0, 1, 0],
        actor_loss=[0, 0, 3, np.nan, 5, 0],
        critic_loss=[np.nan, 1, 2, 3, 4, 5],
        parameter_norm=[1, 1, 2, 2, 3, 3],
    )
    found = mean_over_steps(metrics)
    expected = {"gradient_steps": 5, "actor_steps": 2, "actor_loss": 4, "critic_loss": 3, "parameter_norm": 2}
    assert {name: float(x) for name, x in found.items()} == expected
    none = mean_over_steps(metrics | metrics_of(actor_steps=np.zeros(6)))
    assert np.isnan(none["actor_loss"]) and none["critic_loss"] == 3


def test_a_loss_that_is_not_finite_in_a_step_shows():
    assert np.isnan(
        mean_over_steps(metrics_of(gradient_steps=[1, 1], critic_loss=[np.nan, 1]))["critic_loss"]
    )


@pytest.mark.parametrize("norm", [2.0, np.nan])
def test_learners_without_steps_say_nothing_of_losses(norm):
    """The second has no samples, the third stopped early and counts as much as the first."""
    found = mean_over_learners(
        metrics_of(
            gradient_steps=[8, 0, 1],
            policy_loss=[1, np.nan, 3],
            skipped_minibatches=[0, 0, 1],
            parameter_norm=[1, norm, 3],
        )
    )
    assert (found["policy_loss"], found["skipped_minibatches"], found["gradient_steps"]) == (2, 0.5, 3)
    np.testing.assert_array_equal(found["parameter_norm"], norm)
    assert np.isnan(
        mean_over_learners(metrics_of(gradient_steps=[0, 0], policy_loss=[np.nan] * 2))["policy_loss"]
    )
