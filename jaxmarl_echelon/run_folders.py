"""Folders of runs: nothing newer is removed by continuing, copies of a run as it was, locks."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from jaxmarl_echelon import checkpoints, processes, run_lock
from jaxmarl_echelon.tracking.csv_sink import CsvSink

CHECKPOINTS = "checkpoints"


def run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint lies in; None for one that was copied out of its run."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else None


def require_newest(checkpoint: Path, named: str | Path) -> None:
    """Demands that a run can go on from a checkpoint where it lies.

    Args:
      checkpoint: as returned by `checkpoints.find`.
      named: the same as the user wrote it.

    Raises:
      CheckpointError: one line, if there is no run around it, or if that has gone on from there.
    """
    elsewhere = f"resume={named} as=NEW_NAME continues it in a new folder"
    run = run_of(checkpoint)
    if run is None:
        raise checkpoints.CheckpointError(f"resume={named}: a checkpoint without its run; {elsewhere}")
    facts = checkpoints.metadata(checkpoint)
    for folder in (run, *members(run, facts)):
        if not checkpoints.exists(folder, "latest"):
            continue
        latest = checkpoints.find(folder, "latest")
        if (step := checkpoints.metadata(latest)["step"]) > facts["step"]:
            raise checkpoints.CheckpointError(
                f"resume={named}: is of step {facts['step']}, and {folder} has gone on to step {step}, which "
                f"would be removed; {elsewhere}"
            )


def members(run: Path, facts: dict) -> list[Path]:
    """The folders of a group's members, by the metadata of its checkpoint; empty for a single run."""
    return [run / name for name in facts.get("group", ())]


def copy_run(checkpoint: Path, folder: Path) -> Path:
    """Copies a run as it was at a checkpoint to a new folder; returns the checkpoint's copy.

    Checkpoints up to its step are copied, and tables, whose later rows go when the run is opened. Process 0
    copies.
    """
    facts = checkpoints.metadata(checkpoint)
    copy = folder / CHECKPOINTS / checkpoints.folder_name(facts["step"])
    run = run_of(checkpoint)
    if not processes.is_first():
        return copy
    if run is None:
        shutil.copytree(checkpoint, copy)
        return copy
    for part in (run, *members(run, facts)):
        place = folder / part.relative_to(run)
        (place / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for table in ("metrics.csv", *CsvSink.FILES.values()):
            if (part / table).is_file():
                shutil.copy2(part / table, place / table)
        if (part / CHECKPOINTS).is_dir():
            checkpoints.copy_until(part / CHECKPOINTS, place / CHECKPOINTS, facts["step"])
    return copy


@contextmanager
def locked(folders: Iterable[Path]) -> Iterator[None]:
    """Holds the locks of run folders in process 0, see `run_lock.held`; raises in every process."""
    refused = ""
    with ExitStack() as stack:
        if processes.is_first():
            try:
                stack.enter_context(run_lock.held(folders))
            except run_lock.LockedError as error:
                refused = str(error)
        if refused := processes.first_says(refused):
            raise run_lock.LockedError(refused)
        yield


def discard(folder: Path, *around: Path) -> None:
    """Removes a run's folder, and those around it that are empty, the innermost first."""
    shutil.rmtree(folder)
    with suppress(OSError):
        for place in around:
            place.rmdir()


def require_shared(folder: Path) -> None:
    """Demands that all processes see the same files, before anything lasting is written.

    Raises:
      ValueError: one line, in every process.
    """
    if not processes.several():
        return
    mark = processes.first_says(f".shared_{os.getpid()}")
    place = next(parent for parent in folder.resolve().parents if parent.is_dir())
    if processes.is_first():
        (place / mark).touch()
    processes.meet("shared folder")
    lacking = processes.any_of(not (place / mark).exists())
    if processes.is_first():
        (place / mark).unlink()
    if lacking:
        raise ValueError(f"output_dir={folder}: must be on a file system that all processes share")
