"""When gradient steps take the form that is fast on a CPU, and that this form changes no results."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_others

from algos.nets.networks import MLP, Layers
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.optim import small_batches
from algos.optim.products import matrix_product
from algos.optim.small_batches import (
    FEW_ROWS,
    layer_product,
    lower_for_options,
    small_batch_options,
    step_on_few_rows,
    traced_for_options,
)
from algos.types import ActionSpec, Agent, Block, Rollout, Transition

TIGHT = {"rtol": 1e-5, "atol": 1e-4}
CONTINUOUS = ActionSpec("continuous", (2,))
OBSERVATION, SAMPLES, WIDE = 5, 16, 64
REPLAY = {"widths": (WIDE, WIDE), "replay": {"capacity": 512}}
# Samples per gradient step: 32, 32, 80, 100 and 100.
SMALL = {
    "ppo": PPOConfig(horizon=8, num_minibatches=4, widths=(WIDE, WIDE)),
    "ppo_rnn": PPOConfig(
        horizon=8,
        num_minibatches=4,
        sampling="sequential",
        core={"kind": "gru", "width": 8},
        widths=(WIDE, WIDE),
    ),
    "a2c": A2CConfig(widths=(WIDE, WIDE)),
    "sac": SACConfig(batch_size=100, **REPLAY),
    "td3": TD3Config(batch_size=100, **REPLAY),
}
LARGE = {
    "ppo": PPOConfig(horizon=128, num_minibatches=4),
    "a2c": A2CConfig(horizon=16),
    "sac": SACConfig(replay={"capacity": 512}),
}


def make(config, samples=SAMPLES, **options):
    return config.make((OBSERVATION,), CONTINUOUS, samples=samples, episode_limit=9, goal=None, **options)


def policy_of(agent):
    """A policy of the agent's form, with small numbers everywhere."""
    shapes = jax.eval_shape(lambda key: agent.policy_state(agent.init(key)), jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.asarray(rng.uniform(0.0, 0.1, x.shape), x.dtype), shapes)


def products(config, *, options=True, samples=SAMPLES):
    """The operations of an update of `config` as it is traced for the options, or without them."""
    agent = make(config, samples=samples)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    jitted = jax.jit(lambda state: update(agent, state))
    return (lower_for_options(jitted, state) if options else jitted.lower(state)).as_text()


def update(agent, state):
    """One update from zeros."""
    key = jax.random.key(0)
    if agent.learns == "step":
        zeros, no = jnp.zeros((SAMPLES, 1)), jnp.zeros((SAMPLES, 1), bool)
        obs, action = jnp.zeros((SAMPLES, 1, OBSERVATION)), jnp.zeros((SAMPLES, 1, 2))
        return agent.update(state, key, Transition(obs, action, zeros, zeros, obs, no, no, ~no))
    shape = (8, SAMPLES, 1)
    zeros, no = jnp.zeros(shape), jnp.zeros(shape, bool)
    carry = jax.tree.map(lambda x: x[None], agent.initial_carry(shape[1:]))
    told = {"log_prob": zeros, "value": zeros}
    given = jnp.zeros((*shape, OBSERVATION)), jnp.zeros((*shape, 2)), told, zeros, no, zeros, no, zeros
    return agent.update(state, key, Rollout(*given, ~no, None, carry, zeros[0]))


@pytest.mark.parametrize("name", mark_others(["ppo", "ppo_rnn", "sac", "td3"], "ppo_rnn"))
def test_the_same_agent_is_traced_for_the_options_and_without_them(name):
    """Whatever was traced before: the choice belongs to the program, not to the agent."""
    counts = [
        products(SMALL[name], options=options).count("optimization_barrier")
        for options in (False, True, False)
    ]
    assert counts[1] > counts[0] == counts[2] and (counts[0] > 0) == (name == "ppo_rnn")


@pytest.mark.parametrize("rows", [None, 1, 64, FEW_ROWS, FEW_ROWS + 1])
def test_options_are_those_of_few_rows(rows):
    assert bool(small_batch_options(rows)) == (rows is not None and rows <= FEW_ROWS)


def test_options_need_a_cpu_whose_xla_knows_them(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert small_batch_options(64) == {}
    monkeypatch.undo()
    monkeypatch.setattr(small_batches, "_SPREAD", {"xla_cpu_no_such_setting": "1"})
    assert small_batch_options(64) == {}


def test_a_single_sample_uses_plain_products():
    single = SACConfig(batch_size=1, **REPLAY)
    assert make(single).compiler_options and "optimization_barrier" not in products(single)


@pytest.mark.parametrize("name", SMALL)
def test_agents_of_small_batches_name_the_options(name):
    assert make(SMALL[name]).compiler_options == small_batch_options(64) != {}


@pytest.mark.parametrize("name", LARGE)
def test_agents_of_large_batches_name_none(name):
    assert make(LARGE[name]).compiler_options == {}


def test_an_unknown_number_of_samples_has_plain_products():
    assert make(PPOConfig(horizon=128), samples=None).compiler_options == {}


def few(function, length=1):
    """The function as an agent of 64 rows, or sequences, per step traces it for the options."""

    def call(*given):
        agent = step_on_few_rows(Agent(*[None] * 4, None, function), 64, length)
        assert agent.compiler_options == small_batch_options(64)
        with traced_for_options():
            return agent.update(*given)

    return call


def gradient_text(wrap, rows=64, dtype=jnp.float32):
    """The program of a gradient through two wide layers."""
    mlp = MLP((80, WIDE), Layers(dtype=dtype))
    obs = jnp.zeros((rows, 70))
    params = jax.eval_shape(mlp.init, jax.random.key(0), obs)
    return jax.jit(wrap(jax.grad(lambda p: mlp.apply(p, obs).sum()))).lower(params).as_text()


def test_few_sequences_have_the_options_but_plain_products():
    assert "optimization_barrier" in gradient_text(lambda function: few(function, length=2))
    assert "optimization_barrier" not in gradient_text(lambda function: few(function, length=3))


def test_only_wide_float32_layers_have_transposed_products():
    assert "optimization_barrier" in gradient_text(few)
    assert "optimization_barrier" not in gradient_text(lambda function: function)
    assert "optimization_barrier" not in gradient_text(few, dtype=jnp.bfloat16)
    x, kernel = jnp.ones((4, 70)), jnp.ones((70, WIDE - 1))
    narrow = few(lambda x: layer_product(x, kernel, (((1,), (0,)), ((), ()))))
    np.testing.assert_array_equal(narrow(x), 70.0)
    assert "optimization_barrier" not in str(jax.make_jaxpr(jax.grad(lambda x: narrow(x).sum()))(x))


@pytest.mark.parametrize("rows", [1, 64, FEW_ROWS + 1])
def test_networks_are_those_of_plain_layers(rows):
    mlp = MLP((64, 80), Layers("tanh"))
    obs = np.float32(np.random.default_rng(1).normal(size=(rows, 70)))
    params = jax.jit(mlp.init)(jax.random.key(2), obs)

    def plain(params, obs):
        for name in ("layer_0", "layer_1"):
            layer = {"params": params["params"][name]}
            obs = jnp.tanh(nn.Dense(layer["params"]["bias"].size).apply(layer, obs))
        return obs

    def gradient(apply, params, obs):
        return jax.grad(lambda p: jnp.sum(jnp.square(apply(p, obs))))(params)

    @jax.jit
    def gradients(params, obs):
        return few(lambda *given: gradient(mlp.apply, *given))(params, obs), gradient(plain, params, obs)

    ours, theirs = gradients(params, obs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TIGHT), ours, theirs)


def test_compiler_options_do_not_change_results():
    rng = np.random.default_rng(0)
    arguments = [np.float32(rng.normal(size=shape)) for shape in ((64, 80), (80, 96), (64, 96))]

    def pull_back(x, kernel, slope):
        value, back = jax.vjp(matrix_product, x, kernel)
        return value, *back(slope)

    lowered = jax.jit(pull_back).lower(*arguments)
    options = small_batch_options(64)
    told, untold = lowered.compile(compiler_options=options), lowered.compile()
    for one, other in zip(told(*arguments), untold(*arguments), strict=True):
        np.testing.assert_allclose(one, other, **TIGHT)


def acting(agent):
    """`act` and `greedy` without the parts of a carry, as functions of a state, a key and observations."""

    def act(state, key, obs, carry):
        return agent.act(state, key, obs, carry, jnp.zeros(obs.shape[:-1], bool), None)[0]

    def greedy(state, key, obs, carry):
        return agent.greedy(state, obs, carry, jnp.zeros(obs.shape[:-1], bool), None)[0]

    return {"act": act, "greedy": greedy}


def acting_in_one(agent):
    """`act` and `greedy` by their names, in one program."""
    ways = acting(agent)
    return jax.jit(lambda *given: {name: way(*given) for name, way in ways.items()})


@pytest.mark.parametrize("name", SMALL)
def test_options_leave_the_programs_of_acting_as_they_are(name):
    agent = make(SMALL[name])
    state, key = policy_of(agent), jax.random.key(0)
    given = state, key, np.zeros((7, OBSERVATION), np.float32), agent.initial_carry((7,))
    plain = acting_in_one(agent).lower(*given).as_text()
    assert lower_for_options(acting_in_one(agent), *given).as_text() == plain


@pytest.mark.parametrize("name", mark_others(SMALL, "ppo_rnn", "sac"))
def test_acting_is_exported_for_any_number_of_observations(name):
    """`act` and `greedy` in one program."""
    agent = make(SMALL[name])
    state, key = policy_of(agent), jax.random.key(1)
    (size,) = jax.export.symbolic_shape("b")

    def of_rows(rows):
        carry = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), agent.initial_carry((1,))
        )
        return jax.ShapeDtypeStruct((rows, OBSERVATION), jnp.float32), carry

    function = acting_in_one(agent)
    exported = jax.export.export(function)(state, key, *of_rows(size))
    for rows in (3, FEW_ROWS + 1):
        obs = np.float32(np.random.default_rng(rows).normal(size=(rows, OBSERVATION)))
        carry = agent.initial_carry((rows,))
        expected, found = function(state, key, obs, carry), exported.call(state, key, obs, carry)
        assert set(expected) == {"act", "greedy"} and np.ptp(expected["greedy"]) > 0.01
        for way in expected:
            np.testing.assert_allclose(found[way], expected[way], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["none", "deepset", "attention"])
def test_masked_choices_and_encoders_are_exported_for_any_number_of_environments(kind):
    blocks = (Block("units", 0, (3, 4), "set"), Block("map", 12, (7, 7), "map"))
    config = PPOConfig(widths=(8,), encoder={"kind": kind, "width": 8, "heads": 2})
    agent = config.make((61,), ActionSpec("discrete", (3, 2)), blocks=blocks)
    state = policy_of(agent)

    @jax.jit
    def greedy(state, obs, mask):
        return agent.greedy(state, obs, (), jnp.zeros(obs.shape[:-1], bool), mask)[0]

    lead = (*jax.export.symbolic_shape("b"), 2)
    exported = jax.export.export(greedy)(
        state, jax.ShapeDtypeStruct((*lead, 61), jnp.float32), jax.ShapeDtypeStruct((*lead, 5), bool)
    )
    rng = np.random.default_rng(1)
    obs, mask = np.float32(rng.normal(size=(6, 2, 61))), rng.random((6, 2, 5)) < 0.5
    expected = np.asarray(greedy(state, obs, mask))
    assert np.ptp(expected, axis=(0, 1)).all()
    np.testing.assert_array_equal(exported.call(state, obs, mask), expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_are_traced_for_any_number_of_samples(dtype):
    mlp = MLP((WIDE, WIDE), Layers(dtype=dtype))
    params = jax.eval_shape(mlp.init, jax.random.key(0), jnp.zeros((1, 70)))
    rows = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("b"), 70), jnp.float32)
    jax.export.export(jax.jit(few(jax.grad(lambda p, x: mlp.apply(p, x).sum()))))(params, rows)
