"""Settings of Python's garbage collector for commands, which create many long-lived objects."""

import atexit
import gc
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

# Imports and traces create millions of long-lived objects. At the default thresholds Python would scan them
# for cycles again and again.
THRESHOLDS = (200_000, 50, 1_000)


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


@cache
def raise_gc_thresholds() -> None:
    """Raises the thresholds for the rest of the process, and skips the final collection at its end."""
    gc.set_threshold(*THRESHOLDS)
    atexit.register(gc.freeze)
