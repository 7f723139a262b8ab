import sys

from fake_packages import FakeWandb
from tracking_runs import member_info, run_info, write_updates

from jaxmarl_echelon.tracking.trackio_sink import TrackioSink


def test_runs_have_names_that_a_resume_finds_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trackio", fake := FakeWandb())
    folder = tmp_path / "seed_4"
    folder.mkdir()
    group = TrackioSink(project="races")
    member = group.for_member()
    group.open(run_info(tmp_path))
    member.open(member_info(folder, "baseline"))
    write_updates(member, 1, 1)
    member.media(1000, "evaluation/episode_1", folder / "a.gif")
    for sink in (group, member):
        sink.close()
    one, other = fake.runs
    identity = (folder / "trackio_id.txt").read_text()
    assert other.given["name"] == f"{tmp_path.name}/seed_4-{identity}" and other.given["resume"] == "allow"
    assert other.given["group"] == tmp_path.name and one.given["group"] is None
    assert other.rows[0] == (1000, {"train/return": -9.5} | other.rows[0][1])
    assert other.rows[-1] == (1000, {"evaluation/episode_1": ("video", str(folder / "a.gif"))})
    again = TrackioSink()
    again.open(member_info(folder, "baseline", resume_step=1000))
    assert fake.runs[-1].given["name"] == other.given["name"]
    assert (one.ended, other.ended) == (1, 1) and capsys.readouterr().out == ""
