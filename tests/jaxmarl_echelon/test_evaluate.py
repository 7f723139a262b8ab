"""From training to an evaluation with pictures, on a probe; `test_first_run` does so with README's run."""

import csv
import json
import sys
from io import StringIO
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
import staged_runs
from duels import Duel
from loaded_policies import check_loaded_policies
from PIL import Image
from recorded_runs import check_loads_nothing, write_group
from rich.console import Console
from sketched import train_sketched

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import actor_scores, checkpoints, command_line, evaluate
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.reporting.recorded_runs import COPIES, read_runs
from jaxmarl_echelon.tracking import tables
from jaxmarl_echelon.tracking.csv_sink import CsvTable
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.program import make_program


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_sketched(tmp_path_factory.mktemp("sketched"))


def test_a_run_leaves_its_folder(run):
    for name in ("config.yaml", "metrics.csv", "eval.csv", "summary.json", "learning_curve.png"):
        assert (run / name).stat().st_size > 0
    for name in ("latest", "best_eval"):
        assert (checkpoints.find_checkpoint(run, name) / "metadata.json").is_file()
    assert jax.devices()[0].platform in json.loads((run / "summary.json").read_text())["device"]
    with Image.open(run / "learning_curve.png") as picture:
        assert min(picture.size) > 300
    page = (run / "report.html").read_text()
    check_loads_nothing(page)
    assert "<h2>Replay</h2>" in page and "<td>algo.horizon</td><td>128</td><td>8</td>" in page


def test_evaluate_reproduces_the_score_and_draws(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["evaluate", str(run), "--baselines", "--output", str(tmp_path)])
    evaluate.main()
    said = " ".join(capsys.readouterr().out.split())
    for word in ("trained policy", "untrained policy", "lazy", "reproduced exactly"):
        assert word in said
    scores = json.loads((tmp_path / "evaluation.json").read_text())
    best = checkpoints.read_metadata(checkpoints.find_checkpoint(run, "best_eval"))["scores"]
    name = "eval_agg/avg_reward"
    assert scores["trained policy"][name] == pytest.approx(best[name])
    with Image.open(tmp_path / "trajectories.png") as picture:
        assert picture.size[1] == 6  # a row for the start and for every decision
    (animation,) = tmp_path.glob("*.gif")
    with Image.open(animation) as picture:
        assert picture.n_frames == 6
    assert (tmp_path / "replay.html").read_text() == "<p>[0, 1, 2, 3, 4, 5]</p>"


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Two seeds each of the run and of a variant of half the rewards."""
    more = "seeds=[3,4]", "variants={halved: {env.gain: 0.5}}", "tracking=quiet"
    return train_sketched(tmp_path_factory.mktemp("group"), *more)


def score(monkeypatch, *typed):
    """Evaluates as typed, of the last policies."""
    given = ["evaluate", *map(str, typed), "--checkpoint", "latest", "--baselines"]
    monkeypatch.setattr(sys, "argv", given)
    command_line.run_guarded(evaluate.main)


def test_members_of_a_group_are_scored_as_each_alone(group, monkeypatch, capsys, tmp_path):
    """Every variant on its own task, although all are trained and scored by one program."""
    score(monkeypatch, group)
    said = capsys.readouterr().out
    members = [f"{variant}_seed_{seed}" for variant in ("baseline", "halved") for seed in (3, 4)]
    for word in (*members, "return IQM [95 %]", "untrained policy", "latest of 4 members (128 steps)"):
        assert word in said
    monkeypatch.setattr(evaluate, "reproduce_scores", lambda *_: "")
    monkeypatch.setattr(evaluate, "show_episodes", lambda *_, **__: None)
    earned = []
    for name in members[1], members[2]:  # the second seed of a variant, and the first of another
        score(monkeypatch, group / name, "--output", tmp_path / name)
        files = "evaluation.json", "evaluation_settings.json", "episodes.csv", "tasks.json"
        together = evaluate.evaluation_folder(checkpoints.find_checkpoint(group / name, "latest"))
        for file in files:
            assert (together / file).read_bytes() == (tmp_path / name / file).read_bytes()
        assert {path.name for path in together.iterdir()} == set(files)
        table = csv.DictReader((together / "episodes.csv").open())
        earned.append({abs(float(row["reward"])) for row in table})
    settings = json.loads((tmp_path / members[1] / "evaluation_settings.json").read_text())
    assert (settings["step"], settings["episodes"], settings["overrides"]) == (128, 4, [])
    # An episode of five decisions pays or costs five times the gain.
    assert earned == [{5.0}, {2.5}]


@pytest.mark.parametrize("option", ["--ladder", "--realism", "--show", "--episode=0"])
def test_options_of_one_policy_are_refused_for_a_group(group, monkeypatch, capsys, tmp_path, option):
    with pytest.raises(SystemExit) as ended:
        score(monkeypatch, group, option, "--output", tmp_path / "out")
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and not (tmp_path / "out").exists()
    assert f"{option.partition('=')[0]}: {group} is a group; name the folder of a member, such as" in said


def test_a_member_without_the_checkpoint_is_left_out_with_a_warning(group, monkeypatch, capsys, tmp_path):
    absent = group / "halved_seed_4" / "checkpoints" / "other"
    for member in group.glob("*_seed_*"):
        (member / "checkpoints" / "other").write_text((member / "checkpoints" / "latest").read_text())
    absent.unlink()
    monkeypatch.setattr(
        sys, "argv", ["evaluate", str(group), "--checkpoint", "other", "--output", str(tmp_path)]
    )
    evaluate.main()
    said = capsys.readouterr().out
    assert "warning: halved_seed_4 has no checkpoint other and is left out" in said
    assert len(list(tmp_path.glob("*/evaluation.json"))) == 3


def test_a_seed_without_a_sound_episode_is_left_out_of_the_estimates_over_seeds():
    def member(score, earned):
        values = {"eval_agg/success_rate": score, "eval_agg/avg_reward": earned}
        scores = SimpleNamespace(actors={"trained policy": values})
        run, spec = SimpleNamespace(variant=""), SimpleNamespace(score_column="success_rate")
        return SimpleNamespace(run=run, spec=spec, scores=scores)

    nothing = member(np.nan, np.nan)
    others = [member(0.0, -1.0), member(0.25, 1.0), member(0.5, 2.0), member(1.0, 4.0), member(1.0, 4.0)]
    (row,) = evaluate.estimate_over_seeds([nothing, *others])
    (alone,) = evaluate.estimate_over_seeds(others)
    assert row == alone and row.seeds == 5 and row.score[0] == pytest.approx((0.25 + 0.5 + 1.0) / 3)
    (empty,) = evaluate.estimate_over_seeds([nothing])
    assert empty.seeds == 0 and np.isnan([*empty.score, *empty.earned]).all()


def test_a_folder_that_cannot_be_made_is_refused_before_any_episode(
    run, group, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(evaluate, "play_actors", None)
    monkeypatch.setattr(evaluate, "score_members", None)
    (tmp_path / "file").write_text("kept")
    for scored in run, group:
        with pytest.raises(SystemExit) as ended:
            score(monkeypatch, scored, "--output", tmp_path / "file")
        said = capsys.readouterr()
        assert ended.value.code == 2 and said.out == ""
        assert said.err == f"error: --output: cannot create {tmp_path / 'file'}: File exists\n"


def test_a_ladder_that_no_curriculum_has_is_refused_before_anything_is_written(run, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["evaluate", str(run), "--ladder", "--output", str(tmp_path / "new")])
    with pytest.raises(command_line.UsageError, match="^--ladder: the run has no stages, and "):
        evaluate.main()
    assert not (tmp_path / "new").exists()


def test_a_loaded_policy_is_that_of_its_checkpoint(run):
    check_loaded_policies(run, "player", "goalkeeper")


def test_the_ladder_has_the_tasks_of_the_configuration_and_the_progress_of_the_checkpoint():
    def curriculum(level):
        rows = staged_runs.table(2)
        rows[1]["settings"]["level"] = level
        return phased_curriculum(staged_runs.Settings(), rows)

    trained = curriculum(1.0).init()
    trained = trained.replace(course=trained.course.replace(stage=np.int32(1)))
    program = SimpleNamespace(curriculum=curriculum(7.0))
    made, course = actor_scores.ladder_course(program, SimpleNamespace(curriculum=trained))
    levels = [float(made.stage_params(course, index)["level"]) for index in range(2)]
    assert levels == [0.0, 7.0] and course.course.stage == 1


def duel_run(chosen):
    """The smallest run of a duel with these controllers."""
    return RunConfig(
        env=Duel(),
        algo=PPOConfig(horizon=4, widths=(4,), num_minibatches=1),
        curriculum=constant_curriculum,
        total_env_steps=16,
        num_envs=2,
        controllers=chosen,
    )


def test_the_untrained_policy_replaces_only_the_scored_learner(monkeypatch):
    """The other learner goes on as it has learnt: otherwise both would be worse."""
    config = duel_run({"red": "learner"})
    program, seen = make_program(config), []
    state = jax.jit(lambda key: program.policy(program.init(key)))(run_key(7))
    monkeypatch.setattr(actor_scores.compiler, "jit_evaluation", lambda _play: play)

    def play(number, policies, *_):
        seen.append((number, policies))
        return SimpleNamespace(replace=lambda **_: None)

    played = actor_scores.play_actors(program, config, state, 2, baselines=True)
    assert list(played) == ["trained policy", "untrained policy"]
    (_, trained), (_, untrained) = seen
    chex.assert_trees_all_equal(trained, state.policies)
    chex.assert_trees_all_equal(untrained["red"], trained["red"])
    assert any(
        np.any(a != b)
        for a, b in zip(*map(jax.tree.leaves, (untrained["blue"], trained["blue"])), strict=True)
    )


def test_a_later_learner_is_judged_by_its_own_score():
    """Red always differs from blue and wins; that blue never succeeds is not the score of red's policy."""
    config = duel_run({"blue": "still", "red": "learner"})
    program = make_program(config)
    acting = {"blue": controllers.find_script(config.env, "blue", "still")}
    acting["red"] = controllers.find_script(config.env, "red", "other")
    acting = {role: controllers.make_script_controller(one) for role, one in acting.items()}
    play = jax.jit(lambda key, params: evaluation.play_episodes(config.env, acting, {}, key, params))
    played = play(jax.random.key(0), {"pay": np.ones(4, np.float32)})
    rows = {"trained policy": actor_scores.evaluation_scores(program, played)}
    assert actor_scores.select_episode(program, played) == 0
    console = Console(width=120, record=True, file=StringIO())
    for table in tables.actor_tables(rows, 4, actor_scores.judging_spec(program)):
        console.print(table)
    assert "red_success [95 %]" in (said := console.export_text()) and "1.00 [0.51, 1.00]" in said


def test_scores_of_one_population_are_not_taken_for_independent_seeds(tmp_path):
    pbt = {"pbt": {"every": 2, "keys": ["algo.learning_rate"]}}
    together = read_runs(write_group(tmp_path / "together", [(0.1,), (0.2,)], **pbt))
    apart = read_runs(write_group(tmp_path / "apart", [(0.1,), (0.2,)]))
    assert evaluate.list_group_warnings(together, together, "latest") == [COPIES]
    assert evaluate.list_group_warnings(apart, apart, "latest") == []
    (line,) = evaluate.list_group_warnings(together, together[:1], "latest")
    assert line == "seed_1 has no checkpoint latest and is left out"


def test_scores_of_members_that_have_diverged_are_told_apart(tmp_path):
    """They have a best policy, of the time before, as the others have."""
    members = read_runs(write_group(tmp_path, [(0.1, 0.2), (0.1, 0.2)]))
    table = CsvTable(members[1].folder / "metrics.csv", resume_step=1000)
    table.append(2000, {"losses/value_loss": np.nan, "losses/gradient_steps": 4.0, "time/train_seconds": 9.0})
    (line,) = evaluate.list_group_warnings(members, members, "best_eval")
    assert line == "seed_1 diverged; its scores are of a policy of the time before"
