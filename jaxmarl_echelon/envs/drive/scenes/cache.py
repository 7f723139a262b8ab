"""File cache of scene arrays, keyed by a hash of their inputs."""

import hashlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

CachedScenes = tuple[dict[str, np.ndarray], dict]
_BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def _find_cache_folder() -> Path:
    """Folder of cached banks: `$XDG_CACHE_HOME/jaxmarl_echelon/drive`, by default in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "jaxmarl_echelon" / "drive"


def load_or_make(cache: str | Path | None, content: object, make: Callable[[], CachedScenes]) -> CachedScenes:
    """Calls `make()`, or returns its cached result for the same content hash.

    Args:
      cache: folder, "auto" for `_find_cache_folder()`, None to disable the cache.
      content: all inputs of the result, as JSON values.
      make: returns arrays and facts (JSON values).
    """
    if cache is None:
        return make()
    folder = _find_cache_folder() if cache == "auto" else Path(cache).expanduser()
    name = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{name}.npz"
    with suppress(*_BROKEN):
        return _load(path)
    arrays, facts = make()
    try:
        _save(path, arrays, facts)
    except OSError as error:
        warnings.warn(f"cannot write the scene cache in {folder}: {error}", stacklevel=2)
    return arrays, facts


def _load(path: Path) -> CachedScenes:
    with np.load(path, allow_pickle=False) as stored:
        facts = json.loads(str(stored["facts"]))
        return {name: stored[name] for name in stored.files if name != "facts"}, facts


def _save(path: Path, arrays: dict[str, np.ndarray], facts: dict) -> None:
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez_compressed(file, facts=np.array(json.dumps(facts)), **arrays)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
