"""Crash-safe checkpoints of the whole run state.

A checkpoint is a folder `step_N` with the arrays (Orbax) and a `metadata.json`, written under a temporary
name and renamed when complete. `latest`, `best_eval`, ... are symbolic links to such folders, replaced
atomically; unreferenced folders are removed.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

PyTree = Any

METADATA = "metadata.json"
# Incremented whenever older checkpoints become incompatible.
FORMAT = 4
KINDS = ("step", "policy")
FOLDERS = (".partial_", *(f"{kind}_" for kind in KINDS))


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or of another configuration; the message is one line."""


def save(folder: Path, names: tuple[str, ...], state: PyTree, metadata: dict, kind: str = "step") -> Path:
    """Saves `state` and links every name of `names` to it.

    Args:
      folder: the run's checkpoint folder.
      names: such as `("latest", "best_eval")`.
      state: a pytree of arrays; typed keys are allowed.
      metadata: JSON-serialisable; must contain `step`, the environment steps so far.
      kind: prefix of the checkpoint's folder, one of `KINDS`.

    Returns:
      the checkpoint's folder.

    Raises:
      CheckpointError: one line, if it cannot be written.
    """
    final = folder / f"{kind}_{metadata['step']:012d}"
    partial = folder / f".partial_{final.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not final.exists():
            shutil.rmtree(partial, ignore_errors=True)
            _write(partial, state, {"format": FORMAT, **metadata})
            os.rename(partial, final)
        for name in names:
            _link(folder, name, final.name)
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or repr(error)
        raise CheckpointError(
            f"{folder}: the checkpoint of step {metadata['step']} could not be saved ({reason}); "
            f"the last good one: {folder / 'latest'}"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _prune(folder)
    return final


def rewind(folder: Path, checkpoint: Path) -> None:
    """Links `latest` to `checkpoint` and removes later ones, which the resumed run writes again."""
    _link(folder, "latest", checkpoint.name)
    forget_after(folder, _step(checkpoint.name))


def forget_after(folder: Path, step: int) -> None:
    """Removes checkpoints of later environment steps and their links."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_symlink() and _step(os.readlink(path)) > step:
            path.unlink()
    _prune(folder)


def _step(name: str) -> int:
    return int(name.rpartition("_")[2])


def _write(folder: Path, state: PyTree, metadata: dict) -> None:
    folder.mkdir(parents=True)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder.resolve() / "state", flatten(state))
    with open(folder / METADATA, "w") as file:
        json.dump(metadata, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def _link(folder: Path, name: str, target: str) -> None:
    fresh = folder / f".link_{name}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    os.replace(fresh, folder / name)


def _prune(folder: Path) -> None:
    kept = {os.readlink(path) for path in folder.iterdir() if path.is_symlink()}
    for path in folder.iterdir():
        stale = path.name.startswith(FOLDERS) and path.name not in kept
        if stale and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def find(path: str | Path, name: str) -> Path:
    """Resolves a checkpoint's folder from a run folder, its `checkpoints` folder, or the folder itself.

    Raises:
      CheckpointError: one line that names what is missing.
    """
    path = Path(path)
    for candidate in (path, path / name, path / "checkpoints" / name):
        if (candidate / METADATA).is_file():
            return candidate.resolve()
    if not path.exists():
        raise CheckpointError(f"{path}: no such folder")
    raise CheckpointError(f"{path}: holds no checkpoint named {name!r}")


def exists(path: str | Path, name: str) -> bool:
    """Whether `find` succeeds."""
    try:
        find(path, name)
    except CheckpointError:
        return False
    return True


def metadata(folder: Path) -> dict:
    """Reads a checkpoint's metadata.

    Raises:
      CheckpointError: one line, if the file is unreadable or its format is not `FORMAT`.
    """
    try:
        facts = json.loads((folder / METADATA).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / METADATA}: unreadable checkpoint ({error})") from error
    found = facts.get("format", "none") if isinstance(facts, dict) else "none"
    if found != FORMAT:
        raise CheckpointError(f"{folder}: checkpoint of format {found}; this version reads format {FORMAT}")
    return facts


def restore(folder: Path, like: PyTree, prefix: str = "") -> PyTree:
    """Restores a state.

    Args:
      folder: as returned by `find`.
      like: structure, shapes and dtypes from `jax.eval_shape`, of the state or of a part of it.
      prefix: key path of that part in the state, as in `.policies['attacker']`.

    Raises:
      CheckpointError: one line, if the checkpoint is damaged or of another configuration.
    """
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            saved = checkpointer.restore(folder.resolve() / "state")
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"{folder}: damaged checkpoint ({reason[0][:120] if reason else error!r})"
        ) from error
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    restored = []
    for path, leaf in leaves:
        name = prefix + jax.tree_util.keystr(path)
        if leaf.size == 0:
            restored.append(jax.numpy.zeros(leaf.shape, leaf.dtype))
        elif name in saved:
            restored.append(_as_leaf(saved[name], leaf, name, folder))
        else:
            raise CheckpointError(f"{folder}: checkpoint of another configuration (it lacks {name})")
    return jax.tree.unflatten(structure, restored)


def flatten(state: PyTree) -> dict[str, np.ndarray]:
    """Key path to array of a tree; typed keys as their key data.

    Empty arrays, which Orbax refuses, are omitted; `restore` recreates them from their shapes.
    """
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {
        jax.tree_util.keystr(path): np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for path, leaf in leaves
        if leaf.size
    }


def _is_key(leaf) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_leaf(value, leaf, name: str, folder: Path):
    array = jax.numpy.asarray(value)
    if _is_key(leaf):
        array = jax.random.wrap_key_data(array)
    if array.shape != leaf.shape or array.dtype != leaf.dtype:
        raise CheckpointError(
            f"{folder}: checkpoint of another configuration ({name} is {array.dtype}{list(array.shape)}, "
            f"expected {leaf.dtype}{list(leaf.shape)})"
        )
    return array
