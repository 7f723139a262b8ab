"""Input files of a run, with digests: maps, scenes, teachers, frozen policies.

Configurations contain paths as typed, which are valid only in one folder and only while the files do not
change. Runs therefore store absolute paths and SHA-256 digests in their configuration, under `KEY`, and so
in the metadata of each checkpoint:

    files:
      /maps/hall.yaml: {hall.yaml: 5e3f..., hall.png: 90aa...}

Readers of a checkpoint compare the digests. A missing path is replaced by its last parts relative to the
current folder, if these have the same contents: a project can be moved as a whole.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from algos.settings import teacher_script
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.training.config.role_assignment import FROZEN
from jaxmarl_echelon.training.config.run_config import RunConfig

KEY = "files"
NAMING = ("env", "algo", "algos", "controllers", "pool", "variants")
# A name with more files than this gets one digest of all of them.
_MOST = 256

Digests = dict[str, str]
Files = dict[str, Digests]


def files_in_metadata(metadata: Mapping[str, Any]) -> Files:
    """Files that a run has read, from its checkpoint's metadata; empty in checkpoints without `KEY`."""
    return dict(metadata["config"].get(KEY) or {})


def hash_input_files(config: RunConfig, *, learning: bool = True) -> Files:
    """Returns the digests of all files that a run reads, by absolute path of the file or folder it names.

    Args:
      config: the run.
      learning: whether to include the learners' teachers, which acting does not need.
    """
    read = dict(config.env.files)
    for algo in config.algos.values():
        read |= algo.files
    found = {name: _digests(name, paths) for name, paths in read.items()}
    runs = {f"controllers.{role}={name}": name for role, name in config.controllers.items()}
    runs |= {f"pool.fixed={name}": name for name in config.pool.fixed}
    runs = {where: name for where, name in runs.items() if name.startswith(FROZEN)}
    if learning:
        runs |= {f"algo.teacher={name}": name for name in teacher_runs(config)}
    roles = [role.name for role in config.env.spec.roles]
    for where, name in runs.items():
        stem, _ = split_role(name.removeprefix(FROZEN), roles)
        found[stem] = _run_digests(stem, where)
    return {os.path.abspath(name): digests for name, digests in found.items()}


def teacher_runs(config: RunConfig) -> list[str]:
    """Returns the runs that are teachers of a run's learners, as the settings name them; scripts are none."""
    named = (algo.teacher for algo in config.algos.values())
    return [name for name in named if name is not None and teacher_script(name) is None]


def digest_folder(folder: Path) -> Files:
    """Returns the digests of all files of a folder, by its absolute path."""
    return {os.path.abspath(folder): _digests(str(folder), sorted(folder.glob("*.*")))}


def copy_folder(resolved: dict[str, Any], name: str, place: Path) -> None:
    """Copies the files of a folder that a configuration names, and names the copy instead.

    Args:
      resolved: the configuration as plain data with absolute paths, changed in place.
      name: absolute path of the folder.
      place: of the copy, absolute.
    """
    if not place.exists():
        place.mkdir(parents=True)
        for path in Path(name).glob("*.*"):
            shutil.copyfile(path, place / path.name)
    resolved |= _renamed(resolved, lambda known: str(place) if known == name else known)
    files = {known: digests for known, digests in resolved[KEY].items() if known != name}
    resolved[KEY] = files | digest_folder(place)


def split_role(path: str, roles: Iterable[str]) -> tuple[str, str | None]:
    """Splits `PATH@ROLE` into path and role; the role is None unless it is one of `roles`."""
    stem, _, role = path.rpartition("@")
    return (stem, role) if role in roles else (path, None)


def _run_digests(name: str, where: str) -> Digests:
    """Digest of the metadata of the best checkpoint of the run that the setting `where` names."""
    folder = checkpoints.find_named_checkpoint(name, "best_eval", where)
    place = os.path.relpath(folder, os.path.realpath(name))
    return {os.path.join(place, checkpoints.METADATA): _digest(folder / checkpoints.METADATA)}


def _digests(name: str, paths: Iterable[Path]) -> Digests:
    """Digests of the files behind a name, by path relative to its folder."""
    base = _base(name)
    found = {os.path.relpath(os.path.abspath(path), base): _digest(path) for path in paths}
    if len(found) <= _MOST:
        return found
    together = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
    return {f"{len(found)} files": together}


def _base(name: str) -> str:
    """Folder to which the paths of a name's files are relative."""
    whole = os.path.abspath(name)
    return whole if os.path.isdir(whole) else os.path.dirname(whole)


def _digest(path: str | Path) -> str:
    """SHA-256 of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def with_absolute_paths(resolved: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """Returns a configuration as plain data, with absolute paths and digests of the files that were read."""

    def absolute(name: str) -> str:
        whole = os.path.abspath(name)
        return whole if whole in files else name

    return {**_renamed(resolved, absolute), KEY: files}


def relocate_files(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration without `KEY`, with current paths of files that moved with a project."""
    files = config.get(KEY) or {}
    moved = {name: _moved(name, digests) for name, digests in files.items()}
    plain = {key: value for key, value in config.items() if key != KEY}
    return _renamed(plain, lambda name: moved.get(name, name))


def _moved(name: str, digests: Digests) -> str:
    """Returns the current path of a file with the same contents; the name itself if none is found."""
    if os.path.exists(name):
        return name
    parts = Path(name).parts[1:]
    for first in range(len(parts)):
        found = os.path.abspath(os.path.join(*parts[first:]))
        if os.path.exists(found) and _holds(found, digests):
            return found
    return name


def _holds(name: str, digests: Digests) -> bool:
    """Whether the files of a name have these digests; False for names of more than `_MOST` files."""
    base = _base(name)
    return all(_digest(os.path.join(base, place)) == digest for place, digest in digests.items())


def _renamed(config: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """Renames the files in a configuration, under the keys that may contain file names."""

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: walk(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [walk(one) for one in value]
        return _with_name(value, rename) if isinstance(value, str) else value

    return {key: walk(value) if key in NAMING else value for key, value in config.items()}


def _with_name(value: str, rename: Callable[[str], str]) -> str:
    """Renames the file in a value: a path or `frozen:PATH`, possibly with `@ROLE` at the end."""
    kind = FROZEN if value.startswith(FROZEN) else ""
    name = value.removeprefix(kind)
    if (whole := rename(name)) != name:
        return kind + whole
    stem, at, role = name.rpartition("@")
    return kind + (rename(stem) + at + role if at else name)


def files_under_key(config: Mapping[str, Any], key: str) -> set[str]:
    """Returns absolute paths of all files that the value of a dotted key may name."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part, {}) if isinstance(value, Mapping) else value
    found: set[str] = set()

    def note(name: str) -> str:
        found.add(os.path.abspath(name))
        return name

    _renamed({NAMING[0]: value}, note)
    return found


def same_files(old: Any, new: Any, files: Mapping[str, Digests]) -> bool:
    """Whether two values of a setting name the same file: the same path, or the contents that `old` had."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(one == other or same_files(one, other, files) for one, other in zip(old, new, strict=True))
    if not (isinstance(old, str) and isinstance(new, str)) or old.startswith(FROZEN) != new.startswith(
        FROZEN
    ):
        return False
    names = [value.removeprefix(FROZEN) for value in (old, new)]
    (stem, at, role), (other, again, part) = (name.rpartition("@") for name in names)
    return _one(*names, files) or (at == again == "@" and role == part and _one(stem, other, files))


def _one(old: str, new: str, files: Mapping[str, Digests]) -> bool:
    """As `same_files`, for two plain paths."""
    if not os.path.exists(new):
        return False
    old, new = os.path.abspath(old), os.path.abspath(new)
    return old == new or (old in files and _holds(new, files[old]))


def policy_runs_in_state(config: RunConfig) -> set[str]:
    """Returns absolute paths of the runs whose policies are stored in this run's state."""
    roles = [role.name for role in config.env.spec.roles]
    runs = [name.removeprefix(FROZEN) for name in config.controllers.values() if name.startswith(FROZEN)]
    runs += teacher_runs(config)
    return {os.path.abspath(split_role(name, roles)[0]) for name in runs}


def require_unchanged_files(
    before: Mapping[str, Digests], now: Mapping[str, Digests], whose: str | Path, held: Iterable[str] = ()
) -> None:
    """Checks that a run's input files have not changed since it read them.

    Args:
      before: the run's files, from its checkpoint.
      now: the files of the current configuration; files that only one of the two names are not compared.
      whose: the run, for the message.
      held: names of runs whose policies come from the checkpoint: their changes are only printed.

    Raises:
      CheckpointError: one line that names the first file that differs.
    """
    for name, place, how in find_file_changes(before, now):
        line = f"{os.path.normpath(os.path.join(_base(name), place))} {how} since {whose} read it"
        if name not in held:
            raise checkpoints.CheckpointError(f"{line}; the run needs the original")
        print(f"{line}; the policy is taken from the checkpoint", file=sys.stderr)


def find_file_changes(
    before: Mapping[str, Digests], now: Mapping[str, Digests]
) -> Iterator[tuple[str, str, str]]:
    """Yields name, path and kind of change of the first changed file of each name."""
    for name in sorted(before.keys() & now.keys()):
        old, new = before[name], now[name]
        for place in sorted(old.keys() | new.keys()):
            if old.get(place) != new.get(place):
                how = "is new" if place not in old else "is gone" if place not in new else "has changed"
                yield name, place, how
                break
