"""Compares a run's configuration with the defaults of its environment and algorithm."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from omegaconf import OmegaConf

from jaxmarl_echelon import command_line
from jaxmarl_echelon.config_keys import flatten_leaves

# Written by a run into its configuration, or telling where it runs.
_APART = (
    "choices", "files", "follows", "shards", "distributed", "run_name", "output_dir", "tracking", "resume",
)  # fmt: skip
_TUNING = "tuning"
UNSET = "(not set)"


class ChangedSetting(NamedTuple):
    """A setting whose value is not the default, which is `UNSET` for a key that has none."""

    key: str
    default: str
    value: str


def find_changed_settings(config: Mapping[str, Any]) -> list[ChangedSetting]:
    """Lists the settings of a run that differ from the defaults, without its tuning file.

    Defaults are those of the options that the run has chosen (environment, algorithm, curriculum, ...);
    groups of options that are not packaged, such as an environment of the user's own, are left out.
    """
    groups = command_line.config_groups()
    choices = {key: str(option) for key, option in config["choices"].items() if key.split("@")[0] in groups}
    known = {key: option for key, option in choices.items() if _is_packaged(key, option)}
    apart = (*_APART, *(key for key in choices if key not in known))
    overrides = [f"{key}={option}" for key, option in known.items() if key != _TUNING]
    default, _ = command_line.compose_config([*overrides, f"{_TUNING}=none"])
    before = flatten_leaves(cast(dict[str, Any], OmegaConf.to_container(default, resolve=True)))
    after = flatten_leaves(config)
    return [
        ChangedSetting(key, str(before.get(key, UNSET)), str(value))
        for key, value in after.items()
        if key.split(".")[0] not in apart and before.get(key, UNSET) != value
    ]


def _is_packaged(group: str, option: str) -> bool:
    return "@" not in group and option in command_line.PACKAGED.options(group)
