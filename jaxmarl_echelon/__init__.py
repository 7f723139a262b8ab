"""Public Python API: environments, training, policies; see the top of README.md."""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from jaxmarl_echelon.installation import require_own_packages

if TYPE_CHECKING:
    from jaxmarl_echelon.api import list_environments, make, make_train, read_config
    from jaxmarl_echelon.envs.adapters.outward import to_gymnasium, to_jaxmarl, to_pettingzoo, to_sb3
    from jaxmarl_echelon.export import export_policy
    from jaxmarl_echelon.policies import Policy, load_policy, make_policy

require_own_packages()

__all__ = [
    "Policy",
    "export_policy",
    "list_environments",
    "load_policy",
    "make",
    "make_policy",
    "make_train",
    "read_config",
    "to_gymnasium",
    "to_jaxmarl",
    "to_pettingzoo",
    "to_sb3",
]

# Loaded lazily, so that importing one module of the package does not import all others.
HOMES = {
    "list_environments": "api",
    "make": "api",
    "make_train": "api",
    "read_config": "api",
    "Policy": "policies",
    "load_policy": "policies",
    "make_policy": "policies",
    "export_policy": "export",
    "to_gymnasium": "envs.adapters.outward",
    "to_jaxmarl": "envs.adapters.outward",
    "to_pettingzoo": "envs.adapters.outward",
    "to_sb3": "envs.adapters.outward",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("jaxmarl_echelon")
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
