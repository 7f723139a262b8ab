"""Messages for options of configuration groups that do not exist."""

import difflib
import re
from collections import Counter
from collections.abc import Sequence

from algos.checks import LISTED, suggest_names

# Environments of this library step on the host; these folders of `conf/env` have ports of many of them.
HOST_LIBRARY = "gymnasium/"
PORTS = ("gymnax/", "brax/", "playground/")


def unknown_option_message(group: str, value: str, allowed: Sequence[str]) -> str:
    """Formats the message for an unknown option: the closest options, or the allowed ones.

    Args:
      group: the configuration group.
      value: the option as typed.
      allowed: the known options.
    """
    if group == "env" and value.startswith(HOST_LIBRARY):
        return _host_library_message(value, allowed)
    return f"{group}={value}: unknown {group}; {suggest_names(value, allowed, _shorten_folders(allowed))}"


def _shorten_folders(options: Sequence[str]) -> list[str]:
    """Replaces the options of folders with many by `FOLDER/NAME`."""
    folders = Counter(one.partition("/")[0] for one in options)
    shown = (
        f"{folder}/NAME" if folders[folder := one.partition("/")[0]] > LISTED else one for one in options
    )
    return list(dict.fromkeys(shown))


def _host_library_message(value: str, allowed: Sequence[str]) -> str:
    """Formats the refusal of an environment that steps on the host, with the ports of similar names."""
    ports = {_bare_name(one): one for one in allowed if one.startswith(PORTS)}
    close = difflib.get_close_matches(_bare_name(value), list(ports), 2, 0.8)
    meant = [ports[one] for one in close] or [f"{port}NAME" for port in PORTS]
    return (
        f"env={value}: steps on the host, which a compiled program cannot; use a port to JAX, "
        f"env={' or env='.join(meant)}, or write the environment as in docs/environments.md"
    )


def _bare_name(option: str) -> str:
    """Returns the name of an environment in lower case, without its folder and version."""
    return re.sub(r"-v\d+$", "", option.partition("/")[2]).lower()
