import pytest
from tracking_runs import run_info

from jaxmarl_echelon.tracking import NAMESPACES, Sink, Tracker


class Recorder(Sink):
    def __init__(self):
        self.calls = []

    def open(self, run):
        self.calls.append(("open", run.title))

    def write(self, namespace, step, values):
        self.calls.append((namespace, step, dict(values)))

    def event(self, step, text):
        self.calls.append(("event", step, text))

    def flush(self):
        self.calls.append(("flush",))

    def close(self):
        self.calls.append(("close",))


class Broken(Sink):
    """Raises in one method, and counts how often it is closed."""

    def __init__(self, method):
        self.closed = 0
        if method != "close":
            setattr(self, method, self.fail)
        self.fails_to_close = method == "close"

    def fail(self, *_):
        raise OSError("disk\nfull")

    def close(self):
        self.closed += 1
        if self.fails_to_close:
            self.fail()


def test_every_sink_sees_every_call_in_order(tmp_path):
    sinks = {"a": Recorder(), "b": Recorder()}
    with Tracker(sinks).open(run_info(tmp_path)) as tracker:
        tracker.log("train", 2**40, {"return": 1.5})
        tracker.event(5, "saved")
        tracker.log("events", 6, {"first": "one", "second": "two"})
        tracker.flush()
    expected = [
        ("open", ("f110", "ppo", tmp_path.name, "seed 3")),
        ("train", 2**40, {"return": 1.5}),
        ("event", 5, "saved"),
        ("event", 6, "one"),
        ("event", 6, "two"),
        ("flush",),
        ("close",),
    ]
    assert sinks["a"].calls == sinks["b"].calls == expected


@pytest.mark.parametrize("method", ["open", "write", "event", "media", "flush", "close"])
def test_a_failing_sink_is_reported_once_and_dropped(tmp_path, capsys, method):
    recorder, broken = Recorder(), Broken(method)
    tracker = Tracker({"bad": broken, "good": recorder}).open(run_info(tmp_path))
    for step in range(3):
        tracker.log("train", step, {"return": 0.0})
        tracker.event(step, "x")
        tracker.media(step, "evaluation/episode_1", tmp_path / "a.gif")
        tracker.flush()
    assert tracker.active == (("bad", "good") if method == "close" else ("good",))
    tracker.close()
    assert [call[0] for call in recorder.calls] == ["open", *["train", "event", "flush"] * 3, "close"]
    assert broken.closed == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors == [f"tracking: bad failed in {method} and is disabled (OSError: disk full)"]


def test_interrupts_are_not_swallowed(tmp_path):
    sink = Recorder()
    sink.write = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    tracker = Tracker({"a": sink}).open(run_info(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        tracker.log("train", 1, {})


def test_unknown_namespaces_name_the_known_ones():
    with pytest.raises(ValueError, match=r"namespace=trian: must be one of train, .*events"):
        Tracker({}).log("trian", 0, {})
    assert {"train", "eval", "eval_agg", "curriculum", "losses", "time", "pool", "events"} <= set(NAMESPACES)


def test_warnings_go_to_stderr_where_no_sink_shows_events(tmp_path, capsys):
    class Shown(Recorder):
        shows_events = True

    for sink, said in ((Recorder(), "left out: a\n"), (Shown(), "")):
        with Tracker({"one": sink}).open(run_info(tmp_path)) as tracker:
            tracker.warn(0, "left out: a")
        assert capsys.readouterr().err == said and ("event", 0, "left out: a") in sink.calls


class Early:
    """A sink with the methods that every version had."""

    def __init__(self):
        self.calls = []

    def open(self, run):
        self.calls.append("open")

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


def test_sinks_of_earlier_versions_are_kept(tmp_path, capsys):
    """They have no replays, media or members."""
    sink = Early()
    tracker = Tracker({"early": sink})
    assert tracker.member_sinks() == {}
    with tracker:
        tracker.open(run_info(tmp_path))
        tracker.replay(0, lambda path: None)
        tracker.media(0, "episode", tmp_path / "episode.gif")
        tracker.flush()
    assert sink.calls == ["open", "flush", "close"] and capsys.readouterr().err == ""
