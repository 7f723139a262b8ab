"""Dotted keys of a configuration, and messages for unknown ones."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from algos.checks import LISTED, find_similar


def flatten_leaves(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to values by dotted key; empty mappings stay values."""
    found = {}
    for key, value in node.items():
        inside = isinstance(value, Mapping) and len(value) > 0
        found |= flatten_leaves(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return found


def unknown_key_message(override: str, key: str, node: DictConfig) -> str:
    """Formats the message for an unknown key: the keys that may have been meant, or the allowed ones.

    Args:
      override: the override as written by the user.
      key: its dotted key.
      node: the configuration.
    """
    *parents, last = key.split(".")
    while parents and not isinstance(OmegaConf.select(node, ".".join(parents)), DictConfig):
        last = parents.pop()
    inside = OmegaConf.select(node, ".".join(parents)) if parents else node
    names = [str(name) for name in inside if not str(name).startswith("_")]
    close = [".".join([*parents, name]) for name in find_similar(last, names, 1)] or _find_keys(last, node)
    meant = f"; did you mean {' or '.join(close)}?" if close else "."
    listed = f" Allowed here: {', '.join(names)}" if not close or len(names) <= LISTED else ""
    return f"{override}: unknown key{meant}{listed}"


def _find_keys(name: str, node: DictConfig) -> list[str]:
    """Returns up to two dotted keys, anywhere in a configuration, whose last part is close to `name`."""
    ends: dict[str, str] = {}
    for key in flatten_leaves(node):
        ends.setdefault(key.rpartition(".")[2], key)
    return [ends[end] for end in ([name] if name in ends else find_similar(name, ends))]
