"""Animations of evaluations and profiles of updates, in whole runs."""

import csv
import dataclasses
import functools
import gzip
import re
from types import SimpleNamespace

import jax
import numpy as np
import probes
import pytest
from compiled_once import Once
from marked import thorough
from PIL import Image

from algos.off_policy.sac import SACConfig
from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.envs.base import Viewer
from jaxmarl_echelon.envs.viewing.gif import limit_gif
from jaxmarl_echelon.tracking.base import Sink, Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training.config.run_config import RunConfig, read_profile
from jaxmarl_echelon.training.host import loop, video
from jaxmarl_echelon.training.program.program import make_program


class Drawn(Viewer):
    """Keeps the evaluations that it is asked to draw."""

    def __init__(self):
        self.asked = []

    @staticmethod
    def snapshot(state, params, time=None):
        return {"clock": state.clock, "cue": state.cue}

    def animation(self, path, evaluation, episode):
        self.asked.append(evaluation)
        assert episode == 0
        draw(path, [(2, 2)] * (int(evaluation.length[0]) + 1))


def draw(path, sizes, noise=False):
    """An animation of frames of these sizes that all differ."""
    random = np.random.default_rng(0)
    frames = [
        Image.fromarray(
            random.integers(0, 255, (*size, 3), np.uint8) if noise else np.full((*size, 3), n, np.uint8)
        )
        for n, size in enumerate(np.array(sizes))
    ]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)


class Watched(probes.ObservationActionReward):
    """Five decisions, for those who look."""

    horizon = 5
    viewer = Drawn()


@functools.cache
def configure(env=Watched):
    return RunConfig(
        env=env(),
        algo=PPOConfig(horizon=8, epochs=1, num_minibatches=1, widths=(8,)),
        curriculum=constant_curriculum,
        total_env_steps=4 * 8 * 4,
        num_envs=4,
        eval_every=1,
        eval_episodes=4,
        checkpoint_every=4,
        window=16,
        episode_rows=16,
    )


ONCE = Once()


def run(folder, sinks=None, resume=None, stop_after=None, program=None, **changes):
    """A run with settings on which its compiled program does not depend."""
    config = dataclasses.replace(configure(), **changes)
    program = program or ONCE.program(configure())
    folder.mkdir(exist_ok=True)
    tracker = Tracker({"csv": CsvSink(), **(sinks or {})})
    by = ONCE.compile
    return loop.train_run(config, program, {"seed": 0}, folder, tracker, resume, stop_after, compiled_by=by)


def saved_bits(folder):
    like = jax.eval_shape(ONCE.program(configure()).init, jax.random.key(0))
    state = checkpoints.restore_state(checkpoints.find_checkpoint(folder, "latest"), like)
    return {name: value.tobytes() for name, value in checkpoints.flatten_state(state).items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    run(folder)
    return folder


class Shown(Sink):
    def __init__(self):
        self.media_seen, self.losses = [], []

    def write(self, namespace, step, values):
        if namespace == "losses":
            self.losses.append(step)

    def media(self, step, name, path):
        self.media_seen.append((step, name, path))


class Blind(Shown):
    def media(self, step, name, path):
        raise OSError("no\nroom")


def counted(calls, name, function):
    """The function, with its traces counted."""

    def call(*given, **named):
        calls[name] = calls.get(name, 0) + 1
        return function(*given, **named)

    return call


def test_videos_show_first_episodes_and_change_nothing(plain, tmp_path, capsys):
    Watched.viewer.asked.clear()
    program, traces = ONCE.program(configure()), {}
    program = program._replace(
        update=counted(traces, "update", program.update),
        assess=counted(traces, "assess", program.assess),
        evaluate=counted(traces, "evaluate", program.evaluate),
    )
    sinks = {"shown": Shown(), "blind": Blind()}
    summary = run(tmp_path, sinks, program=program, video_every=2)
    assert summary["status"] == "finished"
    steps = [0, 64, 128]
    files = [tmp_path / video.FOLDER / f"step_{step}.gif" for step in steps]
    assert sinks["shown"].media_seen == [(s, video.SHOWN, f) for s, f in zip(steps, files, strict=True)]
    assert all(file.exists() for file in files) and len(list((tmp_path / video.FOLDER).iterdir())) == 3
    # Nothing was traced for it but the animation's own program, once for all three.
    assert traces == {"evaluate": 1}
    assert saved_bits(tmp_path) == saved_bits(plain)
    assert (tmp_path / "eval.csv").read_text() == (plain / "eval.csv").read_text()
    # The sink that failed was dropped in one line, and the others went on.
    assert capsys.readouterr().err == "tracking: blind failed in media and is disabled (OSError: no room)\n"
    assert len(sinks["shown"].losses) == 4
    rows = list(csv.DictReader((tmp_path / "eval_episodes.csv").open()))
    for step, asked in zip(steps, Watched.viewer.asked, strict=True):
        first = next(row for row in rows if (row["step"], row["episode"]) == (str(step), "1"))
        assert (int(first["length"]), float(first["reward"])) == (
            asked.length[0],
            asked.mean_return(probes.ROLE)[0],
        )
        assert asked.frames["clock"].shape[1] == 1


def test_a_viewer_that_fails_is_reported_once(tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise ValueError("nothing to draw")

    monkeypatch.setattr(Watched.viewer, "animation", fail)
    assert run(tmp_path, video_every=1)["status"] == "finished"
    line = "video_every: disabled, the viewer failed (ValueError: nothing to draw)\n"
    assert capsys.readouterr().err == line


def test_animations_keep_their_limits(tmp_path):
    path = tmp_path / "one.gif"
    draw(path, [(40, 80)] * 50, noise=True)
    before = path.read_bytes()
    limit_gif(path, 60, 80, 10_000_000)
    assert path.read_bytes() == before
    limit_gif(path, 20, 40, 10_000_000)
    with Image.open(path) as image:
        assert image.size == (40, 20) and image.n_frames <= 20
        times = [image.seek(n) or image.info["duration"] for n in range(image.n_frames)]
        assert sum(times) == 50 * 50
    for size in (8_000, 1):
        limit_gif(path, 20, 40, size)
        with Image.open(path) as image:
            assert path.stat().st_size <= size or getattr(image, "n_frames", 1) == 1


def test_a_profile_of_some_updates_is_written(plain, tmp_path):
    events = Shown()
    events.event = lambda step, text: events.losses.append(text)
    run(tmp_path, {"events": events}, profile="2:2")
    assert f"profile: {tmp_path / 'profile'}" in events.losses and saved_bits(tmp_path) == saved_bits(plain)
    (trace,) = (tmp_path / "profile").rglob("perfetto_trace.json.gz")
    assert b"traceEvents" in gzip.decompress(trace.read_bytes())
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_profiles_are_of_whole_chunks_and_not_of_updates_done_before(tmp_path, monkeypatch):
    calls, lines = [], []
    profiler = SimpleNamespace(
        start_trace=lambda folder, create_perfetto_trace: calls.append("start"),
        stop_trace=lambda: calls.append("stop"),
    )
    monkeypatch.setattr(jax, "profiler", profiler)
    with loop.UpdateProfile("5:3", tmp_path, lines.append) as profile:
        for done in range(0, 12, 2):
            profile.begin(done, 2)
            calls.append(done)
            profile.end(done + 2)
    assert calls == [0, 2, "start", 4, 6, "stop", 8, 10]
    calls.clear()
    with loop.UpdateProfile("2:9", tmp_path, lines.append) as profile:
        profile.begin(1, 1)  # interrupted
    with loop.UpdateProfile("2:3", tmp_path, lines.append) as profile:
        profile.begin(4, 1)
        profile.end(5)
    with loop.UpdateProfile(None, tmp_path, lines.append) as profile:
        profile.begin(0, 1)
        profile.end(1)
    assert calls == ["start", "stop"] and lines == [f"profile: {tmp_path / 'profile'}"] * 2


def test_a_profiler_that_fails_is_reported_and_not_tried_again(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("already\nstarted")

    lines, failing = [], SimpleNamespace(start_trace=fail, stop_trace=fail)
    monkeypatch.setattr(jax, "profiler", failing)
    with loop.UpdateProfile("1:2", tmp_path, lines.append) as profile:
        profile.begin(0, 1)
        profile.begin(1, 1)
    failing.start_trace = lambda *_, **__: None
    with loop.UpdateProfile("1:1", tmp_path, lines.append) as profile:
        profile.begin(0, 1)
        profile.end(1)
    assert lines == ["profile: failed (RuntimeError: already started)"] * 2


class Steered(probes.ObservationActionReward):
    """With an action that SAC can learn, and a task that a curriculum can name."""

    def task_params(self, settings):
        return self.default_params()

    action = probes.Box((1,), -1.0, 1.0)

    def reward(self, state, action, params):
        return action[..., 0]


def two_phases(env):
    return phased_curriculum(env, [{"name": name} for name in ("early", "late")])


@pytest.mark.parametrize(
    "algo", [None, thorough(SACConfig(widths=(8,), batch_size=4, replay={"capacity": 512}))]
)
def test_programs_name_their_parts(algo):
    config = dataclasses.replace(configure(Steered), curriculum=two_phases)
    if algo is not None:
        config = dataclasses.replace(config, algo=algo, algos={})
    program = make_program(config)
    state = jax.eval_shape(program.init, jax.random.key(0))
    update = jax.jit(program.update).lower(state).as_text(debug_info=True)
    assert all(re.search(f'["/]{name}/', update) for name in ("rollout", "learn", "curriculum"))
    assess = jax.jit(program.assess).lower(state, jax.random.key(0)).as_text(debug_info=True)
    assert re.search('["/]evaluate/', assess)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"video_every": 0}, "video_every=0: must be a whole number of at least 1"),
        ({"video_every": 1, "env": Steered()}, "video_every=1: Steered has no animations"),
        ({"profile": "5:1"}, "profile=5:1: the run has 4 updates"),
        ({"profile": 1203}, "profile=1203: must be 'FIRST:NUMBER', such as '20:3' for updates 20 to 22"),
        ({"profile": "0:3"}, "profile=0:3: must be 'FIRST:NUMBER'"),
        ({"profile": "20"}, "profile=20: must be 'FIRST:NUMBER'"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(changes, message):
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(configure(), **changes)
    assert str(caught.value).startswith(message)
    assert read_profile("20:3") == (20, 22)
