import csv
import math

import numpy as np
import pytest
from tracking_runs import run_info, write_updates

from jaxmarl_echelon.tracking.csv_sink import CsvSink, CsvTable, read_columns
from jaxmarl_echelon.tracking.run_tables import read_pool_rows


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def record(folder, first, last, resume_step=None, extra=None):
    sink = CsvSink()
    sink.open(run_info(folder, resume_step=resume_step))
    write_updates(sink, first, last)
    if extra:
        extra(sink)
    sink.close()


def test_one_row_per_update_joins_the_namespaces(tmp_path):
    record(tmp_path, 1, 8)
    metrics = rows(tmp_path / "metrics.csv")
    assert [row["step"] for row in metrics] == [str(1000 * i) for i in range(1, 9)]
    assert metrics[1]["train/return"] == "-8.5"
    assert metrics[1]["losses/value_loss"] == "0.5"
    assert metrics[1]["time/steps_per_second"] == "12345.0"
    evaluations = rows(tmp_path / "eval.csv")
    assert [(row["step"], row["success_rate"]) for row in evaluations] == [("4000", "0.1"), ("8000", "0.2")]


def test_single_episodes_get_a_row_each(tmp_path):
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    for episode, outcome in enumerate(["timeout", "collision"]):
        sink.write("episodes", 64, {"episode": episode, "outcome": outcome, "return/attacker": 0.1})
        sink.write("eval", 64, {"outcome": outcome})
    sink.close()
    assert (tmp_path / "episodes.csv").read_text() == (
        "step,episode,outcome,return/attacker\n64,0,timeout,0.1\n64,1,collision,0.1\n"
    )
    assert (tmp_path / "eval_episodes.csv").read_text() == "step,outcome\n64,timeout\n64,collision\n"


def test_new_columns_keep_what_was_written(tmp_path):
    table = CsvTable(tmp_path / "t.csv")
    table.append(1, {"a": 1.0})
    table.append(2, {"b": 2.5, "a": 3})
    table.append(3, {"b": math.nan})
    table.extend(3, {"c": "x,y"})
    table.append(4, {})
    table.close()
    expected = 'step,a,b,c\n1,1.0,,\n2,3,2.5,\n3,,nan,"x,y"\n4,,,\n'
    assert (tmp_path / "t.csv").read_text() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_rows_are_on_disk_before_the_sink_is_closed(tmp_path):
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    write_updates(sink, 1, 2)
    assert rows(tmp_path / "metrics.csv")[-1]["time/steps_per_second"] == "12345.0"


@pytest.mark.parametrize("torn", ["", "18000,0.25,12", "1800"])
def test_a_resumed_run_leaves_the_files_of_an_uninterrupted_one(tmp_path, torn):
    def late_column(sink):
        sink.write("pool", 20_000, {"rating": 1200.5})
        sink.write("episodes", 20_000, {"outcome": "timeout"})

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    record(whole, 1, 20, extra=late_column)
    record(parts, 1, 16)
    with (parts / "metrics.csv").open("a") as file:
        file.write(torn)
    record(parts, 13, 20, resume_step=12_000, extra=late_column)
    for name in ("metrics.csv", "eval.csv", "episodes.csv"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_a_number_that_was_cut_is_not_read(tmp_path):
    """A row of a killed process may end within its last cell, so that no cell is missing."""
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    for step, score in ((1000, 0.25), (2000, 0.75)):
        for name in ("eval_agg", "entries"):
            sink.write(name, step, {"entry": 0, "score": score})
    sink.close()
    for name in ("eval.csv", "pool.csv"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().removesuffix(b"75\n"))
    assert read_columns(tmp_path / "eval.csv")["score"].tolist() == [0.25]
    assert [row["score"] for row in read_pool_rows(tmp_path / "pool.csv")] == ["0.25"]
    record(tmp_path, 3, 4, resume_step=2000)
    assert [row["step"] for row in rows(tmp_path / "eval.csv")] == ["1000", "4000"]


def test_values_at_the_resumed_step_join_its_row(tmp_path):
    record(tmp_path, 1, 4)
    sink = CsvSink()
    sink.open(run_info(tmp_path, resume_step=4000))
    sink.write("time", 4000, {"compile_seconds": 2.0})
    sink.close()
    metrics = rows(tmp_path / "metrics.csv")
    assert len(metrics) == 4
    assert metrics[-1]["time/compile_seconds"] == "2.0"
    assert metrics[-1]["train/return"] == "-6.5"


def test_a_new_run_replaces_old_files(tmp_path):
    record(tmp_path, 1, 9)
    record(tmp_path, 1, 2)
    assert len(rows(tmp_path / "metrics.csv")) == 2
    assert not (tmp_path / "eval.csv").exists()


def test_numbers_survive_the_file_exactly(tmp_path):
    table = CsvTable(tmp_path / "t.csv")
    table.append(2**53 + 1, {"a": 0.1 + 0.2, "b": "text"})
    table.append(5, {"a": math.inf})
    table.close()
    assert (tmp_path / "t.csv").read_text().splitlines()[1].startswith("9007199254740993,")
    columns = read_columns(tmp_path / "t.csv")
    assert columns["a"].tolist() == [0.1 + 0.2, math.inf]
    assert math.isnan(columns["b"][0])
    assert read_columns(tmp_path / "missing.csv") == {}


def test_evaluated_episodes_and_their_summary_go_to_two_files(tmp_path):
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    episode = {"task": "approach, left", "outcome": "timeout", "reward": -1.5, "length": 600}
    sink.write("eval", 4000, {"episode": 1, **episode, "success": np.bool_(False)})
    sink.write("eval", 4000, {"episode": 2, **episode, "success": True})
    sink.write("eval_agg", 4000, {"success_rate": 0.5, "task/left": math.nan})
    sink.write("eval_agg", 8000, {"success_rate": 0.5, "task/left": 1.0, "phase_success_rate": 0.25})
    sink.close()
    assert (tmp_path / "eval_episodes.csv").read_text() == (
        "step,episode,task,outcome,reward,length,success\n"
        '4000,1,"approach, left",timeout,-1.5,600,0\n'
        '4000,2,"approach, left",timeout,-1.5,600,1\n'
    )
    assert (tmp_path / "eval.csv").read_text() == (
        "step,success_rate,task/left,phase_success_rate\n4000,0.5,nan,\n8000,0.5,1.0,0.25\n"
    )
    assert not (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize("name", ["1_lock300", "pinch, left", 'the "hard" one', "two\nlines", ""])
def test_texts_in_the_metrics_survive_growing_and_resuming(tmp_path, name):
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    sink.write("train", 1000, {"return": 1.0})
    sink.write("curriculum", 1000, {"phase_name": name, "current_stage": 0.0})
    sink.write("train", 2000, {"return": 2.0})
    sink.close()
    sink = CsvSink()
    sink.open(run_info(tmp_path, resume_step=1000))
    sink.write("losses", 1000, {"value": 0.5})
    sink.write("curriculum", 2000, {"phase_name": "next", "current_stage": 1.0})
    sink.close()
    metrics = rows(tmp_path / "metrics.csv")
    assert [row["curriculum/phase_name"] for row in metrics] == [name, "next"]
    assert [row["losses/value"] for row in metrics] == ["0.5", ""]
    columns = read_columns(tmp_path / "metrics.csv")
    assert columns["curriculum/current_stage"].tolist() == [0.0, 1.0]
    assert np.isnan(columns["curriculum/phase_name"]).all()
