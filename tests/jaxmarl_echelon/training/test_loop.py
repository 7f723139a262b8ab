"""The host loop: resuming, stopping, best checkpoints, a diverged learner."""

import dataclasses
import functools
import json
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from compiled_once import Once
from marked import thorough

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import actor_scores, checkpoints
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.tracking.base import Sink, Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import loop, resume, run_record
from jaxmarl_echelon.training.program.program import make_program


class Cued(probes.ObservationActionReward):
    """Five decisions with one cue, and a script that goes by none."""

    horizon = 5
    scripts = {"lazy": ScriptedPolicy(tuple, lambda key, memory, *_: (memory, np.zeros(1, np.int32)))}

    def __init__(self):
        """Parameters are arrays that the environment keeps, as with tracks: no run may consume them."""
        self.kept = jax.tree.map(jnp.asarray, super().default_params())

    def default_params(self):
        return self.kept


@functools.cache
def configure(chunk=1):
    return RunConfig(
        env=Cued(),
        algo=PPOConfig(
            horizon=8, epochs=2, num_minibatches=2, widths=(16,), learning_rate=1e-2, policy_average=0.5
        ),
        curriculum=constant_curriculum,
        total_env_steps=6 * 8 * 8,
        num_envs=8,
        eval_every=2,
        eval_episodes=256,
        checkpoint_every=2,
        updates_per_chunk=chunk,
        window=16,
        episode_rows=16,
    )


# Each configuration is compiled once for all tests of this file.
ONCE = Once()


def run(folder, config, resume=None, stop_after=None, sinks=None, program=None, compiled_by=ONCE.compile):
    folder.mkdir(exist_ok=True)
    tracker = Tracker({"csv": CsvSink(), **(sinks or {})})
    program = program or ONCE.program(config)
    resolved = {"seed": config.seed}
    return loop.train_run(
        config, program, resolved, folder, tracker, resume, stop_after, compiled_by=compiled_by
    )


def run_otherwise(folder, resume=None, sinks=None, **changes):
    """A run with other settings on which no compiled function depends: with those of `configure()`."""
    config = dataclasses.replace(configure(), **changes)
    program = ONCE.program(configure())._replace(env=config.env)
    return run(folder, config, resume, sinks=sinks, program=program)


def saved_bits(folder, config):
    like = jax.eval_shape(ONCE.program(config).init, jax.random.key(0))
    state = checkpoints.restore_state(checkpoints.find_checkpoint(folder, "latest"), like)
    return {name: value.tobytes() for name, value in checkpoints.flatten_state(state).items()}


def table(folder, name):
    """A CSV's lines without the columns that hold wall-clock times."""
    header, *rows = [line.split(",") for line in (folder / name).read_text().splitlines()]
    kept = [i for i, column in enumerate(header) if not column.startswith("time/")]
    return [[row[i] for i in kept] for row in [header, *rows]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder and the summary of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("loop") / "whole"
    return folder, run(folder, configure())


def test_a_resumed_run_equals_an_uninterrupted_one(whole, tmp_path):
    config, (folder, finished) = configure(), whole
    halved = tmp_path / "halved"
    assert run(halved, config, stop_after=3)["status"] == "stopped"
    again = run(halved, config, resume=checkpoints.find_checkpoint(halved, "latest"))
    assert (finished["status"], again["status"]) == ("finished", "finished")
    assert saved_bits(halved, config) == saved_bits(folder, config)
    assert again["best"] == finished["best"] and again["episodes"] == finished["episodes"]
    assert jax.device_get(config.env.kept) == {"gain": 1.0, "task": 0}, "the run has consumed them"
    for name in ("metrics.csv", "eval.csv", "episodes.csv"):
        assert table(halved, name) == table(folder, name), name


def test_resuming_a_finished_run_from_its_best_checkpoint_repeats_the_rest(whole, tmp_path):
    config, folder = configure(), tmp_path / "run"
    shutil.copytree(whole[0], folder, symlinks=True)
    before = saved_bits(folder, config), table(folder, "metrics.csv"), table(folder, "episodes.csv")
    best = checkpoints.find_checkpoint(folder, "best_eval")
    assert checkpoints.read_metadata(best)["updates"] < config.updates
    assert run(folder, config, resume=best)["status"] == "finished"
    assert before == (saved_bits(folder, config), table(folder, "metrics.csv"), table(folder, "episodes.csv"))


def test_a_resumed_run_tells_what_its_replay_keeps(whole, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(resume, "describe_kept_replay", lambda *given: asked.append(given) or ("kept",))
    folder, config = tmp_path / "run", configure()
    shutil.copytree(whole[0], folder, symlinks=True)
    run(folder, config, resume=checkpoints.find_checkpoint(folder, "latest"))
    assert asked == [(config, {"seed": 0}, {"seed": 0})] and capsys.readouterr().err == "kept\n"


def test_a_best_score_without_its_checkpoint_is_forgotten(whole, tmp_path):
    """It was removed for a later one, which a copy of the run at an earlier checkpoint does not have."""
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder, symlinks=True)
    latest = checkpoints.find_checkpoint(folder, "latest")
    facts = checkpoints.read_metadata(latest)
    facts["progress"]["best"] = {"best_eval": [9.0, 9.0], "best_training": [-1.0]}
    later = checkpoints.checkpoint_folder_name(facts["step"] + 1)
    shutil.copytree(latest, latest.parent / later)
    (latest.parent / later / "metadata.json").write_text(json.dumps(facts | {"step": facts["step"] + 1}))
    (latest.parent / "best_eval").write_text(f"{later}\n")
    given = folder, facts, facts["progress"], facts["config"]
    assert set(resume.resume_progress(*given).best) == {"best_training"}
    assert set(resume.resume_progress(folder, facts | {"step": facts["step"] + 1}, *given[2:]).best) == {
        "best_eval", "best_training",
    }  # fmt: skip


def test_a_member_that_continues_alone_is_no_longer_ranked_by_the_baselines_task(whole):
    latest = checkpoints.find_checkpoint(whole[0], "latest")
    facts = checkpoints.read_metadata(latest)
    own = facts["progress"]["best"]
    assert set(own) == {"best_eval", "best_training"}
    for scored_on, names in ((None, set(own)), ("baseline", {"best_training"})):
        given = whole[0], facts | {"scored_on": scored_on}, facts["progress"], facts["config"]
        assert set(resume.resume_progress(*given).best) == names


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
    facts = checkpoints.read_metadata(checkpoints.find_checkpoint(tmp_path / "run", "latest"))
    assert facts["step"] == 3 * 64 and facts["scored_at"] == summary["last_eval_step"] == 2 * 64
    assert actor_scores.compare_scores(facts, facts["scores"]).endswith("but the one of 128 steps")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


@pytest.mark.parametrize("changes", [{}, thorough({"optimizer": "schedule_free", "policy_average": 0.0})])
def test_the_score_of_the_best_checkpoint_is_reproduced_exactly(whole, tmp_path, changes):
    """From what is kept of policies alone, as `evaluate` reads it: of means of policies, and of iterates."""
    config = configure()
    config = dataclasses.replace(config, algo=dataclasses.replace(config.algo, **changes), algos={})
    run_folder, summary = (tmp_path, run(tmp_path, config)) if changes else whole
    folder = checkpoints.find_checkpoint(run_folder, "best_eval")
    program = make_program(config)
    like = jax.eval_shape(lambda key: program.policy(program.init(key)), jax.random.key(0))
    state = checkpoints.restore_state(folder, like)
    _, assessment = jax.jit(program.assess)(state, stream_key(config.seed, Stream.EVALUATION))
    values = run_record.evaluation_values(assessment.scalars, assessment.result, config.env.spec)
    facts = checkpoints.read_metadata(folder)
    assert values == facts["scores"] and actor_scores.compare_scores(facts, values).endswith(
        "is reproduced exactly"
    )
    assert actor_scores.compare_scores(facts, values | {"eval_agg/avg_reward": 9.0}).endswith(
        "is NOT reproduced"
    )
    assert [values["eval_agg/success_rate"], values["eval_agg/avg_reward"]] == summary["best"]["best_eval"]
    latest = checkpoints.find_checkpoint(run_folder, "latest")
    state = checkpoints.restore_state(latest, jax.eval_shape(program.init, jax.random.key(0)))
    read = checkpoints.restore_state(latest, like).policies
    jax.tree.map(np.testing.assert_array_equal, read, program.policy(state).policies)


def test_chunks_of_several_updates_change_nothing(whole, tmp_path):
    folder, two = whole[0], configure(chunk=2)
    run(tmp_path / "two", two)
    assert saved_bits(folder, configure()) == saved_bits(tmp_path / "two", two)
    np.testing.assert_array_equal(table(folder, "metrics.csv"), table(tmp_path / "two", "metrics.csv"))


def test_a_diverged_learner_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
    def boundless(*given):
        """With rewards whose square no number holds."""
        compiled = ONCE.compile(*given)
        state = compiled.init()
        learner = state.policies[probes.ROLE]
        learner = learner.replace(hyper=learner.hyper | {"reward_scale": np.float32(1e30)})
        return compiled._replace(init=lambda: state.replace(policies={probes.ROLE: learner}))

    with pytest.raises(loop.DivergedError, match="not finite"):
        run(tmp_path / "run", configure(), compiled_by=boundless)
    found = checkpoints.read_metadata(checkpoints.find_checkpoint(tmp_path / "run", "best_eval"))
    assert found["step"] == 0


@pytest.mark.parametrize("ended,stops", [(0, True), (1, False)])
def test_a_run_whose_environments_are_all_quarantined_stops(tmp_path, monkeypatch, ended, stops):
    """Again and again, without an episode that ends; the message names what checkpoint there is."""

    def quarantined(*given):
        compiled = ONCE.compile(*given)

        def chunk(state):
            state, reports = compiled.chunk(state)
            every = {"train/quarantined_environments": np.array([configure().num_envs])}
            number = {"number": np.array([ended])}
            changed = {"metrics": reports.metrics | every, "episodes": reports.episodes | number}
            return state, reports._replace(**changed)

        return compiled._replace(chunk=chunk)

    monkeypatch.setattr(run_record, "SICK_DECISIONS", 3 * configure().horizon, raising=False)
    if not stops:
        assert run(tmp_path / "run", configure(), compiled_by=quarantined)["status"] == "finished"
        return
    with pytest.raises(loop.DivergedError) as stopped:
        run(tmp_path / "run", configure(), compiled_by=quarantined)
    text, steps = str(stopped.value), 3 * configure().steps_per_update
    assert text.startswith(
        f"all 8 environments are quarantined after {steps} steps: in each of the last 3 upd"
    )
    assert f"last good checkpoint: {tmp_path / 'run' / 'checkpoints'}" in text
    assert (
        checkpoints.read_metadata(checkpoints.find_checkpoint(text.rpartition(": ")[2], "latest"))["step"]
        < steps
    )


class Told(Cued):
    """A probe with something to say about itself, and with a reference script."""

    references = {probes.ROLE: ("lazy",)}

    def describe(self):
        return ("one player", "two cues")


def test_a_run_says_what_it_was_built_from_and_ends_with_the_references(tmp_path):
    class Listener(Sink):
        events = []

        def event(self, step, text):
            self.events.append((step, text))

    summary = run_otherwise(tmp_path / "run", sinks={"listener": Listener()}, env=Told())
    assert [text for _, text in Listener.events[:2]] == ["one player", "two cues"]
    score = summary["references"]["lazy"]
    assert list(summary["references"]) == ["lazy"] and score["eval_agg/num_episodes"] == 256
    # Never pressing pays 1 for one cue and costs 1 for the other; the policy has its own score.
    assert abs(score["eval_agg/avg_reward"]) < 0.3
    assert set(score) == set(summary["last_eval"]) and score != summary["last_eval"]
    step, text = Listener.events[-1]
    assert step == configure().total_env_steps and text.startswith("lazy player: success 100.0 % [")
    assert text.endswith("; 256 episodes each") and "; trained policy: success 100.0 % [" in text
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


def test_the_first_episodes_do_not_make_the_best_checkpoint_of_training(whole, tmp_path):
    """Rolling statistics of a few episodes swing: one success would be 100 %, and the best for ever."""
    assert "best_training" not in run_otherwise(tmp_path / "wide", window=10_000)["best"]
    assert "best_training" in whole[1]["best"]


def test_the_last_update_counts_for_the_best_checkpoint_of_training(tmp_path):
    run_otherwise(tmp_path / "rare", checkpoint_every=100)
    facts = checkpoints.read_metadata(checkpoints.find_checkpoint(tmp_path / "rare", "best_training"))
    assert facts["updates"] == configure().updates and facts["progress"]["best"]["best_training"]


def test_a_run_without_references_has_none_in_its_summary(whole):
    assert "references" not in whole[1]


def test_a_later_stage_is_better_than_any_success_in_an_earlier_one(tmp_path):
    program = make_program(configure())
    staged = program._replace(curriculum=program.curriculum._replace(stages=("easy", "hard")))
    kept = run_record.RunRecord(configure(), staged, {}, tmp_path, Tracker({}), run_record.RunProgress())

    def score(stage, success):
        kept.progress.stage = stage
        return kept.training_score({"train/window_episodes": 1000.0, "train/success_rate": success})

    assert score(0, 1.0) == ["best_training"]
    assert score(1, 0.25) == ["best_training"]
    assert score(1, 0.2) == score(0, 1.0) == []


def test_episodes_of_an_earlier_stage_do_not_make_the_best_checkpoint_of_a_later_one(tmp_path):
    config, program = configure(), make_program(configure())
    staged = program._replace(curriculum=program.curriculum._replace(stages=("easy", "hard")))
    kept = run_record.RunRecord(config, staged, {}, tmp_path, Tracker({}), run_record.RunProgress(scored=100))
    kept._stage({"curriculum/current_stage": 1})

    def score(ended, success):
        kept.progress.scored = 100 + ended
        return kept.training_score({"train/window_episodes": 1000.0, "train/success_rate": success})

    assert score(0, 1.0) == score(config.window + config.num_envs - 1, 1.0) == []
    assert score(config.window + config.num_envs, 0.25) == ["best_training"]
    assert kept.progress.best["best_training"] == [1.0, 0.25]


def test_episodes_of_a_stage_that_fades_out_do_not_make_the_best_checkpoint_of_the_next(tmp_path):
    """The episodes of the update after which nothing of it is left were drawn before that, too."""
    config, program = configure(), make_program(configure())
    staged = program._replace(curriculum=program.curriculum._replace(stages=("easy", "hard")))
    kept = run_record.RunRecord(config, staged, {}, tmp_path, Tracker({}), run_record.RunProgress(scored=100))

    def score(ended, blend, success):
        kept.progress.scored = 100 + ended
        found = {"curriculum/current_stage": 1, "curriculum/blend_probability": blend}
        kept._stage(found)
        return kept.training_score(found | {"train/window_episodes": 1000.0, "train/success_rate": success})

    filled = config.window + config.num_envs
    assert score(0, 0.25, 1.0) == score(filled, 0.125, 1.0) == score(2 * filled, 0.0, 1.0) == []
    assert score(3 * filled - 1, 0.0, 1.0) == []
    assert score(3 * filled, 0.0, 0.25) == ["best_training"]
    assert kept.progress.best["best_training"] == [1.0, 0.25]


def test_the_best_checkpoint_of_a_ramp_is_not_of_an_easier_task(tmp_path):
    config = configure()
    kept = run_record.RunRecord(
        config, make_program(config), {}, tmp_path, Tracker({}), run_record.RunProgress()
    )

    def score(ended, ramp, success):
        kept.progress.scored = ended
        found = {"curriculum/progress": ramp, "train/success_rate": success, "train/window_episodes": 1000.0}
        kept._stage(found)
        return kept.training_score(found)

    assert score(50, 0.25, 1.0) == score(100, 0.5, 0.25) == ["best_training"]
    assert score(120, 1.0, 1.0) == [], "the last update of the ramp, whose episodes are of the task before"
    filled = 120 + config.window + config.num_envs
    assert score(filled - 1, 1.0, 1.0) == []
    assert score(filled, 1.0, 0.125) == ["best_training"]
    assert score(filled + 1, 1.0, 0.0) == []
    assert kept.progress.best["best_training"] == [1.0, 0.125]


def test_episodes_before_a_resume_with_another_task_do_not_make_its_best_checkpoint(tmp_path):
    config, before = configure(), {"env": {"gain": 1.0}}
    facts = {"episodes": 100, "best": {"best_training": [1.0]}}

    def resumed(after):
        progress = resume.carry_progress(facts, before, after)
        return run_record.RunRecord(config, make_program(config), {}, tmp_path, Tracker({}), progress)

    def score(kept, ended, success):
        kept.progress.scored = 100 + ended
        return kept.training_score({"train/window_episodes": 1000.0, "train/success_rate": success})

    changed = resumed({"env": {"gain": 2.0}})
    assert score(changed, 0, 1.0) == score(changed, config.window + config.num_envs - 1, 1.0) == []
    assert score(changed, config.window + config.num_envs, 0.25) == ["best_training"]
    assert changed.progress.best["best_training"] == [0.25]
    assert score(resumed(before), 1, 2.0) == ["best_training"], "the same task goes on"


def test_a_change_of_stage_is_told_with_the_success_that_decided_it(tmp_path):
    """Not with that of the rolling window, which holds episodes of other stages too."""
    events = []
    tracker = SimpleNamespace(event=lambda step, text: events.append(text))
    program = make_program(configure())
    staged = program._replace(curriculum=program.curriculum._replace(stages=("easy", "hard")))
    kept = run_record.RunRecord(configure(), staged, {}, tmp_path, tracker, run_record.RunProgress())
    for stage, decided in ((1, 0.75), (0, 0.125), (1, float("nan"))):
        shown = {"current_stage": stage, "decided_success": decided}
        kept._stage({f"curriculum/{name}": x for name, x in shown.items()} | {"train/success_rate": 0.5})
    moves = ["phase 0 -> 1: hard (success 75 %)", "back: phase 1 -> 0: easy (success 12 %)"]
    assert events == [*moves, "phase 0 -> 1: hard"]


def test_a_run_does_not_continue_in_an_environment_that_behaves_otherwise(tmp_path):
    class Changed(Cued):
        @property
        def spec(self):
            return dataclasses.replace(super().spec, name="Cued", version=2)

    run(tmp_path / "run", configure(), stop_after=1)
    latest = checkpoints.find_checkpoint(tmp_path / "run", "latest")
    with pytest.raises(checkpoints.CheckpointError, match="Cued of version 1.*of version 2") as caught:
        run_otherwise(tmp_path / "run", resume=latest, env=Changed())
    assert "\n" not in str(caught.value)
