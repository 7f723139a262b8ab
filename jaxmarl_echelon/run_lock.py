"""Locks of run folders, which prevent two processes from writing into one folder.

A lock is the file `run.lock` in the folder, created only if it does not exist. It names the host and the
process that hold it, so the lock of a dead process is taken over at once. The state of a process on another
host is unknown: its lock file changes every `BEAT` seconds while it lives, and a lock that does not change
for `PATIENCE` seconds is taken over. Locks of the operating system are not used: some network file systems
lack them, and Windows has different ones.
"""

import ctypes
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from jaxmarl_echelon import output_folders

NAME = "run.lock"
# Setting that chooses the folder of a run.
PLACE = "output_dir"
BEAT, PATIENCE = 15.0, 50.0
# Windows constants: access right to wait for a process, status of a running process, and an error code.
SYNCHRONIZE, WAIT_TIMEOUT, ACCESS_DENIED = 0x00100000, 0x102, 5


class LockedError(ValueError):
    """A run folder is in use; the message is one line."""


@contextmanager
def hold_locks(folders: Iterable[Path], key: str = PLACE) -> Iterator[None]:
    """Holds the locks of run folders; creates missing folders.

    Args:
      folders: the folders.
      key: setting or option that chose them, for messages.

    Raises:
      LockedError: one line, if another process holds one of the locks, or a folder or its lock cannot be
        created; then no lock is held.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_held(folder, key))
        yield


@contextmanager
def _held(folder: Path, key: str) -> Iterator[None]:
    lock, ended = folder / NAME, threading.Event()
    mine = {"host": socket.gethostname(), "process": os.getpid(), "started": process_start_time(os.getpid())}
    made = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = lock
        _acquire_lock(lock, mine)
    except OSError as error:
        raise LockedError(output_folders.describe_refusal(made, key, error)) from None
    beats = threading.Thread(target=_beat, args=(lock, mine, ended), daemon=True)
    beats.start()
    try:
        yield
    finally:
        ended.set()
        beats.join()
        lock.unlink(missing_ok=True)


def _acquire_lock(lock: Path, mine: dict) -> None:
    """Creates a lock, replacing that of a dead process; raises LockedError."""
    while True:
        with suppress(FileExistsError), lock.open("x", encoding="utf-8") as file:
            file.write(_text(mine, 0))
            return
        _set_aside(lock, require_dead(lock))


def require_dead(lock: Path) -> str:
    """Returns the text of a lock whose process is dead; raises LockedError if it is alive."""
    found = _read(lock)
    if _owner_lives(lock, found):
        raise LockedError(f"{lock.parent}: {_owner(found)} is writing into this folder ({lock})")
    return found


def _owner_lives(lock: Path, text: str) -> bool:
    """Whether the process that holds a lock with this text is alive."""
    try:
        owner = json.loads(text)
        host, process, since = owner["host"], owner["process"], owner["started"]
    except (ValueError, KeyError, TypeError):
        host, process, since = None, 0, None  # incomplete, because it is being written, or damaged
    if host == socket.gethostname():
        return _process_lives(process) and process_start_time(process) == since
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if _read(lock) != text:
            return lock.exists()
        time.sleep(min(BEAT / 5, 1.0))
    return False


def _process_lives(number: int) -> bool:
    """Whether a process with this number exists on this machine."""
    if os.name == "nt":
        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(SYNCHRONIZE, False, number)
        if not handle:
            return kernel.GetLastError() == ACCESS_DENIED
        alive = kernel.WaitForSingleObject(handle, 0) == WAIT_TIMEOUT
        kernel.CloseHandle(handle)
        return alive
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def process_start_time(number: int) -> str:
    """Returns the start time of a process in clock ticks since boot, as text; empty except on Linux."""
    with suppress(OSError, IndexError):
        # The program's name, in brackets before this field, can contain spaces and brackets.
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _beat(lock: Path, mine: dict, ended: threading.Event) -> None:
    count = 0
    while not ended.wait(BEAT):
        count += 1
        with suppress(OSError):
            lock.write_text(_text(mine, count), encoding="utf-8")


def _set_aside(lock: Path, dead: str) -> None:
    """Removes a dead process's lock, unless another process has replaced it in the meantime."""
    aside = lock.with_name(f".{NAME}_{os.getpid()}")
    with suppress(FileNotFoundError):
        os.replace(lock, aside)
        if _read(aside) == dead:
            aside.unlink()
        else:
            os.replace(aside, lock)


def _text(owner: dict, beats: int) -> str:
    return json.dumps(owner | {"beats": beats})


def _read(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _owner(text: str) -> str:
    with suppress(ValueError, KeyError, TypeError):
        owner = json.loads(text)
        return f"process {owner['process']} on {owner['host']}"
    return "another process"
