import csv
import json
import math
import re
import shutil
import sys
from collections import Counter

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image
from recorded_runs import STEPS, check_loads_nothing, write_evaluation, write_group, write_run
from scipy import stats

from jaxmarl_echelon import checkpoints, command_line, compare
from jaxmarl_echelon.reporting import run_page
from jaxmarl_echelon.reporting.comparison import ComparisonSettings, compare_methods
from jaxmarl_echelon.reporting.methods import find_runs, sort_runs
from jaxmarl_echelon.tracking.csv_sink import CsvTable, read_columns


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["jaxmarl-compare", *map(str, arguments)])
    command_line.run_guarded(compare.main)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Ten seeds of PPO in one group, and ten single runs of SAC."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    curves = rng.uniform(0.1, 0.4, (2, 10, len(STEPS))).cumsum(-1) * 0.8
    write_group(folder / "ppo" / "together", curves[0])
    for seed, scores in enumerate(curves[1]):
        write_run(folder / "sac" / f"run_{seed}", scores, algo="sac", seed=seed)
    return folder


@pytest.fixture(scope="module")
def compared(runs, tmp_path_factory):
    """The output of the command on both, and what it printed."""
    output = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as monkeypatch:
        call(monkeypatch, runs / "ppo/together", f"{runs}/sac/*", "--output", output, "--resamples", 200)
    return output


def last_scores(folders):
    return np.array([read_columns(one / "eval.csv")["success_rate"][-1] for one in sorted(folders)])


def test_numbers_are_those_of_the_evaluations(runs, compared):
    found = {
        "ppo": last_scores((runs / "ppo/together").glob("seed_*")),
        "sac": last_scores((runs / "sac").glob("run_*")),
    }
    table = {(row["method"], row["statistic"]): row for row in rows(compared / "statistics.csv")}
    for method, scores in found.items():
        assert float(table[method, "iqm"]["value"]) == pytest.approx(stats.trim_mean(scores, 0.25))
        assert float(table[method, "mean"]["value"]) == pytest.approx(scores.mean())
        assert float(table[method, "median"]["value"]) == pytest.approx(np.median(scores))
        assert float(table[method, "optimality_gap"]["value"]) == pytest.approx(np.mean(1 - scores))
        assert table[method, "iqm"]["runs"] == "10"
        for row in table.values():
            assert float(row["low"]) <= float(row["value"]) <= float(row["high"])
    difference, improvement = rows(compared / "pairs.csv")
    better, worse = found[difference["better"]], found[difference["worse"]]
    assert difference["paired"] == "True"
    middle = stats.trim_mean(better, 0.25) - stats.trim_mean(worse, 0.25)
    assert float(difference["value"]) == pytest.approx(middle) and middle > 0
    assert float(improvement["value"]) == pytest.approx(np.mean(better[:, None] > worse))
    recorded = {(row["method"], int(row["seed"])): float(row["raw"]) for row in rows(compared / "runs.csv")}
    assert [recorded["sac", seed] for seed in range(10)] == found["sac"].tolist()


def test_markdown_tables_have_the_numbers_of_the_files(compared):
    lines = [line for line in (compared / "compare.md").read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in cells[:4]} == {7} and {len(row) for row in cells[4:]} == {5}
    iqm = {row["method"]: row for row in rows(compared / "statistics.csv") if row["statistic"] == "iqm"}
    for method, runs, shown, *_, listed in cells[2:4]:
        value, low, high = (float(iqm[method][key]) for key in ("value", "low", "high"))
        assert runs == "10"
        assert [float(x) for x in re.findall(r"[\d.]+", shown)] == pytest.approx([value, low, high], abs=5e-4)
        scores = [float(row["score"]) for row in rows(compared / "runs.csv") if row["method"] == method]
        assert [float(x) for x in listed.split(", ")] == pytest.approx(scores, abs=5e-4)
    assert cells[6][:2] == [rows(compared / "pairs.csv")[0][key] for key in ("better", "worse")]


def test_curves_and_profiles_agree_with_the_scores(compared):
    table = {row["method"]: row for row in rows(compared / "statistics.csv") if row["statistic"] == "iqm"}
    for axis, end in (("steps", 2000.0), ("seconds", 20.0)):
        for method, row in table.items():
            curve = [r for r in rows(compared / "curves.csv") if (r["method"], r["axis"]) == (method, axis)]
            assert float(curve[-1]["x"]) == end
            for name, end_of in (("iqm", "value"), ("low", "low"), ("high", "high")):
                assert float(curve[-1][name]) == pytest.approx(float(row[end_of]))
    scores = [float(row["score"]) for row in rows(compared / "runs.csv") if row["method"] == "ppo"]
    for row in rows(compared / "profiles.csv"):
        if row["method"] == "ppo":
            above = np.mean(np.array(scores) > float(row["threshold"]))
            assert float(row["fraction"]) == pytest.approx(above)


def test_the_page_loads_nothing_and_the_picture_is_one(compared):
    page = (compared / "compare.html").read_text()
    check_loads_nothing(page)
    for word in ("IQM", "probability of improvement", "ppo", "sac", "prefers-color-scheme", "<svg"):
        assert word in page
    assert "Warning" not in page
    with Image.open(compared / "compare.png") as picture:
        assert min(picture.size) > 700


def test_the_table_is_printed_with_warnings_for_few_seeds(monkeypatch, capsys, runs, tmp_path):
    few = [runs / f"ppo/together/seed_{seed}" for seed in range(3)]
    call(monkeypatch, *few, f"o[ther]={runs}/sac/run_[4-6]", "--output", tmp_path, "--resamples", 100)
    said = capsys.readouterr().out
    for word in ("IQM [95 %]", "o[ther]", "not paired", "in pairs", "compare.html"):
        assert word in said
    assert "warning: ppo has 3 seeds on f110; a claim needs 10" in said
    assert "warning: o[ther] has 3 seeds" in said


def test_a_comparison_of_other_runs_is_kept(monkeypatch, capsys, tmp_path):
    runs, output = [tmp_path / "runs" / name for name in ("ppo", "sac")], tmp_path / "comparison"
    for run in runs:
        write_run(run, np.linspace(0.1, 0.3, len(STEPS)), algo=run.name)
    call(monkeypatch, runs[0], "--output", output, "--resamples", 100)
    call(monkeypatch, *runs, "--output", output, "--resamples", 100)
    call(monkeypatch, *runs, "--output", output, "--resamples", 200)
    before = {path: path.read_bytes() for path in output.iterdir()}
    with pytest.raises(SystemExit) as caught:
        call(monkeypatch, runs[0], "--output", output, "--resamples", 100)
    assert caught.value.code == 2
    told = f"--output={output}: has a comparison of other runs, such as {runs[1]}; choose another folder"
    assert told in capsys.readouterr().err
    assert {path: path.read_bytes() for path in output.iterdir()} == before


@pytest.mark.parametrize("place", ["file", "file/below", 300 * "a"])
def test_a_folder_that_cannot_be_made_is_one_line(monkeypatch, capsys, tmp_path, place):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", (0.1, 0.2))
    (tmp_path / "file").write_text("kept")
    with pytest.raises(SystemExit) as caught:
        call(monkeypatch, "a", "--output", place, "--resamples", 100)
    said = capsys.readouterr()
    assert caught.value.code == 2 and said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith(f"error: --output: cannot create {place}: ")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_single_run_is_shown_without_an_interval(monkeypatch, capsys, tmp_path):
    write_run(tmp_path / "a", (0.1, 0.25))
    write_run(tmp_path / "b", (0.1, 0.75), algo="sac")
    call(monkeypatch, tmp_path / "a", tmp_path / "b", "--output", tmp_path / "out", "--resamples", 100)
    said = capsys.readouterr().out
    assert "0.250" in said and "0.500" in said and "nan" not in said and "0.250 [" not in said
    assert "nan" not in (tmp_path / "out/compare.md").read_text()
    assert "NaN" not in (tmp_path / "out/compare.html").read_text()


def compare_in(folder, **settings):
    """Compares the runs in a folder without writing files."""
    methods = sort_runs(find_runs([f"{folder}/*"]))
    return compare_methods(methods, ComparisonSettings(resamples=100, **settings))


def test_methods_are_told_apart_by_settings_and_variants(tmp_path):
    for seed in (0, 1):
        for rate in (0.1, 0.2):
            place = tmp_path / f"single_{seed}_{rate}"
            write_run(place, (0.1, 0.2), seed=seed, learner={"rate": rate})
        for variant in ("baseline", "mild"):
            name = f"{variant}_seed_{seed}"
            write_run(tmp_path / "group", (0.3,), seed=0, name=name, variants={"mild": {"a": 1}})
    found = Counter(one.method for one in compare_in(tmp_path).runs)
    names = ("ppo learner.rate=0.1", "ppo learner.rate=0.2", "ppo baseline", "ppo mild")
    assert found == dict.fromkeys(names, 2)


@pytest.mark.parametrize("listed", [True, False], ids=["members", "variants"])
def test_variants_of_one_name_and_other_settings_are_other_methods(tmp_path, listed):
    """As of two groups; of drawn settings only the table of members knows the values."""
    for seed, rate in enumerate((0.1, 0.2, 0.2)):
        given = {"sweep": {"algo.rate": "..."}} if listed else {"variants": {"mild": {"algo.rate": rate}}}
        for variant in ("baseline", "mild"):
            name = f"{variant}_seed_{seed}"
            write_run(tmp_path / f"group_{seed}", (0.3,), name=name, **given)
        if listed:
            rows = f"member,variant,seed,algo.rate\nmild_seed_{seed},mild,{seed},{rate}\n"
            (tmp_path / f"group_{seed}" / "members.csv").write_text(rows)
    found = {method.name: method.seeds("f110") for method in sort_runs(find_runs([f"{tmp_path}/*"]))}
    mild = {"ppo mild algo.rate=0.1": [0], "ppo mild algo.rate=0.2": [1, 2]}
    assert found == {"ppo baseline": [0, 1, 2]} | mild


def test_settings_with_a_number_are_the_same_on_every_task(tmp_path):
    """In whatever order runs are listed; settings that are only on one task have no twin on another."""
    ours, theirs = (dict.fromkeys("abcd", value) for value in (1, 2))
    for task, order in (("f110", (ours, theirs)), ("echelon", (theirs, ours))):
        for place, learner in zip("xy", order, strict=True):
            write_run(tmp_path / task / place, (0.1, 0.2), env=task, learner=learner)
    for method in sort_runs(find_runs([f"{tmp_path}/f110/*", f"{tmp_path}/echelon/*"])):
        (first,), (second,) = method.tasks.values()
        assert first.config["learner"] == second.config["learner"]
    shutil.rmtree(tmp_path / "echelon" / "y")
    write_run(tmp_path / "echelon" / "y", (0.1, 0.2), env="echelon", learner=dict.fromkeys("abcd", 3))
    with pytest.raises(ValueError, match=r"'ppo \(settings 1\)' has runs on f110, but none on echelon"):
        sort_runs(find_runs([f"{tmp_path}/f110/*", f"{tmp_path}/echelon/*"]))


def test_a_single_listed_seed_is_that_of_all_variants(tmp_path):
    """It is not in the names of their folders."""
    for variant in ("baseline", "mild"):
        write_run(tmp_path / "group", (0.3,), name=variant, variants={"mild": {"a": 1}}, seeds=[7])
    write_run(tmp_path / "alone", (0.2,), algo="sac", seed=0)
    found = compare_in(tmp_path)
    assert [(one.method, one.run.seed) for one in found.runs] == [
        ("sac", 0),
        ("ppo baseline", 7),
        ("ppo mild", 7),
    ]
    assert {(pair.worse, pair.paired) for pair in found.pairs} == {("ppo mild", True), ("sac", False)}


def test_a_variant_named_like_a_seed_is_read_from_the_table_of_members(tmp_path):
    for name in ("baseline", "wide_seed_3"):
        write_run(tmp_path / "group", (0.3,), name=name, variants={"wide_seed_3": {"a": 1}}, seeds=[7])
    (tmp_path / "group" / "members.csv").write_text(
        "member,variant,seed,a\nbaseline,baseline,7,\nwide_seed_3,wide_seed_3,7,1\n"
    )
    found = {method.name: method.seeds("f110") for method in sort_runs(find_runs([f"{tmp_path}/group"]))}
    assert found == {"ppo baseline": [7], "ppo wide_seed_3": [7]}


def test_members_of_a_population_are_no_independent_seeds(tmp_path):
    pbt = {"pbt": {"every": 2, "keys": ["algo.learning_rate"]}}
    write_group(tmp_path / "together", [(0.1,), (0.2,)], **pbt)
    write_group(tmp_path / "apart", [(0.1,), (0.2,)], algo="sac")
    for seed in (0, 1):
        write_run(
            tmp_path / "variants", (0.3,), algo="tqc", name=f"mild_seed_{seed}", variants={"mild": {}}, **pbt
        )
    lines = [line for line in compare_in(tmp_path).warnings if "(pbt)" in line]
    assert len(lines) == 1 and lines[0].startswith("ppo on f110: ") and "no independent seeds" in lines[0]


def test_runs_that_have_diverged_are_named(tmp_path):
    group = write_group(tmp_path / "group", [(0.1, 0.2), (0.1, 0.2), (0.1, 0.2)])
    ends = ((math.nan, 4.0), (math.nan, 0.0), (0.5, 4.0))
    for seed, (loss, steps) in enumerate(ends):
        table = CsvTable(group / f"seed_{seed}" / "metrics.csv", resume_step=1000)
        update = {"losses/critic_loss": loss, "losses/gradient_steps": steps, "time/train_seconds": 20.0}
        table.append(2000, update)
        # A resumed run may have been killed before its next update.
        table.append(2001, {"time/compile_seconds": 3.0})
    write_run(tmp_path / "alone", (0.1, 0.2), algo="sac")
    lines = [line for line in compare_in(tmp_path).warnings if "diverged" in line]
    assert lines == ["ppo on f110: seed_0 diverged; scores are of policies of the time before"]
    shown = {"success_rate": 0.2, "success_low": 0.1, "success_high": 0.3, "avg_reward": 2.0}
    CsvTable(group / "eval.csv").append(1000, shown)
    (group / "summary.json").write_text(json.dumps({"status": "finished", "env_steps": 2001}))
    pages = [run_page.write_report(place, changed=[]).read_text() for place in (group, group / "seed_0")]
    assert "seed_0 (diverged)</td>" in pages[0]
    assert [re.search(r"status<b>(\w+)</b>", page)[1] for page in pages] == ["finished", "diverged"]


def test_scores_of_several_tasks_are_scaled_by_their_ranges(tmp_path):
    for seed, value in enumerate((0.2, 0.6)):
        write_run(tmp_path / f"a{seed}", (0.0, value), seed=seed)
        write_run(tmp_path / f"b{seed}", (0.0, value), seed=seed, env="gymnax/CartPole-v1", score=None)
    found = compare_in(tmp_path, ranges={"gymnax/CartPole-v1": (-2.0, 8.0)})
    assert found.measures == {"f110": "success rate", "gymnax/CartPole-v1": "return, scaled"}
    table = found.statistics
    # Returns are ten times the scores: 2 and 6, which are 0.4 and 0.8 of the range.
    assert table["ppo", "gymnax/CartPole-v1"]["mean"].value == pytest.approx(0.6)
    assert table["ppo", "f110"]["mean"].value == pytest.approx(0.4)
    assert table["ppo", "all"]["mean"].value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("key", "score", "warns"),
    [
        ("curriculum.evaluation", "success", True),
        ("curriculum.verbs", "success", True),
        ("reward", None, True),
        ("reward", "success", False),
        ("curriculum.criteria", "success", False),
    ],
)
def test_runs_that_were_scored_on_different_tasks_are_told_apart(tmp_path, key, score, warns):
    """Rewards change returns, not scores."""
    for seed, speed in enumerate((0.5, 0.6)):
        settings = OmegaConf.to_container(OmegaConf.from_dotlist([f"{key}.speed={speed}"]))
        write_run(tmp_path / f"{seed}", (0.1, 0.2), seed=seed, score=score, **settings)
    lines = [line for line in compare_in(tmp_path).warnings if "different tasks" in line]
    assert lines == [f"f110: runs differ in {key}.speed: scores may be of different tasks"] * warns


def test_scores_up_to_a_step_are_compared(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"long{seed}", (0.1, 0.2, 0.9), seed=seed)
        write_run(tmp_path / f"short{seed}", (0.1, 0.3), seed=seed, algo="sac")
    for step, iqm in ((None, 0.9), (1500, 0.2)):
        found = compare_in(tmp_path, step=step)
        assert found.statistics["ppo", "all"]["iqm"].value == iqm
        assert any("scores are of 1,000 to 2,000 steps" in line for line in found.warnings) == (step is None)


@pytest.fixture
def evaluated(tmp_path):
    """A group of two seeds and a single run, whose last policies score otherwise on fresh episodes."""
    write_group(tmp_path / "runs" / "group", [(0.1, 0.2), (0.1, 0.4)])
    write_run(tmp_path / "runs" / "alone", (0.3, 0.9), algo="sac")
    for place, score in (("group/seed_0", 0.5), ("group/seed_1", 0.75), ("alone", 0.25)):
        write_evaluation(tmp_path / "runs" / place, score)
    return tmp_path / "runs"


def test_scores_of_a_checkpoint_are_those_of_its_evaluations(monkeypatch, capsys, evaluated, tmp_path):
    """Whereas the curves are those of training; a document gets the tables between its marks."""
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- compare a: begin -->\nold\n<!-- compare a: end -->\nafter\n")
    where = "--output", tmp_path / "out", "--write", document, "--mark", "a"
    call(monkeypatch, f"{evaluated}/*", "--checkpoint", "latest", "--resamples", 100, *where)
    found = {(row["method"], row["seed"]): float(row["raw"]) for row in rows(tmp_path / "out/runs.csv")}
    assert found == {("ppo", "0"): 0.5, ("ppo", "1"): 0.75, ("sac", "0"): 0.25}
    ends = {row["method"]: float(row["iqm"]) for row in rows(tmp_path / "out/curves.csv")}
    assert ends == {"ppo": pytest.approx(0.3), "sac": 0.9}
    said = " ".join(capsys.readouterr().out.split())
    title = "3 runs on f110 (success rate), 64 fresh episodes of each run's latest policy"
    text = (tmp_path / "out/compare.md").read_text()
    assert title in said and text.startswith(f"{title}.\n") and "| 0.500, 0.750 |" in text
    marks = "<!-- compare a: begin -->", "<!-- compare a: end -->"
    assert document.read_text() == f"before\n{marks[0]}\n{text}{marks[1]}\nafter\n"
    page = (tmp_path / "out/compare.html").read_text()
    assert "64 fresh episodes" in page
    returns = compare_in(evaluated, checkpoint="latest", measure="avg_reward")
    assert [one.raw for one in returns.runs] == [1.75, 3.5, 5.25]


def test_evaluations_that_were_made_in_other_ways_are_warned_of(evaluated):
    """Also a task of a variant's own, which the configuration of its group does not tell."""
    write_run(evaluated / "other", (0.3, 0.9, 0.8), algo="tqc")
    write_evaluation(evaluated / "other", 0.5, episodes=8, env={"speed": 2})
    lines = compare_in(evaluated, checkpoint="latest").warnings
    for line in (
        "f110: runs end after 1,000 to 2,000 steps",
        "f110: runs differ in env.speed: scores may be of different tasks",
        "f110: evaluations have 8 to 64 episodes",
    ):
        assert line in lines


def test_runs_that_are_judged_by_different_scores_are_refused(tmp_path):
    """As those of attackers and of defenders: each is the other's opponent."""
    write_run(tmp_path / "attacker", (0.3, 0.9))
    table = write_run(tmp_path / "defender", (0.3, 0.9), seed=1) / "eval.csv"
    head, *lines = table.read_text().splitlines()
    lines = [f"{line},0.1,0.0,0.2" for line in lines]
    table.write_text("\n".join([f"{head},defence_rate,defence_low,defence_high", *lines]) + "\n")
    for runs in (["attacker", "defender"], ["defender", "attacker"]):
        methods = sort_runs(find_runs([str(tmp_path / run) for run in runs]))
        with pytest.raises(ValueError) as caught:
            compare_methods(methods, ComparisonSettings(resamples=100))
        message = str(caught.value)
        assert message.startswith(f"{tmp_path}") and message.endswith("give --measure")
    same = compare_methods(methods, ComparisonSettings(resamples=100, measure="success_rate"))
    assert [one.raw for one in same.runs] == [0.9, 0.9]


def test_an_evaluation_of_an_earlier_policy_of_the_step_is_refused(evaluated):
    """As after a run that was resumed from an earlier checkpoint, and came to the same step again."""
    (place,) = (evaluated / "alone").glob("checkpoints/step_*")
    said = evaluated / "alone" / f"evaluation_{place.name}" / "evaluation_settings.json"

    def save(number):
        shutil.rmtree(place)
        state = {"weights": np.full(3, number, np.float32)}
        facts = {"step": 2000, "config": {"choices": {}}}
        checkpoints.save_checkpoint(place.parent, ("latest",), state, facts)

    save(1)
    digest = {"state": checkpoints.state_digest(place)}
    said.write_text(json.dumps(json.loads(said.read_text()) | digest))
    compare_in(evaluated, checkpoint="latest")
    save(2)
    with pytest.raises(ValueError) as caught:
        compare_in(evaluated, checkpoint="latest")
    message = str(caught.value)
    assert "alone/evaluation_step_000000002000/evaluation.json: is of an earlier checkpoint" in message
    assert message.endswith("alone --checkpoint latest") and "\n" not in message


def test_evaluations_under_other_overrides_are_refused(evaluated):
    write_run(evaluated / "other", (0.3, 0.9), algo="tqc")
    write_evaluation(evaluated / "other", 0.5, overrides=["env.speed=2"])
    with pytest.raises(ValueError) as caught:
        compare_in(evaluated, checkpoint="latest")
    message = str(caught.value)
    assert "other/evaluation_step_000000002000/evaluation.json: is of another task than" in message
    assert message.endswith("evaluated under env.speed=2, not under none") and "\n" not in message


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["none"], "none: no such folder"),
        (["empty"], "empty: not a run folder: it has no config.yaml"),
        (["started"], "started: no evaluations: eval.csv is missing or empty"),
        (["a", "other"], "a: different tasks: 'ppo' has runs on f110, but none on drive, as other"),
        (["a", "a"], "a: has the settings and the seed 0 of a"),
        (["a", "x=returns"], "returns/eval.csv; allowed: avg_reward, std_reward, num_episodes"),
        (["a", "--measure", "speed"], "--measure=speed: not in a/eval.csv; allowed: avg_reward, "),
        (["a", "--step", "-1"], "a: no evaluations up to step -1"),
        (["a", "--range", "3"], "--range=3: must be LOW:HIGH or TASK=LOW:HIGH"),
        (["a", "--range", "1:0"], "--range=1:0: LOW must be below HIGH"),
        (["a", "--range", "b=0:1"], "--range=b=...: no such task; tasks: f110"),
        (["a", "--task-keys", "env.map"], "--task-keys=env.map: no such key in the configuration of a"),
        (["a", "--resamples", "3"], "--resamples=3: must be at least 100"),
        (["a", "--checkpoint", "best_eval"], "a: has no checkpoint named 'best_eval'; available: latest"),
        (
            ["other", "--checkpoint", "latest"],
            "it is written by python -m jaxmarl_echelon.evaluate other --checkpoint latest",
        ),
        (
            ["a", "--checkpoint", "latest", "--measure", "speed"],
            "evaluation.json; allowed: avg_reward, success_rate",
        ),
        (["a", "--checkpoint", "latest", "--step", "1"], "--step=1: must be left out with --checkpoint"),
        (["a", "--write", "page.md"], "--write, --mark: must be given together"),
        (
            ["a", "--write", "page.md", "--mark", "b"],
            "page.md: has no text between <!-- compare b: begin --> and",
        ),
        (["x=a", "x=drive", "--measure", "avg_reward"], "f110: avg_reward has no range; give --range f110="),
    ],
)
def test_what_is_wrong_is_one_line(monkeypatch, capsys, tmp_path, arguments, line):
    monkeypatch.chdir(tmp_path)
    for name, env in (("a", "f110"), ("other", "drive"), ("drive", "drive")):
        write_run(tmp_path / name, (0.1, 0.2), env=env, algo="sac" if name == "other" else "ppo")
    write_run(tmp_path / "returns", (0.1,), score=None, seed=1)
    write_run(tmp_path / "started", ())
    write_evaluation(tmp_path / "a", 0.5)
    write_evaluation(tmp_path / "other", 0.5)
    next((tmp_path / "other").glob("*/evaluation_settings.json")).unlink()
    (tmp_path / "page.md").write_text("<!-- compare a: begin -->\n<!-- compare a: end -->\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, *arguments, "--output", "out")
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    assert line in said.err and said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
