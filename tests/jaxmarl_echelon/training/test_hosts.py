"""Several processes in one run: equal to one, stopped together, and never left hanging."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import sharded_runs
from marked import thorough
from sharded_runs import LENGTH_TYPED, TINY, compiler_flags, write_environment

from jaxmarl_echelon import checkpoints, processes, run_folders, train

HEARTBEAT = 10

TYPED = ("-m", "jaxmarl_echelon.train")
KEEPING = (Path(sharded_runs.__file__).with_name("host_process.py"),)

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def begin(
    repository: Path, folder: Path, devices: int, *arguments: str, program: tuple = KEEPING
) -> subprocess.Popen:
    """A training process with so many devices, in its own folder, on a probe that needs no other package."""
    folder.mkdir(parents=True, exist_ok=True)
    found = write_environment(folder.with_name(f"{folder.name}_conf"))
    paths = os.pathsep.join(map(str, (repository, repository / "tests" / "helpers")))
    return subprocess.Popen(
        [sys.executable, *program, *found, *arguments],
        env=os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": compiler_flags(devices)},
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def joined(port: int, number: int, processes: int = 2, **more: int) -> str:
    """The setting `distributed` of one of the processes."""
    places = {"coordinator_address": f"'127.0.0.1:{port}'", "num_processes": processes, "process_id": number}
    times = {"heartbeat_timeout_seconds": HEARTBEAT} | more
    return f"distributed={{{', '.join(f'{k}: {v}' for k, v in (places | times).items())}}}"


def pair(repository: Path, folder: Path, *arguments: str) -> list[subprocess.Popen]:
    """Two processes of one run, with two devices each."""
    port = free_port()
    return [
        begin(repository, folder / f"host_{number}", 2, *arguments, joined(port, number))
        for number in range(2)
    ]


def ended(process: subprocess.Popen, limit: float = 120) -> tuple[int, str, str]:
    """Status, output and errors of a process, without what gloo says of its connections."""
    try:
        out, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    # Its threads may write into each other's lines.
    quiet = [line for line in out.splitlines() if "[Gloo]" not in line and "peer ranks" not in line]
    return process.returncode, "\n".join(quiet), errors


def placed(folder: Path, name: str) -> tuple[tuple[str, ...], Path]:
    """Arguments that name a run, and its folder."""
    run = folder / "outputs" / "fickle" / "ppo" / name
    return (f"output_dir={folder / 'outputs'}", f"run_name={name}"), run


def table(path: Path) -> dict[str, np.ndarray]:
    """A CSV's columns but those of times: numbers, or the names of outcomes and tasks."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if not name.startswith("time/") and name != "time"]
    return {name: values([row[name] for row in rows]) for name in names}


def values(column: list[str]) -> np.ndarray:
    try:
        return np.array([float(cell or "nan") for cell in column])
    except ValueError:
        return np.array(column)


def assert_alike(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    if ours.dtype == float:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.thorough
def test_two_processes_with_two_devices_equal_one_with_four(repository, tmp_path, ran):
    where, run = placed(tmp_path, "two")
    hosts = pair(repository, tmp_path, *TINY, *where, LENGTH_TYPED)
    first, second = (ended(process) for process in hosts)
    assert [first[0], second[0]] == [0, 0], (first, second)
    _, single = placed(ran("rest"), "run")
    assert "devices: 4 (4 for the environments), shards of a run: 4" in first[1]
    assert second[1] == "", "only the first process speaks"
    for name in ("metrics.csv", "eval.csv", "episodes.csv"):
        ours, theirs = table(run / name), table(single / name)
        assert ours.keys() == theirs.keys() and len(next(iter(ours.values()))) >= 3
        for column, numbers in ours.items():
            assert_alike(numbers, theirs[column], column)
    lengths = table(run / "episodes.csv")["length"]
    assert lengths.min() == 1 and lengths.max() > 5, "episodes of several lengths"
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert list((tmp_path / "host_1").iterdir()) == []


def test_two_processes_train_one_run_and_stop_together(repository, tmp_path):
    """SIGTERM to the second: both save and end well; only the first speaks and writes."""
    where, run = placed(tmp_path, "short")
    small = ("total_env_steps=1000000000", "eval_every=1000000")
    port = free_port()
    hosts = [
        begin(repository, tmp_path / f"host_{number}", 1, *TINY, *where, *small, joined(port, number))
        for number in range(2)
    ]
    wait_for_a_later_checkpoint(run, 0, hosts)
    hosts[1].send_signal(signal.SIGTERM)
    first, second = (ended(process) for process in hosts)
    assert [first[0], second[0]] == [0, 0], (first, second)
    assert "devices: 2 (2 for the environments), shards of a run: 2" in first[1]
    assert second[1] == "" and list((tmp_path / "host_1").iterdir()) == []
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped"
    _, *losses = table(run / "metrics.csv")["losses/policy_loss"]  # after the row of the first evaluation
    assert latest(run) == len(losses) * 16 * 8 > 0 and np.isfinite(losses).all()


@pytest.mark.thorough
def test_signals_and_a_kill(repository, tmp_path):
    """SIGTERM to either: both save and end well. Process 0 killed: the other ends, `latest` can be read."""
    where, run = placed(tmp_path, "long")
    arguments = (*TINY, *where, "total_env_steps=1000000000", "resume=auto")
    steps = [0]
    for target in (1, 0):
        hosts = pair(repository, tmp_path, *arguments)
        wait_for_a_later_checkpoint(run, steps[-1], hosts)
        hosts[target].send_signal(signal.SIGTERM)
        results = [ended(process) for process in hosts]
        assert [status for status, *_ in results] == [0, 0], results
        assert json.loads((run / "summary.json").read_text())["status"] == "stopped"
        steps.append(latest(run))
    hosts = pair(repository, tmp_path, *arguments)
    wait_for_a_later_checkpoint(run, steps[-1], hosts)
    hosts[0].kill()
    hosts[0].communicate()
    assert_says_that_another_is_gone(hosts[1])
    steps.append(latest(run))
    assert steps == sorted(set(steps))


PROCESS = """
import sys
from jaxmarl_echelon import processes
number, port, waits = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "waits"
processes.join_processes({
    "coordinator_address": f"127.0.0.1:{port}", "num_processes": 2, "process_id": number,
    "heartbeat_timeout_seconds": 3,
})
print("up", flush=True)
while True:
    if waits:
        try:
            processes.any_process(False)
        except Exception as error:
            assert processes.is_connection_lost(error), error
"""


@pytest.mark.parametrize(
    ("target", "state"),
    [(0, "waits"), thorough(0, "computes"), thorough(1, "waits"), thorough(1, "computes")],
)
def test_a_kill_ends_the_other_wherever_it_is(repository, target, state):
    """In a collective, or in the middle of something that never asks for the others."""
    port = str(free_port())
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(number), port, state],
            env=os.environ | {"PYTHONPATH": str(repository)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]
    for host in hosts:
        assert host.stdout.readline() == "up\n"
    hosts[target].kill()
    hosts[target].communicate()
    assert_says_that_another_is_gone(hosts[1 - target])


def assert_says_that_another_is_gone(process: subprocess.Popen) -> None:
    status, _, errors = ended(process, HEARTBEAT + 20)
    said = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert status == 1 and len(said) == 1 and "another process is gone" in said[0], errors
    assert "Traceback" not in errors


def latest(run: Path) -> int:
    return checkpoints.read_metadata(checkpoints.find_checkpoint(run, "latest"))["step"]


def wait_for_a_later_checkpoint(run: Path, step: int, hosts) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for process in hosts:
            assert process.poll() is None, process.communicate()
        if checkpoints.has_checkpoint(run, "latest") and latest(run) > step:
            return
        time.sleep(0.05)
    raise AssertionError("no checkpoint within two minutes")


@pytest.mark.parametrize(
    ("number", "words"), [(1, "no answer within 2 s"), thorough(0, "no start within 2 s")]
)
def test_unreachable_processes_are_reported_in_one_line(repository, tmp_path, number, words):
    setting = joined(free_port(), number, initialization_timeout=2)
    where = tmp_path / "here"
    status, out, errors = ended(begin(repository, where, 1, *TINY, setting, program=TYPED))
    assert status == 2, errors
    said = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and words in said[0], errors
    assert out == "" and list(where.iterdir()) == []


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (
            jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"),
            processes.GONE,
        ),
        (OSError("no space left on device"), "could not be saved"),
    ],
)
def test_a_process_that_is_lost_during_a_save_is_not_taken_for_a_full_disk(
    monkeypatch, tmp_path, cause, words
):
    def saved(*_):
        raise checkpoints.CheckpointError("the checkpoint of step 8 could not be saved") from cause

    def end(line):
        raise SystemExit(line)

    for name, value in {
        "has_several": lambda: True,
        "is_first_process": lambda: False,
        "end_process": end,
    }.items():
        monkeypatch.setattr(processes, name, value)
    for module, name in (
        (processes, "wait_for_all"),
        (processes, "end_on_abort"),
        (run_folders, "require_shared"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(processes, "broadcast_first", lambda text: text)
    job = train.Job({}, saved, None, 0, (), {}, None)
    with pytest.raises(SystemExit, match=words):
        train.execute_job(job, tmp_path, None)
