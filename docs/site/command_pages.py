"""A page with the help of every command, as it prints it."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from importlib import import_module

from jaxmarl_echelon.__main__ import list_commands

WIDTH = "84"


def generate_pages() -> dict[str, str]:
    """Returns the page by its path."""
    parts = ["# Commands\n", "`python -m jaxmarl_echelon` lists them. Each has an installed name as well.\n"]
    for script, (module, summary) in list_commands().items():
        command = import_module(module if not module.endswith("scenes") else f"{module}.__main__")
        help_text = read_help(script, command.main)
        parts.append(f"## {script}\n\n`python -m {module}`: {summary}\n\n```text\n{help_text}```\n")
    return {"commands.md": "\n".join(parts)}


def read_help(script: str, main: Callable[[], None]) -> str:
    """Returns what a command prints for `--help`."""
    before, printed = (sys.argv, os.environ.get("COLUMNS")), io.StringIO()
    sys.argv, os.environ["COLUMNS"] = [script, "--help"], WIDTH
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before[0]
        os.environ.pop("COLUMNS") if before[1] is None else os.environ.update(COLUMNS=before[1])
    return printed.getvalue()
