"""The environments of docs/environments.md pass the check that it recommends, and PPO learns them."""

import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.check_env import check_env
from jaxmarl_echelon.tracking import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink, read_columns
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import loop
from jaxmarl_echelon.training.program.program import make_program, make_train_function


@pytest.fixture(scope="module")
def blocks(repository):
    text = (repository / "docs" / "environments.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def module(name, source):
    made = types.ModuleType(name)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(sys.modules, name, made)
        exec(compile(source, f"{name}.py", "exec"), made.__dict__)
        yield made


@pytest.fixture(scope="module")
def chase(blocks):
    yield from module("chase", blocks[0])


@pytest.fixture(scope="module")
def couriers(blocks):
    yield from module("couriers", blocks[2])


def test_the_check_on_the_page_passes(chase, blocks):
    exec(compile(blocks[1], "check.py", "exec"), {})


@pytest.mark.thorough
def test_ppo_learns_it(chase):
    algo = PPOConfig(horizon=32, num_minibatches=4, widths=(32, 32), learning_rate=3e-3, reward_scale=10)
    config = RunConfig(
        env=chase.Chase(), algo=algo, curriculum=constant_curriculum, total_env_steps=61440, num_envs=32
    )
    program = make_program(config)
    first = jax.jit(program.init)(jax.random.key(0))
    last, _ = jax.jit(make_train_function(config))(jax.random.key(0))
    evaluate = jax.jit(lambda run: jnp.mean(program.evaluate(run, jax.random.key(1)).results["outcome"] == 0))
    before, after = evaluate(first), evaluate(last)
    assert float(before) < 0.1 and float(after) > 0.9


def test_agents_that_come_and_go_keep_the_contract(couriers):
    check_env(couriers.Couriers(), jax.random.key(0))


@pytest.mark.thorough
def test_agents_that_come_and_go_learn_and_report_their_results(couriers, tmp_path):
    algo = PPOConfig(horizon=30, num_minibatches=4, widths=(32, 32), learning_rate=3e-3)
    config = RunConfig(
        env=couriers.Couriers(),
        algo=algo,
        curriculum=constant_curriculum,
        total_env_steps=38400,
        num_envs=32,
        eval_every=40,
        eval_episodes=16,
        checkpoint_every=40,
        window=32,
    )
    program = make_program(config)
    assert program.world.env is config.env.bank
    loop.train_run(config, program, {"seed": 0}, tmp_path, Tracker({"csv": CsvSink()}))
    metrics, scores, episodes, played = (
        read_columns(tmp_path / name)
        for name in ("metrics.csv", "eval.csv", "episodes.csv", "eval_episodes.csv")
    )
    assert scores["service_rate"][0] < 0.4 and scores["service_rate"][-1] > 0.8
    assert scores["service_low"][-1] <= scores["service_rate"][-1] <= scores["service_high"][-1]
    # More couriers than slots: those that delivered left, and others came.
    assert scores["carried"][0] < 2 and scores["carried"][-1] > 3
    assert metrics["train/service_rate"][-1] > 0.8
    assert metrics["train/carried"][-1] > 3
    for table in (episodes, played):
        assert np.nanmin(table["service"]) >= 0 and np.nanmax(table["service"]) <= 1
        assert (table["carried"] >= 1).all() and (table["delivered"] <= 1).all()
    # Sums over sums: parcels delivered in all episodes over parcels carried in them.
    assert 0.8 < metrics["train/delivered_rate"][-1] <= 1
    assert scores["delivered_rate"][0] < 0.3 and scores["delivered_rate"][-1] > 0.8
