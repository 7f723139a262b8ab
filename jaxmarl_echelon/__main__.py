"""`python -m jaxmarl_echelon`: lists the commands of the package, one line each.

The list is read from the installed console scripts and the docstrings of their modules.
"""

import ast
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from algos.checks import suggest_names
from jaxmarl_echelon import command_line

PACKAGE = "jaxmarl_echelon"


def list_commands() -> dict[str, tuple[str, str]]:
    """Returns the console scripts by name, each with its module (for `python -m`) and what it does."""
    scripts = distribution(PACKAGE).entry_points.select(group="console_scripts")
    modules = {one.name: one.module for one in scripts if one.name.startswith("jaxmarl-")}
    return {
        name: (module.removesuffix(".__main__"), summarize_module(module)) for name, module in modules.items()
    }


def summarize_module(module: str) -> str:
    """Returns the first line of a module's docstring, without the command before the colon.

    Only packages around the module are imported, because modules of commands take seconds.

    Raises:
      ValueError: one line, for a module that does not exist.
    """
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ValueError(f"{module}: a console script's module is missing; install the package again")
    first = (ast.get_docstring(ast.parse(Path(found.origin).read_text())) or "").partition("\n")[0]
    return first.partition("`: ")[2] or first


def main() -> None:
    """Prints the commands; raises UsageError for arguments, which only the commands take."""
    commands = list_commands()
    typed = [argument for argument in sys.argv[1:] if argument not in ("-h", "--help")]
    if typed:
        known = [module.removeprefix(f"{PACKAGE}.") for module, _ in commands.values()]
        meant = suggest_names(typed[0], known)
        raise command_line.UsageError(f"{typed[0]}: type python -m {PACKAGE}.COMMAND; {meant}")
    print(f"usage: python -m {PACKAGE}.COMMAND, or the installed name; --help shows a command's arguments\n")
    for name, (module, summary) in commands.items():
        print(f"python -m {module}, {name}\n    {summary}")


if __name__ == "__main__":
    command_line.run_guarded(main)
