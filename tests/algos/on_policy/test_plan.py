import dataclasses
import math

import pytest

from algos.on_policy.update_sizes import UpdateSizes, make_update_sizes


def test_the_worked_example():
    """128 agents in each of 64 environments, 524288 decisions, 32 gradient steps."""
    plan = make_update_sizes(8192, environments=64, batch_size=524288, minibatch_size=16384, horizon=64)
    assert (plan.segments, plan.horizon, plan.decisions, plan.batch_size) == (8192, 64, 64, 524288)
    assert (plan.minibatch_segments, plan.minibatches, plan.accumulation) == (256, 32, 1)
    assert plan.gradient_steps == 32
    assert plan.updates(10**10) == 19073


@pytest.mark.parametrize("agents", [2, 6])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize(("accumulation", "steps_per_epoch"), [(1, 1), (1, 2), (2, 1)])
def test_sizes_of_a_plan_are_consistent(agents, k, epochs, accumulation, steps_per_epoch):
    horizon, per_step = 8, k * agents // steps_per_epoch
    plan = make_update_sizes(
        agents,
        minibatch_size=per_step * horizon,
        horizon=horizon,
        segments_per_agent=k,
        epochs=epochs,
        max_minibatch_size=per_step * horizon // accumulation,
    )
    assert plan.segments == k * agents
    assert plan.decisions == k * horizon
    assert plan.batch_size == plan.segments * horizon == agents * plan.decisions
    assert plan.minibatch_segments * plan.accumulation == per_step
    assert plan.accumulation == accumulation
    assert plan.minibatch_size == per_step * horizon
    assert plan.minibatches * plan.minibatch_segments == plan.segments
    assert plan.gradient_steps * plan.minibatch_size == epochs * plan.batch_size


def test_either_size_follows_from_the_other():
    common = {"minibatch_size": 128, "segments_per_agent": 2}
    told = make_update_sizes(4, batch_size=512, horizon=64, **common)
    assert make_update_sizes(4, horizon=64, **common) == told
    assert make_update_sizes(4, batch_size=512, **common) == told


def test_a_limit_above_the_minibatch_changes_nothing():
    free = make_update_sizes(8, horizon=4, minibatch_size=16)
    assert make_update_sizes(8, horizon=4, minibatch_size=16, max_minibatch_size=16) == free
    assert make_update_sizes(8, horizon=4, minibatch_size=16, max_minibatch_size=1001) == free


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_size": "auto", "horizon": "auto"},
            "batch_size=auto: cannot be auto together with horizon=auto; "
            "give one of them, such as horizon=64 or batch_size=768",
        ),
        (
            {"batch_size": 100},
            "batch_size=100: must be a multiple of segments_per_agent * agents = 2 * 6; nearest: 96, 108",
        ),
        (
            {"batch_size": 7},
            "batch_size=7: must be a multiple of segments_per_agent * agents = 2 * 6; nearest: 12",
        ),
        (
            {"batch_size": 100, "horizon": 8},
            "batch_size=100: must be segments_per_agent * agents * horizon = 2 * 6 * 8; "
            "nearest: batch_size=96",
        ),
        (
            {"batch_size": 48, "horizon": 8},
            "batch_size=48: must be segments_per_agent * agents * horizon = 2 * 6 * 8; "
            "nearest: batch_size=96 or horizon=4 or segments_per_agent=1",
        ),
        (
            {"horizon": 8, "minibatch_size": 100},
            "minibatch_size=100: must not exceed batch_size=96; nearest: 96",
        ),
        (
            {"horizon": 8, "minibatch_size": 20},
            "minibatch_size=20: must hold whole segments of horizon=8; nearest: 16, 24",
        ),
        (
            {"horizon": 8, "minibatch_size": 4},
            "minibatch_size=4: must hold whole segments of horizon=8; nearest: 8",
        ),
        (
            {"horizon": 8, "minibatch_size": 40},
            "minibatch_size=40: must divide batch_size=96; nearest: 32, 48",
        ),
        (
            {"horizon": 8, "minibatch_size": 48, "max_minibatch_size": 20},
            "max_minibatch_size=20: must hold whole segments of horizon=8; nearest: 16, 24",
        ),
        (
            {"horizon": 8, "minibatch_size": 48, "max_minibatch_size": 32},
            "max_minibatch_size=32: must divide minibatch_size=48; nearest: 24, 48",
        ),
        ({"horizon": 0}, "horizon=0: must be a whole number of at least 1"),
        ({"batch_size": "all"}, "batch_size=all: must be a whole number of at least 1"),
        ({"horizon": 8, "epochs": 0}, "epochs=0: must be a whole number of at least 1"),
        ({"horizon": 8, "minibatch_size": 8.0}, "minibatch_size=8.0: must be a whole number of at least 1"),
        (
            {"horizon": 8, "max_minibatch_size": -8},
            "max_minibatch_size=-8: must be a whole number of at least",
        ),
    ],
)
def test_sizes_that_do_not_fit(settings, message):
    with pytest.raises(ValueError) as error:
        make_update_sizes(6, **{"minibatch_size": 8, "segments_per_agent": 2} | settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_agents_must_be_counted():
    with pytest.raises(ValueError, match="agents=0: must be a whole number of at least 1"):
        make_update_sizes(0, minibatch_size=8, horizon=8)


def test_the_nearest_sizes_named_are_legal():
    for wrong in range(1, 200):
        try:
            make_update_sizes(6, horizon=8, segments_per_agent=2, minibatch_size=wrong)
        except ValueError as error:
            for legal in str(error).split("nearest: ")[1].split(", "):
                make_update_sizes(6, horizon=8, segments_per_agent=2, minibatch_size=int(legal))


def test_a_run_shorter_than_one_update():
    plan = make_update_sizes(6, horizon=8, minibatch_size=8)
    assert (plan.updates(48), plan.updates(95), plan.updates(96)) == (1, 1, 2)
    with pytest.raises(ValueError, match="total_steps=47: must be at least batch_size=48"):
        plan.updates(47)


def test_the_table_holds_the_plan():
    plan = make_update_sizes(
        8, environments=2, horizon=4, segments_per_agent=3, minibatch_size=48, max_minibatch_size=16, epochs=5
    )
    table = {name: value for name, value, _ in plan.rows()}
    assert table == {name: getattr(plan, name) for name in table}
    assert {field.name for field in dataclasses.fields(UpdateSizes)} <= set(table)
    assert table["gradient_steps"] == 10 and table["accumulation"] == 3 and table["minibatches"] == 6
    assert all(explanation for _, _, explanation in plan.rows())
    assert "environments" not in {
        name for name, *_ in make_update_sizes(8, horizon=4, minibatch_size=16).rows()
    }
    assert math.prod(table[name] for name in ("agents", "decisions")) == table["batch_size"]
