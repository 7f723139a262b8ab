"""Optional packages: the modules that need them, and their installation commands."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, OmegaConf

# Modules to the optional packages that they need, and the extras that install these.
NEEDED = {
    "jaxmarl_echelon.envs.adapters.inward.brax": ("brax", "brax"),
    "jaxmarl_echelon.envs.adapters.inward.gymnax": ("gymnax", "gymnax"),
    "jaxmarl_echelon.envs.adapters.inward.jaxmarl": ("jaxmarl", "jaxmarl"),
    "jaxmarl_echelon.envs.adapters.inward.pgx": ("pgx", "pgx"),
    "jaxmarl_echelon.envs.adapters.inward.playground": ("mujoco_playground", "playground"),
    "jaxmarl_echelon.tracking.mlflow_sink": ("mlflow", "mlflow"),
    "jaxmarl_echelon.tracking.tensorboard_sink": ("tensorboardX", "tensorboard"),
    "jaxmarl_echelon.tracking.trackio_sink": ("trackio", "trackio"),
    "jaxmarl_echelon.tracking.wandb_sink": ("wandb", "wandb"),
}

# Hydra's plugins: override, module and required package. `slurm` is defined in `conf/hydra`.
PLUGINS = (
    ("hydra/launcher=slurm", "submitit", "hydra-submitit-launcher"),
    ("hydra/sweeper=optuna", "hydra_plugins.hydra_optuna_sweeper", "hydra-optuna-sweeper"),
    ("hydra/sweeper=ax", "hydra_plugins.hydra_ax_sweeper", "hydra-ax-sweeper"),
    ("hydra/sweeper=nevergrad", "hydra_plugins.hydra_nevergrad_sweeper", "hydra-nevergrad-sweeper"),
)


def require_packages(config: DictConfig, choices: Mapping[str, str], groups: tuple[str, ...] = ()) -> None:
    """Checks that the optional packages of a configuration are installed.

    Args:
      config, choices: as composed.
      groups: top-level keys of the configuration to check; () for all.

    Raises:
      ValueError: one line with the choice, the package and the command that installs it.
    """
    plain = OmegaConf.to_container(config)
    for group in groups or plain:
        for target in _targets(plain[group]):
            package, extra = NEEDED.get(target.rpartition(".")[0], (None, None))
            if package is not None and find_spec(package) is None:
                install = f"install it with pip install 'jaxmarl_echelon[{extra}]'"
                raise ValueError(f"{group}={choices.get(group)}: needs the package {package}; {install}")


def require_plugins(overrides: Sequence[str]) -> None:
    """Checks that the packages of chosen launchers and sweepers are installed.

    Raises:
      ValueError: one line with the choice, the package and the command that installs it.
    """
    for override, module, package in PLUGINS:
        if override in overrides and not _is_installed(module):
            install = f"install it with pip install {package}"
            raise ValueError(f"{override}: needs the package {package}; {install}")


def import_package(package: str, user: str, extra: str) -> ModuleType:
    """Imports an optional package.

    Args:
      package: to be imported.
      user: what needs it, for the message.
      extra: extra of this project that installs it.

    Raises:
      ValueError: one line with the user, the package and the command that installs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        install = f"install it with pip install 'jaxmarl_echelon[{extra}]'"
        raise ValueError(f"{user}: needs the package {package}; {install}") from error


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # for a parent package
        return False


def _targets(node: Any) -> Iterator[str]:
    """Yields all `_target_` values in a tree of plain data."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        for value in node.values():
            yield from _targets(value)
