"""The environment of docs/environments.md passes the check it recommends, and can be learnt."""

import re
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.program import make_program, make_train


@pytest.fixture(scope="module")
def blocks(repository):
    text = (repository / "docs" / "environments.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def chase(blocks):
    module = types.ModuleType("chase")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(sys.modules, "chase", module)
        exec(compile(blocks[0], "chase.py", "exec"), module.__dict__)
        yield module


def test_the_check_on_the_page_passes(chase, blocks):
    exec(compile(blocks[1], "check.py", "exec"), {})


def test_ppo_learns_it(chase):
    algo = PPOConfig(horizon=32, num_minibatches=4, widths=(32, 32), learning_rate=3e-3, reward_scale=10)
    config = RunConfig(env=chase.Chase(), algo=algo, curriculum=fixed, total_env_steps=61440, num_envs=32)
    program = make_program(config)
    first = jax.jit(program.init)(jax.random.key(0))
    last, _ = jax.jit(make_train(config))(jax.random.key(0))
    before, after = (
        jnp.mean(program.evaluate(run, jax.random.key(1)).results["outcome"] == 0) for run in (first, last)
    )
    assert float(before) < 0.1 and float(after) > 0.9
