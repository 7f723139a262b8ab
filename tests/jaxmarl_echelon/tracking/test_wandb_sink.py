import sys
import time

import pytest
from tracking_runs import run_info, write_updates

from jaxmarl_echelon.tracking.wandb_sink import WandbSink

ID_FILE = "wandb_id.txt"

pytestmark = pytest.mark.needs("wandb")


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb_home"))


def wait_for(path, text, seconds=20.0):
    """The file's bytes once they hold `text`; another process writes them after the run is closed."""
    end = time.monotonic() + seconds
    while text not in (written := path.read_bytes()):
        assert time.monotonic() < end, written[:500]
        time.sleep(0.05)
    return written


def test_offline_writes_the_run_without_network(tmp_path, no_network, capfd):
    sink = WandbSink(mode="offline")
    sink.open(run_info(tmp_path))
    identity = (tmp_path / ID_FILE).read_text()
    write_updates(sink, 1, 4)
    sink.write("episodes", 4000, {"outcome": "timeout"})
    sink.write("eval", 4000, {"episode": 1, "task": "left", "outcome": "timeout", "success": True})
    sink.write("eval_agg", 4000, {"success_rate": 0.5, "task/approach_0.3L": float("nan")})
    sink.write(
        "curriculum", 4000, {"phase_name": "1_lock300", "current_stage": 3.0, "patience": float("nan")}
    )
    sink.event(4000, "phase 2 -> 3: 1_lock300")
    sink.close()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert folder.name.endswith(identity)
    (record,) = folder.glob("run-*.wandb")
    # The one evaluation belongs to the last step, which only closing the run commits.
    written = wait_for(record, b"eval_agg/avg_reward")
    assert b"train/return" in written
    for text in (b"curriculum/phase_name", b"1_lock300", b"eval_agg/task/approach_0.3L"):
        assert text in written
    assert b"episodes/outcome" not in written
    assert b"eval/outcome" not in written
    assert capfd.readouterr().out == ""


def test_a_resumed_run_keeps_its_identity(tmp_path, no_network):
    (tmp_path / ID_FILE).write_text("abcd1234")
    sink = WandbSink()
    sink.open(run_info(tmp_path, resume_step=1000))
    sink.close()
    assert list((tmp_path / "wandb").glob("offline-run-*abcd1234"))
    assert (tmp_path / ID_FILE).read_text() == "abcd1234"


def test_rows_of_a_run_that_goes_back_to_an_earlier_checkpoint_are_kept(tmp_path, no_network):
    """W&B drops rows with a lower step than the last one: steps are a metric instead."""
    sink = WandbSink()
    sink.open(run_info(tmp_path))
    for step, value in ((2000, 0.25), (2000, 0.5), (1000, 0.75)):
        sink.write("train", step, {f"number_{value}": value})
    sink.close()
    (record,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    written = wait_for(record, b"train/number_0.75")
    assert written.count(b"env_steps") >= 3 and b"train/number_0.5" in written


def test_unknown_modes_are_refused_before_anything_is_written():
    with pytest.raises(ValueError, match=r"tracking.sinks.wandb.mode=onlin: must be one of offline, online"):
        WandbSink(mode="onlin")


def test_wandb_never_prompts_for_an_account(tmp_path, no_network, monkeypatch):
    """On a terminal wandb shows a menu where it finds no key, below the dashboard."""
    wandb, asked = pytest.importorskip("wandb"), []
    monkeypatch.setattr(wandb, "init", lambda **_: asked.append(sys.stdin.isatty()))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    WandbSink(mode="online").open(run_info(tmp_path))
    assert asked == [False]
