"""Learners of action values in whole programs: masks, memory, and what they refuse."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from marked import mark_others
from probes import ROLE

from algos.off_policy.dqn import DQNConfig
from algos.off_policy.teams import VDNConfig
from algos.on_policy.pqn import PQNConfig
from algos.on_policy.pqn_vdn import PQNVDNConfig
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.selfplay.credit import TransformSettings
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program.program import make_program, make_train_function

COMMON = {"learning_rate": 3e-3, "widths": (32,), "gamma": 0.9}
REPLAY = {"horizon": 16, "batch_size": 64, "learning_starts": 128, "epsilon_transitions": 2000, "tau": 0.05}


class MaskedMemory(probes.Memory):
    """The same with a third action, which is illegal and pays 10."""

    action = Discrete(3)

    def mask(self, state, params):
        return jnp.arange(3)[None] < 2

    def reward(self, state, action, params):
        return jnp.where(action == 2, 10.0, super().reward(state, action, params))


LEARNT = {
    "dqn": DQNConfig(
        **COMMON, **REPLAY, core={"kind": "gru", "width": 16}, replay={"sequence": 4, "prioritized": True}
    ),
    "pqn": PQNConfig(
        **COMMON, horizon=16, num_minibatches=2, epsilon_end=0.1, core={"kind": "lstm", "width": 16}
    ),
}


def configure(env, algo, updates=30, **changes):
    return RunConfig(
        env=env,
        algo=algo,
        curriculum=constant_curriculum,
        total_env_steps=updates * 16 * 16,
        num_envs=16,
        eval_episodes=32,
        window=16,
        episode_rows=16,
        **changes,
    )


@pytest.mark.parametrize("name", mark_others(LEARNT, "pqn"))
def test_the_best_return_is_learnt_and_never_exceeded(name):
    """By what was seen before, among legal actions; only an illegal one pays more."""
    config = configure(MaskedMemory(), LEARNT[name], updates=100 if name == "pqn" else 30)
    program, train = make_program(config), make_train_function(config)

    @jax.jit
    def played(key):
        run, reports = train(key)
        return program.evaluate(run, jax.random.key(1)).episode_return[ROLE], reports.metrics["train/return"]

    returns, reports = played(jax.random.key(0))
    assert float(np.mean(returns)) == pytest.approx(1.0)
    assert float(np.nanmax(reports)) <= 1.0 + 1e-5


def test_transforms_of_rewards_need_policy_gradients():
    with pytest.raises(ValueError, match="algo=pqn: player learns values; reward transforms need"):
        configure(probes.Credit(), PQNConfig(), transforms=TransformSettings(sampling=("Normalize",)))


TEAMS = {
    "vdn": VDNConfig(**COMMON, **REPLAY),
    "pqn_vdn": PQNVDNConfig(**COMMON, horizon=16, num_minibatches=2, epsilon_end=0.1),
}


class FallenTeam(probes.Fallen):
    """The same, declared to end with its last agent."""

    @property
    def spec(self):
        return replace(super().spec, ends_with_team=True)


@pytest.mark.parametrize("name", TEAMS)
def test_a_team_learns_from_what_its_agents_are_paid_after_their_end(name):
    """The second agent acts once, and is paid for it three steps later."""
    config = configure(FallenTeam(), TEAMS[name])
    program, train = make_program(config), make_train_function(config)

    @jax.jit
    def trained(key):
        run, _ = train(key)
        return run, program.evaluate(run, jax.random.key(1)).episode_return[ROLE]

    run, returns = trained(jax.random.key(0))
    np.testing.assert_array_equal(returns, np.ones_like(returns))
    assert run.pending == {}
    if name == "pqn_vdn":
        return
    rewards = run.policies[ROLE].replay.ring.reward
    assert set(np.unique(rewards)) <= {0.0, 1.0, 2.0} and (np.asarray(rewards) == 2.0).any()


def test_teams_need_rewards_before_the_end_of_all_their_agents():
    with pytest.raises(ValueError, match="algo=vdn: teams cannot learn from rewards after the end of all"):
        make_program(configure(probes.Fallen(), TEAMS["vdn"]))


def test_teams_are_the_agents_of_one_role():
    config = configure(probes.DeadAgent(), VDNConfig())
    _, sizes = config.learner_task(ROLE)
    assert sizes["team"] == 2 and sizes["samples"] == 32
    alone = configure(probes.DeadAgent(), VDNConfig(), controllers={ROLE: "learner:per_agent"})
    assert alone.learner_task(ROLE)[1]["team"] == 1


def test_one_team_per_agent_needs_rewards_before_its_end():
    """A team of one is out before the episode ends with the last of its role, and may be paid then."""
    alone = {ROLE: "learner:per_agent"}
    with pytest.raises(ValueError, match="algo=vdn: teams cannot learn from rewards after the end of all"):
        make_program(configure(FallenTeam(), VDNConfig(**COMMON, **REPLAY), controllers=alone))
    assert configure(FallenTeam(), DQNConfig(), controllers=alone).learner_task(ROLE)[1]["late"]
