import io
import itertools
from dataclasses import replace

import pytest
from tracking_runs import run_info, write_updates

from jaxmarl_echelon.tracking.console import ConsoleSink


def lines(tmp_path, every_seconds, updates=8):
    stream, ticks = io.StringIO(), itertools.count()
    sink = ConsoleSink(every_seconds, stream, now=lambda: float(next(ticks)))
    sink.open(run_info(tmp_path, updates=updates))
    sink.write("time", 0, {"compile_seconds": 31.25})
    write_updates(sink, 1, updates)
    sink.event(8000, "saved best_eval")
    sink.close()
    text = stream.getvalue()
    assert text.isascii()
    return text.splitlines()


def test_each_kind_of_line_is_readable(tmp_path):
    shown = lines(tmp_path, every_seconds=0)
    assert shown[0] == f"f110 ppo {tmp_path.name} seed 3: 8.00 k steps, in {tmp_path}"
    assert shown[1] == "compiled in 31.2 s"
    assert " ".join(shown[2].split()) == (
        "train 1.00 k 12.5 % 12.3 k steps/s ETA - success 2.5 % return -9.500 length 123.5 "
        "policy_loss -0.0100 value_loss 1 entropy 2.500"
    )
    evaluations = [line for line in shown if line.startswith("eval")]
    assert " ".join(evaluations[0].split()) == (
        "eval 4.00 k success 10.0 % [5.0, 20.0] return 7.250 length 99 "
        "self_crash 45.0 % collision 18.0 % timeout 18.0 % idle_stop 9.0 %"
    )
    assert " ".join(shown[-2].split()) == "event 8.00 k saved best_eval"
    assert shown[-1].startswith("ended: 8.00 k of 8.00 k steps in ")
    assert shown[-1].endswith("compiling took 31.2 s of it, best evaluation 20.0 % at 8.00 k")
    assert sum(line.startswith("train") for line in shown) == 8


def test_lines_are_thinned_but_the_last_update_is_shown(tmp_path):
    trains = [line for line in lines(tmp_path, every_seconds=1e9) if line.startswith("train")]
    assert [line.split()[1] for line in trains] == ["1.00", "8.00"]


def test_time_left_follows_the_observed_speed(tmp_path):
    stream, clock = io.StringIO(), [0.0]
    sink = ConsoleSink(0, stream, now=lambda: clock[0])
    sink.open(run_info(tmp_path, updates=100))
    for update in range(1, 11):
        clock[0] += 2.0
        sink.write("train", update * 1000, {"return": 0.0})
        sink.flush()
    # 90 updates are left at two seconds each.
    assert "ETA  3:00" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize("closed", [True, False])
def test_run_without_results_prints_two_lines(tmp_path, closed):
    stream = io.StringIO()
    sink = ConsoleSink(stream=stream)
    if closed:
        sink.close()
        assert stream.getvalue() == ""
        return
    sink.open(run_info(tmp_path))
    sink.close()
    assert len(stream.getvalue().splitlines()) == 2


def test_lines_say_where_a_curriculum_stands(tmp_path):
    stream = io.StringIO()
    sink = ConsoleSink(0, stream)
    sink.open(run_info(tmp_path))
    phase = {"current_stage": 3.0, "total_phases": 26.0, "phase_name": "1_lock300"}
    sink.write("curriculum", 1000, phase)
    sink.write("eval_agg", 1000, {"success_rate": 0.5, "phase_success_rate": 0.75, "task/left": 0.25})
    sink.write("eval", 1000, {"episode": 1, "task": "left", "outcome": "timeout", "success": False})
    sink.write("train", 2000, {"success_rate": 0.25, "return": 1.5})
    sink.flush()
    sink.event(2000, "phase 3 -> 4: 1_lock200 (success 74 %)")
    sink.write("curriculum", 2000, {"current_stage": float("nan"), "total_phases": float("nan")})
    sink.write("train", 3000, {"success_rate": 0.25})
    sink.close()
    shown = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert shown[1] == "eval 1.00 k success 50.0 % phase 3/26 1_lock300 phase success 75.0 %"
    assert shown[2].endswith("success 25.0 % phase 3/26 1_lock300 eval 50.0 % return 1.500")
    assert shown[3] == "event 2.00 k phase 3 -> 4: 1_lock200 (success 74 %)"
    assert "phase 1_lock300 eval 50.0 %" in shown[4]


@pytest.mark.parametrize(
    ("seeds", "shown"), [(None, "seed 3"), (10, "10 seeds from 3"), ([2, 5], "seeds 2, 5")]
)
def test_a_group_is_announced_with_its_seeds(tmp_path, seeds, shown):
    """A member has its own."""
    alone = run_info(tmp_path)
    group = replace(alone, group=tmp_path, config={**alone.config, "seeds": seeds})
    assert group.title[-1] == shown
    assert replace(group, folder=tmp_path / "seed_3").title[-1] == "seed 3"
