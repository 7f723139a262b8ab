import jax
import numpy as np
import pytest

from algos.nets.action_values import ActionValues, ValueLayer, anneal_epsilon

SIZES = (3, 2)
VALUES = np.float32([[1.0, 5.0, 2.0, -1.0, -3.0], [4.0, 0.0, 0.0, 0.0, 7.0]])
MASK = np.array([[True, False, True, False, True], [True, True, True, True, False]])


def test_the_best_action_is_the_best_legal_option_of_each_choice():
    free, bound = ActionValues(VALUES, None, SIZES), ActionValues(VALUES, MASK, SIZES)
    np.testing.assert_array_equal(free.mode(), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(bound.mode(), [[2, 1], [0, 0]])
    np.testing.assert_array_equal(free.best(), [4.0, 11.0])
    np.testing.assert_array_equal(bound.best(), [-1.0, 4.0])
    np.testing.assert_array_equal(free.of(np.float32([[0, 1], [2, 0]])), [-2.0, 0.0])
    nothing = ActionValues(VALUES, np.zeros_like(MASK), SIZES)
    np.testing.assert_array_equal(nothing.mode(), np.zeros((2, 2)))
    assert np.isfinite(nothing.best()).all()


@jax.jit
def explore(values, mask, key, epsilon):
    return ActionValues(values, mask, SIZES).explore(key, epsilon)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_exploration_draws_only_legal_actions_as_often_as_it_says(epsilon):
    values, mask = (np.broadcast_to(x[:1], (4000, 5)) for x in (VALUES, MASK))
    action = np.asarray(explore(values, mask, jax.random.key(0), epsilon))
    assert set(action[:, 0]) <= {0, 2} and set(action[:, 1]) == {1}
    np.testing.assert_allclose((action[:, 0] == 0).mean(), epsilon / 2, atol=0.03)


def test_dueling_values_of_a_choice_have_the_states_value_as_their_mean():
    layer, x = ValueLayer(SIZES, dueling=True), np.linspace(-1.0, 1.0, 8, dtype=np.float32).reshape(2, 4)
    fresh = jax.device_get(jax.jit(layer.init)(jax.random.key(1), x))
    params = jax.tree.map(lambda p: p + np.float32(0.3), fresh)
    values = np.asarray(jax.jit(layer.apply)(params, x))
    state = params["params"]["state"]
    expected = np.asarray(x @ state["kernel"].T + state["bias"])
    np.testing.assert_allclose(values[:, :3].mean(-1), expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(values[:, 3:].mean(-1), expected[:, 1], rtol=1e-5)
    out = params["params"]["out"]
    plain = np.asarray(x @ out["kernel"].T + out["bias"])
    np.testing.assert_allclose(np.diff(values)[:, :2], np.diff(plain)[:, :2], rtol=1e-4, atol=1e-6)


def test_epsilon_falls_linearly_and_stays():
    hyper = {"epsilon": np.float32(0.9), "epsilon_end": np.float32(0.1)}
    found = [float(anneal_epsilon(hyper, np.float32(x))) for x in (0.0, 0.25, 1.0, 7.0)]
    np.testing.assert_allclose(found, [0.9, 0.7, 0.1, 0.1], rtol=1e-6)
