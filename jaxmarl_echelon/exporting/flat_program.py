"""Translation of a JAX function to the flat list of operations that `run_policy` executes.

The function is traced for three sizes of the batch. Numbers that differ between two of the traces, such as
the sizes of broadcasts, become linear functions of the batch; the third trace confirms them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from algos.types import PyTree
from jaxmarl_echelon.exporting import run_policy

# Sizes of the batch. None is 1, which would hide an axis.
BATCHES = (3, 5, 7)
# Longest loop that is written out.
LONGEST_LOOP = 16
VERSION = 1

CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "remat",
    "checkpoint",
)
COPIES = ("copy", "copy_p", "stop_gradient", "optimization_barrier")
DTYPES = ("float32", "int32", "uint32", "int8", "uint8", "int16", "uint16", "bool")


class ArrayLayout(NamedTuple):
    """An array of an exported function.

    Attributes:
      name: its name.
      shape: its shape without the first axis, the batch.
      dtype: name of its NumPy dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def of_batch(self, batch: Any) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype for a batch of this, possibly symbolic, size."""
        return jax.ShapeDtypeStruct((batch, *self.shape), np.dtype(self.dtype))


class FlatProgram(NamedTuple):
    """A function as plain data and arrays.

    Attributes:
      program: content of `policy.json`; see `run_policy.NumpyProgram`.
      weights: arrays by name.
    """

    program: dict[str, Any]
    weights: dict[str, np.ndarray]


def flatten_function(
    function: Callable, state: PyTree, inputs: Sequence[ArrayLayout], outputs: Sequence[ArrayLayout]
) -> FlatProgram:
    """Translates `function(state, *inputs) -> outputs` for batches of any size.

    Args:
      function: pure, of a state and arrays with a leading axis.
      state: arrays, which become the weights.
      inputs, outputs: the arrays, in order.

    Raises:
      ValueError: one line, for an operation that has no form in NumPy.
    """
    weights = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    structure = jax.tree.structure(state)
    number = len(weights)

    def of_arrays(*arrays):
        return tuple(function(jax.tree.unflatten(structure, arrays[:number]), *arrays[number:]))

    def written(batch: int) -> _Writer:
        held = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in weights.values()]
        given = [layout.of_batch(batch) for layout in inputs]
        closed = jax.make_jaxpr(of_arrays)(*held, *given)
        return _Writer().write(closed, [*weights, *(layout.name for layout in inputs)])

    traces = [written(batch) for batch in BATCHES]
    first, second, third = ({"operations": t.operations, "outputs": t.results} for t in traces)
    merged = merge_batches(first, second)
    resolved = _resolve(merged, BATCHES[2])
    if resolved != _resolve(third, BATCHES[2]):
        raise ValueError("--format=numpy: the policy's program depends on the size of the batch")
    program = {
        "version": VERSION,
        "inputs": [layout.name for layout in inputs],
        "output_names": [layout.name for layout in outputs],
        **merged,
    }
    return fold_constants(FlatProgram(program, weights | traces[0].constants))


def merge_batches(first: Any, second: Any) -> Any:
    """Merges the plain data of traces of `BATCHES[0]` and `BATCHES[1]` rows into data for any number.

    Raises:
      ValueError: one line, if they differ in more than numbers.
    """
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {key: merge_batches(value, second[key]) for key, value in first.items()}
    if isinstance(first, list | tuple) and isinstance(second, list | tuple) and len(first) == len(second):
        return [merge_batches(a, b) for a, b in zip(first, second, strict=True)]
    if first == second:
        return first
    if type(first) is int and type(second) is int:
        slope, rest = divmod(second - first, BATCHES[1] - BATCHES[0])
        if not rest:
            return {"per_row": slope, "plus": first - slope * BATCHES[0]}
    raise ValueError("--format=numpy: the policy's program depends on the size of the batch")


def _resolve(value: Any, batch: int) -> Any:
    """Resolves plain data for one size of the batch, with all sequences as tuples."""
    if isinstance(value, dict) and "per_row" not in value:
        return {key: _resolve(one, batch) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_resolve(one, batch) for one in value)
    return run_policy.resolve_batch(value, batch)


def fold_constants(flat: FlatProgram) -> FlatProgram:
    """Computes operations of constants alone, and removes operations and weights that nothing reads."""
    program, known, kept = flat.program, dict(flat.weights), []
    for operation in program["operations"]:
        operands = operation["in"]
        constant = all(isinstance(operand, dict) or operand in known for operand in operands)
        if not constant or depends_on_batch(operation["with"]):
            kept.append(operation)
            continue
        values = [_literal(one) if isinstance(one, dict) else known[one] for one in operands]
        with np.errstate(all="ignore"):
            function = run_policy.bind_operation(operation["op"], operation["with"], 1)
            known[operation["out"]] = np.ascontiguousarray(function(*values))
    needed = {operand for operand in program["outputs"] if isinstance(operand, str)}
    live = []
    for operation in reversed(kept):
        if operation["out"] in needed:
            live.append(operation)
            needed |= {operand for operand in operation["in"] if isinstance(operand, str)}
    weights = {name: array for name, array in known.items() if name in needed}
    return FlatProgram(program | {"operations": live[::-1]}, weights)


def depends_on_batch(value: Any) -> bool:
    """Whether plain data contains a number that depends on the batch."""
    if isinstance(value, dict):
        return "per_row" in value or any(map(depends_on_batch, value.values()))
    return isinstance(value, list | tuple) and any(map(depends_on_batch, value))


def _literal(operand: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(operand["value"], operand["dtype"])


class _Writer:
    """Writes the operations of a trace, calls and loops inlined.

    Attributes:
      operations: plain data.
      constants: arrays by name.
      results: operands of the outputs.
    """

    def __init__(self):
        self.operations: list[dict[str, Any]] = []
        self.constants: dict[str, np.ndarray] = {}
        self.results: list[Any] = []

    def write(self, closed: Any, names: Sequence[str]) -> "_Writer":
        """Writes a closed jaxpr whose inputs have these names; returns itself."""
        self.results = self._inline(*self._open(closed), list(names))
        return self

    def _hold(self, array: Any, dtype: Any = None) -> Any:
        """Returns the operand of a constant; literals are Python's numbers with a dtype."""
        array = np.asarray(array, dtype)
        _require_dtype("a constant", array.dtype)
        if array.ndim == 0:
            return {"value": array.item(), "dtype": str(array.dtype)}
        name = f"constant_{len(self.constants)}"
        self.constants[name] = array
        return name

    def _open(self, jaxpr: Any) -> tuple[Any, list[Any]]:
        """Returns a jaxpr and the operands of its constants, which newer versions of jax keep inside."""
        return getattr(jaxpr, "jaxpr", jaxpr), [self._hold(x) for x in getattr(jaxpr, "consts", ())]

    def _emit(self, op: str, operands: Sequence[Any], **parameters: Any) -> str:
        """Adds an operation; returns the name of its result."""
        name = f"v{len(self.operations)}"
        self.operations.append({"op": op, "in": list(operands), "out": name, "with": _plain(parameters)})
        return name

    def _inline(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Writes the equations of a jaxpr; returns the operands of its outputs."""
        held = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

        def read(atom: Any) -> Any:
            return held[atom] if isinstance(atom, core.Var) else self._hold(atom.val, atom.aval.dtype)

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            held.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Writes one equation; returns the operands of its results."""
        name, given = equation.primitive.name, equation.params
        if name in CALLS:
            inner = next(given[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in given)
            return self._inline(*self._open(inner), operands)
        if name in COPIES:
            return operands
        if name == "scan":
            return self._loop(equation, operands)
        for atom in equation.outvars:
            _require_dtype(name, atom.aval.dtype)
        if name == "split":
            return self._split(equation, operands)
        if name == "stack":
            return [self._stack(operands, equation.outvars[0].aval.shape, given["axis"])]
        if name == "convert_element_type" and given["new_dtype"] == equation.invars[0].aval.dtype:
            return operands
        if name not in PARAMETERS:
            allowed = ", ".join(sorted(PARAMETERS))
            raise ValueError(f"--format=numpy: no form of the primitive {name}; allowed: {allowed}")
        op = "reshape" if name in ("squeeze", "expand_dims") else name
        return [self._emit(op, operands, **PARAMETERS[name](equation))]

    def _split(self, equation: Any, operands: list[Any]) -> list[Any]:
        axis, shape, results, start = equation.params["axis"], equation.invars[0].aval.shape, [], 0
        for size in equation.params["sizes"]:
            begin, stop = [0] * len(shape), list(shape)
            begin[axis], stop[axis] = start, start + size
            step = [1] * len(shape)
            results.append(self._emit("slice", operands, start=begin, stop=stop, step=step))
            start += size
        return results

    def _loop(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Writes out a loop of few steps, such as the single one that a recurrent core takes per decision."""
        given, stacks = equation.params, []
        length, (body, inner) = given["length"], self._open(given["jaxpr"])
        if length > LONGEST_LOOP:
            raise ValueError(f"--format=numpy: a scan of {length} steps; must be at most {LONGEST_LOOP}")
        # Constants come first, then what is carried, then rows, which alone have an axis more than in the
        # body; jax 0.12 has no counts of them.
        per_step = _count_rows(equation.invars, body.invars)
        carries = len(body.outvars) - _count_rows(equation.outvars, body.outvars)
        first = len(operands) - per_step
        fixed, carry, rows = operands[: first - carries], operands[first - carries : first], operands[first:]
        shapes = [atom.aval.shape for atom in equation.invars[first:]]
        for step in reversed(range(length)) if given["reverse"] else range(length):
            now = [self._row(row, shape, step) for row, shape in zip(rows, shapes, strict=True)]
            results = self._inline(body, inner, [*fixed, *carry, *now])
            carry = results[:carries]
            stacks.append(results[carries:])
        if given["reverse"]:
            stacks.reverse()
        outs = [atom.aval.shape for atom in equation.outvars[carries:]]
        stacked = [self._stack([row[i] for row in stacks], shape) for i, shape in enumerate(outs)]
        return [*carry, *stacked]

    def _row(self, operand: Any, shape: tuple[int, ...], step: int) -> str:
        """Writes `operand[step]`."""
        if shape[0] > 1:
            start, stop = [step, *[0] * (len(shape) - 1)], [step + 1, *shape[1:]]
            operand = self._emit("slice", [operand], start=start, stop=stop, step=[1] * len(shape))
        return self._emit("reshape", [operand], shape=list(shape[1:]))

    def _stack(self, operands: Sequence[Any], shape: tuple[int, ...], axis: int = 0) -> str:
        """Writes the stack, of this shape, of operands along a new axis."""
        one = [*shape[:axis], 1, *shape[axis + 1 :]]
        rows = [self._emit("reshape", [operand], shape=one) for operand in operands]
        return rows[0] if len(rows) == 1 else self._emit("concatenate", rows, axis=axis)


def _count_rows(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    """Counts the variables that have an axis of steps outside of the body of a loop."""
    return sum(a.aval.ndim > b.aval.ndim for a, b in zip(outer, inner, strict=True))


def _plain(value: Any) -> Any:
    """Returns parameters as JSON holds them: jax has NumPy's numbers in some of them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _require_dtype(what: str, dtype: Any) -> None:
    if str(dtype) not in DTYPES:
        raise ValueError(f"--format=numpy: {what} of dtype {dtype}; allowed: {', '.join(DTYPES)}")


def _pad_parameters(equation: Any) -> dict[str, Any]:
    edges = equation.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in edges):
        raise ValueError(f"--format=numpy: pad by {edges}; must be outside, of at least 0")
    return {"edges": [[low, high] for low, high, _ in edges]}


def _convolution_parameters(equation: Any) -> dict[str, Any]:
    given = equation.params
    plain = (*given["lhs_dilation"], *given["rhs_dilation"], given["feature_group_count"])
    if any(number != 1 for number in (*plain, given["batch_group_count"])):
        raise ValueError("--format=numpy: a convolution with dilation or groups; must have none")
    axes = given["dimension_numbers"]
    return {
        "strides": list(given["window_strides"]),
        "padding": [list(edges) for edges in given["padding"]],
        "axes": [list(axes.lhs_spec), list(axes.rhs_spec), list(axes.out_spec)],
    }


def _division_parameters(equation: Any) -> dict[str, Any]:
    dtype = equation.outvars[0].aval.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"--format=numpy: div of dtype {dtype}; must be float32")
    return {}


def _product_parameters(equation: Any) -> dict[str, Any]:
    contracting, batch = equation.params["dimension_numbers"]
    ranks = [atom.aval.ndim for atom in equation.invars]
    return {
        "contracting": [list(axes) for axes in contracting],
        "batch": [list(axes) for axes in batch],
        "ranks": ranks,
    }


def _shape(equation: Any) -> dict[str, Any]:
    return {"shape": list(equation.outvars[0].aval.shape)}


def _axes(equation: Any) -> dict[str, Any]:
    return {"axes": list(equation.params["axes"])}


def _no_parameters(_equation: Any) -> dict[str, Any]:
    return {}


ARITHMETIC = ("add", "sub", "mul", "max", "min", "pow", "neg", "abs", "sign", "square")
FUNCTIONS = ("sqrt", "rsqrt", "exp", "log", "tanh", "logistic")
LOGIC = ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "clamp", "select_n")

# Name of a primitive to a function from its equation to the operation's parameters.
PARAMETERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **dict.fromkeys((*ARITHMETIC, *FUNCTIONS, *LOGIC), _no_parameters),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _shape),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"), _axes),
    "div": _division_parameters,
    "integer_pow": lambda eqn: {"y": eqn.params["y"]},
    "convert_element_type": lambda eqn: {"dtype": str(eqn.params["new_dtype"])},
    "broadcast_in_dim": lambda eqn: {
        "shape": list(eqn.params["shape"]),
        "dimensions": list(eqn.params["broadcast_dimensions"]),
    },
    "transpose": lambda eqn: {"permutation": list(eqn.params["permutation"])},
    "rev": lambda eqn: {"axes": list(eqn.params["dimensions"])},
    "concatenate": lambda eqn: {"axis": eqn.params["dimension"]},
    "slice": lambda eqn: {
        "start": list(eqn.params["start_indices"]),
        "stop": list(eqn.params["limit_indices"]),
        "step": list(eqn.params["strides"] or [1] * len(eqn.params["start_indices"])),
    },
    "dynamic_slice": lambda eqn: {"sizes": list(eqn.params["slice_sizes"])},
    "pad": _pad_parameters,
    "iota": lambda eqn: {
        "shape": list(eqn.params["shape"]),
        "dimension": eqn.params["dimension"],
        "dtype": str(eqn.params["dtype"]),
    },
    "argmax": lambda eqn: {"axis": eqn.params["axes"][0], "dtype": str(eqn.params["index_dtype"])},
    "dot_general": _product_parameters,
    "conv_general_dilated": _convolution_parameters,
}
