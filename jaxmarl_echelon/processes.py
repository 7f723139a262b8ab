"""The processes of one run on several hosts: starting them, agreeing, and ending with one line.

Every process runs the same program and decides alike, because reports are the same everywhere. Process 0
alone writes and draws. With one process all functions are trivial and start no backend.
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
# In seconds: how long to wait for the others at the start, and for a sign of life later.
TIMEOUTS = {"initialization_timeout": 120, "heartbeat_timeout_seconds": 100}
SLACK = 30
USAGE = 2
GONE = "another process is gone"
# How a lost connection shows in what gloo, NCCL and the coordination service raise.
LOST = ("Gloo", "NCCL", "coordination", "UNAVAILABLE")
_ending = threading.Lock()
_handlers: list[Any] = []


def start(setting: Any) -> None:
    """Joins the processes of a run; before anything else of JAX, and once.

    Args:
      setting: `distributed` of the configuration: "off", "auto" (Slurm, Open MPI, TPU pods and others that
        JAX recognises), or a mapping of `NEEDED` and optionally of `TIMEOUTS`.

    Raises:
      ValueError: one line, for an invalid setting, where no cluster is recognised, and where the others
        cannot be reached in time.
    """
    arguments = read(setting)
    if arguments is None or jax.distributed.is_initialized():
        return
    limit = arguments["initialization_timeout"]
    if (address := arguments.get("coordinator_address")) and arguments["process_id"] > 0:
        _await(address, limit)
    failed = f"distributed={shown(setting)}: no start within {limit} s"
    # Where others do not come, JAX ends the process by force, with pages of text: this is before it.
    watch = threading.Timer(limit, end, (f"{failed} (not all processes came)", USAGE))
    watch.daemon = True
    watch.start()
    try:
        jax.distributed.initialize(**arguments | {"initialization_timeout": limit + SLACK})
    except (RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"{failed} ({' '.join(str(error).split())[:160]})") from error
    finally:
        watch.cancel()
    if several():
        on_abort(f"{GONE}; continue with resume=auto")


def read(setting: Any) -> dict[str, Any] | None:
    """Arguments of `jax.distributed.initialize`; None for "off". Raises a ValueError of one line."""
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
    return TIMEOUTS | dict(setting)


def shown(setting: Any) -> str:
    """The setting for messages."""
    return setting["coordinator_address"] if isinstance(setting, Mapping) else str(setting)


def _await(address: str, limit: int) -> None:
    """Waits until somebody listens at HOST:PORT; a client of JAX's would end the process by force."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + limit
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return
        time.sleep(0.2)
    raise ValueError(f"distributed.coordinator_address={address}: nobody answered within {limit} s")


def several() -> bool:
    """Whether there is more than one process."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Whether this process writes and draws."""
    return not several() or jax.process_index() == 0


def any_of(flag: bool) -> bool:
    """Whether the flag is set in any process; all must ask."""
    return bool(multihost_utils.process_allgather(np.array(flag)).any()) if several() else flag


def least(number: float) -> float:
    """The smallest of all processes' numbers, in float32; all must ask."""
    return float(multihost_utils.process_allgather(np.float32(number)).min()) if several() else number


def first_says(text: str) -> str:
    """The text of process 0, at most 1,000 bytes; all must ask."""
    if not several():
        return text
    mine = text.encode()[:1000].ljust(1000, b"\0")
    told = multihost_utils.broadcast_one_to_all(np.frombuffer(mine, np.uint8))
    return bytes(np.asarray(told, np.uint8)).rstrip(b"\0").decode()


def meet(where: str) -> None:
    """Waits until all processes are here."""
    if several():
        multihost_utils.sync_global_devices(where)


def lost(error: BaseException | None) -> bool:
    """Whether there is an error that says that another process cannot be reached any more."""
    kinds = isinstance(error, jax.errors.JaxRuntimeError | ValueError)
    return several() and kinds and any(word in str(error) for word in LOST)


def shortened(line: str, error: BaseException) -> str:
    """The line, with the beginning of what the error says."""
    return f"{line} ({' '.join(str(error).split())[:160]})"


def on_abort(line: str) -> None:
    """Ends with this line and status 1 where JAX would end the process by force.

    JAX does so in a thread of its own, wherever this process is: after the heartbeat where another is gone,
    at once where process 0 is. Its callback for this case cannot be written in Python (the status that it
    passes has no Python type), so the signal is caught; a handler of the module `signal` would wait for a
    main thread that may be in a collective for good. What JAX logs before stays on stderr.
    """
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: end(line))
    _handlers.append(handler)  # C holds no reference
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))


def end(line: str, status: int = 1) -> NoReturn:
    """Prints one line and ends this process at once; an orderly end would wait for those that are gone."""
    if not _ending.acquire(blocking=False):
        threading.Event().wait()  # another thread is ending this process
    print(f"error: {line}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)
