"""Policies as lists of operations: the NumPy form acts as JAX does, for every kind of policy."""

import functools

import export_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_others

from jaxmarl_echelon import export
from jaxmarl_echelon.exporting import contract, flat_program, golden, run_policy
from jaxmarl_echelon.exporting.flat_program import ArrayLayout, flatten_function

MASKED = [name for name, case in export_cases.CASES.items() if case[2].mask_size]


@functools.cache
def exported(name):
    """A case's function, its golden vectors, and the policy that NumPy runs."""
    role, agent, state, blocks = export_cases.make_case(name)
    function = export.make_exported_function(agent, state, role)
    vectors = golden.record_golden(function, role, getattr(state, "observations", None), blocks)
    flat = flatten_function(function.call, function.state, function.inputs, function.outputs)
    facts = {
        "inputs": contract.describe_arrays(function.inputs),
        "carry": export.describe_carry(agent),
        "action": contract.describe_action(role.action),
    }
    return (
        function,
        vectors,
        run_policy.ContractPolicy(facts, run_policy.NumpyProgram(flat.program, flat.weights)),
        flat,
    )


@pytest.mark.parametrize("name", mark_others(export_cases.CASES, *list(export_cases.CASES)[::3]))
def test_numpy_acts_as_jax_does(name):
    """Over several decisions with resets and masks, in batches of 8, 1 and 17 from one program."""
    _, vectors, policy, _ = exported(name)
    assert vectors["action"].std(axis=(0, 1)).min() > 1e-3  # or there would be nothing to see
    for rows in (None, 1):
        error, different = run_policy.replay_golden(policy, vectors, rows)
        assert error <= 1e-5 and different == 0
    many = {key: np.resize(array[0], (17, *array.shape[2:])) for key, array in vectors.items()}
    action, memory = policy(many["obs"], policy.initial_memory(17), many["reset"], many.get("mask"))
    np.testing.assert_allclose(action, many["action"], atol=1e-5, rtol=1e-5)
    assert action.dtype == many["action"].dtype
    for i, array in enumerate(memory):
        np.testing.assert_allclose(array, many[f"next_carry_{i}"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MASKED)
def test_masked_actions_are_never_taken(name):
    _, vectors, policy, _ = exported(name)
    sizes, edges = policy.contract["action"]["choices"], [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    memory, free = policy.initial_memory(golden.ROWS), 0
    for step in range(golden.STEPS):
        obs, reset, mask = (vectors[key][step] for key in ("obs", "reset", "mask"))
        action, after = policy(obs, memory, reset, mask)
        for choice in range(len(sizes)):
            chosen = edges[choice] + action.reshape(golden.ROWS, -1)[:, choice]
            assert np.take_along_axis(mask, chosen[:, None], 1).all()
        free += int((policy(obs, memory, reset)[0] != action).sum())
        memory = after
    assert free  # without the mask others would be taken


@pytest.mark.parametrize("name", ["lstm", "gru", "mingru"])
def test_memory_is_kept_until_a_reset(name):
    _, vectors, policy, _ = exported(name)
    obs, fresh = vectors["obs"][0], policy.initial_memory(golden.ROWS)
    _, memory = policy(obs, fresh)
    assert all(np.abs(array).min() > 0 for array in memory)
    reset = np.arange(golden.ROWS) % 2 == 0
    after, alone = policy(obs, memory, reset)[1], policy(obs, fresh)[1]
    for kept, start in zip(after, alone, strict=True):
        np.testing.assert_array_equal(kept[reset], start[reset])
        assert (kept[~reset] != start[~reset]).all()


def test_programs_hold_neither_critics_nor_optimisers():
    _, _, _, flat = exported("ppo average")
    assert not [
        name for name in flat.weights if "critic" in name or "value" in name or "params.params" in name
    ]
    widths = sorted(
        array.shape for array in flat.weights.values() if array.ndim == 2 and min(array.shape) > 1
    )
    assert widths == [(2, 8), (5, 8), (8, 8)]


def test_observations_of_another_shape_are_refused():
    _, _, policy, _ = exported("ppo")
    with pytest.raises(ValueError, match=r"obs of shape \(4, 3\): must be \(4, 5\)"):
        policy(np.zeros((4, 3)))


def flatten(function, state=(), shape=(4,)):
    layouts = [ArrayLayout("obs", shape, "float32")], [ArrayLayout("action", shape, "float32")]
    return flatten_function(function, state, *layouts)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _, x: [jax.lax.lgamma(x)], "no form of the primitive lgamma; allowed: abs, add, "),
        (
            lambda _, x: [x.astype(jnp.bfloat16) + 1],
            "convert_element_type of dtype bfloat16; allowed: float32",
        ),
        (
            lambda _, x: [jax.lax.fori_loop(0, 99, lambda _, y: y * 2, x)],
            "a scan of 99 steps; must be at most",
        ),
        (lambda _, x: [x if len(x) > 3 else 2 * x], "depends on the size of the batch"),
    ],
)
def test_what_numpy_cannot_run_is_named(function, words):
    with pytest.raises(ValueError, match=f"--format=numpy: .*{words}"):
        flatten(function)


def test_loops_are_written_out():
    def function(weights, x):
        after, rows = jax.lax.scan(lambda c, w: (c * w, c + w), x, weights, reverse=True)
        return [after + rows.sum(0)]

    weights, x = np.array([2.0, 3.0, 5.0], np.float32), np.ones((3, 4), np.float32)
    flat = flatten(function, weights)
    (ours,) = run_policy.NumpyProgram(flat.program, flat.weights)(x)
    np.testing.assert_allclose(ours, function(weights, x)[0], rtol=1e-6)


def test_constants_are_computed_once():
    weights = np.arange(4, dtype=np.float32)
    flat = flatten(lambda w, x: [x + jnp.exp(w) * 2], weights)
    assert [one["op"] for one in flat.program["operations"]] == ["add"]
    (constant,) = flat.weights.values()
    np.testing.assert_allclose(constant.reshape(4), np.exp(weights) * 2, rtol=1e-6)


def test_sizes_follow_the_batch():
    assert flat_program.merge_batches({"shape": [3, 12, 4]}, {"shape": [5, 20, 4]}) == {
        "shape": [{"per_row": 1, "plus": 0}, {"per_row": 4, "plus": 0}, 4]
    }
    with pytest.raises(ValueError, match="depends on the size of the batch"):
        flat_program.merge_batches({"op": "add"}, {"op": "mul"})


OPERATIONS = {
    "arithmetic": lambda x: (
        jnp.abs(x) ** 1.5 - jnp.sign(x) * x**3 / jnp.sqrt(1 + x * x) + jnp.minimum(x, 0.2)
    ),
    "functions": lambda x: (
        jnp.exp(-x) + jnp.log(jnp.abs(x) + 1) + jax.nn.sigmoid(9 * x) + jax.lax.rsqrt(x * x + 1)
    ),
    "comparisons": lambda x: ((x > 0) | (x <= -1)) & ~(x == 2) & (x >= -3) & (x < 3) | (x != x),
    "reductions": lambda x: jnp.stack(
        [x.min(1), x.max(1), x.sum(1), (x > 0).any(1), (x > 0).all(1) * 1.0], 1
    ),
    "shapes": lambda x: jnp.pad(x[:, ::-1][:, 1:].T, ((1, 2), (0, 0)), constant_values=3.0).T,
    "choices": lambda x: jax.lax.select_n(
        jnp.minimum(jnp.argmax(x, 1), 2)[:, None] + jnp.zeros((1, 4), int), x, 2 * x, 3 * x
    ),
    "counts": lambda x: x + jnp.arange(4) + jax.lax.broadcasted_iota(jnp.float32, x.shape, 1),
    "products": lambda x: jnp.einsum("bi,bj,kj->bik", x, x, jnp.ones((3, 4))),
    "parts": lambda x: jnp.split(x, [1, 3], axis=1)[1] + jax.lax.dynamic_slice(x, (0, 5), (x.shape[0], 2)),
    "cores": lambda x: jnp.clip(x, -0.5, 0.5).reshape(-1, 2, 2).transpose(0, 2, 1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_the_meaning_of_xlas(name):
    function, x = OPERATIONS[name], np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32) * 2
    flat = flatten(lambda _, x: [function(x)])
    (ours,) = run_policy.NumpyProgram(flat.program, flat.weights)(x)
    theirs = np.asarray(function(jnp.asarray(x)))
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
