"""A known task is learnt, over two seeds in one program; `make learn` holds all to marks over five."""

import jax
import numpy as np
import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program, make_train_function

SEEDS = 2


@pytest.mark.thorough
@pytest.mark.needs("gymnax")
def test_ppo_balances_the_pole():
    config, _ = command_line.compose_config(["env=gymnax/CartPole-v1", "algo=ppo"])
    run = build.build_run_config(config)
    program, train = make_program(run), make_train_function(run)

    def one(key):
        state, _ = train(key)
        return program.evaluate(state, jax.random.fold_in(key, 1)).episode_return[program.role].mean()

    # Unlike most of what tests compile, it runs for longer than it compiles.
    trained = jax.jit(jax.vmap(one), compiler_options={"xla_backend_optimization_level": 2})
    returns = np.asarray(trained(jax.random.split(jax.random.key(0), SEEDS)))
    assert returns.mean() >= 475.0, returns
