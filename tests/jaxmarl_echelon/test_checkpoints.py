"""Checkpoints: exact, complete or absent, and refused with one line where they do not fit."""

import json
import os

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_echelon import checkpoints


def state(scale=1.0):
    return {
        "key": jax.random.key(3),
        "params": {"a/b": scale * jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "empty": ()},
        "count": (jnp.int32(7), jnp.array([True, False])),
    }


def bits(tree):
    return {name: value.tobytes() for name, value in checkpoints.flatten(tree).items()}


def test_round_trip_is_exact(tmp_path):
    checkpoints.save(tmp_path, ("latest",), state(), {"step": 5})
    found = checkpoints.find(tmp_path, "latest")
    restored = checkpoints.restore(found, jax.eval_shape(state))
    assert bits(restored) == bits(state())
    assert jax.tree.structure(restored) == jax.tree.structure(state())
    assert checkpoints.metadata(found)["step"] == 5


def test_names_point_at_their_own_states_and_others_are_pruned(tmp_path):
    checkpoints.save(tmp_path, ("latest", "best_eval"), state(1.0), {"step": 1})
    checkpoints.save(tmp_path, ("latest",), state(2.0), {"step": 2})
    checkpoints.save(tmp_path, ("latest",), state(3.0), {"step": 3})
    assert sorted(p.name for p in tmp_path.iterdir() if not p.is_symlink()) == [
        "step_000000000001",
        "step_000000000003",
    ]
    like = jax.eval_shape(state)
    for name, scale in (("best_eval", 1.0), ("latest", 3.0)):
        assert bits(checkpoints.restore(checkpoints.find(tmp_path, name), like)) == bits(state(scale))


def test_a_failed_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, ("latest",), state(1.0), {"step": 1})

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(tmp_path, ("latest",), state(2.0), {"step": 2})
    found = checkpoints.find(tmp_path, "latest")
    assert bits(checkpoints.restore(found, jax.eval_shape(state))) == bits(state(1.0))
    assert sorted(os.listdir(tmp_path)) == ["latest", "step_000000000001"]


def test_rewinding_forgets_later_checkpoints(tmp_path):
    first = checkpoints.save(tmp_path, ("latest", "best_training"), state(1.0), {"step": 1})
    checkpoints.save(tmp_path, ("latest", "best_eval"), state(2.0), {"step": 2})
    checkpoints.rewind(tmp_path, first)
    assert sorted(os.listdir(tmp_path)) == ["best_training", "latest", "step_000000000001"]
    assert checkpoints.metadata(checkpoints.find(tmp_path, "latest"))["step"] == 1


def test_what_does_not_fit_is_named_in_one_line(tmp_path):
    checkpoints.save(tmp_path, ("latest",), state(), {"step": 1})
    found = checkpoints.find(tmp_path, "latest")
    wider = jax.eval_shape(lambda: state() | {"params": {"a/b": jnp.zeros((2, 4)), "empty": ()}})
    extra = jax.eval_shape(lambda: state() | {"more": jnp.zeros(2)})
    for like, word in ((wider, "float32[2, 3], expected float32[2, 4]"), (extra, "['more']")):
        with pytest.raises(ValueError) as caught:
            checkpoints.restore(found, like)
        assert word in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no such folder"):
        checkpoints.find(tmp_path / "nowhere", "latest")
    with pytest.raises(ValueError, match="no checkpoint named 'best_eval'"):
        checkpoints.find(tmp_path, "best_eval")


def test_a_truncated_checkpoint_is_refused(tmp_path):
    found = checkpoints.save(tmp_path, ("latest",), state(), {"step": 1})
    for path in (found / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(ValueError, match="damaged checkpoint") as caught:
        checkpoints.restore(found, jax.eval_shape(state))
    assert "\n" not in str(caught.value)
    (found / checkpoints.METADATA).write_text("{")
    with pytest.raises(ValueError, match="unreadable"):
        checkpoints.metadata(found)
