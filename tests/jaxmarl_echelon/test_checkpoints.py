"""Checkpoints: exact, complete or absent, and refused with one line where they do not fit."""

import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_echelon import checkpoints, run_loading


def state(scale=1.0):
    return {
        "key": jax.random.key(3),
        "params": {"a/b": scale * jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "empty": ()},
        "count": (jnp.int32(7), jnp.array([True, False])),
    }


def bits(tree):
    return {name: value.tobytes() for name, value in checkpoints.flatten_state(tree).items()}


@pytest.mark.parametrize("name", ["run", "größe=[1]*", "a b?"])
def test_round_trip_is_exact(tmp_path, name):
    checkpoints.save_checkpoint(tmp_path / name, ("latest",), state(), {"step": 5})
    found = checkpoints.find_checkpoint(tmp_path / name, "latest")
    restored = checkpoints.restore_state(found, jax.eval_shape(state))
    assert bits(restored) == bits(state())
    assert jax.tree.structure(restored) == jax.tree.structure(state())
    assert checkpoints.read_metadata(found)["step"] == 5


def test_arrays_without_elements_are_kept_by_their_shape(tmp_path):
    def some():
        return {"none": jnp.zeros((0, 2)), "one": jnp.ones(1)}

    checkpoints.save_checkpoint(tmp_path, ("latest",), some(), {"step": 5})
    restored = checkpoints.restore_state(
        checkpoints.find_checkpoint(tmp_path, "latest"), jax.eval_shape(some)
    )
    assert restored["none"].shape == (0, 2) and restored["one"] == 1


def test_names_point_at_their_own_states_and_others_are_pruned(tmp_path):
    checkpoints.save_checkpoint(tmp_path, ("latest", "best_eval"), state(1.0), {"step": 1})
    checkpoints.save_checkpoint(tmp_path, ("latest",), state(2.0), {"step": 2})
    checkpoints.save_checkpoint(tmp_path, ("latest",), state(3.0), {"step": 3})
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [
        "step_000000000001",
        "step_000000000003",
    ]
    like = jax.eval_shape(state)
    for name, scale in (("best_eval", 1.0), ("latest", 3.0)):
        assert bits(checkpoints.restore_state(checkpoints.find_checkpoint(tmp_path, name), like)) == bits(
            state(scale)
        )


def refuse_links(*_, **__):
    raise OSError(95, "Operation not supported")


def three_saved(folder):
    """The checkpoints of three saves: the first one is the best, the last one the latest."""
    checkpoints.save_checkpoint(folder, ("latest", "best_eval"), state(1.0), {"step": 1})
    checkpoints.save_checkpoint(folder, ("latest", "best_training"), state(2.0), {"step": 2})
    checkpoints.save_checkpoint(folder, ("latest",), state(3.0), {"step": 3})


def step_count_name(folder, *names):
    return [checkpoints.read_metadata(checkpoints.find_checkpoint(folder, name))["step"] for name in names]


def test_checkpoints_work_without_symbolic_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "symlink", refuse_links)
    three_saved(tmp_path)
    assert step_count_name(tmp_path, "best_eval", "best_training", "latest") == [1, 2, 3]
    assert step_count_name(tmp_path / "best_eval", "latest") == [1], "a name is a path, too"
    checkpoints.rewind_to_checkpoint(tmp_path, checkpoints.find_checkpoint(tmp_path, "best_training"))
    assert sorted(os.listdir(tmp_path)) == [
        "best_eval", "best_training", "latest", "step_000000000001", "step_000000000002",
    ]  # fmt: skip


def with_links(folder, names):
    """A folder as runs of before these files have left it."""
    for name, target in names.items():
        (folder / name).unlink()
        (folder / name).symlink_to(target)


def without_names(folder, names):
    """A copy that left links out."""
    for name in names:
        (folder / name).unlink()


def with_copies(folder, names):
    """A copy that followed links; of the best one nothing else is left."""
    for name, target in names.items():
        (folder / name).unlink()
        shutil.copytree(folder / target, folder / name)
    shutil.rmtree(folder / names["best_eval"])


@pytest.mark.parametrize("changed", [with_links, without_names, with_copies])
def test_copied_run_folder_can_be_read_and_continued(tmp_path, changed):
    three_saved(tmp_path)
    names = {
        name: checkpoints.find_checkpoint(tmp_path, name).name
        for name in ("latest", "best_training", "best_eval")
    }
    changed(tmp_path, names)
    assert step_count_name(tmp_path, "latest") == [3]
    if changed is not without_names:
        assert step_count_name(tmp_path, "best_training", "best_eval") == [2, 1]
    checkpoints.rewind_to_checkpoint(tmp_path, checkpoints.find_checkpoint(tmp_path, "latest"))
    checkpoints.save_checkpoint(tmp_path, ("latest", "best_training"), state(4.0), {"step": 4})
    assert step_count_name(tmp_path, "latest", "best_training", "step_000000000001") == [4, 4, 1]
    if changed is without_names:
        assert step_count_name(tmp_path, "step_000000000002") == [2], "nobody can say that it is no best one"
    else:
        assert step_count_name(tmp_path, "best_eval") == [1] and not (tmp_path / "step_000000000002").exists()


def test_pointer_to_a_missing_checkpoint_is_one_line(tmp_path):
    three_saved(tmp_path)
    shutil.rmtree(checkpoints.find_checkpoint(tmp_path, "best_eval"))
    with pytest.raises(checkpoints.CheckpointError, match="best_eval: points at step_0+1, which does not"):
        checkpoints.find_checkpoint(tmp_path, "best_eval")


def test_a_run_is_copied_as_it_was_at_a_checkpoint(tmp_path):
    three_saved(tmp_path / "old")
    checkpoints.copy_checkpoints_until(tmp_path / "old", tmp_path / "new", 2)
    assert sorted(os.listdir(tmp_path / "new")) == [
        "best_eval", "best_training", "step_000000000001", "step_000000000002",
    ]  # fmt: skip
    assert step_count_name(tmp_path / "new", "best_eval", "best_training", "latest") == [1, 2, 2]


def test_a_failed_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    checkpoints.save_checkpoint(tmp_path, ("latest",), state(1.0), {"step": 1})

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(checkpoints.CheckpointError, match="step 2 could not be saved .No space") as caught:
        checkpoints.save_checkpoint(tmp_path, ("latest",), state(2.0), {"step": 2})
    assert "\n" not in str(caught.value)
    found = checkpoints.find_checkpoint(tmp_path, "latest")
    assert bits(checkpoints.restore_state(found, jax.eval_shape(state))) == bits(state(1.0))
    assert sorted(os.listdir(tmp_path)) == ["latest", "step_000000000001"]


FILLS_UP = """
import resource, sys
from pathlib import Path
import jax.numpy as jnp
from jaxmarl_echelon import checkpoints

folder = Path(sys.argv[1])
checkpoints.save_checkpoint(folder, ("latest",), {"x": jnp.ones(4)}, {"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoints.save_checkpoint(folder, ("latest",), {"x": jnp.arange(200_000) * 1.37}, {"step": 2})
except checkpoints.CheckpointError as error:
    print(error)
"""


def test_full_disk_is_one_line_and_keeps_the_last_checkpoint(tmp_path):
    done = subprocess.run([sys.executable, "-c", FILLS_UP, str(tmp_path)], capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    assert done.returncode == 0 and len(lines) == 1, done.stderr
    assert "step 2 could not be saved" in lines[0] and lines[0].endswith("latest")
    found = checkpoints.find_checkpoint(tmp_path, "latest")
    restored = checkpoints.restore_state(found, jax.eval_shape(lambda: {"x": jnp.ones(4)}))
    assert checkpoints.read_metadata(found)["step"] == 1 and float(restored["x"].sum()) == 4.0
    assert sorted(os.listdir(tmp_path)) == ["latest", "step_000000000001"]


def test_policy_checkpoints_do_not_replace_full_states(tmp_path):
    checkpoints.save_checkpoint(tmp_path, ("latest",), state(1.0), {"step": 1})
    checkpoints.save_checkpoint(
        tmp_path, ("best_eval_phase_0",), {"step": jnp.int32(1)}, {"step": 1}, "policy"
    )
    assert sorted(os.listdir(tmp_path)) == [
        "best_eval_phase_0", "latest", "policy_000000000001", "step_000000000001",
    ]  # fmt: skip
    like = jax.eval_shape(state)
    assert bits(checkpoints.restore_state(checkpoints.find_checkpoint(tmp_path, "latest"), like)) == bits(
        state(1.0)
    )
    checkpoints.save_checkpoint(
        tmp_path, ("best_eval_phase_0",), {"step": jnp.int32(2)}, {"step": 3}, "policy"
    )
    checkpoints.remove_later_checkpoints(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step_000000000001"]


def test_a_part_of_a_state_is_restored_by_its_place(tmp_path):
    found = checkpoints.save_checkpoint(
        tmp_path, ("latest",), {"learners": {"a": {"w": jnp.arange(3)}}}, {"step": 1}
    )
    part = checkpoints.restore_state(found, {"w": jax.ShapeDtypeStruct((3,), jnp.int32)}, "['learners']['a']")
    assert part["w"].tolist() == [0, 1, 2]


def test_settings_of_a_run_that_stops_where_it_was_resumed_are_kept(tmp_path):
    """What it printed, `resume=RUN`, would otherwise go on with those of before."""
    for rate in (0.1, 0.2):
        facts = {"step": 5, "config": {"rate": rate}}
        saved = checkpoints.save_checkpoint(tmp_path, ("latest",), state(1.0), facts)
        assert checkpoints.read_metadata(saved)["config"] == {"rate": rate}
    assert sorted(path.name for path in saved.iterdir()) == ["metadata.json", "state"]


def test_rewinding_forgets_later_checkpoints(tmp_path):
    first = checkpoints.save_checkpoint(tmp_path, ("latest", "best_training"), state(1.0), {"step": 1})
    checkpoints.save_checkpoint(tmp_path, ("latest", "best_eval"), state(2.0), {"step": 2})
    checkpoints.rewind_to_checkpoint(tmp_path, first)
    assert sorted(os.listdir(tmp_path)) == ["best_training", "latest", "step_000000000001"]
    assert checkpoints.read_metadata(checkpoints.find_checkpoint(tmp_path, "latest"))["step"] == 1


def test_mismatched_array_is_named_in_one_line(tmp_path):
    checkpoints.save_checkpoint(tmp_path, ("latest",), state(), {"step": 1})
    found = checkpoints.find_checkpoint(tmp_path, "latest")
    wider = jax.eval_shape(lambda: state() | {"params": {"a/b": jnp.zeros((2, 4)), "empty": ()}})
    extra = jax.eval_shape(lambda: state() | {"more": jnp.zeros(2)})
    for like, word in ((wider, "float32[2, 3], expected float32[2, 4]"), (extra, "['more']")):
        with pytest.raises(ValueError) as caught:
            checkpoints.restore_state(found, like)
        assert word in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no such folder"):
        checkpoints.find_checkpoint(tmp_path / "nowhere", "latest")
    with pytest.raises(ValueError, match="no checkpoint named 'best_eval'"):
        checkpoints.find_checkpoint(tmp_path, "best_eval")


def test_a_wrong_folder_or_name_is_answered_with_what_is_there(tmp_path):
    for run in ("group", "group/seed_0", "group/seed_1"):
        facts = {"step": 1} | ({"group": {"seed_0": {}, "seed_1": {}}} if run == "group" else {})
        names = ("latest",) if run == "group" else ("latest", "best_eval")
        checkpoints.save_checkpoint(tmp_path / run / "checkpoints", names, state(), facts)
    for folder, runs in ((tmp_path / "group", "seed_0, seed_1"), (tmp_path, "group")):
        with pytest.raises(ValueError, match=f"name the folder of a run in it: {runs}$"):
            checkpoints.find_checkpoint(folder, "best_eval")
    with pytest.raises(ValueError, match="available: best_eval, latest, step_000000000001$"):
        checkpoints.find_checkpoint(tmp_path / "group/seed_0", "best_evl")
    (tmp_path / "metrics.csv").write_text("updates\n")
    with pytest.raises(ValueError, match="metrics.csv: is a file, not the folder of a run or a checkpoint$"):
        checkpoints.find_checkpoint(tmp_path / "metrics.csv", "best_eval")
    found = checkpoints.find_checkpoint(tmp_path / "group", "latest")
    with pytest.raises(ValueError, match="is of a group; name the folder of a member: seed_0, seed_1$"):
        checkpoints.require_single_run(found, checkpoints.read_metadata(found))
    with pytest.raises(ValueError, match="is of a group"):
        run_loading.load_run(str(tmp_path / "group"), "latest")


def test_a_checkpoint_that_its_run_has_removed_is_not_called_damaged(tmp_path):
    found = checkpoints.save_checkpoint(tmp_path, ("latest",), state(1.0), {"step": 1})
    checkpoints.save_checkpoint(tmp_path, ("latest",), state(2.0), {"step": 2})
    with pytest.raises(checkpoints.CheckpointError, match="was removed while it was read.*; repeat the com"):
        checkpoints.restore_state(found, jax.eval_shape(state))


def test_a_truncated_checkpoint_is_refused(tmp_path):
    found = checkpoints.save_checkpoint(tmp_path, ("latest",), state(), {"step": 1})
    for path in (found / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(ValueError, match="damaged checkpoint") as caught:
        checkpoints.restore_state(found, jax.eval_shape(state))
    assert "\n" not in str(caught.value)
    (found / checkpoints.METADATA).write_text("{")
    with pytest.raises(ValueError, match="unreadable"):
        checkpoints.read_metadata(found)
