"""Algorithms learn tasks whose good returns are known, over five seeds in one program."""

import jax
import numpy as np
import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training.program import make_program, make_train

SEEDS = 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "algo", "wanted"),
    [
        ("Pendulum-v1", "sac", -200.0),
        ("Pendulum-v1", "td3", -200.0),
        ("Pendulum-v1", "tqc", -200.0),
        ("Pendulum-v1", "ppo", -200.0),
        ("CartPole-v1", "ppo", 475.0),
        ("CartPole-v1", "a2c", 475.0),
    ],
)
def test_return_after_training(task, algo, wanted):
    config, _ = command_line.compose_config([f"env=gymnax/{task}", f"algo={algo}"])
    run = config_lib.read(config)
    program, train = make_program(run), make_train(run)

    def one(key):
        state, _ = train(key)
        return program.evaluate(state, jax.random.fold_in(key, 1)).episode_return[program.role].mean()

    returns = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), SEEDS)))
    assert returns.mean() >= wanted, returns
