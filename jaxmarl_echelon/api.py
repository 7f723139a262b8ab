"""Builds environments and runs from Python, with the names and settings of the command line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from jaxmarl_echelon import command_line, optional_packages
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.envs import contract
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import selection_score, variants
from jaxmarl_echelon.training.program import program


def make(
    name: str,
    /,
    *,
    reward: str | Mapping[str, Any] | None = None,
    config_dir: str | Path | None = None,
    **settings: Any,
) -> Environment:
    """Builds an environment: `make("f110", lidar_beams=36, ftg={"steering_gain": 0.35})`.

    Args:
      name: the environment, as in `env=NAME`.
      reward: a reward other than the default, as in `reward=NAME`, or a mapping of overrides of the default.
      config_dir: a folder laid out like `conf`, with user-defined environments and rewards.
      **settings: overrides of `conf/env/NAME.yaml`; mappings are merged.

    Returns:
      the environment, without settings of `conf/tuning`.

    Raises:
      ValueError: one line, for an invalid name, setting or value, or a missing package.
    """
    chosen = [f"env={name}", "tuning=none", *([f"reward={reward}"] if isinstance(reward, str) else [])]
    if settings.get("face") == "text":
        chosen.append("algo=reinforce_lm")  # a run that could train here, which is checked as a whole
    config, choices = command_line.compose_config(chosen, Sources(config_dir))
    _change(config, "env", settings)
    if isinstance(reward, Mapping):
        if config.get("reward") is None:
            raise ValueError(f"reward={dict(reward)}: env={name} has no configurable reward")
        _change(config, "reward", reward)
    return _read(config, choices).env


def list_environments(config_dir: str | Path | None = None) -> dict[str, str]:
    """Returns the names that `make` knows, each with one line on the environment.

    Args:
      config_dir: as for `make`.
    """
    return Sources(config_dir).describe_options("env")


def read_config(
    *overrides: str, env: Environment | None = None, config_dir: str | Path | None = None
) -> RunConfig:
    """Reads the configuration of one run: `read_config("env=f110", "algo=ppo", "num_envs=64")`.

    Args:
      *overrides: `KEY=VALUE`, as on the command line.
      env: an environment from `make` or of a user-defined class, instead of `env=NAME`; without tuning.
      config_dir: a folder laid out like `conf`, with user-defined environments, rewards, algorithms, ...

    Raises:
      ValueError: one line, for invalid overrides, a missing package, or settings of several runs.
    """
    command_line.use_compilation_cache()
    sources = Sources(config_dir)
    if env is not None:
        for override in overrides:
            if override.lstrip("+").startswith(("env=", "env.", "reward=", "reward.")):
                raise ValueError(f"{override}: the environment is given as an object, {type(env).__name__}")
        overrides = ("tuning=none", *overrides)
    config, choices = command_line.compose_config(
        command_line.normalize_overrides(overrides, sources), sources
    )
    if variants.is_group(config):
        raise ValueError(
            "seeds, ablate, variants, sweep, pbt: settings of several runs; map make_train over keys"
        )
    if config.get("resume") is not None:
        raise ValueError(f"resume={config.resume}: only the command line can continue runs")
    return _read(config, choices, env)


def make_train(*config: RunConfig | Environment | str, config_dir: str | Path | None = None) -> Callable:
    """Builds a whole run as one pure function: `make_train("env=f110", "algo=ppo", "num_envs=64")`.

    Args:
      *config: overrides as for `read_config`, or its result. The first may be an environment:
        `make_train(make("f110", lidar_beams=36), "num_envs=64")`.
      config_dir: as for `read_config`.

    Returns:
      `(key) -> (RunState, Report [updates])`, for jit and vmap: `jax.jit(jax.vmap(train))(keys)`. The typed
      key replaces `seed`. Evaluations, checkpoints and tracking run on the host and are not included.
      `make_policy` extracts a policy from the state.

    Raises:
      ValueError: as for `read_config`, and for an environment that breaks the contract of `envs.base`.
    """
    if any(isinstance(one, RunConfig) for one in config):
        (run,) = cast(tuple[RunConfig], config)
        command_line.use_compilation_cache()
        contract.require_spec(run.env)
    else:
        env, overrides = None, config
        if config and isinstance(config[0], Environment):
            env, overrides = config[0], config[1:]
        run = read_config(*cast(tuple[str, ...], overrides), env=env, config_dir=config_dir)
    contract.require_traces(run.env)
    selection_score.require_scored_learner(run)
    return program.make_train_function(run)


def _read(config: DictConfig, choices: Mapping[str, str], env: Environment | None = None) -> RunConfig:
    optional_packages.require_packages(config, choices)
    return build.build_run_config(config, env)


def _change(config: DictConfig, key: str, changes: Mapping[str, Any]) -> None:
    """Overrides values below `key`, merging mappings recursively."""
    for name, value in changes.items():
        where = f"{key}.{name}"
        if isinstance(value, Mapping) and OmegaConf.is_dict(OmegaConf.select(config, where)):
            _change(config, where, value)
        else:
            command_line.set_override(config, where, _plain(value))


def _plain(value: Any) -> Any:
    """Converts to plain data: arrays to lists, NumPy scalars to Python ones, paths to strings."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value
