"""The host loop: resuming, stopping, best checkpoints, a diverged learner."""

import json
import os
import signal

import jax
import numpy as np
import probes
import pytest

from algos.ppo import PPOConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.tracking.base import Sink, Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training import loop, record
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.keys import Stream, stream_key
from jaxmarl_echelon.training.program import make_program


def configure(updates=6, chunk=1, **algo):
    settings = {"horizon": 8, "epochs": 2, "num_minibatches": 2, "widths": (16,), "learning_rate": 1e-2}
    return RunConfig(
        env=probes.TimeLimit(horizon=5),
        algo=PPOConfig(**{**settings, **algo}),
        curriculum=fixed,
        total_env_steps=updates * 8 * 8,
        num_envs=8,
        eval_every=2,
        eval_episodes=8,
        checkpoint_every=2,
        updates_per_chunk=chunk,
        window=16,
        episode_rows=16,
    )


def run(folder, config, resume=None, stop_after=None, sinks=None):
    folder.mkdir(exist_ok=True)
    tracker = Tracker({"csv": CsvSink(), **(sinks or {})})
    return loop.train(
        config, make_program(config), {"seed": config.seed}, folder, tracker, resume, stop_after
    )


def saved_bits(folder, config):
    program = make_program(config)
    like = jax.eval_shape(program.init, jax.random.key(0))
    state = checkpoints.restore(checkpoints.find(folder, "latest"), like)
    return {name: value.tobytes() for name, value in checkpoints.flatten(state).items()}


def table(folder, name):
    """A CSV's lines without the columns that hold wall-clock times."""
    header, *rows = [line.split(",") for line in (folder / name).read_text().splitlines()]
    kept = [i for i, column in enumerate(header) if not column.startswith("time/")]
    return [[row[i] for i in kept] for row in [header, *rows]]


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    config = configure()
    whole = run(tmp_path / "whole", config)
    halved = tmp_path / "halved"
    assert run(halved, config, stop_after=3)["status"] == "stopped"
    again = run(halved, config, resume=checkpoints.find(halved, "latest"))
    assert (whole["status"], again["status"]) == ("finished", "finished")
    assert saved_bits(halved, config) == saved_bits(tmp_path / "whole", config)
    assert again["best"] == whole["best"] and again["episodes"] == whole["episodes"]
    for name in ("metrics.csv", "eval.csv", "episodes.csv"):
        assert table(halved, name) == table(tmp_path / "whole", name), name


def test_resuming_a_finished_run_from_its_best_checkpoint_repeats_the_rest(tmp_path):
    config = configure()
    folder = tmp_path / "run"
    run(folder, config)
    before = saved_bits(folder, config), table(folder, "metrics.csv"), table(folder, "episodes.csv")
    best = checkpoints.find(folder, "best_eval")
    assert checkpoints.metadata(best)["updates"] < config.updates
    assert run(folder, config, resume=best)["status"] == "finished"
    assert before == (saved_bits(folder, config), table(folder, "metrics.csv"), table(folder, "episodes.csv"))


class Raiser(Sink):
    """Sends this process a signal when a step comes."""

    def __init__(self, step, number):
        self.step, self.number = step, number

    def write(self, namespace, step, values):
        if namespace == "losses" and step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_the_run(tmp_path, number):
    config = configure()
    before = signal.getsignal(number)
    summary = run(tmp_path / "run", config, sinks={"raiser": Raiser(3 * 64, number)})
    assert signal.getsignal(number) is before
    assert summary["status"] == "stopped" and summary["env_steps"] == 3 * 64
    assert checkpoints.metadata(checkpoints.find(tmp_path / "run", "latest"))["step"] == 3 * 64
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


def test_the_score_of_the_best_checkpoint_is_reproduced_exactly(tmp_path):
    config = configure(updates=8)
    summary = run(tmp_path / "run", config)
    folder = checkpoints.find(tmp_path / "run", "best_eval")
    program = make_program(config)
    state = checkpoints.restore(folder, jax.eval_shape(program.init, jax.random.key(0)))
    _, assessment = jax.jit(program.assess)(state, stream_key(config.seed, Stream.EVALUATION))
    values = record.evaluation_values(assessment.scalars, assessment.result, config.env.spec)
    assert values == checkpoints.metadata(folder)["scores"]
    assert [values["eval_agg/success_rate"], values["eval_agg/avg_reward"]] == summary["best"]["best_eval"]


def test_chunks_of_several_updates_change_nothing(tmp_path):
    one, two = configure(), configure(chunk=2)
    run(tmp_path / "one", one)
    run(tmp_path / "two", two)
    assert saved_bits(tmp_path / "one", one) == saved_bits(tmp_path / "two", two)
    first, second = (np.array(table(tmp_path / name, "metrics.csv")) for name in ("one", "two"))
    np.testing.assert_array_equal(first, second)


def test_a_diverged_learner_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
    config = configure(learning_rate=1.0, max_grad_norm=None, reward_scale=1e30)
    with pytest.raises(loop.DivergedError, match="not finite"):
        run(tmp_path / "run", config)
    found = checkpoints.metadata(checkpoints.find(tmp_path / "run", "best_eval"))
    assert found["step"] == 0
