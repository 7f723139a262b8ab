"""A run with the mission curriculum that is stopped within a phase goes on to the same bits."""

import jax
import mission_runs as runs

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.missions import missions
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training import loop
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.program import make_program

UPDATES, STOP = 8, 5


def configuration():
    def curriculum(env):
        sizes = {"window": 20, "dwell": 24, "nominal_episodes": 60, "blend_episodes": 30}
        return missions(env, runs.PHASES, **sizes)

    return RunConfig(
        env=runs.PlayedMissions(),
        algo=PPOConfig(horizon=8, widths=(16,), learning_rate=1e-2, epochs=2, num_minibatches=2),
        curriculum=curriculum,
        total_env_steps=UPDATES * 8 * 8,
        num_envs=8,
        eval_every=2,
        eval_episodes=8,
        checkpoint_every=2,
        window=16,
        episode_rows=16,
    )


def train(folder, config, program, resume=None, stop_after=None):
    folder.mkdir(exist_ok=True)
    tracker = Tracker({"csv": CsvSink()})
    return loop.train(config, program, {"seed": 0}, folder, tracker, resume, stop_after)


def test_a_run_stopped_within_a_phase_goes_on_to_the_same_bits(tmp_path):
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    config = configuration()
    program = make_program(config)
    like = jax.eval_shape(program.init, jax.random.key(0))

    def restored(folder):
        return checkpoints.restore(checkpoints.find(folder, "latest"), like)

    train(whole, config, program)
    train(halved, config, program, stop_after=STOP)
    course = restored(halved).curriculum.course
    assert int(course.phase) > 0 and 0 < int(course.episodes) < 30, "within a phase, and blending weights"
    assert int(course.judged) > 0
    # A program of its own, as in a new process.
    again = configuration()
    train(halved, again, make_program(again), resume=checkpoints.find(halved, "latest"))
    first, second = restored(whole), restored(halved)
    assert int(first.curriculum.course.phase) > int(course.phase)
    first, second = checkpoints.flatten(first), checkpoints.flatten(second)
    assert any("course" in name for name in first) and any("tickets" in name for name in first)
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name
    assert (whole / "eval.csv").read_text() == (halved / "eval.csv").read_text()
