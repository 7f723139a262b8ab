"""Folders of exported policies: writing, loading and checking."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algos.types import PyTree
from jaxmarl_echelon import output_folders
from jaxmarl_echelon.exporting import contract as contracts
from jaxmarl_echelon.exporting.formats import FORMATS, ExportedFunction, require_format, save_arrays
from jaxmarl_echelon.exporting.run_policy import TOLERANCE, ContractPolicy, replay_golden

# What readers of a contract rely on.
NEEDED = ("role", "observation", "action", "carry", "inputs", "outputs", "versions", "files")


class ExportedPolicy:
    """A policy from an exported folder, with the calls of `jaxmarl_echelon.Policy`.

    Attributes:
      contract: content of `contract.json`.
      program: function of the arrays that the contract lists as inputs.
    """

    def __init__(self, contract: Mapping[str, Any], program):
        self.contract, self.program = contract, program
        self._policy = ContractPolicy(contract, program)

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        facts = self.contract
        return f"ExportedPolicy(format={facts['format']}, role={facts['role']})"

    def initial_memory(self, batch_shape: tuple[int, ...]) -> PyTree:
        """Returns the initial memory of `batch_shape` agents: a tuple of arrays; `()` without one."""
        return tuple(
            np.zeros((*batch_shape, *one["shape"][1:]), np.float32) for one in self.contract["carry"]
        )

    def __call__(self, obs, memory: PyTree = (), reset=None, mask=None) -> tuple[np.ndarray, PyTree]:
        """Acts for a batch of agents; arguments and results as of `jaxmarl_echelon.Policy`.

        Raises:
          ValueError: one line, for an array of another shape than the contract says.
        """
        obs, shape = np.asarray(obs), tuple(self.contract["observation"]["shape"])
        batch = obs.shape[: obs.ndim - len(shape)]
        if obs.shape != (*batch, *shape):
            raise ValueError(f"obs of shape {obs.shape}: must end with {shape}")

        def rows(array):
            return None if array is None else np.asarray(array).reshape(-1, *np.shape(array)[len(batch) :])

        action, after = self._policy(rows(obs), [*map(rows, memory)], rows(reset), rows(mask))
        action, *after = (array.reshape(*batch, *array.shape[1:]) for array in (action, *after))
        return action, tuple(after)


def write_folder(
    folder: Path,
    name: str,
    function: ExportedFunction,
    golden: Mapping[str, np.ndarray],
    facts: Mapping[str, Any],
    opset: int,
) -> float:
    """Writes an exported folder, whole or not at all, and replays its golden vectors.

    Args:
      folder: to be made.
      name: a key of `FORMATS`.
      function: the policy.
      golden: from `record_golden`.
      facts: the rest of the contract.
      opset: version of ONNX's operators.

    Returns:
      the largest error of the golden vectors.

    Raises:
      ValueError: one line, for a folder that exists, a policy that the format cannot hold, or that it
        changes.
    """
    require_new(folder)
    output_folders.make_folder(folder.parent)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}_", dir=folder.parent))
    try:
        own = FORMATS[name].write(function, partial, opset)
        save_arrays(partial / contracts.GOLDEN, golden)
        contract = {
            "contract_version": contracts.VERSION,
            "format": name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **facts,
            **own,
            "inputs": contracts.describe_arrays(function.inputs),
            "outputs": contracts.describe_arrays(function.outputs),
            "files": contracts.hash_files(partial),
        }
        text = contracts.format_contract(contract)
        (partial / contracts.CONTRACT).write_text(text, encoding="utf-8")
        error = check_folder(partial, name=folder)
        partial.chmod(0o777 & ~_umask())
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return error


def _umask() -> int:
    """Returns the permissions that new files lack; a temporary folder has only those of its owner."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def require_new(folder: Path) -> None:
    """Checks that a folder does not exist; raises a one-line ValueError."""
    if output_folders.is_taken(folder):
        raise ValueError(f"--output={folder}: exists already")


def is_exported(folder: str | Path) -> bool:
    """Whether a folder is that of an exported policy."""
    return (Path(folder) / contracts.CONTRACT).is_file()


def read_contract(folder: Path) -> dict[str, Any]:
    """Reads the contract of an exported folder.

    Raises:
      ValueError: one line, for a folder without one, or one of a later version.
    """
    path = folder / contracts.CONTRACT
    if not is_exported(folder):
        raise ValueError(f"{folder}: no exported policy, as it has no {contracts.CONTRACT}")
    try:
        contract = json.loads(path.read_text(encoding="utf-8"))
        version, name = contract["contract_version"], contract["format"]
        for key in NEEDED:
            contract[key]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
    if version != contracts.VERSION or name not in FORMATS:
        allowed = f"{contracts.VERSION} and {', '.join(FORMATS)}"
        raise ValueError(f"{path}: version {version} and format {name}; allowed: {allowed}")
    return contract


def load_exported_policy(folder: str | Path) -> ExportedPolicy:
    """Loads the policy of an exported folder, of any format, whose files must be as they were exported.

    Raises:
      ValueError: one line, for a folder without a policy, a changed file, or a missing package.
    """
    folder = Path(folder)
    contract = read_contract(folder)
    contracts.require_unchanged(folder, contract)
    require_format(contract["format"])
    try:
        program = FORMATS[contract["format"]].open(folder, contract)
    except Exception as error:  # of any kind, as it comes from other packages
        trained, here = contract["versions"]["exported"].get("jax"), jax.__version__
        reason = " ".join(str(error).split())[:200] or repr(error)
        raise ValueError(
            f"{folder}: exported with jax {trained}, not readable with {here} ({reason})"
        ) from error
    return ExportedPolicy(contract, program)


def check_folder(folder: Path, name: Path | None = None) -> float:
    """Replays the golden vectors of an exported folder, all rows together and the first row alone.

    Args:
      folder: where it lies.
      name: its name in messages; None for the same.

    Returns:
      the largest error of an action, as a share of its range, and of a memory.

    Raises:
      ValueError: one line, for a changed or missing file, or outputs that differ from the recorded ones.
    """
    policy = load_exported_policy(folder)
    with np.load(folder / contracts.GOLDEN, allow_pickle=False) as arrays:
        golden = dict(arrays)
    error, different = 0.0, 0
    for rows in (None, 1):
        own, choices = replay_golden(ContractPolicy(policy.contract, policy.program), golden, rows)
        error, different = max(error, own), different + choices
    if error > TOLERANCE or different:
        raise ValueError(
            f"{name or folder}: golden vectors differ, by {error:.1e} (allowed: {TOLERANCE:.0e}), "
            f"and in {different} choices (allowed: 0)"
        )
    return error
