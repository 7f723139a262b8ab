"""Run folders: one process writes at a time, and continuing removes nothing newer."""

import json
import os
import re
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest
from omegaconf import OmegaConf

from jaxmarl_echelon import checkpoints, run_folders, run_lock, train
from jaxmarl_echelon.checkpoints import CheckpointError


def lock_of(process, host=None):
    """The text of a lock that a process of this machine, or of another, has made."""
    host = host or run_lock.socket.gethostname()
    return json.dumps(
        {"host": host, "process": process, "started": run_lock.process_start_time(process), "beats": 0}
    )


@pytest.fixture
def child():
    """Another process."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.stdin.close()
    process.wait()


def test_a_folder_is_held_by_one_process_until_it_lets_go(tmp_path, child):
    folders = tmp_path / "run", tmp_path / "run" / "seed_0"
    for folder in folders:
        with run_lock.hold_locks(folders):
            with pytest.raises(run_lock.LockedError) as refused, run_lock.hold_locks([folder]):
                pass
            (line,) = refused.value.args
            assert f"process {os.getpid()} on" in line and str(folder) in line and "\n" not in line
        assert not list(tmp_path.rglob(".*")) and not list(tmp_path.rglob("*.lock"))
    (folders[1] / run_lock.NAME).write_text(lock_of(child.pid))
    with pytest.raises(run_lock.LockedError, match=f"process {child.pid} "):
        run_lock.hold_locks(folders).__enter__()
    assert [path.parent for path in tmp_path.rglob(run_lock.NAME)] == [folders[1]], "it holds none of them"


def test_lock_of_a_dead_process_is_taken_over(tmp_path, child, monkeypatch):
    lock = tmp_path / run_lock.NAME
    running = lock_of(child.pid)
    child.stdin.close()
    child.wait()
    # The number of a process may belong to another one by now.
    later = json.dumps(json.loads(lock_of(os.getpid())) | {"started": "1"})
    monkeypatch.setattr(run_lock, "PATIENCE", 0.2)
    monkeypatch.setattr(run_lock, "BEAT", 0.1)
    for left in (running, later, "", "{", "[]", lock_of(os.getpid(), "elsewhere")):
        lock.write_text(left)
        with run_lock.hold_locks([tmp_path]):
            assert json.loads(lock.read_text())["process"] == os.getpid()
        assert os.listdir(tmp_path) == []


def test_a_process_on_another_host_shows_that_it_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "BEAT", 0.05)
    with run_lock.hold_locks([tmp_path]):
        # From where another host stands, which cannot look the process up.
        monkeypatch.setattr(run_lock.socket, "gethostname", lambda: "another")
        begin = time.monotonic()
        with pytest.raises(run_lock.LockedError):
            run_lock.hold_locks([tmp_path]).__enter__()
        assert time.monotonic() - begin < run_lock.PATIENCE / 2
    assert os.listdir(tmp_path) == []


def test_faster_process_keeps_a_lock_that_two_take_over(tmp_path):
    lock = tmp_path / run_lock.NAME
    lock.write_text("of the faster one")
    run_lock._set_aside(lock, "of the dead one")
    assert lock.read_text() == "of the faster one" and os.listdir(tmp_path) == [run_lock.NAME]


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(28, "No space left")])
def test_a_lock_that_cannot_be_created_is_one_line_with_what_chose_the_folder(tmp_path, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(run_lock, "_acquire_lock", fails)
    told = f"resume: cannot create {tmp_path / run_lock.NAME}: {error.strerror}"
    with pytest.raises(run_lock.LockedError, match=re.escape(told)):
        run_lock.hold_locks([tmp_path], "resume").__enter__()


def test_a_run_does_not_begin_in_a_folder_that_is_in_use(tmp_path):
    def written(*_):
        raise AssertionError("it has begun")

    job = train.Job({}, written, None, 0, ("seed_0",), {}, None)
    with run_lock.hold_locks([tmp_path / "seed_0"]), pytest.raises(run_lock.LockedError, match="seed_0"):
        train.execute_job(job, tmp_path, None)
    assert [path.name for path in tmp_path.rglob("*")] == ["seed_0"]


def test_a_run_that_is_being_written_is_not_read_to_be_continued(tmp_path):
    for path in ("run", "run/checkpoints", "run/checkpoints/best_eval", "run/seed_0"):
        with (
            run_lock.hold_locks([tmp_path / "run"]),
            pytest.raises(run_lock.LockedError, match="is writing into"),
        ):
            train.resume_run(tmp_path / path, [])
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        train.resume_run(tmp_path / "run", [])


def saved(folder, step, names=("latest",), **facts):
    place = folder / "checkpoints"
    return checkpoints.save_checkpoint(place, names, {"x": jnp.full(1, step)}, {"step": step, **facts})


def test_a_run_goes_on_from_its_newest_checkpoint_only(tmp_path):
    first = saved(tmp_path, 1, ("latest", "best_eval"))
    second = saved(tmp_path, 2)
    run_folders.require_newest(second, tmp_path)
    with pytest.raises(CheckpointError, match="resume=typed: .* step 1; .* to step 2, .* as=NEW_NAME"):
        run_folders.require_newest(first, "typed")
    saved(tmp_path, 2, ("best_eval", "best_training"))
    run_folders.require_newest(checkpoints.find_checkpoint(tmp_path, "best_training"), tmp_path)


def test_group_does_not_continue_over_a_member_with_later_checkpoints(tmp_path):
    group = saved(tmp_path, 1, group={"seed_0": {}, "seed_1": {}})
    saved(tmp_path / "seed_0", 1)
    run_folders.require_newest(group, tmp_path)
    saved(tmp_path / "seed_0", 3)
    with pytest.raises(CheckpointError, match="seed_0 has continued to step 3"):
        run_folders.require_newest(group, tmp_path)


def test_a_group_is_copied_with_the_tables_and_checkpoints_of_its_members(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    facts = {"group": {"seed_0": {}}}
    first = saved(old, 1, ("latest", "kept"), **facts)
    saved(old, 2, **facts)
    for step in (1, 2):
        saved(old / "seed_0", step, (f"best_{step}",))
    for table in ("metrics.csv", "pbt.csv", "seed_0/eval.csv", "seed_0/notes.csv"):
        (old / table).write_text("step\n1\n2\n")
    copy = run_folders.copy_run(first, new)
    assert checkpoints.read_metadata(copy)["step"] == 1 and copy.parent == new / "checkpoints"
    tables = [str(path.relative_to(new)) for path in new.rglob("*.csv")]
    assert sorted(tables) == ["metrics.csv", "pbt.csv", "seed_0/eval.csv"]
    for folder in (new, new / "seed_0"):
        assert [path.name for path in folder.glob("checkpoints/step_*")] == [copy.name]
    assert checkpoints.has_checkpoint(new / "seed_0", "best_1") and not checkpoints.has_checkpoint(
        new / "seed_0", "best_2"
    )


def test_failed_copy_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    first = saved(tmp_path / "old", 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folders.shutil, "copytree", full)
    with pytest.raises(CheckpointError, match="new: the run could not be copied .*No space") as caught:
        run_folders.copy_run(first, tmp_path / "new")
    assert "\n" not in str(caught.value) and not (tmp_path / "new").exists()


@pytest.mark.parametrize("member", [(), ("seed_3",)])
def test_what_comes_of_a_run_lies_beside_it_from_wherever_it_is_asked_for(tmp_path, monkeypatch, member):
    """A relative `output_dir` is that of the folder in which the run was started, which may have moved."""
    config = OmegaConf.create({"output_dir": "outputs"})
    choices = {"env": "gymnax/CartPole-v1", "algo": "ppo"}
    place = tmp_path / "moved" / "gymnax_CartPole-v1" / "ppo"
    checkpoint = place.joinpath("run", *member, "checkpoints", "step_1")
    assert run_folders.output_dir_of(checkpoint, config, choices) == str(tmp_path / "moved")
    elsewhere = tmp_path.joinpath("copy", *member, "checkpoints", "step_1")
    assert run_folders.output_dir_of(elsewhere, config, choices) == "outputs"
    assert run_folders.output_dir_of(tmp_path / "step_1", config, choices) == "outputs"
    monkeypatch.chdir(tmp_path)
    config.output_dir = "moved"
    assert run_folders.output_dir_of(checkpoint, config, choices) == "moved"
