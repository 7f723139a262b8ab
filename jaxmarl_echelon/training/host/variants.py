"""Expands `seeds`, `ablate` and `variants` of a configuration into the members of a group."""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from jaxmarl_echelon.training.config import build, input_files
from jaxmarl_echelon.training.config.build import TASK, change_settings
from jaxmarl_echelon.training.host.vectorized_runs import Member

BASELINE = "baseline"


def is_group(config: DictConfig) -> bool:
    """Whether a configuration asks for several runs in one program."""
    return config.get("seeds") is not None or any(config.get(key) for key in ("ablate", "variants"))


def count_members(config: DictConfig) -> int:
    """Number of runs that a configuration defines for one program; raises ValueError as `expand_members`."""
    return len(read_variants(config)) * len(read_seeds(config))


def expand_members(config: DictConfig, choices: Mapping[str, str]) -> list[Member]:
    """Builds the runs of a group: the product of variants and seeds.

    Args:
      config: the composed configuration. `seeds` is a count, starting at `seed`, or a list; each
        `reward.NAME` in `ablate` makes one variant with that weight at 0; `variants` maps names to
        `{key: value}`. The baseline is always included.
      choices: the chosen options of Hydra's config groups, stored with each member's configuration.

    Raises:
      ValueError: one line, for invalid values.
    """
    seeds = read_seeds(config)
    # Every member would record an episode, for one page of all.
    alone = {"seeds": None, "ablate": None, "variants": None, "replay": config.get("replay") or False}
    result = []
    for variant, changes in read_variants(config).items():
        require_numbers_only(config, variant, changes)
        for seed in seeds:
            own = change_settings(config, {"seed": seed} | alone | changes)
            name = variant if len(seeds) == 1 else f"{variant}_seed_{seed}"
            name = f"seed_{seed}" if not (config.get("ablate") or config.get("variants")) else name
            run = build.build_run_config(own)
            plain = OmegaConf.to_container(own) | {"choices": dict(choices)}
            resolved = input_files.with_absolute_paths(plain, input_files.hash_input_files(run))
            result.append(Member(name, variant, run, resolved))
    return result


def require_numbers_only(config: DictConfig, variant: str, changes: Mapping[str, Any]) -> None:
    """Raises ValueError unless each change affects only task parameters.

    All variants share one program, so that other changes would be ignored silently.
    """
    base = build.build_run_config(change_settings(config, {"variants": {}})) if changes else None
    for key, value in changes.items():
        where = f"variants.{variant}: {key}={value}"
        if key.split(".")[0] not in TASK:
            raise ValueError(f"{where}: only {', '.join(TASK)} may differ between runs of one program")
        other = build.build_run_config(change_settings(config, {"variants": {}, key: value}))
        ours, theirs = (run.curriculum(run.env).init() for run in (base, other))
        if base.env.spec != other.env.spec or not build.same_shapes(ours, theirs):
            raise ValueError(f"{where}: changes more than numbers; use -m for runs of different shapes")
        if build.same_arrays(ours, theirs):
            raise ValueError(f"{where}: is the same, or no number that may vary within one program")


def read_seeds(config: DictConfig) -> list[int]:
    """Returns the seeds of a group; the run's own seed without `seeds`."""
    seeds = config.get("seeds")
    if seeds is None:
        return [config.seed]
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
        return [config.seed + index for index in range(seeds)]
    listed = OmegaConf.is_list(seeds) and seeds
    whole = listed and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds)
    if whole and len(set(seeds)) == len(seeds):
        return list(seeds)
    raise ValueError(f"seeds={seeds}: must be a whole number of at least 1, or a list of different seeds")


def read_variants(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Returns the changed values of every variant by name, the baseline first."""
    result: dict[str, dict[str, Any]] = {BASELINE: {}}
    given = config.get("variants") or {}
    if not OmegaConf.is_dict(given) and given != {}:
        raise ValueError(f"variants={given}: must map names to mappings of keys to values")
    for name, changes in given.items():
        named = re.fullmatch(r"[\w.-]+", str(name)) and str(name) not in (".", "..", BASELINE)
        if not named or not OmegaConf.is_dict(changes):
            raise ValueError(f"variants.{name}={changes}: must be a name and a mapping of keys to values")
        for key in changes:
            if OmegaConf.select(config, str(key)) is None:
                raise ValueError(f"variants.{name}: {key} is no key of this run's configuration")
        result[str(name)] = dict(changes)
    for name in read_ablations(config.get("ablate")):
        result[f"without_{name}"] = {
            f"reward.components.{part}.weight": 0.0 for part in rewarded_parts(config, name)
        }
    return result


def read_ablations(value) -> list[str]:
    """Parses component names from `reward.a,reward.b`, a string or a list."""
    if value is None:
        return []
    if not isinstance(value, str) and not OmegaConf.is_list(value):
        raise ValueError(f"ablate={value}: must be reward.COMPONENT, or several separated by commas")
    names = [str(name).strip() for name in (value.split(",") if isinstance(value, str) else value)]
    for name in names:
        if not name.startswith("reward.") or name.count(".") != 1:
            raise ValueError(f"ablate={name}: must be reward.COMPONENT, or several separated by commas")
    return [name.removeprefix("reward.") for name in names]


def rewarded_parts(config: DictConfig, name: str) -> tuple[str, ...]:
    """Returns the reward components that `name` denotes: itself, or the members of the set of that name."""
    reward = config.get("reward") or {}
    components, sets = reward.get("components") or {}, reward.get("sets") or {}
    parts = [name] if name in components else [p for p in sets.get(name, ()) if p in components]
    if not parts:
        known = ", ".join(f"reward.{part}" for part in [*components, *sets])
        raise ValueError(f"ablate=reward.{name}: no such part of this reward; allowed: {known or 'none'}")
    return tuple(parts)
