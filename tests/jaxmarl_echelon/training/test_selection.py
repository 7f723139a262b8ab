"""Best checkpoints where one policy plays all seats of a game, so that its score is always the same."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from duels import Duel

from algos.on_policy.a2c import A2CConfig
from jaxmarl_echelon import command_line, train
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.textgames.games import tictactoe
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.tracking.base import Sink, Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink, read_columns
from jaxmarl_echelon.tracking.run_tables import find_score
from jaxmarl_echelon.tracking.statistics import wilson_interval
from jaxmarl_echelon.training.acting import episode_statistics
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import group_members, selection_score
from jaxmarl_echelon.training.host.resume import carry_progress
from jaxmarl_echelon.training.host.run_record import RunProgress, RunRecord
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.assessment import Assessment
from jaxmarl_echelon.training.program.update import Report

GAMES = 4


def configured(opponent=None, **changes) -> RunConfig:
    given = {
        "env": tictactoe.make(opponent=opponent),
        "algo": A2CConfig(horizon=8, widths=(8,)),
        "curriculum": constant_curriculum,
        "total_env_steps": 10_000,
        "num_envs": 16,
    }
    return RunConfig(**{"window": 256} | given | changes)


def pooled(**changes) -> dict:
    settings = {"capacity": 3, "groups": 4, "fixed": ("random",), "mode": "fixed"} | changes
    return {"controllers": {"player": "pool:player"}, "pool": PoolSettings(**settings)}


def record_of(config: RunConfig, folder, role="player", tracker=None) -> RunRecord:
    parts = {"env": config.env, "agents": {role: None}, "role": role}
    program = SimpleNamespace(
        **parts, curriculum=constant_curriculum(config.env), steps_per_update=config.steps_per_update
    )
    return RunRecord(config, program, {}, folder, tracker or Tracker({}), RunProgress())


def assessed(record: RunRecord, points: float) -> list[str]:
    """Names of the best checkpoints after an evaluation whose games all have these points."""
    spec = record.program.env.spec
    flat, seats = jnp.zeros(GAMES), jnp.zeros((GAMES, 2))
    found = {one.name: seats if one.role else flat for one in spec.results if not one.derived}
    found |= {"points": seats + points, "outcome": jnp.zeros(GAMES, jnp.int32)}
    there, length = {"player": jnp.ones((GAMES, 2), bool)}, jnp.ones(GAMES, jnp.int32)
    result = evaluation.Evaluation(np.zeros(GAMES, bool), there, {"player": seats}, length, found, None)
    scalars = evaluation.summarize_evaluation(result, spec, "player")
    return record.assessment(Assessment(scalars, result, jnp.int32(0)), 1.0)


def reported(record: RunRecord, games: int = 0, **metrics: float) -> dict[str, float]:
    """The metrics of an update, in which so many games ended, after they were logged."""
    metrics |= {"train__quarantined_environments": 0.0}
    found = {name.replace("__", "/"): np.array([value]) for name, value in metrics.items()}
    return record.reports(Report(found, {"number": np.array([games]), "length": np.zeros((1, 0))}), 1.0)


def test_stages_are_passed_by_the_score_of_a_role_that_learns():
    def run(curriculum=lambda _env: SimpleNamespace(stages=("easy", "hard")), **controllers):
        return configured(env=Duel(), curriculum=curriculum, controllers=controllers)

    with pytest.raises(ValueError) as caught:
        selection_score.require_scored_learner(run(blue="still", red="learner"))
    line = "controllers.blue=still: must be a learner with a curriculum of stages"
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
    for controllers in ({"red": "learner"}, {"blue": "shared:red", "red": "learner"}):
        selection_score.require_scored_learner(run(**controllers))
    selection_score.require_scored_learner(run(constant_curriculum, blue="still", red="learner"))


@pytest.mark.parametrize("more", [(), ("seeds=2",)])
def test_such_stages_are_refused_before_anything_is_written(more):
    given = ["env=f110", "curriculum=phased26", "controllers.attacker=ftg", "controllers.defender=learner"]
    typed = command_line.normalize_overrides([*given, "env.lidar_beams=12", "num_envs=16", *more])
    with pytest.raises(ValueError, match="controllers.attacker=ftg: must be a learner with a curriculum"):
        train.read_job(*command_line.compose_config(typed))


@pytest.mark.parametrize(("weight", "best"), [(1.0, [0.5, 2.0]), (2.0, ())])
def test_a_resumed_run_tells_its_sinks_which_evaluation_is_the_best(tmp_path, weight, best):
    seen = []

    class Opened(Sink):
        def open(self, run):
            seen.append(run)

    before, after = ({"reward": {"weight": x}} for x in (1.0, weight))
    record = record_of(configured(), tmp_path, tracker=Tracker({"seen": Opened()}))
    record.progress = carry_progress({"best": {"best_eval": [0.5, 2.0]}}, before, after)
    record.open(resumed=True)
    assert [one.best for one in seen] == [best]


def test_reports_take_the_score_of_who_learns(tmp_path):
    """With its interval, which follows that of the environment's score."""
    config = configured(env=Duel(), controllers={"blue": "still", "red": "learner"})
    record = record_of(config, tmp_path, "red", Tracker({"csv": CsvSink()}))
    record.open(resumed=False)
    outcome = jnp.array([0, 1, 1, 1])  # blue has won once
    sides = {role.name: jnp.zeros((GAMES, role.size)) for role in config.env.spec.roles}
    there, length = {name: jnp.ones_like(x, bool) for name, x in sides.items()}, jnp.ones(GAMES, jnp.int32)
    result = evaluation.Evaluation(np.zeros(GAMES, bool), there, sides, length, {"outcome": outcome}, None)
    scalars = evaluation.summarize_evaluation(result, config.env.spec, "red")
    record.assessment(Assessment(scalars, result, jnp.int32(0)), 1.0)
    record.tracker.close()
    columns = read_columns(tmp_path / "eval.csv")
    score = find_score(columns)
    found = [columns[name].tolist() for name in (score.column, score.low, score.high)]
    assert score.column == "red_success_rate" and found == [[x] for x in (0.75, *wilson_interval(3, 4))]
    assert columns["success_low"].tolist() == [wilson_interval(1, 4)[0]]
    (shared, own) = record.scores
    assert (shared.name, own.name) == ("success", "red_success")
    means = group_members.group_score([SimpleNamespace(variant="baseline")], [record], own)
    assert means["eval_agg/red_success_low"] == wilson_interval(3, 4)[0]


def test_the_latest_policy_is_the_best_of_a_game_against_itself(tmp_path):
    config = configured()
    record = record_of(config, tmp_path)
    (line,) = selection_score.describe_selection(config)
    assert "best_eval and best_training follow the latest policy" in line
    for _ in range(3):
        metrics = reported(record, train__points_rate=0.5, train__window_episodes=256.0)
        assert assessed(record, 0.5) == ["best_eval"] and record.training_score(metrics) == ["best_training"]
    assert record.progress.best == {}


@pytest.mark.parametrize(
    "anchor,rating", [("initial", "pool__rating_minus_anchor"), ("none", "pool__rating_mu")]
)
def test_the_rating_chooses_where_there_is_one(tmp_path, anchor, rating):
    config = configured(**pooled(anchor=anchor))
    record = record_of(config, tmp_path)
    assert "best_eval follows the pool's rating" in selection_score.describe_selection(config)[0]
    assert assessed(record, 0.5) == ["best_eval"], "before the first game"
    best = []
    for value in (1.0, 3.0, 2.0, 4.0):
        reported(record, **{rating: value})
        best.append(assessed(record, 0.5))
    assert best == [["best_eval"], ["best_eval"], [], ["best_eval"]]
    assert record.progress.best["best_eval"] == [4.0]


@pytest.mark.parametrize("changes", [{}, pooled(), pooled(mode="mirror", fixed=())])
def test_a_score_against_somebody_else_is_what_counts(tmp_path, changes):
    record = record_of(configured("random", **changes), tmp_path)
    assert selection_score.describe_selection(record.config) == ()
    assert [assessed(record, points) for points in (0.5, 0.4, 0.6)] == [["best_eval"], [], ["best_eval"]]
    assert record.progress.best["best_eval"][0] == pytest.approx(0.6)


@pytest.mark.parametrize("learners", [("blue",), ("blue", "red")])
def test_without_a_score_the_return_of_the_first_learner_counts(tmp_path, learners):
    """In training as in evaluations, also where every learner has a return of its own."""
    env = Duel()
    roles = tuple(dataclasses.replace(role, score=None) for role in env.spec.roles)
    spec = dataclasses.replace(env.spec, roles=roles, score=None)
    record = record_of(configured(env=env), tmp_path, "blue")
    record.program.env = SimpleNamespace(spec=spec)
    record.program.agents = dict.fromkeys(learners)
    ring = episode_statistics.init_recent(spec, 256)
    names = episode_statistics.recent_columns(spec)
    found = []
    for blue in (1.0, 3.0, 2.0):
        earned = jnp.array([{"return/blue": blue, "return/red": -blue}.get(name, 0.0) for name in names])
        full = ring.replace(values=jnp.broadcast_to(earned, ring.values.shape), count=jnp.int32(256))
        metrics = episode_statistics.recent_metrics(full, spec, learners)
        found.append(record.training_score({name: float(x) for name, x in metrics.items()}))
    assert found == [["best_training"], ["best_training"], []]
    assert record.progress.best["best_training"] == [3.0]


def test_games_against_itself_do_not_renew_the_window_of_a_learner_in_a_pool(tmp_path):
    """After a resume with another task: the window holds games against opponents alone."""
    record = record_of(configured("random", **pooled()), tmp_path)
    wait = record.config.window + record.config.num_envs
    facts, (before, after) = {"episodes": 500, "scored": 300}, ({"env": {"stakes": x}} for x in (1, 2))
    record.progress = carry_progress(facts, before, after)
    full = {"train__points_rate": 0.7, "train__window_episodes": 256.0}

    def score(games, against_others):
        return record.training_score(reported(record, games, train__scored_episodes=against_others, **full))

    assert score(2 * wait, 0) == score(wait, wait - 1) == []
    assert score(1, 1) == ["best_training"]
    assert record.progress.episodes == 500 + 3 * wait + 1 and record.progress.scored == 300 + wait


def test_training_scores_count_once_the_window_is_full_of_games_against_opponents(tmp_path):
    record = record_of(configured("random", **pooled()), tmp_path)
    score = {"train__points_rate": 0.7}
    assert record.training_score(reported(record, **score, train__window_episodes=255.0)) == []
    found = reported(record, **score, train__window_episodes=256.0)
    assert record.training_score(found) == ["best_training"] and record.progress.best["best_training"] == [
        0.7
    ]
    assert selection_score.rating_column(configured(**pooled(mode="mirror", fixed=()))) is None
