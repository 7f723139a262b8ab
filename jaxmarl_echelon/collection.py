"""Python's garbage collector in commands that import, trace and end."""

import atexit
import gc
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

# Imports and traces make millions of objects that live on. At its own thresholds Python would look through
# them for cycles over and over.
THRESHOLDS = (200_000, 50, 1_000)


def is_command() -> bool:
    """Whether this process runs a command of the package, rather than a program that imports it.

    Holds while the package itself is imported: `python -m` has not found its module then.
    """
    invoked = sys.argv[0] if sys.argv else ""
    if invoked == "-m":
        # Another package, run by `python -m`, may import this one at its top.
        return any(a == "-m" and b.split(".")[0] == __package__ for a, b in pairwise(sys.orig_argv))
    script = Path(invoked)
    return script.name.startswith("jaxmarl-") and script.suffix in ("", ".exe")


@cache
def collect_rarely() -> None:
    """Raises the thresholds for the rest of the process, and ends it without a last collection."""
    gc.set_threshold(*THRESHOLDS)
    atexit.register(gc.freeze)
