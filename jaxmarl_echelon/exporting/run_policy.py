"""Runs an exported policy with NumPy alone; `python run_policy.py` replays the golden vectors of its folder.

This file is copied into every exported folder of the NumPy format. It needs Python 3.10 and NumPy 1.21, or
newer:

    from run_policy import open_policy

    policy = open_policy("policy")
    memory = policy.initial_memory(1)
    action, memory = policy(obs, memory, reset, mask)

`policy.json` is a list of operations with the names and the meaning of XLA's, `policy.npz` has the weights.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# Largest error of an action, as a share of its range, and of a memory.
TOLERANCE = 1e-5


def sigmoid(x):
    """Logistic function of `[...]`, without overflow."""
    return np.tanh(x * x.dtype.type(0.5)) * x.dtype.type(0.5) + x.dtype.type(0.5)


def select(which, *cases):
    """Elements of one of the cases `[...]`, numbered by `which`, bool or integers."""
    if which.dtype == bool:
        return np.where(which, cases[1], cases[0])
    return np.choose(np.broadcast_to(which, cases[0].shape), cases)


def broadcast(x, shape, dimensions):
    """Repeats `x` to `shape`; its axes become the given `dimensions` of the result."""
    whole = [1] * len(shape)
    for size, axis in zip(x.shape, dimensions, strict=True):
        whole[axis] = size
    return np.broadcast_to(x.reshape(whole), shape)


def contract(x, y, contracting, batch):
    """Sums products over the contracted axes; batch axes come first in the result, then those of x and y."""
    (left, right), (left_batch, right_batch) = contracting, batch
    left_free = [axis for axis in range(x.ndim) if axis not in (*left, *left_batch)]
    right_free = [axis for axis in range(y.ndim) if axis not in (*right, *right_batch)]
    shared = [x.shape[axis] for axis in left_batch]
    rows, columns = ([a.shape[i] for i in free] for a, free in ((x, left_free), (y, right_free)))
    depth = int(np.prod([x.shape[axis] for axis in left], dtype=np.int64))
    x = x.transpose(*left_batch, *left_free, *left)
    y = y.transpose(*right_batch, *right, *right_free)
    x = x.reshape(*shared, int(np.prod(rows, dtype=np.int64)), depth)
    y = y.reshape(*shared, depth, int(np.prod(columns, dtype=np.int64)))
    return (x @ y).reshape(*shared, *rows, *columns)


def convolve(x, kernel, strides, padding, axes):
    """Convolves images, in any order of the axes of input, kernel and output.

    Axes are given as `(batch, features, *space)`. The kernel's first two axes are output and input features.
    """
    of_input, of_kernel, of_output = axes
    x = x.transpose(of_input[0], *of_input[2:], of_input[1])
    kernel = kernel.transpose(*of_kernel[2:], of_kernel[1], of_kernel[0])
    x = np.pad(x, [(0, 0), *padding, (0, 0)])
    window = kernel.shape[:-2]
    sizes = [(n - k) // s + 1 for n, k, s in zip(x.shape[1:-1], window, strides, strict=True)]
    total = np.zeros((x.shape[0], *sizes, kernel.shape[-1]), x.dtype)
    for place in np.ndindex(*window):
        spans = [slice(p, p + s * (n - 1) + 1, s) for p, s, n in zip(place, strides, sizes, strict=True)]
        total += x[(slice(None), *spans)] @ kernel[place]
    order = np.empty(total.ndim, int)
    order[[of_output[0], *of_output[2:], of_output[1]]] = range(total.ndim)
    return total.transpose(*order)


def pad(x, value, edges):
    """Pads with `value`; `edges` are the numbers before and after each axis."""
    return np.pad(x, edges, constant_values=value)


def cut(x, start, stop, step):
    """Slices every axis."""
    return x[tuple(map(slice, start, stop, step))]


def cut_from(x, *starts, sizes):
    """Slices of these sizes from starts that are arrays, moved to lie inside."""
    begin = [min(max(int(a), 0), n - size) for a, n, size in zip(starts, x.shape, sizes, strict=True)]
    return x[tuple(slice(a, a + size) for a, size in zip(begin, sizes, strict=True))]


def count_along(shape, dimension, dtype):
    """Numbers 0, 1, ... along one axis."""
    sizes = [1] * len(shape)
    sizes[dimension] = shape[dimension]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(sizes), shape)


# Name of an operation to a function of its operands and its parameters, which are named as in `policy.json`.
OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "logistic": sigmoid,
    "integer_pow": lambda x, y: x**y,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "select_n": select,
    "convert_element_type": lambda x, dtype: x.astype(dtype),
    "broadcast_in_dim": broadcast,
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, permutation: x.transpose(permutation),
    "rev": lambda x, axes: np.flip(x, axes),
    "concatenate": lambda *xs, axis: np.concatenate(xs, axis),
    "slice": cut,
    "dynamic_slice": cut_from,
    "pad": pad,
    "iota": count_along,
    "reduce_sum": lambda x, axes: x.sum(axes, dtype=x.dtype),
    "reduce_max": lambda x, axes: x.max(axes),
    "reduce_min": lambda x, axes: x.min(axes),
    "reduce_and": lambda x, axes: x.all(axes),
    "reduce_or": lambda x, axes: x.any(axes),
    "argmax": lambda x, axis, dtype: x.argmax(axis).astype(dtype),
    "dot_general": contract,
    "conv_general_dilated": convolve,
}


def resolve_batch(value, batch) -> Any:
    """Replaces `{"per_row": a, "plus": b}` in plain data by `a * batch + b`, and lists by tuples."""
    if isinstance(value, dict):
        return value["per_row"] * batch + value["plus"]
    if isinstance(value, list | tuple):
        return tuple(resolve_batch(one, batch) for one in value)
    return value


def bind_operation(name, parameters, batch):
    """Returns the function of an operation's operands for a batch of this size."""
    function = OPERATIONS[name]
    given = {key: resolve_batch(value, batch) for key, value in parameters.items()}
    if name == "dot_general" and given["batch"] == ((), ()):
        # The usual product, rows times a matrix, needs none of the axes moved.
        (left, right), (rank, other) = given["contracting"], given["ranks"]
        if left == (rank - 1,) and other == 2:
            return np.matmul if right == (0,) else lambda x, y: x @ y.T
    given.pop("ranks", None)
    return partial(function, **given) if given else function


class NumpyProgram:
    """A list of operations with its weights, for batches of any size.

    Args:
      program: content of `policy.json`.
      weights: arrays by name.
    """

    def __init__(self, program, weights):
        self.program, self.plans = program, {}
        self.places, self.start = {}, []
        for name, array in weights.items():
            self._hold(name, array)
        for name in program["inputs"]:
            self._hold(name, None)
        for operation in program["operations"]:
            for operand in operation["in"]:
                if isinstance(operand, dict):
                    self._hold(str(operand), np.dtype(operand["dtype"]).type(operand["value"]))
            self._hold(operation["out"], None)
        for operand in program["outputs"]:
            if isinstance(operand, dict):
                self._hold(str(operand), np.dtype(operand["dtype"]).type(operand["value"]))
        self.first = [self.places[name] for name in program["inputs"]]
        self.last = [self._place(operand) for operand in program["outputs"]]

    def _hold(self, name, value):
        if name not in self.places:
            self.places[name] = len(self.start)
            self.start.append(value)

    def _place(self, operand):
        return self.places[str(operand)]

    def _plan(self, batch):
        return [
            (
                bind_operation(operation["op"], operation["with"], batch),
                [self._place(operand) for operand in operation["in"]],
                self._place(operation["out"]),
            )
            for operation in self.program["operations"]
        ]

    def __call__(self, *inputs):
        """Maps arrays `[B, ...]` in the order of the program's inputs to its outputs."""
        batch = len(inputs[0])
        if batch not in self.plans:
            self.plans[batch] = self._plan(batch)
        held = list(self.start)
        for place, array in zip(self.first, inputs, strict=True):
            held[place] = array
        with np.errstate(all="ignore"):
            for function, operands, out in self.plans[batch]:
                held[out] = function(*[held[place] for place in operands])
        return [held[place] for place in self.last]


class ContractPolicy:
    """A deterministic policy from raw observations to actions in the environment's units.

    Attributes:
      contract: content of `contract.json`.
      program: function of the arrays that the contract lists as inputs.
    """

    def __init__(self, contract, program):
        self.contract, self.program = contract, program

    def initial_memory(self, batch):
        """Returns the memory of `batch` agents at the start of an episode: a list of arrays, maybe empty."""
        return [np.zeros((batch, *one["shape"][1:]), np.float32) for one in self.contract["carry"]]

    def __call__(self, obs, memory=(), reset=None, mask=None):
        """Acts for B agents.

        Args:
          obs: `[B, *shape]`, raw, in the environment's units.
          memory: from the last call, or `initial_memory(B)`.
          reset: bool `[B]`; an episode begins with this decision. None for no resets.
          mask: bool `[B, n]`, the legal actions; None if all are.

        Returns:
          actions, and the memory for the next call.

        Raises:
          ValueError: one line, if an array has another shape than the contract says.
        """
        given = {"obs": obs, "reset": reset, "mask": mask}
        given.update((f"carry_{i}", array) for i, array in enumerate(memory))
        batch = len(obs)
        arrays = []
        for layout in self.contract["inputs"]:
            shape, array = (batch, *layout["shape"][1:]), given.get(layout["name"])
            if array is None and layout["name"] in ("reset", "mask"):
                array = np.full(shape, layout["name"] == "mask")
            array = np.asarray(array, layout["dtype"])
            if array.shape != shape:
                raise ValueError(f"{layout['name']} of shape {array.shape}: must be {shape}")
            arrays.append(array)
        action, *memory = self.program(*arrays)
        return action, memory


def open_policy(folder):
    """Loads the policy of an exported folder of the NumPy format."""
    folder = Path(folder)
    contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    program = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
    with np.load(folder / "policy.npz", allow_pickle=False) as weights:
        return ContractPolicy(contract, NumpyProgram(program, dict(weights)))


def replay_golden(policy, golden, rows=None):
    """Replays recorded inputs step by step.

    Args:
      policy: a `ContractPolicy`.
      golden: arrays `[T, B, ...]`: obs, reset, action, maybe mask, and the memory after each step.
      rows: the number of rows that are replayed, None for all.

    Returns:
      the largest error of an action, as a share of its range, and of a memory; and the number of choices
      that differ.
    """
    space = policy.contract["action"]
    steps = golden["obs"].shape[0]
    memory = policy.initial_memory(golden["obs"][0, :rows].shape[0])
    error, different = 0.0, 0
    for step in range(steps):
        mask = golden["mask"][step, :rows] if "mask" in golden else None
        action, memory = policy(golden["obs"][step, :rows], memory, golden["reset"][step, :rows], mask)
        wanted = golden["action"][step, :rows]
        if np.shape(action) != wanted.shape:
            raise ValueError(f"action of shape {np.shape(action)}: must be {wanted.shape}")
        if space["kind"] == "box":
            span = np.maximum(np.subtract(space["high"], space["low"]), 1e-30)
            error = _largest(error, (action - wanted) / span)
        else:
            different += int((np.asarray(action) != wanted).sum())
        for i, array in enumerate(memory):
            wanted = golden[f"next_carry_{i}"][step, :rows]
            error = _largest(error, (array - wanted) / np.maximum(np.abs(wanted), 1.0))
    return error, different


def _largest(error, differences):
    """The largest of an error and of absolute differences; infinite if one is not a number."""
    differences = np.abs(np.asarray(differences, np.float64))
    worst = float(differences.max()) if differences.size else 0.0
    return max(error, worst) if np.isfinite(worst) else float("inf")


def main():
    """Replays the golden vectors of the folder that this file lies in; exit status 2 where they differ."""
    folder = Path(__file__).resolve().parent
    with np.load(folder / "golden.npz", allow_pickle=False) as arrays:
        error, different = replay_golden(open_policy(folder), dict(arrays))
    print(f"{folder.name}: largest error {error:.1e}, {different} different choices")
    if error > TOLERANCE or different:
        sys.exit(2)


if __name__ == "__main__":
    main()
