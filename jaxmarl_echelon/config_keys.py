"""Dotted keys of a configuration, and messages for unknown ones."""

import re
from collections.abc import Mapping
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from algos.checks import LISTED, find_similar, is_number

# Key of saved configurations for `following_settings`.
FOLLOWS = "follows"
_FOLLOWING = re.compile(r"\$\{[^}]*\balgo\.")


def flatten_leaves(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to values by dotted key; empty mappings stay values."""
    found = {}
    for key, value in node.items():
        inside = isinstance(value, Mapping) and len(value) > 0
        found |= flatten_leaves(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return found


def following_settings(config: DictConfig) -> dict[str, str]:
    """Returns the numbers that follow one of the learner's by an interpolation, by dotted key.

    An example is the discount of potentials, `env.gamma` of missions.
    """
    plain = flatten_leaves(cast(dict[str, Any], OmegaConf.to_container(config)))
    found = {key: text for key, text in plain.items() if isinstance(text, str) and _FOLLOWING.search(text)}
    return {key: text for key, text in found.items() if is_number(OmegaConf.select(config, key))}


def restore_following(config: DictConfig, following: Mapping[str, str]) -> None:
    """Makes the settings of a resolved configuration follow the learner's, see `following_settings`."""
    for key, text in following.items():
        OmegaConf.update(config, key, text)


def plain_config(config: DictConfig, choices: Mapping[str, str]) -> dict[str, Any]:
    """Returns a configuration as plain data to be saved: with the groups' options, and what follows what."""
    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)) | {"choices": dict(choices)}
    following = following_settings(config)
    return plain | ({FOLLOWS: following} if following else {})


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


def complete_key(message: str, settings: Mapping[str, Any], where: str) -> str:
    """Adds the place of a setting to a message that begins with its name alone, `NAME=VALUE`.

    Args:
      message: returned unchanged if it begins otherwise, or with a name that several settings have.
      settings: nested mappings of settings.
      where: dotted key of these settings.
    """
    name = message.partition("=")[0]
    if name.partition(".")[0] in settings:
        return f"{where}.{message}"
    named = {key: value for key, value in flatten_leaves(settings).items() if f".{key}".endswith(f".{name}")}
    exact = [key for key, value in named.items() if message.startswith(f"{name}={value}:")]
    for keys in (list(named), exact):
        if len(keys) == 1:
            return f"{where}.{keys[0].removesuffix(name)}{message}"
    return message


def _find_keys(name: str, node: DictConfig) -> list[str]:
    """Returns up to two dotted keys, anywhere in a configuration, whose last part is very close to `name`."""
    ends: dict[str, str] = {}
    for key in flatten_leaves(node):
        ends.setdefault(key.rpartition(".")[2], key)
    return [ends[end] for end in ([name] if name in ends else find_similar(name, ends, likeness=0.8))]
