"""Check that Python imports this project's packages from their installation."""

import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

OWN = ("algos", "physics")


def require_own_packages() -> None:
    """Checks that `algos` and `physics` are imported from the installation of this package.

    A folder of that name in the current directory, which `python -m` searches first, would shadow them.

    Raises:
      ImportError: one line with the shadowing and the shadowed path.
      SystemExit: the same in a command, with exit status 2.
    """
    installed = Path(__file__).resolve().parent.parent
    for name in OWN:
        found = find_spec(name)
        place = None if found is None or found.origin is None else Path(found.origin).resolve().parent
        if place == installed / name or not (installed / name).is_dir():
            continue
        there = "no package" if found is None else found.origin or list(found.submodule_search_locations)
        own = installed / name
        line = f"{name}: Python finds {there}, which hides {own}; rename it, or start in another folder"
        if is_package_command():
            print(f"error: {line}", file=sys.stderr)
            raise SystemExit(2)
        raise ImportError(line)


def is_package_command() -> bool:
    """Whether this process runs a command of the package, not a program that imports it.

    Also correct while the package itself is imported, before `python -m` has found its module.
    """
    invoked = sys.argv[0] if sys.argv else ""
    if invoked == "-m":
        # Another package that `python -m` runs can import this one.
        return any(a == "-m" and b.split(".")[0] == __package__ for a, b in pairwise(sys.orig_argv))
    script = Path(invoked)
    return script.name.startswith("jaxmarl-") and script.suffix in ("", ".exe")
