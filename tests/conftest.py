"""Settings and fixtures shared by all tests."""

import atexit
import ctypes
import gc
import importlib.util
import mmap
import os
from pathlib import Path

import pytest

# As commands do (`jaxmarl_echelon.command_line.GC_THRESHOLDS`), but before anything is imported.
gc.set_threshold(200_000, 50, 1_000)
atexit.register(gc.freeze)
REPOSITORY = Path(__file__).resolve().parent.parent

# Tests compile far more than they run, and each worker has a core to itself: without optimisation and
# without the newer emitters of fusions compiling takes a third of the time, running two to three times. A
# program in one piece takes a seventh less than one cut up for several cores, and half the memory maps.
QUICK = {
    "xla_cpu_multi_thread_eigen": "false",
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}


def known_flags(flags: dict[str, str]) -> list[str]:
    """Those of the flags that the installed XLA knows; it ends a process that gives it others."""
    folder = Path(importlib.util.find_spec("jaxlib").submodule_search_locations[0])
    known = set()
    for library in folder.glob("*.so"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            # As a string of its own: names of flags that are gone may still be parts of others.
            known |= {name for name in flags if text.find(f"\0{name}\0".encode()) >= 0}
    return [f"--{name}={value}" for name, value in flags.items() if name in known]


# Before jax starts its backend, here and in the processes that tests start. Each flag once, as programs of
# other flags are others to the persistent cache: workers inherit those of the process that starts them.
given = os.environ.get("XLA_FLAGS", "").split()
os.environ["XLA_FLAGS"] = " ".join([*(flag for flag in known_flags(QUICK) if flag not in given), *given])
THREADS = {name: os.environ[name] for name in ("NPROC",) if name in os.environ}
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Single operations too: to write one takes 2 ms, to read it 4, to compile it 15 to 25. Workers, files and the
# processes that tests start share them.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Programs without the stacks of Python under each operation are lowered in a tenth less time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax  # noqa: E402

CACHE = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / ".cache" / "jax"))

jax.config.update("jax_compilation_cache_dir", CACHE)
# Each compiled program holds memory maps, of which Linux grants a process 65,530, and memory: a process
# that kept those of a quarter of the files had 5.5 GB.
MOST_MAPS = 40_000
MOST_BYTES = 4 << 30


def pytest_collection_modifyitems(items):
    """Puts files with slow tests first, which would keep one worker busy at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_sessionfinish(session):
    """Ends workers at once: to free millions of objects, and to look for cycles first, takes seconds."""
    gc.freeze()
    if hasattr(session.config, "workerinput"):
        atexit.register(os._exit, 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skips what needs a package that is not installed, where it is marked `needs(package)`."""
    for mark in item.iter_markers("needs"):
        if importlib.util.find_spec(*mark.args) is None:
            pytest.skip(f"needs {mark.args[0]}")


def holds_too_much() -> bool:
    """Whether this process nears the limit of memory maps, or more memory than workers should have."""
    process = Path("/proc/self")
    if not process.exists():
        return True
    resident = int((process / "statm").read_text().split()[1]) * mmap.PAGESIZE
    return resident > MOST_BYTES or (process / "maps").read_bytes().count(b"\n") > MOST_MAPS


@pytest.fixture(scope="module", autouse=True)
def release_compiled_programs():
    """Lets go of earlier files' programs, where they are too many."""
    yield
    if holds_too_much():
        jax.clear_caches()
        # The allocator of glibc keeps what programs had; others have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
        if trim is not None:
            trim(0)


@pytest.fixture(autouse=True)
def _own_threads():
    """Forgets the threads that a command of a small run chose, which later processes would inherit."""
    yield
    os.environ.pop("NPROC", None)
    os.environ.update(THREADS)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def maps_folder() -> Path:
    """The folder of real track maps: `JAXMARL_MAPS`, or `../shared/maps` beside the checkout."""
    folder = Path(os.environ.get("JAXMARL_MAPS", REPOSITORY.parent / "shared" / "maps"))
    if not folder.is_dir():
        pytest.skip(f"no maps at {folder}; set JAXMARL_MAPS")
    return folder
