import sys

import pytest
from fake_packages import FakeMlflow
from tracking_runs import member_info, run_info, write_updates

from jaxmarl_echelon.tracking.mlflow_sink import ID_FILE, MlflowSink


@pytest.fixture
def mlflow(monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    return fake


def test_an_update_is_sent_at_once(tmp_path, mlflow):
    sink = MlflowSink("races", uri="sqlite:///here.db")
    sink.open(run_info(tmp_path))
    write_updates(sink, 1, 4, curriculum=True)
    sink.write("episodes", 4000, {"reward": 1.0})
    sink.write("eval_agg", 5000, {"task/approach_0.3L,x": float("nan")})
    sink.media(5000, "evaluation/episode_1", tmp_path / "a.gif")
    sink.event(5000, "saved")
    sink.close()
    (run,) = mlflow.runs.values()
    assert (run.status, run.name, run.calls) == ("FINISHED", tmp_path.name, 5)
    assert mlflow.uris == ["sqlite:///here.db"] and mlflow.experiments == {"races": "0"}
    names = {name for name, *_ in run.metrics}
    assert {"train/return", "losses/entropy", "eval_agg/task/approach_0.3L_x"} <= names
    assert not {"curriculum/phase_name", "episodes/reward"} & names
    returns = [(value, step) for name, value, _, step in run.metrics if name == "train/return"]
    assert returns == [(n - 10.5, 1000 * n) for n in range(1, 5)]
    files = dict(run.files)
    assert files["config.json"]["choices"]["algo"] == "ppo" and "media/evaluation/episode_1/a.gif" in files


def test_a_resumed_run_continues_and_members_are_below_their_group(tmp_path, mlflow):
    group, folder = MlflowSink(), tmp_path / "seed_4"
    folder.mkdir()
    member = group.for_member()
    group.open(run_info(tmp_path))
    member.open(member_info(folder, "baseline"))
    group.write("train", 1, {"return": 1.0})
    group.close()
    member.close()
    parent, own = ((tmp_path / ID_FILE).read_text(), (folder / ID_FILE).read_text())
    assert mlflow.runs[own].tags == {
        "environment": "f110",
        "variant": "baseline",
        "mlflow.parentRunId": parent,
    }
    assert mlflow.runs[own].name == f"{tmp_path.name}/seed_4" and not mlflow.runs[own].metrics
    again = MlflowSink()
    again.open(member_info(folder, "baseline", resume_step=1000))
    assert len(mlflow.runs) == 2 and mlflow.runs[own].status == "RUNNING"
