"""Numbers of learners that no update reads: found from its trace, and refused where they would vary."""

import jax
import numpy as np
import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.host import variants
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.program.read_numbers import find_read_numbers
from jaxmarl_echelon.training.program.state import replace_hyper

CARTPOLE = ["env=gymnax/CartPole-v1", "tuning=none", "num_envs=4", "algo.widths=[8]", "total_env_steps=512"]
PPO = [*CARTPOLE, "algo=ppo", "algo.horizon=8", "algo.num_minibatches=1", "algo.epochs=1"]
LEAGUE = [
    *("env=textgames/kuhn", "algo=ppo", "num_envs=16", "algo.horizon=4", "total_env_steps=64"),
    *("algo.num_minibatches=1", "algo.widths=[8]", "controllers.player=pool:player", "pool=league"),
]  # fmt: skip


def compose(*overrides):
    return command_line.compose_config(command_line.normalize_overrides(list(overrides)))


def read_by(*overrides):
    """Program, and names of the numbers that an update reads and does not read."""
    program = make_program(build.build_run_config(compose(*overrides)[0]))
    read = find_read_numbers(program)
    ((learner, agent),) = program.agents.items()
    assert {one for one, _ in read} == {learner}
    names = {name for _, name in read}
    return program, names, set(agent.hyper()) - names


def test_schedules_that_are_off_leave_their_ends_unread():
    program, read, unread = read_by(*PPO)
    assert {"learning_rate", "gamma", "clip", "entropy_coefficient"} <= read
    assert "entropy_coefficient_end" in unread
    key = jax.random.key(0)
    update = jax.jit(program.update)

    def params_with(name, factor):
        state = program.init(key)
        hyper = {one: dict(agent.hyper()) for one, agent in program.agents.items()}
        for one in hyper.values():
            one[name] = factor * one[name] + (factor - 1)
        after = update(state.replace(policies=replace_hyper(state.policies, hyper)))[0]
        return [np.asarray(x) for one in after.policies.values() for x in jax.tree.leaves(one.params)]

    usual = params_with("clip", 1.0)
    assert all(map(np.array_equal, usual, params_with("entropy_coefficient_end", 2.0)))
    assert not all(map(np.array_equal, usual, params_with("entropy_coefficient", 2.0)))
    _, read, _ = read_by(*PPO, "algo.entropy_coefficient_schedule=linear")
    assert "entropy_coefficient_end" in read


@pytest.mark.parametrize(
    "overrides",
    [
        [*CARTPOLE, "algo=dqn"],
        [*CARTPOLE, "algo=pqn", "algo.horizon=8", "algo.num_minibatches=1"],
        ["env=gymnax/Pendulum-v1", "tuning=none", "num_envs=4", "algo.widths=[8]", "algo=td3"],
        LEAGUE,
    ],
    ids=["dqn", "pqn", "td3", "league"],
)
def test_numbers_in_use_are_read(overrides):
    _, read, _ = read_by(*overrides)
    assert {"learning_rate", "gamma", "reward_scale"} <= read


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("variants={late: {algo.entropy_coefficient_end: 0.1}}", "variants.late"),
        ("sweep={algo.entropy_coefficient_end: [0.1,0.2]}", "variants.sample_0"),
    ],
)
def test_variants_of_what_no_update_reads_are_refused(override, where):
    config, choices = compose(*PPO, override, *(["samples=2"] if override.startswith("sweep") else []))
    with pytest.raises(ValueError) as caught:
        variants.expand_members(config, choices)
    told = f"{where}: algo.entropy_coefficient_end has no effect: with the other settings no update reads it"
    assert str(caught.value) == told


def test_a_population_of_what_no_update_reads_is_refused():
    config, choices = compose(*PPO, "seeds=2", "pbt={every: 2, keys: [algo.entropy_coefficient_end]}")
    members = variants.expand_members(config, choices)
    with pytest.raises(ValueError, match="^pbt: algo.entropy_coefficient_end has no effect"):
        variants.plan_population(config, members)
