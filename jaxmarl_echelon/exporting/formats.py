"""Formats of exported policies: how each is written, and how it is opened again."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from algos.types import PyTree
from jaxmarl_echelon import optional_packages
from jaxmarl_echelon.exporting import run_policy
from jaxmarl_echelon.exporting.flat_program import ArrayLayout, flatten_function

# Days that jax promises to read a serialised program for.
READABLE_DAYS = 180
PLATFORMS = ("cpu", "cuda", "tpu")
# Version of ONNX's operators, without an option: many runtimes do not have newer ones.
OPSET = 17
OPSETS = (17, 24)
# onnxruntime's log level without warnings, which are about unused constants.
ERRORS = 3


class ExportedFunction(NamedTuple):
    """A policy as a function of arrays with a leading axis, the batch.

    Attributes:
      call: `(state, *inputs) -> outputs`, pure.
      state: parameters and the frozen normaliser.
      inputs: obs, carry_0, ..., reset, and for choices mask.
      outputs: action, next_carry_0, ...
    """

    call: Callable
    state: PyTree
    inputs: tuple[ArrayLayout, ...]
    outputs: tuple[ArrayLayout, ...]

    def closed(self, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        """Calls the function with its own state; products are float32 on every device."""
        with jax.default_matmul_precision("highest"):
            return self.call(self.state, *arrays)


class Format(NamedTuple):
    """A format.

    Attributes:
      write: `(function, folder, opset) -> facts`, writes its files; the facts join the contract.
      open: `(folder, contract) -> (*arrays) -> outputs`.
      needs: optional packages.
      extra: extra of this project that installs them.
    """

    write: Callable[[ExportedFunction, Path, int], dict[str, Any]]
    open: Callable[[Path, Mapping[str, Any]], Callable]
    needs: tuple[str, ...] = ()
    extra: str = ""


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name as `.npz`, without pickles."""
    np.savez(path, **cast(dict[str, Any], arrays))


def write_numpy(function: ExportedFunction, folder: Path, _opset: int) -> dict[str, Any]:
    """Writes `policy.json`, `policy.npz` and `run_policy.py`; returns no facts.

    Raises:
      ValueError: one line, for an operation that has no form in NumPy.
    """
    flat = flatten_function(function.call, function.state, function.inputs, function.outputs)
    (folder / "policy.json").write_text(json.dumps(flat.program), encoding="utf-8")
    save_arrays(folder / "policy.npz", flat.weights)
    shutil.copyfile(Path(run_policy.__file__), folder / "run_policy.py")
    return {}


def open_numpy(folder: Path, _contract: Mapping[str, Any]) -> Callable:
    """Opens the NumPy format."""
    return run_policy.open_policy(folder).program


def write_stablehlo(function: ExportedFunction, folder: Path, _opset: int) -> dict[str, Any]:
    """Writes `policy.stablehlo`, for all of `PLATFORMS`, any batch; returns until when it can be read."""
    from jax import export

    (batch,) = export.symbolic_shape("B")
    given = [layout.of_batch(batch) for layout in function.inputs]
    exported = export.export(jax.jit(function.closed), platforms=PLATFORMS)(*given)
    (folder / "policy.stablehlo").write_bytes(exported.serialize())
    end = datetime.now().astimezone() + timedelta(days=READABLE_DAYS)
    return {
        "stablehlo": {
            "platforms": list(PLATFORMS),
            "calling_convention_version": exported.calling_convention_version,
            "expires": end.date().isoformat(),
            "note": "later versions of jax may refuse the file; the NumPy format stays readable",
        }
    }


def open_stablehlo(folder: Path, contract: Mapping[str, Any]) -> Callable:
    """Opens the StableHLO format, and compiles it once; only files of known origin should be opened."""
    from jax import export

    exported = export.deserialize(bytearray((folder / "policy.stablehlo").read_bytes()))
    call = jax.jit(exported.call)
    # Versions of jax that cannot read the file say so when it is compiled.
    call(*(np.zeros((1, *one["shape"][1:]), one["dtype"]) for one in contract["inputs"]))
    return lambda *arrays: [np.asarray(array) for array in call(*arrays)]


def write_onnx(function: ExportedFunction, folder: Path, opset: int) -> dict[str, Any]:
    """Writes `policy.onnx` for batches of any size; returns the version of its operators.

    Raises:
      ValueError: one line, for an operation that jax2onnx lacks.
    """
    jax2onnx, onnx = import_module("jax2onnx"), import_module("onnx")
    given = [jax.ShapeDtypeStruct(("B", *layout.shape), np.dtype(layout.dtype)) for layout in function.inputs]
    names = {
        "input_names": [layout.name for layout in function.inputs],
        "output_names": [layout.name for layout in function.outputs],
    }
    try:
        with _quiet("onnx_ir"):
            model = jax2onnx.to_onnx(
                lambda *arrays: function.closed(*arrays),
                given,
                model_name="policy",
                opset=opset,
                return_mode="proto",
                **names,
            )
    except (NotImplementedError, TypeError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"--format=onnx: jax2onnx cannot convert this policy ({reason})") from error
    # Runtimes refuse files of a newer version than theirs, which jax2onnx does not derive from the opset.
    model.ir_version = onnx.helper.find_min_ir_version_for(list(model.opset_import))
    onnx.checker.check_model(model)
    onnx.save(model, folder / "policy.onnx")
    return {"onnx": {"opset": opset, "ir_version": model.ir_version}}


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Holds back warnings of a package: of missing intermediate shapes, which runtimes infer."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def open_onnx(folder: Path, contract: Mapping[str, Any]) -> Callable:
    """Opens the ONNX format with onnxruntime, on one thread."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = ERRORS
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(
        str(folder / "policy.onnx"), options, providers=["CPUExecutionProvider"]
    )
    read = {one.name for one in session.get_inputs()}
    names = [one["name"] for one in contract["inputs"]]
    outputs = [one["name"] for one in contract["outputs"]]

    def call(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        given = {name: array for name, array in zip(names, arrays, strict=True) if name in read}
        return session.run(outputs, given)

    return call


FORMATS = {
    "numpy": Format(write_numpy, open_numpy),
    "stablehlo": Format(write_stablehlo, open_stablehlo, ("flatbuffers",), "export"),
    "onnx": Format(write_onnx, open_onnx, ("jax2onnx", "onnx", "onnxruntime"), "onnx"),
}


def require_format(name: str, opset: int = OPSET) -> None:
    """Checks the name of a format, its options, and that its packages are installed.

    Raises:
      ValueError: one line with the allowed values, or with the command that installs a missing package.
    """
    if name not in FORMATS:
        raise ValueError(f"--format={name}: must be one of {', '.join(FORMATS)}")
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise ValueError(f"--opset={opset}: must be from {OPSETS[0]} to {OPSETS[1]}")
    chosen = FORMATS[name]
    for package in chosen.needs:
        optional_packages.import_package(package, f"--format={name}", chosen.extra)
