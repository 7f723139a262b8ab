"""The contract of an exported policy: the facts that a reader of its folder needs."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from algos.types import Block
from jaxmarl_echelon.envs.base import EnvSpec, ObservationPart, Role
from jaxmarl_echelon.envs.spaces import Box, Discrete, Space
from jaxmarl_echelon.exporting.flat_program import ArrayLayout

CONTRACT = "contract.json"
GOLDEN = "golden.npz"
# Incremented whenever older readers cannot use a folder.
VERSION = 1
# A text in JSON, as a regular expression.
TEXT = r'"(?:[^"\\]|\\.)*"'


def describe_task(
    spec: EnvSpec,
    role: Role,
    blocks: Sequence[Block] = (),
    parts: Mapping[str, ObservationPart] = MappingProxyType({}),
    units: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Describes an environment and a role as plain data; infinite bounds are None.

    Args:
      spec: the environment.
      role: the policy's role.
      blocks: blocks of its observations, which become named slices.
      parts: named parts of them, likewise, with their units and scales.
      units: units of the action's numbers; None where they are not known.
    """
    observation = role.observation
    described: dict[str, Any] = {"shape": list(observation.shape), "dtype": str(observation.dtype)}
    if isinstance(observation, Box):
        low, high = observation.bounds()
        described |= {"low": _finite(low), "high": _finite(high)}
    described["slices"] = [
        {
            "name": block.name,
            "start": block.start,
            "stop": block.stop,
            "shape": list(block.shape),
            "kind": block.kind,
            "fields": list(block.fields),
        }
        for block in blocks
    ] + [
        {
            "name": name,
            "start": part.where.start,
            "stop": part.where.stop,
            "units": list(part.units),
            "scales": list(part.scales),
        }
        for name, part in parts.items()
    ]
    sizes = choice_sizes(role.action)
    return {
        "environment": {"name": spec.name, "version": spec.version},
        "role": role.name,
        "decision_period": spec.decision_period,
        "observation": described,
        "action": describe_action(role.action, units),
        "mask": {"size": role.action.mask_size, "choices": sizes} if sizes else None,
    }


def choice_sizes(space: Space) -> list[int]:
    """Returns the number of options of each choice; empty for a Box."""
    if isinstance(space, Box):
        return []
    return [space.n] if isinstance(space, Discrete) else list(space.sizes)


def describe_action(space: Space, units: Sequence[str] | None = None) -> dict[str, Any]:
    """Describes an action space, with the units of its numbers if they are known, as plain data."""
    facts = {"shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, Box):
        low, high = space.bounds()
        return {
            "kind": "box",
            **facts,
            "low": _finite(low),
            "high": _finite(high),
            "units": units and list(units),
        }
    return {"kind": "choices", **facts, "choices": choice_sizes(space)}


def _finite(bound: np.ndarray) -> list[Any]:
    """Returns a bound as nested lists, None in place of infinite numbers."""
    values = bound.astype(object)
    values[~np.isfinite(bound)] = None
    return values.tolist()


def format_contract(contract: Mapping[str, Any]) -> str:
    """Formats a contract as JSON, with lists of plain values on one line."""
    text = json.dumps(contract, indent=2, allow_nan=False)
    # Texts are found first, so that brackets in them are no lists.
    plain_list = rf'{TEXT}|\[(?:[^"\[\]{{}}]|{TEXT})*\]'
    return re.sub(plain_list, lambda found: _joined(found[0]), text) + "\n"


def _joined(plain: str) -> str:
    """Returns the text of a list of plain values on one line, and other texts unchanged."""
    if not plain.startswith("["):
        return plain
    return "[" + ", ".join(one.strip() for one in plain[1:-1].split(",\n")).strip() + "]"


def describe_arrays(layouts: Sequence[ArrayLayout]) -> list[dict[str, Any]]:
    """Describes arrays as plain data; "B" is the batch, any number of agents."""
    return [{"name": one.name, "shape": ["B", *one.shape], "dtype": one.dtype} for one in layouts]


def hash_files(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file of a folder but the contract, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != CONTRACT and path.is_file()
    }


def require_unchanged(folder: Path, contract: Mapping[str, Any]) -> None:
    """Checks the files of an exported folder against its contract.

    Raises:
      ValueError: one line with the first file that is missing or differs.
    """
    for name, digest in contract["files"].items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: missing, but the contract lists it")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != digest:
            raise ValueError(
                f"{path}: changed since the export, SHA-256 {found[:12]} instead of {digest[:12]}"
            )
