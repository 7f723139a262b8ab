import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from algos.optim.optimizers import (
    OPTIMIZERS,
    clip_scale,
    global_norm,
    interpolate_schedule,
    make_adam,
    make_optimizer,
    make_rmsprop,
)

PARAMS = {"a": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[0.1], [3.0]])}


def gradients(i):
    return jax.tree.map(lambda x: jnp.sin(x * (i + 1)) * 10.0 ** (-i), PARAMS)


def adam_by_hand(rate, beta1, beta2, eps, max_norm):
    """Kingma and Ba's algorithm 1 in double precision, after the gradients' norm is clipped."""
    params = {name: np.asarray(x, np.float64) for name, x in PARAMS.items()}
    mean, square = ({name: np.zeros_like(x) for name, x in params.items()} for _ in range(2))
    for i in range(5):
        grads = {name: np.asarray(x, np.float64) for name, x in gradients(i).items()}
        norm = np.sqrt(sum((x**2).sum() for x in grads.values()))
        for name, x in grads.items():
            g = x * min(1.0, max_norm / norm)
            mean[name] = beta1 * mean[name] + (1 - beta1) * g
            square[name] = beta2 * square[name] + (1 - beta2) * g**2
            corrected = mean[name] / (1 - beta1 ** (i + 1)), square[name] / (1 - beta2 ** (i + 1))
            params[name] -= rate * corrected[0] / (np.sqrt(corrected[1]) + eps)
    return params


def test_adam_is_the_algorithm_of_the_paper():
    hyper = {"learning_rate": 0.01, "adam_beta1": 0.8, "adam_beta2": 0.99, "adam_eps": 1e-5}
    optimizer = make_adam()
    params, state = PARAMS, optimizer.init(PARAMS)
    for i in range(5):
        grads = gradients(i)
        scale = clip_scale(global_norm(grads), 0.5)
        params, state = optimizer.step(grads, state, params, hyper, scale)
    expected = adam_by_hand(0.01, 0.8, 0.99, 1e-5, 0.5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), params, expected)
    assert state.count == 5


def test_rectified_adam_is_the_algorithm_of_the_paper():
    """Liu et al.'s algorithm 2: momentum alone while the variance is not known, then rectified."""
    rate, beta1, beta2, eps = 0.01, 0.8, 0.9, 1e-5
    hyper = {"learning_rate": rate, "adam_beta1": beta1, "adam_beta2": beta2, "adam_eps": eps}
    optimizer = make_optimizer("radam")
    params, state = PARAMS, optimizer.init(PARAMS)
    expected = {name: np.asarray(x, np.float64) for name, x in PARAMS.items()}
    mean, square = ({name: np.zeros_like(x) for name, x in expected.items()} for _ in range(2))
    longest, rectified = 2 / (1 - beta2) - 1, 0
    for t in range(1, 13):
        grads = gradients(t % 3)
        params, state = optimizer.step(grads, state, params, hyper)
        length = longest - 2 * t * beta2**t / (1 - beta2**t)
        for name, x in grads.items():
            g = np.asarray(x, np.float64)
            mean[name] = beta1 * mean[name] + (1 - beta1) * g
            square[name] = beta2 * square[name] + (1 - beta2) * g**2
            step = mean[name] / (1 - beta1**t)
            if length >= 5:
                r = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
                step = np.sqrt(r) * step / (np.sqrt(square[name] / (1 - beta2**t)) + eps)
            expected[name] -= rate * step
        rectified += length >= 5
    assert 3 < rectified < 12
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), params, expected)


def test_the_first_step_of_rmsprop():
    """By hand: the running mean is (1 - decay) g^2, so the step is rate * g / (sqrt(1 - decay) |g| + eps)."""
    params, hyper = {"x": jnp.array([1.0, 1.0])}, {"learning_rate": 0.1, "rmsprop_decay": 0.75}
    optimizer = make_rmsprop()
    moved, state = optimizer.step(
        {"x": jnp.array([3.0, -4.0])}, optimizer.init(params), params, hyper | {"rmsprop_eps": 0.5}
    )
    np.testing.assert_allclose(state.square["x"], [2.25, 4.0])
    np.testing.assert_allclose(moved["x"], [1.0 - 0.1 * 3.0 / 2.0, 1.0 + 0.1 * 4.0 / 2.5], rtol=1e-6)


def play(step, state, number, evaluation_params=lambda state, params: params):
    """Parameters and parameters to evaluate after each of some steps `(grads, state, params)`."""
    params, history = PARAMS, []
    for i in range(number):
        params, state = step(gradients(i % 4), state, params)
        history.append((params, evaluation_params(state, params)))
    return history


def play_optax(transform, number, evaluation_params=lambda state, params: params):
    def step(grads, state, params):
        updates, state = transform.update(jax.tree.map(lambda g: 0.5 * g, grads), state, params)
        return optax.apply_updates(params, updates), state

    return play(jax.jit(step), transform.init(PARAMS), number, evaluation_params)


HYPER = {
    "learning_rate": 0.03,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_eps": 1e-4,
    "rmsprop_decay": 0.9,
    "rmsprop_eps": 1e-3,
    "weight_decay": 0.2,
}


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("adam", optax.adam(0.03, b1=0.8, b2=0.95, eps=1e-4)),
        ("adamw", optax.adamw(0.03, b1=0.8, b2=0.95, eps=1e-4, weight_decay=0.2)),
        ("rmsprop", optax.rmsprop(0.03, decay=0.9, eps=1e-3, eps_in_sqrt=False)),
    ],
)
def test_optimizers_by_name_equal_optax(name, transform):
    optimizer = make_optimizer(name)

    def step(grads, state, params):
        return optimizer.step(grads, state, params, HYPER | {"gamma": 0.9}, 0.5, True)

    ours = play(jax.jit(step), optimizer.init(PARAMS), 5, optimizer.evaluation_params)
    expected = play_optax(transform, 5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), ours, expected)


@pytest.mark.parametrize("warmup", [0, 6])
def test_schedule_free_equals_optax_and_its_average_differs(warmup):
    optimizer = make_optimizer("schedule_free", warmup_steps=warmup)

    def step(grads, state, params, hyper):
        return optimizer.step(grads, state, params, hyper, 0.5, True)

    traced = {key: jnp.float32(x) for key, x in HYPER.items()}
    compiled = jax.jit(step)
    ours = play(lambda *x: compiled(*x, traced), optimizer.init(PARAMS), 20, optimizer.evaluation_params)
    transform = optax.contrib.schedule_free_adamw(
        0.03, warmup_steps=warmup or None, b1=0.8, b2=0.95, eps=1e-4, weight_decay=0.2
    )
    expected = play_optax(transform, 20, optax.contrib.schedule_free_eval_params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), ours, expected)
    params, average = ours[-1]
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: (jnp.abs(x - y) > 1e-4).all(), params, average)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_named_steps_that_are_not_applied_change_nothing(name):
    optimizer = make_optimizer(name)
    params, state = optimizer.step(gradients(0), optimizer.init(PARAMS), PARAMS, HYPER)
    poisoned = jax.tree.map(lambda x: x * jnp.nan, PARAMS)
    same = jax.jit(optimizer.step)(poisoned, state, params, HYPER, 1.0, jnp.array(False))
    jax.tree.map(np.testing.assert_array_equal, (params, state), same)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learning_rates_side_by_side(name):
    """Whole runs under vmap and scan equal single ones, and a higher rate moves further."""
    optimizer = make_optimizer(name)

    def run(rate):
        def step(carry, i):
            params, state = carry
            grads = jax.tree.map(lambda x: jnp.sin(x) + 0.1 * i, params)
            return optimizer.step(grads, state, params, {"learning_rate": rate}, 1.0, True), None

        (params, state), _ = jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), jnp.arange(5.0))
        return params, optimizer.evaluation_params(state, params)

    rates = jnp.array([0.0, 0.01, 0.02])
    together = jax.jit(jax.vmap(run))(rates)
    for i, rate in enumerate(rates):
        one = jax.tree.map(lambda x, i=i: x[i], together)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), one, jax.jit(run)(rate))
    moved = [global_norm(jax.tree.map(lambda x, p, i=i: x[i] - p, together[0], PARAMS)) for i in range(3)]
    assert moved[0] < 1e-6 < 0.01 < moved[1] < moved[2]


def test_an_unknown_optimizer():
    with pytest.raises(
        ValueError, match="optimizer=sgd: unknown; allowed: adam, radam, adamw, muon, schedule_free, rms"
    ):
        make_optimizer("sgd")


def test_clipping():
    assert global_norm({"x": jnp.array([3.0]), "y": jnp.array([[4.0]])}) == 5.0
    np.testing.assert_allclose(clip_scale(jnp.array(5.0), 0.5), 0.1)
    assert clip_scale(jnp.array(0.2), 0.5) == 1.0
    assert clip_scale(jnp.array(0.0), 0.5) == 1.0
    assert clip_scale(jnp.array(5.0), jnp.inf) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules_go_from_start_to_end_and_stay(schedule):
    values = [
        float(interpolate_schedule(schedule, 4.0, 2.0, jnp.array(p))) for p in (0.0, 0.25, 0.5, 1.0, 3.0)
    ]
    quarter = 3.5 if schedule == "linear" else 3.0 + np.cos(np.pi / 4)
    np.testing.assert_allclose(values, [4.0, quarter, 3.0, 2.0, 2.0], rtol=1e-6)


def test_constant_and_unknown_schedules():
    assert interpolate_schedule("constant", 4.0, 2.0, jnp.array(0.7)) == 4.0
    with pytest.raises(ValueError, match="schedule=steps: unknown; allowed: constant, linear, cosine"):
        interpolate_schedule("steps", 1.0, 0.0, 0.0)
