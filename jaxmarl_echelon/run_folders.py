"""Folders of runs: checks before continuing a run, copies of a run at a checkpoint, locks."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from omegaconf import DictConfig

from jaxmarl_echelon import checkpoints, command_line, processes, run_lock
from jaxmarl_echelon.tracking.csv_sink import LINEAGE, METRICS, CsvSink

CHECKPOINTS = "checkpoints"


def run_of(checkpoint: Path) -> Path | None:
    """Returns the run folder of a checkpoint; None for a checkpoint that was copied out of its run."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else None


def output_dir_of(checkpoint: Path, config: DictConfig, choices: Mapping[str, str]) -> str:
    """Returns the `output_dir` of a checkpoint's run, for any working directory.

    A relative one is that of the folder in which the run was started. Where the run lies in no folder of its
    environment and algorithm, it is the one of its configuration.
    """
    run = run_of(checkpoint)
    # A group's members lie in its folder.
    for folder in () if run is None else (run, run.parent):
        if folder.parts[-3:-1] == command_line.around_run(choices):
            found = folder.parents[2]
            return config.output_dir if Path(config.output_dir).resolve() == found else str(found)
    return config.output_dir


def require_newest(checkpoint: Path, named: str | Path) -> None:
    """Checks that a run can continue in its folder from a checkpoint, without losing later checkpoints.

    Args:
      checkpoint: as returned by `checkpoints.find_checkpoint`.
      named: the path as written by the user.

    Raises:
      CheckpointError: one line, if the checkpoint is not in a run, or the run has later checkpoints.
    """
    elsewhere = f"resume={named} as=NEW_NAME continues it in a new folder"
    run = run_of(checkpoint)
    if run is None:
        raise checkpoints.CheckpointError(f"resume={named}: checkpoint outside of a run; {elsewhere}")
    facts = checkpoints.read_metadata(checkpoint)
    for folder in (run, *member_folders(run, facts)):
        if not checkpoints.has_checkpoint(folder, "latest"):
            continue
        latest = checkpoints.find_checkpoint(folder, "latest")
        if (step := checkpoints.read_metadata(latest)["step"]) > facts["step"]:
            raise checkpoints.CheckpointError(
                f"resume={named}: checkpoint of step {facts['step']}; {folder} has continued to step {step}, "
                f"which would be removed; {elsewhere}"
            )


def member_folders(run: Path, facts: dict) -> list[Path]:
    """Lists the folders of a group's members, from the metadata of its checkpoint; empty for a single run."""
    return [run / name for name in facts.get("group", ())]


def copy_run(checkpoint: Path, folder: Path) -> Path:
    """Copies a run, up to a checkpoint, to a new folder; returns the checkpoint's copy.

    Checkpoints up to its step are copied, and whole tables, whose later rows are removed when the run
    continues. Only process 0 copies.

    Raises:
      CheckpointError: one line, if it cannot be copied; the new folder is removed.
    """
    facts = checkpoints.read_metadata(checkpoint)
    if processes.is_first_process():
        try:
            _copy(checkpoint, facts, folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            reason = " ".join(str(error).split())[:200]
            raise checkpoints.CheckpointError(f"{folder}: the run could not be copied ({reason})") from error
    return folder / CHECKPOINTS / checkpoints.checkpoint_folder_name(facts["step"])


def _copy(checkpoint: Path, facts: dict, folder: Path) -> None:
    run = run_of(checkpoint)
    if run is None:
        shutil.copytree(checkpoint, folder / CHECKPOINTS / checkpoints.checkpoint_folder_name(facts["step"]))
        return
    for part in (run, *member_folders(run, facts)):
        place = folder / part.relative_to(run)
        (place / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for table in (METRICS, LINEAGE, *CsvSink.FILES.values()):
            if (part / table).is_file():
                shutil.copy2(part / table, place / table)
        if (part / CHECKPOINTS).is_dir():
            checkpoints.copy_checkpoints_until(part / CHECKPOINTS, place / CHECKPOINTS, facts["step"])


def require_free(path: Path) -> None:
    """Checks that no process is writing into the run of this folder or checkpoint.

    Raises:
      LockedError: one line.
    """
    path = path.absolute()
    for place in (path, *path.parents[:2]):
        if (place / run_lock.NAME).exists():
            run_lock.require_dead(place / run_lock.NAME)


@contextmanager
def lock_run_folders(folders: Iterable[Path], key: str = run_lock.PLACE) -> Iterator[None]:
    """Holds the locks of run folders in process 0, see `run_lock.hold_locks`; errors reach every process."""
    refused = ""
    with ExitStack() as stack:
        if processes.is_first_process():
            try:
                stack.enter_context(run_lock.hold_locks(folders, key))
            except run_lock.LockedError as error:
                refused = str(error)
        if refused := processes.broadcast_first(refused):
            raise run_lock.LockedError(refused)
        yield


def discard_folders(folder: Path, *around: Path) -> None:
    """Removes a run's folder, and its empty parents in `around`, the innermost first."""
    shutil.rmtree(folder)
    with suppress(OSError):
        for place in around:
            place.rmdir()


def require_shared(folder: Path) -> None:
    """Checks that all processes see the same files, before results are written.

    Raises:
      ValueError: one line, in every process.
    """
    if not processes.has_several():
        return
    mark = processes.broadcast_first(f".shared_{os.getpid()}")
    place = next(parent for parent in folder.resolve().parents if parent.is_dir())
    if processes.is_first_process():
        (place / mark).touch()
    processes.wait_for_all("shared folder")
    lacking = processes.any_process(not (place / mark).exists())
    if processes.is_first_process():
        (place / mark).unlink()
    if lacking:
        raise ValueError(f"output_dir={folder}: must be on a file system that all processes share")
