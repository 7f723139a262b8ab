import io
import itertools

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
def test_a_run_without_results_says_so_little(tmp_path, closed):
    stream = io.StringIO()
    sink = ConsoleSink(stream=stream)
    if closed:
        sink.close()
        assert stream.getvalue() == ""
        return
    sink.open(run_info(tmp_path))
    sink.close()
    assert len(stream.getvalue().splitlines()) == 2
