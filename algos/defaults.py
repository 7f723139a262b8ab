"""Defaults of settings, which stand once: in the YAML files of `conf/`, beside their explanations."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf

T = TypeVar("T", bound=type)
HYDRA_KEYS = ("_target_", "_convert_", "defaults")


class _FromFile:
    def __repr__(self) -> str:
        return "FROM_FILE"


# The default of a parameter whose value is in the file of its class; see `take_defaults_from`.
FROM_FILE: Any = _FromFile()


def config_directory() -> Path:
    """Returns the absolute path of the `conf` directory.

    It lies inside the package in a wheel, and at the top of the repository in a checkout or editable
    install.

    Raises:
      FileNotFoundError: if neither exists.
    """
    top = Path(__file__).resolve().parent.parent
    for candidate in (top / "jaxmarl_echelon" / "conf", top / "conf"):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"no conf directory in {top / 'jaxmarl_echelon'} or {top}")


@functools.cache
def read_defaults(file: str) -> Mapping[str, Any]:
    """Returns the values of `conf/FILE.yaml`: lists as tuples, interpolations as written.

    Args:
      file: the file and, after a colon, the block of it to return: `algo/ppo`, `algo/ppo:core`.
    """
    name, _, block = file.partition(":")
    values = OmegaConf.to_container(OmegaConf.load(config_directory() / f"{name}.yaml"), resolve=False)
    chosen = cast(dict, values)[block] if block else cast(dict, values)
    return {key: _freeze(value) for key, value in chosen.items() if key not in HYDRA_KEYS}


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _freeze(one) for key, one in value.items()}
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def take_defaults_from(file: str) -> Callable[[T], T]:
    """Returns a decorator of dataclasses: fields with the default `FROM_FILE` take it from a file.

    Args:
      file: as for `read_defaults`; read when the first object is made.
    """

    def decorate(cls: T) -> T:
        init = cls.__init__
        names = [one.name for one in dataclasses.fields(cls)]
        listed = [one.name for one in dataclasses.fields(cls) if one.default is FROM_FILE]

        @functools.wraps(init)
        def filled(self, *args, **given):
            given |= dict(zip(names, args, strict=False))
            defaults = read_defaults(file)
            init(self, **{name: defaults[name] for name in listed} | given)

        cls.__init__ = filled
        return cls

    return decorate
