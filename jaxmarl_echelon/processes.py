"""Processes of one run on several hosts: start, agreement, and termination with a one-line message.

Every process runs the same program and makes the same decisions, because reports are equal in all of them.
Only process 0 writes files and draws. With one process all functions are trivial and start no backend.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

AUTO, OFF = "auto", "off"
NEEDED = ("coordinator_address", "num_processes", "process_id")
# In seconds: limits of waiting for the other processes at the start, and for their heartbeats later.
TIMEOUTS = {"initialization_timeout": 120, "heartbeat_timeout_seconds": 100}
SLACK = 30
USAGE = 2
GONE = "another process is gone"
# Words in the errors of gloo, NCCL and the coordination service that indicate a lost connection.
LOST = ("Gloo", "NCCL", "coordination", "UNAVAILABLE")
_ending = threading.Lock()
_handlers: list[Any] = []


def join_processes(setting: Any) -> None:
    """Joins the processes of a run; must be called once, before any other use of JAX.

    Args:
      setting: `distributed` of the configuration: "off", "auto" (Slurm, Open MPI, TPU pods and others that
        JAX recognises), or a mapping with the keys `NEEDED` and optionally `TIMEOUTS`.

    Raises:
      ValueError: one line, for an invalid setting, if no cluster is recognised, or if the other processes
        cannot be reached in time.
    """
    arguments = read_distributed(setting)
    if arguments is None or jax.distributed.is_initialized():
        return
    limit = arguments["initialization_timeout"]
    if (address := arguments.get("coordinator_address")) and arguments["process_id"] > 0:
        _await(address, limit)
    failed = f"distributed={describe_distributed(setting)}: no start within {limit} s"
    # If other processes are missing, JAX aborts with pages of text; this timer ends the process earlier.
    watch = threading.Timer(limit, end_process, (f"{failed} (not all processes joined)", USAGE))
    watch.daemon = True
    watch.start()
    try:
        jax.distributed.initialize(**arguments | {"initialization_timeout": limit + SLACK})
    except (RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"{failed} ({' '.join(str(error).split())[:160]})") from error
    finally:
        watch.cancel()
    if has_several():
        end_on_abort(f"{GONE}; continue with resume=auto")


def read_distributed(setting: Any) -> dict[str, Any] | None:
    """Returns the arguments of `jax.distributed.initialize`, None for "off"; raises a one-line ValueError."""
    if setting in (None, False, OFF):
        return None
    if setting == AUTO:
        return dict(TIMEOUTS)
    if not isinstance(setting, Mapping):
        raise ValueError(f"distributed={setting}: must be {OFF}, {AUTO} or a mapping of {', '.join(NEEDED)}")
    for key in setting:
        if key not in (*NEEDED, *TIMEOUTS):
            known = ", ".join((*NEEDED, *TIMEOUTS))
            raise ValueError(f"distributed.{key}={setting[key]}: unknown key; allowed: {known}")
    for key in NEEDED:
        if setting.get(key) is None:
            raise ValueError(f"distributed.{key}: must be given")
    _check_addresses(setting)
    return TIMEOUTS | dict(setting)


def _check_addresses(setting: Mapping[str, Any]) -> None:
    """Checks the coordinator's address and the whole numbers of a mapping `distributed`."""
    host, _, port = str(setting["coordinator_address"]).rpartition(":")
    if not host or not port.isdigit():
        address = setting["coordinator_address"]
        raise ValueError(f"distributed.coordinator_address={address}: must be HOST:PORT of process 0")
    for key, least in {"num_processes": 1, "process_id": 0, **dict.fromkeys(TIMEOUTS, 1)}.items():
        value = setting.get(key, TIMEOUTS.get(key))
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"distributed.{key}={value}: must be a whole number of at least {least}")
    number = setting["num_processes"]
    if setting["process_id"] >= number:
        raise ValueError(f"distributed.process_id={setting['process_id']}: must be below {number}")


def describe_distributed(setting: Any) -> str:
    """Formats the setting for messages."""
    return setting["coordinator_address"] if isinstance(setting, Mapping) else str(setting)


def _await(address: str, limit: int) -> None:
    """Waits until a process listens at HOST:PORT; JAX's own client would abort the process instead."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + limit
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return
        time.sleep(0.2)
    raise ValueError(f"distributed.coordinator_address={address}: no answer within {limit} s")


def has_several() -> bool:
    """Whether there is more than one process."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first_process() -> bool:
    """Whether this process is the one that writes files and draws."""
    return not has_several() or jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all processes must call this."""
    return bool(multihost_utils.process_allgather(np.array(flag)).any()) if has_several() else flag


def minimum_over_processes(number: float) -> float:
    """Returns the minimum over all processes, in float32; all processes must call this."""
    return float(multihost_utils.process_allgather(np.float32(number)).min()) if has_several() else number


def broadcast_first(text: str) -> str:
    """Returns the text of process 0, at most 1,000 bytes; all processes must call this."""
    if not has_several():
        return text
    mine = text.encode()[:1000].ljust(1000, b"\0")
    told = multihost_utils.broadcast_one_to_all(np.frombuffer(mine, np.uint8))
    return bytes(np.asarray(told, np.uint8)).rstrip(b"\0").decode()


def wait_for_all(where: str) -> None:
    """Waits until all processes have called this."""
    if has_several():
        multihost_utils.sync_global_devices(where)


def is_connection_lost(error: BaseException | None) -> bool:
    """Whether an error indicates that another process cannot be reached any more."""
    kinds = isinstance(error, jax.errors.JaxRuntimeError | ValueError)
    return has_several() and kinds and any(word in str(error) for word in LOST)


def append_error(line: str, error: BaseException) -> str:
    """Appends the beginning of an error's message to a line."""
    return f"{line} ({' '.join(str(error).split())[:160]})"


def end_on_abort(line: str) -> None:
    """Ends the process with this line and status 1 when JAX would abort it.

    JAX aborts from its own thread: after the heartbeat timeout if another process is gone, at once if process
    0 is. Its callback for this case cannot be a Python function (the status that it passes has no Python
    type), so SIGABRT is caught; a handler of the module `signal` would wait for the main thread, which can be
    blocked in a collective. JAX's earlier log lines stay on stderr.
    """
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: end_process(line))
    _handlers.append(handler)  # C holds no reference
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))


def end_process(line: str, status: int = 1) -> NoReturn:
    """Prints one line and exits at once; a regular exit would wait for the processes that are gone."""
    if not _ending.acquire(blocking=False):
        threading.Event().wait()  # another thread is ending this process
    print(f"error: {line}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)
