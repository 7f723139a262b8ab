"""What an environment declares appears by name, with no code of its own anywhere."""

import csv
import dataclasses
import io

import pytest
from rich.console import Console
from tracking_runs import run_info

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.tracking import RunInfo, Tracker, tables
from jaxmarl_echelon.tracking.console import ConsoleSink
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.tracking.panels import compose_dashboard
from jaxmarl_echelon.tracking.view import RunView


def make_console(width, height, **settings):
    """A terminal of this size, into a string."""
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, legacy_windows=False, **settings
    )


TRAIN = {"return": 1.0, "laps": 2.5, "delivered_rate": 0.25, "collisions": 3.0}
EVALUATED = {
    "avg_reward": 1.5, "avg_episode_length": 40.0, "num_episodes": 8.0, "quality": 0.625, "quality_low": 0.5,
    "quality_high": 0.75, "laps": 3.5, "delivered_rate": 0.375, "collisions": 0.0,
}  # fmt: skip


def declared(folder):
    """A run in an environment whose score is graded, and which reports three more results."""
    reported = (
        results.Result("quality"),
        results.Result("laps"),
        results.Result("delivered", kind="rate"),
        results.Result("collisions", role="car", reduce="sum"),
        *results.standard_results(components=("speed",)),
    )
    spec = EnvSpec("yard", 1, (), 0.1, 100, reported, score="quality")
    info = run_info(folder)
    return RunInfo(folder, spec, info.total_steps, info.config)


def logged(sink):
    sink.log("train", 1000, {**TRAIN, "quality": 0.5, "reward_components/speed": 9.0})
    sink.log("eval_agg", 1000, EVALUATED)
    sink.flush()


def test_the_console_names_score_and_results(tmp_path):
    stream = io.StringIO()
    tracker = Tracker({"console": ConsoleSink(0, stream)}).open(declared(tmp_path))
    logged(tracker)
    tracker.close()
    trained, evaluated = (
        next(line for line in stream.getvalue().splitlines() if line.startswith(kind))
        for kind in ("train", "eval")
    )
    for words in ("quality 50", "laps 2.5", "delivered_rate 0.25", "collisions 3"):
        assert words in trained, words
    assert "quality 62.5% [50.0, 75.0]" in evaluated.replace(" %", "%")
    assert "laps 3.5" in evaluated and "delivered_rate 0.375" in evaluated
    assert "speed" not in trained


def test_the_dashboard_has_a_panel_of_results(tmp_path):
    view = RunView(declared(tmp_path), now=0.0)
    view.write("train", 1000, {**TRAIN, "quality": 0.5}, 1.0)
    view.write("eval_agg", 1000, EVALUATED, 2.0)
    console = make_console(160, 40, color_system=None)
    console.print(compose_dashboard(view, 160, 40, 3.0), height=40)
    text = console.file.getvalue()
    assert "─ results ─" in text and "quality" in text and "50–75" in text
    for name in ("laps", "delivered_rate", "collisions"):
        assert name in text
    assert view.best == (1000, 0.625)


def test_tables_of_actors_show_what_occurred(tmp_path):
    spec = declared(tmp_path).spec
    rows = {"policy": {f"eval_agg/{k}": v for k, v in (EVALUATED | {"reward_components/speed": 9.0}).items()}}
    console = make_console(120, 20, color_system=None)
    (table,) = tables.actor_tables(rows, 8, spec)
    console.print(table)
    text = console.file.getvalue()
    assert "quality [95 %]" in text and "0.62 [0.50, 0.75]" in text
    assert "laps" in text and "3.50" in text and "delivered rate" in text
    # Nobody collided, and what is paid is no result for people.
    assert "collisions" not in text and "speed" not in text


@pytest.mark.parametrize(
    ("earned", "cell"), [(0.00583, "0.0058"), (-0.00095, "-9.50e-04"), (164.23, "164.2")]
)
def test_tables_of_actors_keep_the_digits_of_small_returns(tmp_path, earned, cell):
    """As the console shows them in training."""
    spec = declared(tmp_path).spec
    values = EVALUATED | {"avg_reward": earned}
    (table,) = tables.actor_tables({"policy": {f"eval_agg/{k}": v for k, v in values.items()}}, 8, spec)
    assert [list(one.cells) for one in table.columns if one.header == "return"] == [[cell]]


def test_tables_of_actors_count_the_episodes_that_are_not_scored(tmp_path):
    spec, rows = declared(tmp_path).spec, {}
    for actor, number in (("policy", 3.0), ("script", 0.0)):
        values = EVALUATED | {"quarantined": number}
        rows[actor] = {f"eval_agg/{name}": value for name, value in values.items()}
    table = tables.actor_tables(rows, 8, spec)[0]
    assert [column.header for column in table.columns][:3] == ["actor", "quarantined", "quality [95 %]"]
    assert list(table.columns[1].cells) == ["3", "0"]
    sound = tables.actor_tables({"script": rows["script"]}, 8, spec)[0]
    assert "quarantined" not in [column.header for column in sound.columns]


def test_tables_say_how_policies_act(tmp_path):
    """In games with hidden information evaluations sample."""
    spec, rows = declared(tmp_path).spec, {"policy": {f"eval_agg/{k}": v for k, v in EVALUATED.items()}}
    phase = {"name": "0 easy", "success": 0.5, "low": 0.25, "high": 0.75, "outcomes": {}}
    for hidden, acting in ((False, "deterministic"), (True, "sampled actions")):
        own = dataclasses.replace(spec, hidden=hidden)
        for table in (*tables.actor_tables(rows, 8, own), *tables.ladder_tables([phase], 8, own)):
            assert str(table.title).endswith(f", {acting}")


def test_measures_are_shown_below_where_the_terminal_is_narrow(tmp_path):
    many = tuple(results.Result(f"measure{nth}") for nth in range(6))
    spec = EnvSpec("yard", 1, (), 0.1, 100, (results.Result("quality"), *many), score="quality")
    values = EVALUATED | {one.name: float(nth + 1) for nth, one in enumerate(many)}
    rows = {"trained policy": {f"eval_agg/{key}": value for key, value in values.items()}}
    for width, number in ((122, 1), (121, 2), (80, 2)):
        console = make_console(width, 40, color_system=None)
        found = tables.actor_tables(rows, 8, spec, width)
        for table in found:
            console.print(table)
        text = console.file.getvalue()
        assert len(found) == number and "…" not in text
        assert all(word in text for word in ("0.62 [0.50, 0.75]", "measure5", "6.00"))


def test_many_measures_have_a_table_of_their_own(tmp_path):
    many = tuple(results.Result(f"measure_{nth}") for nth in range(tables.MOST_COLUMNS + 1))
    spec = EnvSpec("yard", 1, (), 0.1, 100, (results.Result("quality"), *many), score="quality")
    values = EVALUATED | {one.name: float(nth + 1) for nth, one in enumerate(many)}
    rows = {name: {f"eval_agg/{key}": value for key, value in values.items()} for name in ("policy", "none")}
    console = make_console(120, 40, color_system=None)
    for table in tables.actor_tables(rows, 8, spec):
        console.print(table)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["│", "measure", "8", "│", "9.00", "│", "9.00", "│"] in lines


@pytest.mark.parametrize("width", [80, 120])
def test_measures_of_many_members_are_split_into_tables_that_fit(tmp_path, width):
    """Twenty members and twelve measures: neither has room as columns of one table."""
    many = tuple(results.Result(f"share_of_measure_{nth}") for nth in range(12))
    spec = EnvSpec("yard", 1, (), 0.1, 100, (results.Result("quality"), *many), score="quality")
    rows = {
        f"variant_seed_{number}": {f"eval_agg/{key}": value for key, value in EVALUATED.items()}
        | {f"eval_agg/{one.name}": number + nth / 100 for nth, one in enumerate(many)}
        for number in range(1, 21)
    }
    console = make_console(width, 40, color_system=None)
    for table in tables.actor_tables(rows, 8, spec, width):
        console.print(table)
    lines = console.file.getvalue().splitlines()
    assert "…" not in "".join(lines) and max(map(len, lines)) <= width
    cells = [[part.strip() for part in line.split("│")[1:-1]] for line in lines if "variant_seed_" in line]
    for number in range(1, 21):
        shown = [cell for row in cells if row[0] == f"variant_seed_{number}" for cell in row[1:]]
        assert shown[-12:] == [f"{number + nth / 100:.2f}" for nth in range(12)]


@pytest.mark.parametrize("width", [80, 120])
def test_tables_of_many_outcomes_tasks_and_phases_fit_into_the_terminal(width):
    """Nine tasks with long names, and six outcomes, none of whose numbers is cut."""
    outcomes = ("target_crash", "self_crash", "collision", "timeout", "idle_stop", "target_finish")
    reported = results.standard_results(outcomes, ("target_crash",))
    spec = EnvSpec("yard", 1, (), 0.1, 100, reported, score="success")
    shares = {name: 0.11 + nth / 100 for nth, name in enumerate(outcomes)}
    values = {f"outcome/{name}": share for name, share in shares.items()}
    values |= {"success_rate": 0.5, "success_low": 0.25, "success_high": 0.75}
    values |= {"avg_reward": 1.0, "avg_episode_length": 20.0}
    values = {f"eval_agg/{name}": x for name, x in values.items()}
    tasks = [f"approach_from_{nth}.0L" for nth in range(9)]
    actors = ("trained policy", "untrained policy")
    found = tables.task_tables({actor: dict.fromkeys(tasks, values) for actor in actors}, spec, width)
    phase = {"name": "22 4_ftg_medium_plus_plus", "success": 0.5, "low": 0.25, "high": 0.75}
    found += tables.ladder_tables([phase | {"outcomes": shares}], 8, spec, width)
    found += tables.actor_tables(dict.fromkeys(actors, values), 8, spec, width)
    console = make_console(width, 60, color_system=None)
    for table in found:
        console.print(table)
    lines = console.file.getvalue().splitlines()
    assert "…" not in "".join(lines) and max(map(len, lines)) <= width
    assert all(any(task in line for line in lines) for task in tasks)
    text = "".join(lines)
    # By task, by phase and by actor.
    assert all(text.count(f"{share:.2f}") == len(tasks) + 1 + len(actors) for share in shares.values())
    assert "success [95 %]" in text


def test_tables_by_task_compare_actors_and_list_the_rates_of_the_first(tmp_path):
    spec = declared(tmp_path).spec
    values = {f"eval_agg/{key}": value for key, value in EVALUATED.items()}
    other = values | {"eval_agg/quality": 0.25}
    rows = {"policy": {"bend": values, "hill": other}, "standing": {"bend": other, "hill": other}}
    console = make_console(120, 20, color_system=None)
    compared, detailed = tables.task_tables(rows, spec)
    console.print(compared)
    lines = console.file.getvalue().splitlines()
    assert any(line.split()[1::2] == ["standing", "0.25", "0.25"] for line in lines)
    console.print(detailed)
    text = console.file.getvalue()
    assert "delivered" in text and "0.38" in text and "laps" not in text
    assert tables.task_tables({"policy": {}}, spec) == []


def test_csv_files_have_a_column_per_result(tmp_path):
    tracker = Tracker({"csv": CsvSink()}).open(declared(tmp_path))
    logged(tracker)
    tracker.close()
    for name, key, value in (("metrics.csv", "train/laps", "2.5"), ("eval.csv", "quality_low", "0.5")):
        with (tmp_path / name).open(newline="") as file:
            (row,) = csv.DictReader(file)
        assert row[key] == value
