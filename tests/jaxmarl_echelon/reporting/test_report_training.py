"""Reports while runs train: a page with a replay of the last evaluation's first episode."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
import yaml

import jaxmarl_echelon as je
from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import command_line
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.base import Viewer
from jaxmarl_echelon.reporting.report_sink import ReportSink
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink, read_columns
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import group_members, variants, vectorized_runs
from jaxmarl_echelon.training.program import evaluation

EPISODES = 4


def clock(state, params, time):
    """A frame: whether agents are alive, and the steps so far."""
    return {"alive": time.alive, "clock": state.clock}


class Clock(Viewer):
    """Writes the frames of an episode as text in a page."""

    snapshot = staticmethod(clock)

    def replay(self, path, recorded, episode):
        frames = self._episode(recorded, episode)
        path.write_text(
            f"<p>steps {frames['clock'].tolist()} of {jax.tree.leaves(recorded.frames)[0].shape[1]}</p>"
        )


class Watched(probes.Poison):
    """An environment with a viewer."""

    viewer = Clock()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a group of two seeds that trained two updates with a report."""
    folder = tmp_path_factory.mktemp("group")
    algo = PPOConfig(horizon=8, epochs=1, num_minibatches=1, widths=(8,))
    sizes = {"num_envs": 4, "eval_episodes": EPISODES, "eval_every": 1, "checkpoint_every": 1, "window": 8}
    resolved = {"seed": 0, "seeds": 2, "total_env_steps": 64, "choices": {"env": "watched", "algo": "ppo"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(resolved))
    members = [
        group_members.Member(
            f"seed_{seed}",
            "baseline",
            RunConfig(Watched("obs"), algo, constant_curriculum, 64, seed=seed, replay=True, **sizes),
            resolved,
        )
        for seed in (0, 1)
    ]
    tracker = Tracker({"csv": CsvSink(), "report": ReportSink()})
    vectorized_runs.train_group(members, resolved, folder, tracker)
    return folder


@pytest.mark.thorough
def test_a_training_leaves_a_report_with_a_replay(folder):
    length = int(read_columns(folder / "seed_0/eval_episodes.csv")["length"][-EPISODES])
    replay = (folder / "replay.html").read_text()
    assert replay == f"<p>steps {list(range(length + 1))} of 1</p>"
    page = (folder / "report.html").read_text()
    assert "<h2>Replay</h2>" in page and replay.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "mean of 2 seeds" in page and "location.reload" not in page
    assert not (folder / "seed_0/report.html").exists()


def test_only_the_first_episodes_are_recorded():
    env = Watched("obs")
    still = Controller(
        lambda n: (),
        lambda key, state, memory, view, reset: (memory, jnp.zeros((reset.shape[0], 1), jnp.int32), {}),
    )

    @jax.jit
    def play(key):
        params = evaluation.evaluation_params(env, jax.tree.map(jnp.asarray, env.default_params()), EPISODES)
        seats = {probes.ROLE: still}
        return [evaluation.play_episodes(env, seats, {}, key, params, clock, recorded=n) for n in (None, 2)]

    every, some = jax.device_get(play(jax.random.key(0)))
    for left, right in zip(jax.tree.leaves(every.frames), jax.tree.leaves(some.frames), strict=True):
        assert left.shape[1] == EPISODES and right.shape[1] == 2
        np.testing.assert_array_equal(left[:, :2], right)
    jax.tree.map(np.testing.assert_array_equal, every.replace(frames=None), some.replace(frames=None))


@pytest.mark.parametrize(
    ("overrides", "recorded"),
    [
        ([], True),
        (["tracking=quiet"], False),
        (["replay=false"], False),
        (["tracking=quiet", "replay=true"], True),
    ],
)
def test_episodes_are_recorded_where_a_sink_shows_them(overrides, recorded):
    assert je.read_config("env=textgames/kuhn", *overrides).replay == recorded


def test_groups_record_no_episodes_unless_they_are_asked_to():
    for asked in ((), ("replay=true",)):
        config, choices = command_line.compose_config(["env=textgames/kuhn", "seeds=2", *asked])
        members = variants.expand_members(config, choices)
        assert [member.config.replay for member in members] == [bool(asked)] * 2
    with pytest.raises(ValueError, match=r"replay=maybe: must be true or false"):
        je.read_config("env=textgames/kuhn", "replay=maybe")
