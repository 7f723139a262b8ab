import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import assert_same
from off_policy_cases import changed, make, method_of, numpy_critics, numpy_soft_sample, perturbed, sample_of

from algos.nets.distributions import SquashedGaussian
from algos.off_policy.learning import squared_loss
from algos.off_policy.replay.rings import IntermediateStates
from algos.off_policy.sac import SACConfig

KEY = jax.random.key(11)


def test_log_prob_of_a_sample_is_the_change_of_variables():
    """The density of y = tanh(x) is that of x over the slope dy/dx, here by finite differences."""
    mean, log_std = np.array([0.3, -1.1, 0.0]), np.array([-0.5, 0.4, -2.0])
    action, log_prob = SquashedGaussian(jnp.array(mean), jnp.array(log_std)).sample_and_log_prob(KEY)
    raw = np.arctanh(np.asarray(action, np.float64))
    density = np.exp(-0.5 * ((raw - mean) / np.exp(log_std)) ** 2 - log_std) / np.sqrt(2.0 * np.pi)
    slope = (np.tanh(raw + 1e-5) - np.tanh(raw - 1e-5)) / 2e-5
    np.testing.assert_allclose(log_prob, np.log(density / slope).sum(), rtol=1e-4)


def test_log_prob_of_a_sample_agrees_with_that_of_the_action_and_stays_exact_when_saturated():
    distribution = SquashedGaussian(jnp.array([[0.4, -0.8]]), jnp.array([-0.7, 0.1]))
    action, log_prob = distribution.sample_and_log_prob(KEY)
    np.testing.assert_allclose(log_prob, distribution.log_prob(action), rtol=1e-4)

    far = SquashedGaussian(jnp.array([15.0]), jnp.array([0.0]))
    action, log_prob = far.sample_and_log_prob(KEY)
    raw = 15.0 + float(jax.random.normal(KEY, (1,))[0])
    exact = -0.5 * (raw - 15.0) ** 2 - 0.5 * np.log(2 * np.pi) - 2 * (np.log(2) - raw)
    assert action[0] < 1.0
    np.testing.assert_allclose(log_prob, exact, rtol=1e-5)


@pytest.mark.parametrize("part", ["mean", "log_std"])
def test_gradients_flow_through_mean_and_deviation(part):
    def value(x):
        mean, log_std = (x, -0.4) if part == "mean" else (0.6, x)
        distribution = SquashedGaussian(jnp.array([mean]), jnp.array([log_std]))
        action, log_prob = distribution.sample_and_log_prob(KEY)
        return 3.0 * action[0] ** 2 + log_prob

    at = 0.2
    slope = (value(at + 1e-2) - value(at - 1e-2)) / 2e-2
    assert abs(slope) > 0.1
    np.testing.assert_allclose(jax.jit(jax.grad(value))(at), slope, rtol=1e-2)


def test_target_is_reward_plus_the_least_soft_value_of_what_follows():
    method, state = method_of(SACConfig, alpha=0.3)
    state, batch = perturbed(state), sample_of()
    alpha = float(jnp.exp(state.params["log_alpha"]))
    action, log_prob = numpy_soft_sample(state.params["actor"], batch.next_obs, KEY)
    values = numpy_critics(state.targets["critic"], np.asarray(batch.next_obs), action)[..., 0]
    expected = batch.reward + batch.discount * (np.minimum(*values) - alpha * log_prob)
    target = jax.jit(method.target)(state, KEY, batch)
    np.testing.assert_allclose(target, expected, rtol=1e-3, atol=1e-4)
    ended = np.asarray(batch.discount) == 0
    np.testing.assert_array_equal(target[ended], batch.reward[ended])


def test_intermediate_states_add_the_current_policys_entropy():
    method, state = method_of(SACConfig, alpha=0.3)
    state, batch = perturbed(state), sample_of()
    passed = jax.random.normal(KEY, (16, 2, 4))
    factor = jnp.where(jnp.arange(16)[:, None] % 3 == jnp.array([0, 1]), 0.0, jnp.array([0.9, 0.81]))
    on_the_way = IntermediateStates(obs=passed.at[0, 0].set(jnp.nan), factor=factor)
    target = jax.jit(method.target)
    found = target(state, KEY, batch.replace(between=on_the_way))

    key, key_between = jax.random.split(KEY)
    _, log_prob = numpy_soft_sample(state.params["actor"], passed, key_between)
    alpha = float(jnp.exp(state.params["log_alpha"]))
    expected = target(state, key, batch) - alpha * (np.asarray(factor) * log_prob).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_the_critic_loss_is_the_sum_of_half_squared_errors():
    prediction, target = jnp.array([[[1.0], [2.0]], [[0.0], [5.0]]]), jnp.array([3.0, 3.0])
    loss, td = squared_loss(prediction, target)
    np.testing.assert_allclose(loss, [0.5 * (4 + 9), 0.5 * (1 + 4)])
    np.testing.assert_allclose(td, [2.5, 1.5])


def test_actor_maximises_the_lesser_value_and_the_entropy():
    method, state = method_of(SACConfig, alpha=0.3)
    state, batch = perturbed(state), sample_of()
    _, metrics = jax.jit(method.improve)(state, KEY, batch)
    alpha = float(jnp.exp(state.params["log_alpha"]))
    action, log_prob = numpy_soft_sample(state.params["actor"], batch.obs, KEY)
    values = numpy_critics(state.params["critic"], np.asarray(batch.obs), action)[..., 0]
    np.testing.assert_allclose(
        metrics["actor_loss"], (alpha * log_prob - values.min(0)).mean(), rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(metrics["entropy"], -log_prob.mean(), rtol=1e-3)
    np.testing.assert_allclose(metrics["alpha"], alpha, rtol=1e-6)


def test_the_actor_step_goes_downhill():
    method, state = method_of(SACConfig, alpha=0.3, learning_rate=1e-2)
    state, batch, improve = perturbed(state), sample_of(), jax.jit(method.improve)
    first = improve(state, KEY, batch)[1]["actor_loss"]
    critic = state.params["critic"]
    for _ in range(5):
        state, metrics = improve(state, KEY, batch)
        state = state.replace(params=state.params | {"log_alpha": jnp.log(0.3)})
    assert metrics["actor_loss"] < first
    assert_same(state.params["critic"], critic)


@pytest.mark.parametrize(("target_entropy", "sign"), [(50.0, 1.0), (-50.0, -1.0)])
def test_temperature_rises_where_entropy_is_below_its_target(target_entropy, sign):
    method, state = method_of(SACConfig, target_entropy=target_entropy, alpha_learning_rate=0.01)
    after, _ = jax.jit(method.improve)(state, KEY, sample_of())
    np.testing.assert_allclose(after.params["log_alpha"] - state.params["log_alpha"], 0.01 * sign, rtol=1e-3)


def test_target_entropy_defaults_to_minus_the_dimensions_and_a_rate_of_0_fixes_the_temperature():
    method, state = method_of(SACConfig, alpha=0.2, alpha_learning_rate=0.0)
    assert state.hyper["target_entropy"] == -2.0
    after, metrics = jax.jit(method.improve)(state, KEY, sample_of())
    assert after.params["log_alpha"] == state.params["log_alpha"]
    np.testing.assert_allclose(metrics["alpha"], 0.2, rtol=1e-6)
    assert changed(after.params["actor"], state.params["actor"])


def test_deviation_is_clipped_to_its_range():
    agent, state = make(SACConfig, log_std_min=-1.0, log_std_max=0.0, initial_std=0.5, learning_starts=1)
    head = {"bias": np.full(2, -30.0, np.float32)}
    actor = state.params["actor"]["params"]
    low = actor | {"head": actor["head"] | {"log_std": actor["head"]["log_std"] | head}}
    state = state.replace(params=state.params | {"actor": {"params": low}}, seen=np.int32(10))
    obs, reset = np.zeros((4000, 1, 4), np.float32), np.zeros((4000, 1), bool)
    action, _, _ = jax.jit(agent.act)(state, KEY, obs, (), reset, None)
    np.testing.assert_allclose(np.arctanh(action).std((0, 1)), np.exp(-1.0), rtol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha=0.0: must be a number from"),
        ({"alpha_learning_rate": -1.0}, "alpha_learning_rate=-1.0: must be a number from 0 to 1"),
        ({"log_std_min": 1.0}, "log_std_min=1.0: must be a number from -20 to 0"),
        ({"initial_std": 9.0}, "initial_std=9.0: must be a number from"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        SACConfig(**settings)
