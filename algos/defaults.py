"""Defaults of settings, which stand once: in the YAML files of `conf/`, with their explanations."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

T = TypeVar("T", bound=Callable)
HYDRA_KEYS = ("_target_", "_convert_", "defaults", "hydra")


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
    """Returns the values of `conf/FILE.yaml` and of the files of its folder that it begins with.

    Lists are tuples. A value that refers to a key of the main configuration, such as `${precision}`, is that
    key's default; those that refer to other folders are left out.

    Args:
      file: the file and, after a colon, the block of it to return: `algo/ppo`, `algo/ppo:core`.
    """
    name, _, block = file.partition(":")
    path = config_directory() / f"{name}.yaml"
    node = cast(DictConfig, OmegaConf.load(path))
    bases = [one for one in node.get("defaults", ()) if (path.parent / f"{one}.yaml").is_file()]
    values = cast(DictConfig, OmegaConf.select(node, block, default={}) if block else node)
    found = {}
    for base in bases:
        found |= read_defaults(str(Path(name).with_name(base)) + (f":{block}" if block else ""))
    for key in (key for key in values if key not in HYDRA_KEYS):
        try:
            found[key] = _freeze(values[key])
        except InterpolationKeyError:
            written = cast(Mapping[str, Any], OmegaConf.to_container(values, resolve=False))
            main = re.fullmatch(r"\$\{(\w+)\}", str(written[str(key)]))
            if main and main[1] in read_defaults("config"):
                found[key] = read_defaults("config")[main[1]]
    return found


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _freeze(one) for key, one in value.items()}
    return tuple(map(_freeze, value)) if isinstance(value, ListConfig) else value


def take_defaults_from(file: str) -> Callable[[T], T]:
    """Returns a decorator of classes and functions: parameters with `FROM_FILE` take their value from a file.

    Args:
      file: as for `read_defaults`; read at the first call.
    """

    def decorate(made: T) -> T:
        call = made.__init__ if isinstance(made, type) else made
        signature = inspect.signature(call)
        listed = [name for name, one in signature.parameters.items() if one.default is FROM_FILE]

        @functools.wraps(call)
        def filled(*args, **given):
            taken = signature.bind_partial(*args, **given).arguments
            defaults = read_defaults(file)
            return call(*args, **given, **{name: defaults[name] for name in listed if name not in taken})

        if not isinstance(made, type):
            return cast(T, filled)
        made.__init__ = filled
        return cast(T, made)

    return decorate
