"""The search command: groups of trials, pruning, a kill, and what it leaves."""

import csv
import json
import math
import sys
from itertools import permutations
from types import SimpleNamespace

import pytest
import yaml

from jaxmarl_echelon import command_line, sweep
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.searching import best_settings, studies, trial_groups, trial_tables
from jaxmarl_echelon.searching.studies import SearchSettings, Study, is_among_best, judge_course
from jaxmarl_echelon.searching.trial_groups import TrialWatch
from jaxmarl_echelon.tracking import plots
from jaxmarl_echelon.train import best_score
from jaxmarl_echelon.training.config import build, search_space
from jaxmarl_echelon.training.host.group_members import Member
from jaxmarl_echelon.training.host.run_record import RunProgress, RunRecord
from jaxmarl_echelon.training.host.vectorized_runs import RunGroup

RATE = "algo.learning_rate"
SPACE = {
    RATE: search_space.parse_dimension(RATE, "log(1e-4,1e-2)"),
    "algo.gamma": search_space.parse_dimension("algo.gamma", [0.9, 0.95]),
    "algo.total_updates": search_space.parse_dimension("algo.total_updates", "integer(2,9)"),
    "algo.gae_lambda": search_space.parse_dimension("algo.gae_lambda", "1-log(1e-3,1e-1)"),
}
TINY = [
    "env=gymnax/CartPole-v1", "tuning=none", "num_envs=4", "algo.horizon=8", "algo.num_minibatches=2",
    "algo.epochs=1", "algo.widths=[8]", "total_env_steps=128", "eval_every=1", "eval_episodes=2",
    "env.params.max_steps_in_episode=20", "checkpoint_every=4", "tracking=quiet", "episode_rows=4",
    f"sweep={{{RATE}: log(1e-4,1e-2), algo.gamma: [0.9,0.95]}}",
]  # fmt: skip


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["jaxmarl-sweep", *map(str, arguments)])
    sweep.main()


def rows(path):
    return list(csv.DictReader(path.open()))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search of three groups of two trials, all pruned from the second on, killed in the third."""
    pytest.importorskip("optuna")
    folder, told = tmp_path_factory.mktemp("search") / "search", {}
    evaluated = TrialWatch.evaluated

    def dies(watch, updates, values):
        if updates == 2 or (updates == 1 and "trial_0004" in watch._trials):
            told["before"] = [trial.number for trial in watch._study.finished()]
        if updates == 1 and "trial_0004" in watch._trials:
            raise KeyboardInterrupt
        return evaluated(watch, updates, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_groups, "is_among_best", lambda _value, known, _share: len(known) <= 2)
        patch.setattr(TrialWatch, "evaluated", dies)
        with pytest.raises(KeyboardInterrupt):
            call(patch, *TINY, "--trials", 6, "--batch", 2, "--output", folder)
        patch.setattr(TrialWatch, "evaluated", evaluated)
        told["killed"] = rows(folder / "trials.csv")
        call(patch, "--output", folder)
    return folder, told


@pytest.mark.needs("optuna")
def test_a_killed_search_loses_no_finished_trial(monkeypatch, searched):
    folder, told = searched
    table = rows(folder / "trials.csv")
    assert told["before"] == [0, 1, 2, 3] and table[:4] == told["killed"]
    assert [row["trial"] for row in table[4:]] == ["trial_0006", "trial_0007"]
    import optuna

    study = optuna.load_study(study_name=studies.NAME, storage=f"sqlite:///{folder / studies.FILE}")
    again = {trial.user_attrs["retry_of"]: trial for trial in study.trials if "retry_of" in trial.user_attrs}
    assert {number: trial.params for number, trial in again.items()} == {
        number: study.trials[number].params for number in (4, 5)
    }
    with pytest.raises(ValueError, match="--batch=3: a search that continues keeps its batch=2"):
        call(monkeypatch, "--output", folder, "--batch", 3)


@pytest.mark.needs("optuna")
def test_a_group_ends_when_all_of_it_is_pruned(searched):
    folder, _ = searched
    table = rows(folder / "trials.csv")
    assert [row["state"] for row in table] == ["complete"] * 2 + ["pruned"] * 4
    assert [row["evaluations"] for row in table] == ["4"] * 2 + ["1"] * 4
    steps = [
        json.loads((folder / "groups" / name / "summary.json").read_text())["env_steps"]
        for name in ("0000_0001", "0002_0003")
    ]
    assert steps == [128, 32]
    assert len(rows(folder / "groups" / "0002_0003" / "trial_0002" / "eval.csv")) == 2


def test_no_last_checkpoint_is_saved_of_a_trial_that_was_pruned(monkeypatch, tmp_path):
    """Its place in the program trains on, but its tables and scores end where it was pruned."""
    group, saved = object.__new__(RunGroup), []
    group.records = [SimpleNamespace(folder=tmp_path / name) for name in ("kept", "pruned")]
    group.left, group.watch, group.diverged, group.members = {"pruned"}, object(), set(), [None] * 2
    monkeypatch.setattr(group, "save", lambda _state, _names: None)
    monkeypatch.setattr(group, "_save_member", lambda _state, index, names: saved.append((index, names)))
    for updates in (1, 4):
        group.config = SimpleNamespace(updates=4)
        group.records[0].progress = SimpleNamespace(updates=updates)
        group.save_last(None)
    assert saved == [(0, ["latest"])] * 2


def test_the_summary_of_a_trial_that_was_pruned_ends_there(monkeypatch, tmp_path):
    """Its place in the program trains on, to the group's end."""
    group = object.__new__(RunGroup)
    group.records = [object.__new__(RunRecord) for _ in range(2)]
    for record, name, evaluated in zip(group.records, ("kept", "pruned"), (4, 1), strict=True):
        record.folder, record.program = tmp_path / name, SimpleNamespace(steps_per_update=8)
        record.progress = RunProgress(updates=4, evaluated=evaluated)
    group.config, group.compiled = SimpleNamespace(steps_per_update=8), SimpleNamespace(seconds=lambda: 0.0)
    group.left, group.diverged, group.reference_scores = {"pruned"}, set(), {}
    monkeypatch.setattr(group, "_variants", list)
    found = group.summary("finished")
    ends = {name: (row["env_steps"], row["updates"]) for name, row in found["members"].items()}
    assert ends == {"kept": (32, 4), "pruned": (8, 1)} and found["env_steps"] == 32


@pytest.mark.needs("optuna")
def test_the_best_settings_are_a_main_configuration(searched):
    folder, _ = searched
    best = max(rows(folder / "trials.csv")[:2], key=lambda row: float(row["value"]))
    config, choices = command_line.compose_config([], Sources(folder, "best"))
    assert choices["env"] == "gymnax/CartPole-v1" and choices["tuning"] == "none"
    assert config.algo.learning_rate == float(best[RATE]) and config.algo.gamma == float(best["algo.gamma"])
    assert config.num_envs == 4 and config.sweep == {}
    assert build.build_run_config(config).algo.widths == (8,)
    assert (folder / "best.yaml").read_text().startswith(f"# {best['trial']} of 6: best avg_reward")
    assert (folder / "sweep.png").stat().st_size > 10_000
    member = folder / "groups" / "0000_0001" / best["trial"]
    scores = [float(row["avg_reward"]) for row in rows(member / "eval.csv")][1:]
    assert float(best["value"]) == pytest.approx(max(scores))


@pytest.mark.needs("optuna")
def test_finalists_are_trained_again_for_a_whole_run_with_other_seeds(monkeypatch, searched):
    """The search of before continues with finalists; interrupted ones begin again, finished ones are kept."""
    folder, _ = searched
    concluded = sweep.CourseWatch.judge

    def dies(watch, name, diverged):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep.CourseWatch, "judge", dies)
    with pytest.raises(KeyboardInterrupt):
        call(monkeypatch, "--output", folder, "--finalists", 2)
    assert not (folder / "finalists.csv").exists()
    monkeypatch.setattr(sweep.CourseWatch, "judge", concluded)
    call(monkeypatch, "--output", folder, "--finalists", 2)
    finals = rows(folder / "finalists.csv")
    trials = {row["trial"]: row for row in rows(folder / "trials.csv")}
    assert {row["trial"] for row in finals} == {"trial_0000", "trial_0001"}
    members = rows(folder / "finalists" / "members.csv")
    for row in finals:
        mine = [one for one in members if one["variant"] == row["trial"]]
        assert [one["seed"] for one in mine] == ["1", "2", "3"] and {one[RATE] for one in mine} == {row[RATE]}
        tables = [rows(folder / "finalists" / member["member"] / "eval.csv") for member in mine]
        courses = [[float(one["avg_reward"]) for one in table[1:]] for table in tables]
        assert float(row["value"]) == pytest.approx(max(map(sum, zip(*courses, strict=True))) / 3)
        assert float(row["trial_value"]) == float(trials[row["trial"]]["value"])
    assert float(finals[0]["value"]) >= float(finals[1]["value"])
    best = yaml.safe_load((folder / "best.yaml").read_text())
    assert best["algo"]["learning_rate"] == float(finals[0][RATE])
    made = (folder / "finalists.csv").stat().st_mtime_ns
    call(monkeypatch, "--output", folder)
    assert (folder / "finalists.csv").stat().st_mtime_ns == made
    assert yaml.safe_load((folder / "best.yaml").read_text()) == best
    with pytest.raises(ValueError, match="--final-seeds=2: a search that continues keeps its final-seeds=3"):
        call(monkeypatch, "--output", folder, "--final-seeds", 2)


@pytest.mark.needs("optuna")
def test_trials_may_be_the_first_part_of_a_run(monkeypatch, tmp_path):
    """They keep the schedules of the whole run."""
    options = ["--trials", 2, "--batch", 2, "--trial-steps", 64, "--pruner", "none", "--objective", "last"]
    typed = [*TINY, "algo.learning_rate_schedule=linear", *options]
    call(monkeypatch, *typed, "--finalists", 1, "--final-seeds", 1, "--output", tmp_path / "short")
    steps = {
        place: json.loads((tmp_path / "short" / place / "summary.json").read_text())["env_steps"]
        for place in ("groups/0000_0001", "finalists")
    }
    assert steps == {"groups/0000_0001": 64, "finalists": 128}
    assert yaml.safe_load((tmp_path / "short" / "best.yaml").read_text())["total_env_steps"] == 128
    trial = rows(tmp_path / "short" / "trials.csv")[0]
    course = rows(tmp_path / "short" / "groups" / "0000_0001" / "trial_0000" / "metrics.csv")
    rates = [float(row["losses/learning_rate"]) for row in course]
    for name in ("trial_0000", "trial_0001"):
        saved = tmp_path / "short" / "groups" / "0000_0001" / name / "checkpoints"
        assert (saved / "latest").read_text().strip() == "step_000000000064"
    assert trial["state"] == "complete" and trial["evaluations"] == "2"
    assert rates[1] == pytest.approx(0.75 * rates[0]) and rates[0] == pytest.approx(float(trial[RATE]))


@pytest.fixture
def study(tmp_path):
    pytest.importorskip("optuna")
    return Study(tmp_path, SPACE, SearchSettings(trials=6, batch=4), seed=3)


@pytest.mark.needs("optuna")
def test_asked_values_lie_in_the_space_and_are_asked_again_after_a_restart(study, tmp_path):
    first = study.ask()
    values = [study.values(trial) for trial in first]
    assert len({one[RATE] for one in values}) == 4
    for one in values:
        assert 1e-4 <= one[RATE] <= 1e-2 and one[RATE] == float(f"{one[RATE]:.6g}")
        assert one["algo.gamma"] in (0.9, 0.95) and one["algo.total_updates"] in range(2, 10)
        assert 0.9 <= one["algo.gae_lambda"] <= 0.999
    again = Study(tmp_path, SPACE, SearchSettings(trials=6, batch=4), seed=3)
    assert again.restart_killed() == 4 and again.finished() == []
    second = again.ask()
    assert [again.values(trial) for trial in second] == values
    for trial, value in zip(second, (0.5, math.nan, 0.75, 0.25), strict=True):
        again.tell(trial, value)
    assert [one.number for one in again.best()] == [second[2].number] and len(again.finished()) == 4
    assert len(again.ask()) == 2
    table = trial_tables.trial_rows(again.finished(), again.values)
    assert [row["state"] for row in table] == ["complete", "fail", "complete", "complete"]


@pytest.mark.needs("optuna")
def test_trials_are_judged_together_by_the_means_of_their_seeds(study):
    spec = SimpleNamespace(judged_by=lambda _learners: "score")
    program = SimpleNamespace(env=SimpleNamespace(spec=spec), agents={})
    watch = TrialWatch(program, study, SearchSettings(objective="last", pruner="median"), 8, 2)
    trials = study.ask()
    names = [trial_groups.name_trial(trial) for trial in trials]
    watch.begin(trials, [Member(f"{name}_{s}", name, None, {}) for name in names for s in (0, 1)])

    def told(*scores):
        every = [
            (f"{name}_{s}", score + d)
            for name, score in zip(names, scores, strict=True)
            for s, d in ((0, 0.1), (1, -0.1))
        ]
        return {name: {"eval_agg/score": score} for name, score in every if not math.isnan(score)}

    assert watch.evaluated(0, told(1, 2, 3, 4)) == set()
    with pytest.raises(ValueError, match="--measure=score: no column of eval.csv; "):
        watch.evaluated(0, {"one": {"eval_agg/return": 0.0, "eval_agg/scores": 1.0}})
    assert watch.evaluated(2, told(1, 2, 3, 4)) == set()  # the first is too early
    assert watch.evaluated(4, told(4, 3, 2, math.nan)) == {f"{names[2]}_0", f"{names[2]}_1"}
    assert watch.courses[names[0]] == pytest.approx([1, 4]) and watch.pruned == {names[2]}
    watch.conclude([f"{names[3]}_1"])
    assert [trial.state.name for trial in study.finished()] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL"]
    assert [trial.value for trial in study.best(3)] == pytest.approx([4, 3])


@pytest.mark.parametrize(("diverged", "value"), [([], 0.5), (["seed_1"], math.nan)])
def test_a_group_with_a_diverged_run_has_no_value_for_searching_sweepers(diverged, value):
    """As in our own search; the best evaluation of that run was before."""
    members = {name: {"best": {"best_eval": [best]}} for name, best in (("seed_0", 0.25), ("seed_1", 0.75))}
    assert best_score({"diverged": diverged, "members": members}) == pytest.approx(value, nan_ok=True)
    assert best_score(members["seed_1"]) == 0.75


def test_courses_and_shares():
    assert [judge_course([1.0, 3.0, 2.0], name) for name in ("best", "last", "mean")] == [3.0, 2.0, 2.0]
    assert {judge_course(course, "best") for course in permutations([0.2, math.nan, 0.9])} == {0.9}
    assert math.isnan(judge_course([math.nan], "best"))
    assert [value for value in range(6) if is_among_best(value, range(6), 1 / 3)] == [4, 5]
    assert is_among_best(0.0, [0.0] * 9, 1 / 3) and is_among_best(1.0, [1.0, 0.0], 0.1)
    halving, median = SearchSettings(), SearchSettings(pruner="median")
    assert [number for number in range(1, 19) if halving.judges(number, 18)] == [2, 6]
    assert [number for number in range(1, 5) if median.judges(number, 4)] == [2, 3]
    assert not SearchSettings(pruner="none").judges(3, 9)


def test_best_settings_keep_groups_and_nested_values(tmp_path):
    typed = ["env=f110", "++algos.defender.gamma=0.9", "env.lidar_beams=36", "sweep={a: [1,2]}", "run_name=x"]
    contents = best_settings.compose_best(typed, {"env.lock_steps": 7, "algo.gamma": 0.5}, Sources())
    best_settings.write_best(tmp_path / "best.yaml", contents, "told")
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == {
        "defaults": ["config", {"override env": "f110"}, "_self_"],
        "algos": {"defender": {"gamma": 0.9}},
        "env": {"lidar_beams": 36, "lock_steps": 7},
        "algo": {"gamma": 0.5},
    }
    with pytest.raises(ValueError, match="cannot delete keys"):
        best_settings.compose_best(["~algo.gamma"], {}, Sources())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=f110"], "sweep={}: must map keys to ranges, or give --space FILE"),
        ([*TINY, "seeds=2"], "seeds=2: not for a search; see --seeds"),
        ([*TINY, "resume=auto"], "resume=auto: a search continues by --output=FOLDER"),
        ([*TINY, "--trials", "0"], "--trials=0: must be"),
        ([*TINY, "--trial-steps", "0"], "--trial-steps=0: must be"),
        ([*TINY, "--finalists", "-1"], "--finalists=-1: must be"),
        ([*TINY, "--pruner", "hyper"], "invalid choice: 'hyper'"),
        ([*TINY, "--space", "nowhere.yaml"], "--space=nowhere.yaml: no such file"),
        ([*TINY[:-1], "sweep={algo.gamma: uniform(0.9,1.1)}"], "gamma=1.1: must be"),
        ([*TINY[:-1], "sweep={algo.epochs: [1,2]}"], "must be a number of the learner's state"),
        ([*TINY, "--measure", "avg_rewrad"], "--measure=avg_rewrad: no column of eval.csv; allowed: avg_"),
        (["--output", "nowhere"], "--output=nowhere: no search to continue; a new one needs sweep="),
        ([*TINY, "--output", "/"], "--output=/: exists, and is no folder of a search"),
        ([*TINY, "--output", "/proc/x/y"], "--output: cannot create /proc/x/y: "),
        ([*TINY, "output_dir=/proc/x"], "output_dir: cannot create /proc/x/gymnax_CartPole-v1/"),
    ],
)
def test_wrong_searches_are_refused_in_one_line(monkeypatch, arguments, message):
    monkeypatch.setattr(sweep, "import_optuna", lambda: None)
    with pytest.raises(ValueError) as caught:
        call(monkeypatch, *arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxmarl_echelon\[sweep\]'"):
        call(monkeypatch, *TINY)


def test_the_picture_has_trials_at_their_numbers_and_tells_pruned_from_diverged(monkeypatch, tmp_path):
    """Also after a trial without a value, and one that was started again under another number."""
    figures, make = [], plots.make_figure
    monkeypatch.setattr(plots, "make_figure", lambda *given: figures.append(make(*given)) or figures[-1])
    found = [
        (0, "complete", 1.0),
        (1, "fail", None),
        (2, "pruned", 0.5),
        (4, "fail", 0.25),
        (5, "complete", 2.0),
    ]
    rows = [
        {"trial": f"trial_{number:04d}", "state": state, "value": value, RATE: 1e-3}
        for number, state, value in found
    ]
    trial_tables.trials_plot(tmp_path / "sweep.png", rows, {RATE: SPACE[RATE]}, "score")
    ((first, _),) = [figure.axes for figure in figures]
    shown = {one.get_label(): one.get_offsets().tolist() for one in first.collections}
    ends = {"pruned, last value": [[2.0, 0.5]], "diverged, last value": [[4.0, 0.25]]}
    assert shown == ends | {"complete": [[0.0, 1.0], [5.0, 2.0]]}
    assert first.lines[0].get_xydata().tolist() == [[0.0, 1.0], [2.0, 1.0], [4.0, 1.0], [5.0, 2.0]]
