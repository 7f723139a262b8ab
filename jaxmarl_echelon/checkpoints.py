"""Crash-safe checkpoints of the whole run state.

A checkpoint is a folder `step_N` with the arrays (Orbax) and a `metadata.json`, written under a temporary
name and renamed when complete. `latest`, `best_eval`, ... are pointer files of one line, the name of such a
folder, replaced atomically; a folder without a pointer is removed. Symbolic links and whole folders under
these names are also read: older runs have links, and copying may resolve them.

Arrays on several devices are written by the processes that hold them, and read onto the devices of the
continued run. All processes must save the same checkpoints; process 0 renames, points and removes.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding

from jaxmarl_echelon import processes

PyTree = Any

METADATA = "metadata.json"
# Incremented whenever older checkpoints become incompatible.
FORMAT = 4
KINDS = ("step", "policy")
CHECKPOINT = re.compile(rf"(?:{'|'.join(KINDS)})_(\d+)")
PARTIAL = ".partial_"
PATTERN = set("[]*?")
# Most runs that a message names.
_MOST_NAMES = 20


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or of another configuration; the message is one line."""


def save_checkpoint(
    folder: Path, names: tuple[str, ...], state: PyTree, metadata: dict, kind: str = "step"
) -> Path:
    """Saves `state` and points the given names at it.

    Where the folder has a checkpoint of the step, that is the same state, of which only the metadata are
    written again: a run may have been resumed there with changed settings, which its next resume applies.

    Args:
      folder: the run's checkpoint folder.
      names: names such as `("latest", "best_eval")`.
      state: a pytree of arrays; typed keys are allowed.
      metadata: JSON-serialisable; must contain `step`, the environment steps so far.
      kind: prefix of the checkpoint's folder, one of `KINDS`.

    Returns:
      the checkpoint's folder.

    Raises:
      CheckpointError: one line, if it cannot be written.
    """
    final = folder / checkpoint_folder_name(metadata["step"], kind)
    partial = folder / f"{PARTIAL}{final.name}"
    first = processes.is_first_process()
    try:
        if not processes.any_process(first and final.exists()):
            if first:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
            processes.wait_for_all("checkpoint begins")
            with _literal(partial.resolve()) as place, ocp.Checkpointer(_handler()) as checkpointer:
                checkpointer.save(place / "state", flatten_state(state))
            if first:
                _describe(partial, metadata)
                os.rename(partial, final)
        elif first:
            _describe(final, metadata)
        if first:
            _point(folder, names, final.name)
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or repr(error)
        raise CheckpointError(
            f"{folder}: the checkpoint of step {metadata['step']} could not be saved ({reason}); "
            f"the last good one: {folder / 'latest'}"
        ) from error
    finally:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
    processes.wait_for_all("checkpoint ends")
    return final


@contextmanager
def _literal(folder: Path) -> Iterator[Path]:
    """Yields a folder that Orbax can write to, and moves the result to `folder` if that is a different one.

    Orbax finds the parts of a checkpoint by a glob pattern, so brackets, stars and question marks in the
    folder's path would be interpreted; a temporary folder is used for such paths.

    Raises:
      ValueError: for such a path with several processes, which would need a common temporary folder.
    """
    if not PATTERN & set(str(folder)):
        yield folder
        return
    if processes.has_several():
        raise ValueError(f"paths of runs of several processes must not contain {' '.join(sorted(PATTERN))}")
    with tempfile.TemporaryDirectory() as lent:
        yield Path(lent)
        shutil.move(Path(lent) / "state", folder / "state")


def rewind_to_checkpoint(folder: Path, checkpoint: Path) -> None:
    """Points `latest` at `checkpoint` and removes later checkpoints, which the resumed run rewrites."""
    if processes.is_first_process():
        step = read_metadata(checkpoint)["step"]
        _settle(folder)
        _point(folder, ("latest",), checkpoint_folder_name(step))
        remove_later_checkpoints(folder, step)


def remove_later_checkpoints(folder: Path, step: int) -> None:
    """Removes checkpoints of later environment steps, and the names that point at them."""
    if not folder.is_dir() or not processes.is_first_process():
        return
    _settle(folder)
    for path in list(folder.iterdir()):
        if (target := _target(path)) is not None and _step(target) > step:
            path.unlink()
        elif path.name.startswith(PARTIAL) or (path.is_dir() and _step(path.name) > step):
            shutil.rmtree(path, ignore_errors=True)


def copy_checkpoints_until(source: Path, folder: Path, step: int) -> None:
    """Copies the checkpoints up to an environment step, and the names that point at them, to a new folder."""
    for path in sorted(source.iterdir()):
        held = source / (_target(path) or path.name)
        if not (held / METADATA).is_file() or (facts := read_metadata(held))["step"] > step:
            continue
        name = checkpoint_folder_name(facts["step"], _kind(facts))
        if not (folder / name).exists():
            shutil.copytree(held, folder / name)
        if CHECKPOINT.fullmatch(path.name) is None:
            _point(folder, (path.name,), name)


def names_until(folder: Path, step: int) -> set[str]:
    """Returns the names that point at checkpoints up to an environment step, for all processes."""
    found = []
    for path in folder.iterdir() if folder.is_dir() and processes.is_first_process() else ():
        held = folder / (_target(path) or path.name)
        if (held / METADATA).is_file() and read_metadata(held)["step"] <= step:
            found.append(path.name)
    return set(processes.broadcast_first(",".join(n for n in found if _step(n) < 0)).split(",")) - {""}


def checkpoint_folder_name(step: int, kind: str = "step") -> str:
    """Returns the folder name of a checkpoint by its environment step; `kind` is one of `KINDS`."""
    return f"{kind}_{step:012d}"


def _kind(facts: dict) -> str:
    return "policy" if facts.get("policy_only") else "step"


def _step(name: str) -> int:
    """Parses the environment step in a checkpoint's name; -1 for other names."""
    found = CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else -1


def _describe(folder: Path, metadata: dict) -> None:
    fresh = folder / f".{METADATA}"
    with open(fresh, "w") as file:
        json.dump({"format": FORMAT, **metadata}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, folder / METADATA)


def _target(path: Path) -> str | None:
    """Reads the checkpoint folder that a pointer file or symbolic link names; None for anything else."""
    if path.is_symlink():
        named = Path(os.readlink(path)).name
    elif path.is_file() and path.stat().st_size < 100:
        named = path.read_text(encoding="utf-8", errors="replace").strip()
    else:
        return None
    return named if CHECKPOINT.fullmatch(named) else None


def _point(folder: Path, names: tuple[str, ...], target: str) -> None:
    """Points names at a checkpoint, and removes the checkpoints that lost their last name."""
    pointed = (_target(folder / name) for name in names)
    before = {name for name in pointed if name is not None} - {target}
    for name in names:
        fresh = folder / f".pointer_{name}"
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(f"{target}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, folder / name)
    for left in before - {_target(path) for path in folder.iterdir()}:
        shutil.rmtree(folder / left, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Renames whole checkpoints stored under pointer names to their own names, and restores the pointers.

    Copying a run with symbolic links can create such folders.
    """
    for path in list(folder.iterdir()):
        named = not path.is_symlink() and not path.name.startswith(".") and _step(path.name) < 0
        if not named or not (path / METADATA).is_file():
            continue
        facts = read_metadata(path)
        target = folder / checkpoint_folder_name(facts["step"], _kind(facts))
        if target.exists():
            shutil.rmtree(path)
        else:
            os.rename(path, target)
        _point(folder, (path.name,), target.name)


def find_checkpoint(path: str | Path, name: str) -> Path:
    """Resolves a checkpoint's folder from a run folder, its `checkpoints` folder, or the checkpoint itself.

    If nothing is named `latest`, as in copies without links, it means the last complete checkpoint.

    Raises:
      CheckpointError: one line that names the missing part.
    """
    path = Path(path)
    for candidate in (path, path / name, path / "checkpoints" / name):
        if (candidate / METADATA).is_file():
            return candidate.resolve()
        if (target := _target(candidate)) is None:
            continue
        if not (candidate.parent / target / METADATA).is_file():
            raise CheckpointError(f"{candidate}: points at {target}, which does not exist")
        return (candidate.parent / target).resolve()
    if not path.exists():
        raise CheckpointError(f"{path}: no such folder")
    if path.is_file():
        raise CheckpointError(f"{path}: is a file, not the folder of a run or a checkpoint")
    whole = sorted(found for place in (path, path / "checkpoints") for found in place.glob("step_*"))
    whole = [found for found in whole if _step(found.name) >= 0 and (found / METADATA).is_file()]
    if name == "latest" and whole:
        return whole[-1].resolve()
    raise CheckpointError(f"{path}: has no checkpoint named {name!r}{_describe_found(path, whole)}")


def find_named_checkpoint(path: str, name: str, where: str) -> Path:
    """Returns the checkpoint as `find_checkpoint` does, for a path that the setting `where` names.

    Raises:
      CheckpointError: one line that names the setting and the missing part.
    """
    try:
        return find_checkpoint(path, name)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {str(error).removeprefix(f'{path}: ')}") from None


def _describe_found(path: Path, whole: list[Path]) -> str:
    """Formats what a folder without the wanted checkpoint has: members or runs, or other checkpoints."""
    runs = sorted(found.parent.name for found in path.glob("*/checkpoints") if found.is_dir())
    if runs:  # a group, or a folder of runs
        return f"; name the folder of a run in it: {_list_names(runs)}"
    places = (place for place in (path, path / "checkpoints") if place.is_dir())
    pointers = sorted(found.name for place in places for found in place.iterdir() if _target(found))
    names = [*pointers, *(found.name for found in whole)]
    return f"; available: {', '.join(names)}" if names else ""


def has_checkpoint(path: str | Path, name: str) -> bool:
    """Whether `find_checkpoint` succeeds."""
    try:
        find_checkpoint(path, name)
    except CheckpointError:
        return False
    return True


def read_metadata(folder: Path) -> dict:
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


def state_digest(folder: Path) -> str:
    """Returns what tells a checkpoint's state from one saved later for the same step; empty if unknown.

    Orbax gives the files of every state names of their own, which its manifest lists.
    """
    manifest = folder / "state" / "manifest.ocdbt"
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""


def require_single_run(folder: Path, facts: dict) -> None:
    """Checks that a checkpoint has the state of one run, not that of all members of a group.

    Raises:
      CheckpointError: one line with the names of the members.
    """
    if members := list(facts.get("group", ())):
        raise CheckpointError(f"{folder}: is of a group; name the folder of a member: {_list_names(members)}")


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def restore_state(folder: Path, like: PyTree, prefix: str = "") -> PyTree:
    """Restores a state, or a part of it.

    Args:
      folder: as returned by `find_checkpoint`.
      like: structure, shapes and dtypes from `jax.eval_shape`, of the state or of a part of it. Arrays with a
        `NamedSharding` are read onto its devices, independent of the devices they were saved from.
      prefix: key path of that part in the state, as in `.policies['attacker']`.

    Raises:
      CheckpointError: one line, if the checkpoint is damaged or belongs to another configuration.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {prefix + jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            held = checkpointer.metadata(folder.resolve() / "state").item_metadata.tree
            _require(folder, held, wanted)
            named = {name: _restore_args(leaf) for name, leaf in wanted.items() if leaf.size}
            partly = ocp.args.PyTreeRestore(dict.fromkeys(named, 0), named, partial_restore=True)
            saved = checkpointer.restore(folder.resolve() / "state", args=partly) if named else {}
    except CheckpointError:
        raise
    except Exception as error:
        if not (folder / METADATA).is_file():
            raise CheckpointError(
                f"{folder}: was removed while it was read, as its run went on; repeat the command"
            ) from error
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"{folder}: damaged checkpoint ({reason[0][:120] if reason else error!r})"
        ) from error
    return jax.tree.unflatten(structure, [_as_leaf(saved.get(name), leaf) for name, leaf in wanted.items()])


def _handler() -> ocp.PyTreeCheckpointHandler:
    """Builds an Orbax handler in which the first device that holds a copy of an array writes all of it.

    By default each device writes a slice, and every slice needs a compiled program: for many small arrays
    that takes far longer than writing them.
    """
    kinds = ocp.type_handlers
    registry = kinds.create_type_handler_registry(
        (np.ndarray, kinds.NumpyHandler()),
        (jax.Array, kinds.ArrayHandler(use_replica_parallel=False)),
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)


def flatten_state(state: PyTree) -> dict[str, np.ndarray | jax.Array]:
    """Flattens a tree to arrays by key path: typed keys as key data, arrays on one device as NumPy arrays.

    Empty arrays, which Orbax rejects, are omitted; `restore_state` recreates them from their shapes.
    """
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): _plain(leaf) for path, leaf in leaves if leaf.size}


def _plain(leaf) -> np.ndarray | jax.Array:
    leaf = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    spread = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
    return leaf if spread else np.asarray(leaf)


def _is_key(leaf) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(leaf) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype in which a leaf is stored."""
    return jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf


def _require(folder: Path, held: dict, wanted: dict) -> None:
    """Checks that the checkpoint contains all arrays with their shapes and dtypes."""
    for name, leaf in wanted.items():
        if not leaf.size:
            continue
        if name not in held:
            raise CheckpointError(f"{folder}: checkpoint of another configuration ({name} is missing)")
        found, expected = held[name], _data(leaf)
        if tuple(found.shape) != expected.shape or found.dtype != expected.dtype:
            raise CheckpointError(
                f"{folder}: checkpoint of another configuration ({name} is {found.dtype}{list(found.shape)}, "
                f"expected {expected.dtype}{list(expected.shape)})"
            )


def _restore_args(leaf) -> ocp.RestoreArgs:
    if isinstance(leaf.sharding, NamedSharding):
        return ocp.ArrayRestoreArgs(sharding=leaf.sharding)
    return ocp.RestoreArgs(restore_type=np.ndarray)


def _as_leaf(value, leaf) -> jax.Array:
    if not leaf.size:
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype))
    # `jnp.asarray` would compile a program for each shape.
    array = value if isinstance(value, jax.Array) else jax.device_put(value)
    return jax.random.wrap_key_data(array) if _is_key(leaf) else array
