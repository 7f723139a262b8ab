"""Shards on devices: the same results on any number of them, and what devices say to each other.

Everything with several devices comes from `sharded_runs`, in processes of their own that have them.
"""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_others, thorough
from sharded_runs import DEVICES, EVALUATED, LENGTH, RUNS, SHARDS, UPDATES, configure

from algos import collectives
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.program.agents import make_controllers
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.program.state import initial_run_state
from jaxmarl_echelon.training.program.update import update_once
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec

# Part, learner and number of devices.
PAIRS = [
    thorough(part, name, devices) if part.startswith("more") else (part, name, devices)
    for part, runs in RUNS.items()
    for name, places in runs.items()
    for devices in places[1:]
]
HOLDS = {name: part for part, runs in RUNS.items() for name, places in runs.items() if DEVICES in places}
ON_POLICY = mark_others(("ppo", "ppo_rnn", "a2c"), EVALUATED)
SEEDS = ("spread", "together")
# Fewer than sixteen environments finish in eight decisions, three to an episode and the first ones cut short.
NUM_FIRST = 24


@pytest.fixture(scope="module")
def read_collectives(repository):
    """`collectives` of the benchmarks."""
    path = repository / "benchmarks" / "collectives.py"
    spec = importlib.util.spec_from_file_location("collectives", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.collectives


def read(folder: Path, name: str, devices: int, which: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}_{devices}_{which}.npz") as held:
        return dict(held)


def assert_alike(ours, theirs, rtol, atol):
    """Equal names, shapes and whole numbers; numbers that are not whole but for rounding."""
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        y = theirs[name]
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(x, y, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "name", "devices"), PAIRS)
def test_the_first_rollout_and_its_episodes_do_not_depend_on_the_devices(ran, part, name, devices):
    folder = ran(part)
    one, many = (read(folder, name, number, "first") for number in (1, devices))
    told = [key for key in one if key.startswith("[1].episodes")]
    assert one["[1].episodes['number']"][0] > NUM_FIRST and len(told) > 3
    environments = [key for key in one if key.startswith(("[0].episodes", "[0].tickets", "[0].curriculum"))]
    keys = (*told, *environments)
    assert_alike({k: one[k] for k in keys}, {k: many[k] for k in keys}, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("part", "name", "devices"), PAIRS)
def test_what_is_learnt_does_not_depend_on_the_devices(ran, part, name, devices):
    folder = ran(part)
    one, many = (read(folder, name, number, "last") for number in (1, devices))
    params = [key for key in one if ".params" in key]
    assert params and not np.array_equal(one[params[0]], read(folder, name, 1, "first")[params[0]])
    for key in params:
        np.testing.assert_allclose(one[key], many[key], rtol=0, atol=1e-5, err_msg=key)
    counts = [key for key in one if key.startswith("[0].curriculum") or key.endswith((".seen", ".updates"))]
    assert_alike({k: one[k] for k in counts}, {k: many[k] for k in counts}, rtol=1e-4, atol=1e-5)
    assert one["[0].updates"] == UPDATES


@pytest.mark.thorough
def test_a_pool_does_not_depend_on_the_devices(ran):
    """Counts, ratings, snapshots, opponents, moves and averages of rewards, of two shards on two devices."""
    folder = ran("pool")
    for update in range(UPDATES):
        one, two = (dict(np.load(folder / f"pool_{devices}_{update}.npz")) for devices in (1, 2))
        parts = [key for key in one if key.startswith(("[0].pool", "[0].credit", "[0].plays", "[1].entries"))]
        assert_alike({key: one[key] for key in parts}, {key: two[key] for key in parts}, rtol=1e-5, atol=1e-5)
    assert one["[0].pool.taken"] == 1 + UPDATES and (one["[0].pool.wins"][0] > 0).any()
    assert one["[0].plays.written"].shape[0] == 2 and one["[0].plays.written"].any()
    assert json.loads((folder / "pool_2.json").read_text())["differing"] == []


@pytest.mark.parametrize(
    ("part", "devices"), [("rollouts", DEVICES), thorough("more_rollouts", 2), thorough("more_rollouts", 4)]
)
def test_an_evaluation_does_not_depend_on_the_devices(ran, part, devices):
    """Every shard plays its part of the episodes; all see all of them, in order."""
    one, many = (read(ran(part), EVALUATED, number, "last") for number in (1, devices))
    scalars, results = (
        [key for key in one if key.startswith(f"[1].{part}")] for part in ("scalars", "result")
    )
    assert scalars and one["[1].result.length"].shape == (configure(EVALUATED).eval_episodes,)
    keys = (*scalars, *results)
    assert_alike({k: one[k] for k in keys}, {k: many[k] for k in keys}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("part", "name", "devices"), PAIRS)
def test_what_is_learnt_has_the_same_bits_on_all_devices(ran, part, name, devices):
    assert json.loads((ran(part) / f"{name}_{devices}.json").read_text()) == {"differing": []}


@pytest.mark.parametrize(("name", "field"), [("ppo", "stage"), thorough("a2c", "course.phase")])
def test_the_curriculum_moved_on_what_all_shards_played(ran, name, field):
    last = read(ran(HOLDS[name]), name, DEVICES, "last")
    stages = [last[key] for key in last if key.startswith("[0].curriculum") and key.endswith(field)]
    assert stages and all(int(stage) > 0 for stage in stages)


@pytest.mark.parametrize("name", ON_POLICY)
def test_the_rollout_has_no_collective_and_a_minibatch_one(ran, read_collectives, name):
    """The loop over decisions has none; each gradient step joins gradient, sums and count in one."""
    config = configure(name)
    found = read_collectives((ran(HOLDS[name]) / f"{name}.hlo").read_text())
    assert found and None not in {one.times for one in found}
    assert not any(config.horizon in one.loops for one in found)
    sums = [one for one in found if one.kind == "all-reduce"]
    gradients = [one for one in sums if one.bytes >= 4 * number_of_parameters(config)]
    steps = config.algo.epochs * config.algo.num_minibatches if name != "a2c" else 1
    assert sum(one.times for one in gradients) == steps
    # Per update besides: counts of quarantines and of environments with any, in one; and of the rows that
    # live where probabilities are drawn from.
    others = [one for one in sums if one not in gradients]
    assert all(one.times == 1 and one.bytes <= 8 for one in others)
    assert len(others) == (2 if name == "ppo_rnn" else 1)
    # One gather of what ended per dtype, not one per array.
    gathers = [one for one in found if one.kind == "all-gather"]
    assert sum(one.times for one in gathers) <= 20


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sums"), [("sac", 3), ("td3", 2), ("tqc", 3)])
def test_a_gradient_step_from_a_replay_joins_each_network_once(ran, read_collectives, name, sums):
    """The critics, then the actor, which needs them stepped; before them the largest weight of a batch."""
    config = configure(name)
    found = read_collectives((ran(HOLDS[name]) / f"{name}.hlo").read_text())
    inside = [one for one in found if one.loops and "cond" in one.place]
    assert sum(one.times for one in inside) == sums * config.horizon
    outside = [one for one in found if one.loops and "cond" not in one.place]
    assert sum(one.times for one in outside) == 3 * config.horizon


def number_of_parameters(config) -> int:
    state = jax.eval_shape(make_program(config).init, jax.random.key(0))
    (policy,) = state.policies.values()
    return sum(x.size for x in jax.tree.leaves(policy.params))


def test_a_run_goes_on_with_other_numbers_of_devices(ran):
    """Saved on 8, continued on 1, on 8 and on 1."""
    folder = ran("rollouts")
    with np.load(folder / "moved.npz") as moved, np.load(folder / "kept.npz") as kept:
        assert kept[".updates"] == LENGTH
        assert_alike(dict(kept), dict(moved), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_seeds_over_devices_are_those_of_one_device(ran):
    folder = ran("seeds")
    for seed in range(4):
        spread, together = (rows(folder / run / f"seed_{seed}" / "metrics.csv") for run in SEEDS)
        assert spread.keys() == together.keys() and len(spread["losses/policy_loss"]) == LENGTH
        for name in spread:
            if not name.startswith("time/"):
                np.testing.assert_allclose(spread[name], together[name], rtol=1e-4, atol=1e-5, err_msg=name)


def rows(path: Path) -> dict[str, list[float]]:
    head, *lines = path.read_text().splitlines()
    table = [line.split(",") for line in lines]
    columns = dict(zip(head.split(","), zip(*table, strict=True), strict=True))
    return {k: [float(x or "nan") for x in column] for k, column in columns.items() if _numbers(column)}


def _numbers(column) -> bool:
    try:
        [float(x or "nan") for x in column]
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("envs", ["num_envs=12", "multiple of shards=8"]),
        ("episodes", ["eval_episodes=12", "multiple of shards=8"]),
        ("absent", ["devices=9", "this machine has 8 (CPU)"]),
        ("shards", ["devices=3", "must divide the run's shards=8"]),
        ("memory", ["num_envs", "GB on each device", "largest arrays: run.", " GB are free"]),
        ("three", ["devices=3", "must divide the run's shards=4"]),
    ],
)
def test_what_does_not_fit_the_devices_is_one_line_and_writes_nothing(ran, case, words):
    heard = json.loads((ran("rest") / "lines.json").read_text())[case]
    assert heard["status"] == 2, heard
    assert heard["errors"].startswith("error: ") and heard["errors"].count("\n") == 1, heard["errors"]
    for word in words:
        assert word in heard["errors"]
    assert heard["left"] == []


def test_a_run_on_several_devices_says_so_and_is_left_alone_by_a_refusal(ran):
    folder = ran("rest")
    heard = json.loads((folder / "lines.json").read_text())["begun"]
    assert heard["status"] == 0 and "devices: 4 (4 for the environments), shards of a run: 4" in heard["out"]
    run = folder / "outputs" / "fickle" / "ppo" / "run"
    before, after = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (folder / "before", run)
    )
    assert before == after


def test_one_shard_is_the_program_without_shards():
    """Not only the same results: the same program, word by word, without an axis or a key of a shard."""
    config = configure("ppo", shards=1)
    program = make_program(config)

    def collector(env):
        seats = make_controllers(config, env, program.agents, {}, greedy=False)
        return RolloutSpec(env, program.agents, seats, config.horizon, config.segments)

    def init(key):
        course = program.curriculum
        return initial_run_state(config, collector(config.env), course, program.world, key, None)

    def update(run):
        return update_once(config, collector(config.env), program.curriculum, run)

    key = run_key(config.seed)
    state = jax.eval_shape(init, key)
    for plain, ours, given in ((init, program.init, key), (update, program.update, state)):
        mine, theirs = (jax.jit(lambda x, fn=fn: fn(x)).lower(given).as_text() for fn in (plain, ours))
        assert mine == theirs
        assert not any(word in mine for word in ("all_reduce", "all_gather", "partition_id"))


@pytest.fixture(scope="module")
def four():
    """Runs a function of numbers `[4, 2]` for four shards."""
    numbers = jnp.arange(8.0).reshape(4, 2)
    return lambda fn: jax.vmap(fn, axis_name=collectives.HERE)(numbers)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: collectives.sum_over_shards({"a": x, "b": x[0] > 3}), {"a": [12.0, 16.0], "b": 2}),
        (collectives.mean_over_shards, [3.0, 4.0]),
        (collectives.max_over_shards, [6.0, 7.0]),
        (collectives.min_over_shards, [0.0, 1.0]),
        (lambda x: collectives.any_over_shards(x[0] > 5), True),
        (lambda x: collectives.any_over_shards(x[0] > 6), False),
        (collectives.stack_shards, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]),
        (collectives.gather_shards, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        (lambda x: collectives.gather_shards(x[None], 1), [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]),
        (lambda x: collectives.average_gradients(x, x, x[0])[0], [(4 + 16 + 36) / 12, (6 + 20 + 42) / 12]),
    ],
)
def test_a_collective_gives_every_shard_the_same(four, call, expected):
    def equal(found, wanted):
        for copy in np.asarray(found):
            np.testing.assert_allclose(copy, wanted)

    jax.tree.map(
        equal, four(call), jax.tree.map(np.asarray, expected, is_leaf=lambda x: not isinstance(x, dict))
    )


def test_every_shard_has_its_own_part_of_rows_and_keys(four):
    key = jax.random.key(3)
    rows_of_all = jnp.arange(12)
    np.testing.assert_array_equal(
        four(lambda _: collectives.local_rows(rows_of_all)), np.arange(12).reshape(4, 3)
    )
    np.testing.assert_array_equal(four(lambda _: collectives.global_indices(2)), np.arange(8).reshape(4, 2))
    data = four(lambda _: jax.random.key_data(collectives.split_key_over_shards(key, 2)))
    np.testing.assert_array_equal(data.reshape(8, -1), jax.random.key_data(jax.random.split(key, 8)))
    folded = np.asarray(four(lambda _: jax.random.key_data(collectives.fold_shard_into_key(key))))
    assert len({one.tobytes() for one in folded}) == 4


def test_one_shard_folds_nothing():
    key = jax.random.key(3)
    assert (
        collectives.num_shards() == 1
        and collectives.shard_index() == 0
        and collectives.fold_shard_into_key(key) is key
    )
    np.testing.assert_array_equal(
        jax.random.key_data(collectives.split_key_over_shards(key, 5)),
        jax.random.key_data(jax.random.split(key, 5)),
    )
    assert SHARDS == DEVICES


def test_exchanges_that_do_not_depend_on_each_other_neither_mix_nor_wait(ran):
    saved = np.load(ran("rest") / "exchanges.npz")
    rows = saved["rows"].astype(np.float64)
    gathered, summed, looped, along = (saved[f"arr_{i}"] for i in range(4))
    waves = sum(np.sin(rows * (i + 1)).sum() for i in range(6)) + np.tanh(rows).sum()
    np.testing.assert_allclose(gathered, np.full(DEVICES, waves), rtol=1e-5)
    cosines = sum(np.cumsum(np.cos(rows * (i + 1)), axis=1).sum(0) for i in range(6))
    np.testing.assert_allclose(summed, np.tile(cosines, (DEVICES, 1)), rtol=1e-4)
    np.testing.assert_allclose(looped, rows + 6 * rows.sum(0), rtol=1e-5)
    np.testing.assert_allclose(along, np.tile(rows.sum() + rows.size * np.arange(4), (DEVICES, 1)), rtol=1e-5)
