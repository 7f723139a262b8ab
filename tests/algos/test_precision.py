"""Effects of bfloat16 networks on a learner, and quantities that must not change."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import off_policy_cases as cases
import pytest
from arrays import numbers
from marked import thorough

from algos.nets.networks import PRECISIONS
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.types import ActionSpec, Rollout

T, E, F = 16, 8, 6
# A bfloat16 number has 8 significant bits, so one rounding moves it by at most 2^-9 of itself.
ROUNDING = 2.0**-9
OUTPUTS, GRADIENTS = 8 * ROUNDING, 16 * ROUNDING


def make(kind, precision):
    config = PPOConfig(
        horizon=T,
        widths=(32,),
        core={"kind": kind, "width": 32},
        sampling="sequential",
        epochs=1,
        num_minibatches=1,
        max_grad_norm=None,
        learning_rate=0.01,
        compute_dtype=precision,
    )
    agent = config.make((F,), ActionSpec("continuous", (2,)), samples=E, updates=10)
    state = numbers(jax.jit(agent.init)(jax.random.key(0)))
    noise = np.random.default_rng(0)
    moved = jax.tree.map(lambda x: x + np.float32(0.2 * noise.standard_normal(x.shape)), state.params)
    return agent, state.replace(params=moved)


@pytest.fixture(scope="module")
def rollout():
    """Random experience, the same for both precisions."""
    rng = np.random.default_rng(1)

    def normal(*shape):
        return np.float32(rng.standard_normal(shape))

    boundary, ones = rng.random((T, E, 1)) < 0.1, np.ones((T, E, 1), np.float32)
    return Rollout(
        obs=normal(T, E, 1, F),
        action=normal(T, E, 1, 2),
        extras={"log_prob": -2.0 * ones, "value": 0.0 * ones},
        reward=normal(T, E, 1),
        reset=np.concatenate([np.ones((1, E, 1), bool), boundary[:-1]]),
        discount=ones,
        boundary=boundary,
        bootstrap=0.0 * ones,
        alive=ones > 0,
        mask=None,
        carry=(),
        last_value=np.zeros((E, 1), np.float32),
    )


def differ(a, b):
    """Distance of two trees of arrays, relative to the length of the second."""
    a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)]) for tree in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def all_float32(tree):
    numbers = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return bool(numbers) and all(x.dtype == jnp.float32 for x in numbers)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["none", "lstm"])
def test_outputs_and_one_update_of_ppo_stay_close_and_are_kept_in_float32(kind, rollout):
    results = {}
    for precision in ("float32", "bf16"):
        agent, state = make(kind, precision)
        carry = numbers(agent.initial_carry((E, 1)))
        rows = jax.tree.map(lambda x: x[None], carry)
        seen = jax.jit(agent.teach)(state, rollout.obs, carry, rollout.reset, None)
        after, metrics = jax.jit(agent.update)(state, jax.random.key(2), rollout.replace(carry=rows))
        moved = jax.tree.map(np.subtract, numbers(after.params), state.params)
        results[precision] = (seen[0].mean, seen[1]), after.optimizer.mean, moved, metrics
        assert all_float32((seen, after, metrics))
    exact, coarse = results["float32"], results["bf16"]
    assert 0.0 < differ(coarse[0], exact[0]) < OUTPUTS
    assert 0.0 < differ(coarse[1], exact[1]) < GRADIENTS
    # Adam's first step has one length for all gradients, so those near 0 may go the other way.
    assert 0.0 < differ(coarse[2], exact[2]) < 0.15


@pytest.mark.thorough
@pytest.mark.parametrize("config", [TD3Config])
def test_one_update_with_a_replay_stays_close_and_is_kept_in_float32(config):
    results = {}
    for precision in ("float32", "bf16"):
        agent, state = cases.make(config, compute_dtype=precision, widths=(32,))
        update = jax.jit(agent.update)
        for key in range(cases.SMALL["learning_starts"] // cases.ROWS + 1):
            state, metrics = update(state, jax.random.key(key), cases.lived(key))
        assert metrics["gradient_steps"] == 1
        assert all_float32((state, metrics))
        results[precision] = state
    exact, coarse = results["float32"], results["bf16"]
    for part in ("critic", "actor"):
        means = [s.optimizers[part].mean for s in (coarse, exact)]
        assert 0.0 < differ(*means) < GRADIENTS
    assert 0.0 < differ(coarse.params, exact.params) < OUTPUTS


def digits(x):
    """Share of the numbers that are unlike all others."""
    return np.unique(x).size / np.size(x)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (PPOConfig, {}),
        (PPOConfig, {"sampling": "sequential", "core": {"kind": "gru", "width": 16}}),
        (A2CConfig, {"state_dependent_std": True, "squash": True, "shared": True}),
    ],
    ids=["ppo", "ppo_rnn", "a2c"],
)
def test_policies_and_values_of_rollouts_keep_all_digits(config, settings):
    agent = config(widths=(32,), compute_dtype="bf16", **settings).make((F,), ActionSpec("continuous", (2,)))

    @jax.jit
    def look(key):
        state, obs = agent.init(key), jax.random.normal(key, (T, 128, F))
        reset = jnp.zeros((T, 128), bool)
        distribution, value = agent.teach(state, obs, agent.initial_carry((128,)), reset, None)
        return distribution, value, distribution.log_prob(jnp.full((T, 128, 2), 0.1))

    distribution, value, log_prob = look(jax.random.key(0))
    assert all_float32((distribution, value, log_prob))
    seen = [distribution.mean, value, log_prob]
    if "state_dependent_std" in settings:
        seen.append(distribution.log_std)
    assert min(map(digits, seen)) > 0.9


@pytest.mark.parametrize("config", [SACConfig, thorough(TD3Config), thorough(TQCConfig)])
def test_actions_and_critics_of_learners_with_a_replay_keep_all_digits(config):
    settings = {"compute_dtype": "bf16", "widths": (32,)}
    agent, state = cases.make(config, **settings)
    method, _ = cases.method_of(config, **settings)
    obs = np.float32(np.random.default_rng(0).normal(size=(1024, cases.F)))
    # Not compiled as one program, in which XLA's CPU backend may leave roundings out.
    action, _ = agent.greedy(state, obs, (), np.zeros(1024, bool), None)
    seen = action, method.predict(state.params["critic"], SimpleNamespace(obs=obs, action=action))
    assert all_float32(seen)
    assert min(map(digits, seen)) > 0.9


def test_large_values_keep_their_differences():
    """One hidden unit is always 1 and brings the values to 153.6; the others move them by up to 0.4."""
    agent = PPOConfig(widths=(32,), compute_dtype="bf16").make((F,), ActionSpec("continuous", (2,)))
    state = jax.tree.map(np.array, jax.jit(agent.init)(jax.random.key(0)))
    trunk = state.params["params"]["critic_trunk"]["layer_0"]
    trunk["kernel"][:, 0], trunk["bias"][0] = 0.0, 20.0
    out = state.params["params"]["value"]["out"]["kernel"]
    out[:], out[0, 0] = 0.01, 153.6
    obs = np.float32(np.random.default_rng(1).normal(size=(4096, F)))
    value = agent.value(state, obs, (), np.zeros(4096, bool), None)
    assert 153.2 < value.min() < value.max() < 154.0
    assert np.unique(value).size > 2000


def test_the_long_name_is_the_short_one():
    assert PRECISIONS["bfloat16"] == PRECISIONS["bf16"] == jnp.bfloat16
    with pytest.raises(ValueError, match="compute_dtype=fp8: unknown; allowed: float32, bf16, bfloat16"):
        PPOConfig(compute_dtype="fp8")
