"""Settings and fixtures shared by all tests."""

import os
from pathlib import Path

import jax
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / ".cache" / "jax"))

jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def pytest_collection_modifyitems(items):
    """Puts the files beside this one first: whole trainings, which would keep one worker busy at the end."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


@pytest.fixture(scope="module", autouse=True)
def release_compiled_programs():
    """Lets go of a file's programs: each holds memory maps, of which Linux grants a process 65,530."""
    yield
    jax.clear_caches()


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
