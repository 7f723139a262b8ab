"""`best.yaml`: a main configuration with the best settings of a search, which `train` takes as it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxmarl_echelon import command_line
from jaxmarl_echelon.config_sources import Sources

# Of the search's own runs.
LEFT_OUT = ("sweep", "samples", "resume", "run_name", "output_dir", "tracking")


def split_overrides(overrides: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Splits overrides into entries of a defaults list, for groups, and values by key.

    Raises:
      UsageError: one line, for deleted keys, which a file cannot express.
    """
    defaults, values = [], {}
    for override in overrides:
        if override.startswith("~"):
            raise command_line.UsageError(f"{override}: a search cannot delete keys, as best.yaml could not")
        key, _, text = override.lstrip("+").partition("=")
        if key in LEFT_OUT or key.partition(".")[0] in LEFT_OUT:
            continue
        if key in command_line.config_groups():
            defaults.append({f"override {key}": text})
        elif "@" in key:
            defaults.append({key: text})
        else:
            values[key] = command_line.parse_override_value(override.lstrip("+"))
    return defaults, values


def compose_best(overrides: Sequence[str], found: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Returns the contents of `best.yaml`.

    Args:
      overrides: of the search, as returned by `normalize_overrides`.
      found: the best settings by key.
      sources: where the search's configuration was composed from.
    """
    groups, values = split_overrides(overrides)
    own = OmegaConf.create({})
    for key, value in (values | dict(found)).items():
        OmegaConf.update(own, key, value, force_add=True)
    return {"defaults": [sources.name, *groups, "_self_"]} | OmegaConf.to_container(own)


def write_best(path: Path, contents: Mapping[str, Any], told: str) -> None:
    """Writes `best.yaml`, with a comment on its first line."""
    path.write_text(f"# {told}\n{OmegaConf.to_yaml(OmegaConf.create(dict(contents)))}")
