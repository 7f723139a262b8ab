"""Runs a function on many jobs, in this process or in several, with a progress bar.

As a program, `python -m jaxmarl_echelon.envs.workers MODULE:FUNCTION`, it is a worker process: it reads
pickled tuples of arguments from stdin and writes each result to stdout.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from importlib import import_module
from queue import SimpleQueue
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

_SHOWN_FROM = 8  # fewer jobs need no progress bar


def run_jobs(
    function: Callable,
    jobs: Sequence[tuple],
    *,
    label: str,
    per_worker: int,
    workers: int | None = None,
    progress: bool = True,
) -> list[Any]:
    """Returns the results of `function(*job)` in the order of the jobs, for any number of processes.

    Args:
      function: at the top level of an importable module; arguments and results can be pickled.
      jobs: tuples of arguments.
      label: text of the progress bar, which is shown on a terminal if there are more than a few jobs.
      per_worker: number of jobs that take as long as the start of a process.
      workers: number of processes; None uses up to one per processor, each with at least `per_worker` jobs.
      progress: whether to show the bar.

    Raises:
      ValueError: the first one in the order of the jobs that the function raised.
      RuntimeError: a process ended early.
    """
    if workers is None:
        workers = min(_processors(), len(jobs) // per_worker)
    console = Console(stderr=True)
    shown = progress and len(jobs) >= _SHOWN_FROM and console.is_terminal
    made = _in_turn(function, jobs) if workers < 2 else _side_by_side(function, jobs, min(workers, len(jobs)))
    results = dict(track(made, label, len(jobs), console=console, transient=True, disable=not shown))
    ordered = [results[index] for index in range(len(jobs))]
    for result in ordered:
        if isinstance(result, _Raised):
            raise result.error
    return ordered


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Raised(NamedTuple):
    """Error that a function raised instead of returning a result."""

    error: ValueError


def _answer(function: Callable, job: tuple) -> Any:
    try:
        return function(*job)
    except ValueError as error:
        return _Raised(ValueError(*error.args))


def _in_turn(function: Callable, jobs: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
    for index, job in enumerate(jobs):
        yield index, function(*job)


def _side_by_side(function: Callable, jobs: Sequence[tuple], workers: int) -> Iterator[tuple[int, Any]]:
    """Yields results in the order in which processes finish them."""
    idle = SimpleQueue()

    def answered(index: int) -> tuple[int, Any]:
        process = idle.get()
        try:
            pickle.dump(jobs[index], process.stdin)
            process.stdin.flush()
            return index, pickle.load(process.stdout)
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError(f"{function.__name__}{jobs[index]}: the worker process ended early") from error
        finally:
            idle.put(process)

    with ExitStack() as processes, ThreadPoolExecutor(workers) as pool:
        try:
            for _ in range(workers):
                idle.put(processes.enter_context(_start(f"{function.__module__}:{function.__name__}")))
            for done in as_completed([pool.submit(answered, index) for index in range(len(jobs))]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _start(function: str) -> subprocess.Popen:
    # multiprocessing would fork a process that runs JAX, or rerun the user's script in every child.
    return subprocess.Popen(
        [sys.executable, "-m", serve.__module__, function],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def serve(name: str) -> None:
    """Runs the jobs from stdin until it ends and writes their results; `name` is MODULE:FUNCTION."""
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    module, function = name.split(":")
    function = vars(import_module(module))[function]
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        pickle.dump(_answer(function, job), answers)
        answers.flush()


if __name__ == "__main__":
    # Pickled objects must belong to the module under its importable name, not `__main__`.
    import_module("jaxmarl_echelon.envs.workers").serve(sys.argv[1])
