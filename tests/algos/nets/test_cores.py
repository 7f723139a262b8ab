from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from marked import mark_after, thorough

from algos.nets.cores import Core, CoreConfig

FEATURES, WIDTH, STEPS = 5, 6, 9
VARIANTS = {
    "lstm": {"kind": "lstm"},
    "gru": {"kind": "gru"},
    "mingru": {"kind": "mingru"},
    "mingru linear": {"kind": "mingru", "candidate": "linear"},
    "mingru highway": {"kind": "mingru", "highway": True},
    "mingru parallel": {"kind": "mingru", "scan": "parallel"},
}
# One column per pattern: never, first step, last step, twice in a row, every step, now and then.
RESETS = np.zeros((STEPS, 6), bool)
RESETS[0, 1] = RESETS[-1, 2] = RESETS[3, 3] = RESETS[4, 3] = True
RESETS[:, 4] = True
RESETS[[2, 5, 7], 5] = True


@pytest.fixture(params=mark_after(3, [name for name in VARIANTS if name != "mingru linear"]))
def variant(request) -> str:
    return request.param


@cache
def build(variant, layers=2, dtype=jnp.float32):
    """A core with random parameters, state, inputs `[T, 3, 2, F]` and the resets `[T, 3, 2]`.

    All numbers are float64 if `dtype` is, float32 otherwise.
    """
    core = Core(CoreConfig(width=WIDTH, layers=layers, **VARIANTS[variant]), dtype)
    draws, numbers = np.random.default_rng(0), jnp.promote_types(dtype, jnp.float32)

    def draw(shape, scale=1.0):
        return jnp.asarray(scale * draws.normal(size=shape), numbers)

    x, reset = draw((STEPS, 3, 2, FEATURES)), jnp.asarray(RESETS.reshape(STEPS, 3, 2))
    carry = jax.tree.map(lambda leaf: draw(leaf.shape), core.initial_carry((3, 2)))
    shapes = jax.eval_shape(core.init, jax.random.key(0), carry, x[0], reset[0])
    return core, jax.tree.map(lambda leaf: draw(leaf.shape, 0.5), shapes), carry, x, reset


@partial(jax.jit, static_argnums=0)
def start(core, key, carry, x, reset):
    return core.init(key, carry, x, jnp.asarray(reset))


@partial(jax.jit, static_argnums=0)
def run(core, params, carry, x, reset):
    return core.apply(params, carry, x, reset, method="sequence")


@partial(jax.jit, static_argnums=0)
def loop(core, params, carry, x, reset):
    def step(carry, now):
        return core.apply(params, carry, *now)

    return jax.lax.scan(step, carry, (x, reset))


def assert_close(actual, expected, **tolerances):
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, **tolerances)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lstm_reference(weights, states, x):
    h, c = states
    W, U, b = (weights[key] for key in ("input_kernel", "recurrent_kernel", "bias"))
    block = [slice(n * WIDTH, (n + 1) * WIDTH) for n in range(4)]
    i, f, o = (sigmoid(x @ W[:, s] + h @ U[:, s] + b[s]) for s in (block[0], block[1], block[3]))
    g = np.tanh(x @ W[:, block[2]] + h @ U[:, block[2]] + b[block[2]])
    c = f * c + i * g
    h = o * np.tanh(c)
    return (h, c), h


def gru_reference(weights, states, x):
    (h,) = states
    W, U, b = (weights[key] for key in ("input_kernel", "recurrent_kernel", "bias"))
    r, z, n = (slice(k * WIDTH, (k + 1) * WIDTH) for k in range(3))
    reset = sigmoid(x @ W[:, r] + h @ U[:, r] + b[r])
    keep = sigmoid(x @ W[:, z] + h @ U[:, z] + b[z])
    new = np.tanh(x @ W[:, n] + b[n] + reset * (h @ U[:, n]))
    h = (1 - keep) * new + keep * h
    return (h,), h


def mingru_reference(weights, states, x, linear=False, highway=False):
    (h,) = states
    gates = x @ weights["input_kernel"] + weights["bias"]
    z, new = sigmoid(gates[..., :WIDTH]), gates[..., WIDTH : 2 * WIDTH]
    if not linear:
        new = np.where(new >= 0, new + 0.5, sigmoid(new))
    h = (1 - z) * h + z * new
    if not highway:
        return (h,), h
    skip = x @ weights["skip_kernel"] if "skip_kernel" in weights else x
    s = sigmoid(gates[..., 2 * WIDTH :])
    return (h,), s * h + (1 - s) * skip


def reference(settings, params, carry, x, reset):
    """Steps through the equations in NumPy, layer by layer."""
    step = {"lstm": lstm_reference, "gru": gru_reference, "mingru": mingru_reference}[settings["kind"]]
    options = {}
    if settings["kind"] == "mingru":
        options = {"linear": "candidate" in settings, "highway": "highway" in settings}
    after = []
    for n, states in enumerate(carry):
        weights = {key: np.asarray(value) for key, value in params["params"][f"layer_{n}"].items()}
        states, outputs = tuple(np.asarray(state) for state in states), []
        for now, cleared in zip(np.asarray(x), np.asarray(reset), strict=True):
            states = tuple(np.where(cleared[..., None], 0.0, state) for state in states)
            states, y = step(weights, states, now, **options)
            outputs.append(y)
        x = np.stack(outputs)
        after.append(states)
    return tuple(after), x


@pytest.mark.parametrize("variant", VARIANTS)
def test_sequences_follow_the_equations(variant):
    with jax.enable_x64(True):
        core, params, carry, x, reset = build(variant, dtype=jnp.float64)
        found = run(core, params, carry, x, reset)
        assert found[1].dtype == jnp.float64
        expected = reference(VARIANTS[variant], params, carry, x, reset)
        assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "variant, layers",
    [
        *((name, 2) for name in VARIANTS if name != "mingru linear"),
        ("lstm", 1),
        thorough("mingru linear", 2),
        thorough("mingru", 1),
    ],
)
def test_steps_and_sequences_agree(variant, layers):
    core, params, carry, x, reset = build(variant, layers)
    found, expected = run(core, params, carry, x, reset), loop(core, params, carry, x, reset)
    assert found[1].shape == (STEPS, 3, 2, WIDTH)
    assert jax.tree.structure(found[0]) == jax.tree.structure(core.initial_carry((3, 2)))
    assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_gradients_of_steps_and_sequences_agree(variant):
    with jax.enable_x64(True):
        core, params, carry, x, reset = build(variant, dtype=jnp.float64)
        weight = jnp.asarray(np.random.default_rng(9).normal(size=(STEPS, 3, 2, WIDTH)))

        def gradients(advance):
            def loss(params, carry, x):
                after, y = advance(core, params, carry, x, reset)
                return (weight * y).sum() + sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(after))

            return jax.jit(jax.grad(loss, (0, 1, 2)))(params, carry, x)

        found = gradients(run)
        assert_close(found, gradients(loop), rtol=1e-10, atol=1e-12)
        in_state = np.concatenate([leaf.reshape(6, -1) for leaf in jax.tree.leaves(found[1])], -1)
        cleared = RESETS[0]
        assert np.all(in_state[cleared] == 0) and np.all(np.abs(in_state[~cleared]).sum(-1) > 0)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_are_those_of_finite_differences(kind):
    """The gradient of a gated layer is written out."""
    with jax.enable_x64(True):
        core, params, carry, x, reset = build(kind, layers=1, dtype=jnp.float64)

        def outputs(params, carry, x):
            return run(core, params, carry, x, reset)

        check_grads(outputs, (params, carry, x), order=1, modes=["rev"])


def test_a_reset_starts_afresh_whatever_came_before(variant):
    core, params, carry, x, _ = build(variant)
    cut = 4
    reset = jnp.zeros((STEPS, 3, 2), bool).at[cut].set(True)
    spoilt = jax.tree.map(lambda state: jnp.full_like(state, jnp.nan), carry)
    after, y = run(core, params, spoilt, x.at[:cut].set(jnp.nan), reset)
    never = jnp.zeros((STEPS - cut, 3, 2), bool)
    fresh = run(core, params, core.initial_carry((3, 2)), x[cut:], never)
    assert_close((after, y[cut:]), fresh, rtol=1e-6, atol=1e-6)


def test_later_inputs_change_no_earlier_output_and_memory_reaches_across_steps(variant):
    core, params, carry, x, _ = build(variant)
    reset = jnp.zeros((STEPS, 3, 2), bool)
    _, y = run(core, params, carry, x, reset)
    _, changed = run(core, params, carry, x.at[4].add(1.0), reset)
    np.testing.assert_array_equal(y[:4], changed[:4])
    assert np.all(np.abs(y - changed)[4:].max(axis=(1, 2, 3)) > 1e-6)


def test_parallel_and_sequential_scans_agree():
    def outcome(variant):
        core, params, carry, x, _ = build(variant)
        x = jnp.tile(x, (5, 1, 1, 1))
        reset = jnp.asarray(np.random.default_rng(1).random(x.shape[:-1]) < 0.05)

        def loss(params, carry, x):
            after, y = run(core, params, carry, x, reset)
            return jnp.square(y).mean() + jnp.square(after[-1][0]).mean(), (after, y)

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(params, carry, x)

    assert_close(outcome("mingru parallel"), outcome("mingru"), rtol=1e-4, atol=1e-6)


def test_gradients_of_long_sequences_are_finite(variant):
    core, params, carry, _, _ = build(variant, 1)
    draws = np.random.default_rng(1)
    x = jnp.asarray(draws.normal(size=(256, 3, 2, FEATURES)), jnp.float32)
    # The last agent is never reset.
    reset = jnp.asarray((draws.random((256, 3, 2)) < 0.02) & (np.arange(6).reshape(3, 2) < 5))

    @jax.jit
    def gradients(params, carry, x):
        return jax.grad(lambda *inputs: run(core, *inputs, reset)[1].sum(), (0, 1, 2))(params, carry, x)

    for scale in (1.0, 100.0):
        for leaf in jax.tree.leaves(gradients(params, carry, scale * x)):
            assert np.all(np.isfinite(leaf)) and np.any(leaf != 0)


def initial(**settings):
    core = Core(CoreConfig(width=WIDTH, layers=2, **settings))
    return start(core, jax.random.key(2), core.initial_carry(()), jnp.zeros(FEATURES), False)["params"]


@pytest.mark.parametrize("kind, gates", [("lstm", 4), ("gru", 3), ("mingru", 2)])
def test_orthogonal_initialisation(kind, gates):
    for n, layer in initial(kind=kind).items():
        rows = FEATURES if n == "layer_0" else WIDTH
        kernels = {key: value for key, value in layer.items() if key.endswith("kernel")}
        assert layer["input_kernel"].shape == (rows, gates * WIDTH)
        for kernel in kernels.values():
            np.testing.assert_allclose(kernel @ kernel.T, np.eye(kernel.shape[0]), atol=1e-5)
        np.testing.assert_array_equal(layer["bias"], np.full(gates * WIDTH, float(kind == "lstm")))


def test_uniform_initialisation():
    core = Core(CoreConfig(kind="gru", width=64, weight_init="uniform"))
    params = start(core, jax.random.key(0), core.initial_carry(()), jnp.zeros(30), False)
    for key in ("input_kernel", "recurrent_kernel"):
        kernel = np.asarray(params["params"]["layer_0"][key])
        assert np.abs(kernel).max() <= 1 / 8
        np.testing.assert_allclose(kernel.std(), 1 / 8 / np.sqrt(3), rtol=0.02)
        np.testing.assert_allclose(kernel.mean(), 0.0, atol=0.005)


def test_initial_biases():
    bias = initial(kind="lstm", bias_init=0.25, forget_bias=2.0)["layer_1"]["bias"]
    np.testing.assert_array_equal(bias.reshape(4, WIDTH)[:, 0], [0.25, 2.0, 0.25, 0.25])
    assert np.all(bias.reshape(4, WIDTH) == bias.reshape(4, WIDTH)[:, :1])
    np.testing.assert_array_equal(initial(kind="mingru", bias_init=-1.0)["layer_0"]["bias"], -1.0)


def test_the_forget_gate_is_the_one_that_keeps_the_cell():
    core = Core(CoreConfig(kind="lstm", width=WIDTH, bias_init=-50.0, forget_bias=50.0))
    carry = core.initial_carry((1,))
    x, reset = jnp.zeros((STEPS, 1, FEATURES)), jnp.zeros((STEPS, 1), bool)
    params = start(core, jax.random.key(0), carry, x[0], reset[0])
    ((_, cell),) = run(core, params, ((carry[0][0], carry[0][1] + 0.7),), x, reset)[0]
    np.testing.assert_allclose(cell, 0.7, rtol=1e-6)


def test_highway_needs_no_projection_where_widths_agree():
    params = initial(kind="mingru", highway=True)
    assert params["layer_0"]["skip_kernel"].shape == (FEATURES, WIDTH)
    assert set(params["layer_1"]) == {"input_kernel", "bias"}
    assert params["layer_1"]["input_kernel"].shape == (WIDTH, 3 * WIDTH)


@pytest.mark.parametrize("kind", ["lstm", thorough("gru"), "mingru"])
def test_runs_can_be_vmapped(kind):
    core, _, carry, x, reset = build(kind)

    def one(key):
        return run(core, start(core, key, carry, x[0], reset[0]), carry, x, reset)

    keys = jax.random.split(jax.random.key(3), 3)
    together = jax.jit(jax.vmap(one))(keys)
    for n, key in enumerate(keys):
        alone = one(key)
        assert_close(jax.tree.map(lambda leaf, n=n: leaf[n], together), alone, rtol=1e-5, atol=1e-6)


def test_bfloat16_arithmetic_keeps_float32_parameters_and_state(variant):
    core, params, carry, x, reset = build(variant, dtype=jnp.bfloat16)
    fresh = jax.eval_shape(core.init, jax.random.key(0), carry, x[0], reset[0])
    after, y = run(core, params, carry, x, reset)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((fresh, after, y)))
    full = run(build(variant)[0], params, carry, x, reset)
    assert_close((after, y), full, atol=0.06)
    assert np.abs(y - full[1]).max() > 0


def test_no_core_is_the_identity():
    core = Core(CoreConfig(kind="none"))
    x, reset = jax.random.normal(jax.random.key(0), (STEPS, 2, FEATURES)), jnp.ones((STEPS, 2), bool)
    carry = core.initial_carry((2,))
    params = start(core, jax.random.key(0), carry, x[0], reset[0])
    assert carry == () and not jax.tree.leaves(params)
    for after, y, expected in [
        (*core.apply(params, carry, x[0], reset[0]), x[0]),
        (*run(core, params, carry, x, reset), x),
    ]:
        assert after == ()
        np.testing.assert_array_equal(y, expected)


def test_initial_state_is_zero_and_leads_with_the_batch():
    for kind, states in (("lstm", 2), ("gru", 1), ("mingru", 1)):
        carry = Core(CoreConfig(kind=kind, width=WIDTH, layers=3)).initial_carry((4, 2))
        leaves = jax.tree.leaves(carry)
        assert len(carry) == 3 and len(leaves) == 3 * states
        assert all(leaf.shape == (4, 2, WIDTH) and leaf.dtype == jnp.float32 for leaf in leaves)
        assert not any(np.any(leaf) for leaf in leaves)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kind": "rnn"}, "kind=rnn: unknown; allowed: none, lstm, gru, mingru"),
        ({"kind": "lstm", "width": 0}, "width=0: must be a whole number of at least 1"),
        ({"kind": "lstm", "layers": 1.5}, "layers=1.5: must be a whole number of at least 1"),
        ({"weight_init": "zeros"}, "weight_init=zeros: unknown; allowed: orthogonal, uniform"),
        ({"bias_init": float("nan")}, "bias_init=nan: must be a number from -100 to 100"),
        (
            {"kind": "gru", "forget_bias": 1.0},
            "forget_bias=1.0: must be None with kind=gru; only lstm has it",
        ),
        ({"kind": "lstm", "highway": True}, "highway=True: must be False with kind=lstm; only mingru has it"),
        ({"kind": "mingru", "scan": "tree"}, "scan=tree: unknown; allowed: sequential, parallel"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError) as error:
        CoreConfig(**settings)
    assert str(error.value) == message
