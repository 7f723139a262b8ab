"""Optional packages: what needs them, and how they are installed."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

# Modules that a configuration may name, and the package that each needs; an extra has its package's name.
NEEDED = {
    "jaxmarl_echelon.envs.adapters.gymnax": "gymnax",
    "jaxmarl_echelon.tracking.wandb_sink": "wandb",
}


def require(config: DictConfig, choices: Mapping[str, str], groups: tuple[str, ...] = ()) -> None:
    """Demands the packages that a configuration needs and that not every installation has.

    Args:
      config, choices: as composed.
      groups: the parts of the configuration that are looked at; () for all.

    Raises:
      ValueError: one line with the choice, the package and the command that installs it.
    """
    plain = OmegaConf.to_container(config)
    for group in groups or plain:
        for target in _targets(plain[group]):
            package = NEEDED.get(target.rpartition(".")[0])
            if package is not None and find_spec(package) is None:
                install = f"install it with pip install 'jaxmarl_echelon[{package}]'"
                raise ValueError(f"{group}={choices.get(group)}: needs the package {package}; {install}")


def _targets(node: Any) -> Iterator[str]:
    """All that a tree of plain data names as `_target_`."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        for value in node.values():
            yield from _targets(value)
