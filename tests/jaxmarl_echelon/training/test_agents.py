"""What a program asks of its agents, and what they are handed: through whole programs on probes."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
from flax import struct
from probes import ROLE

from algos.on_policy.a2c import A2CConfig
from algos.types import Agent
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.program import make_program


def run_of(env, algo, updates=3, num_envs=8, **changes):
    return RunConfig(
        env=env,
        algo=algo,
        curriculum=fixed,
        total_env_steps=updates * num_envs * algo.horizon * getattr(algo, "segments_per_agent", 1),
        num_envs=num_envs,
        eval_episodes=16,
        window=8,
        stagger=False,
        **changes,
    )


def trained(config, program=None, seed=0):
    """The last state and the reports of all updates."""
    program = make_program(config) if program is None else program
    step = jax.jit(lambda s: jax.lax.scan(lambda r, _: program.update(r), s, None, config.updates))
    return step(jax.jit(program.init)(jax.random.key(seed)))


@struct.dataclass
class Odds:
    """State of `reinforce`: how likely each action is, by the sign of what is seen."""

    logits: jax.Array


def reinforce(rate=0.5):
    """Williams' REINFORCE (1992) on one-step episodes: no critic, and extras in a form of its own."""

    def chances(state, obs):
        return jax.nn.log_softmax(state.logits[(obs[..., 0] > 0).astype(int)])

    def taken(state, obs, action):
        return jnp.take_along_axis(chances(state, obs), action, -1)[..., 0]

    def act(state, key, obs, carry, reset, mask):
        action = jax.random.categorical(key, chances(state, obs))[..., None]
        return action, carry, (taken(state, obs, action), {"seen": obs})

    def greedy(state, obs, carry, reset, mask):
        return chances(state, obs).argmax(-1)[..., None], carry

    def update(state, key, rollout):
        assert rollout.bootstrap is None and rollout.last_value is None
        sampled, witness = rollout.extras

        def loss(state):
            ratio = jnp.exp(taken(state, rollout.obs, rollout.action) - sampled)
            return -(ratio * rollout.reward).mean()

        same = jnp.abs(taken(state, rollout.obs, rollout.action) - sampled).max()
        away = jnp.abs(witness["seen"] - rollout.obs).max()
        state = jax.tree.map(lambda x, g: x - rate * g, state, jax.grad(loss)(state))
        return state, {"apart": jnp.maximum(same, away)}

    return Agent(
        init=lambda key: Odds(jnp.zeros((2, 2))),
        initial_carry=lambda batch_shape: (),
        act=act,
        greedy=greedy,
        value=None,
        update=update,
    )


def test_an_agent_without_a_critic_learns_from_extras_of_its_own():
    config = run_of(probes.ObservationActionReward(), A2CConfig(horizon=16), updates=40)
    program = make_program(config, agents={ROLE: reinforce()})
    run, reports = trained(config, program)
    assert float(reports.metrics["losses/apart"].max()) < 1e-6
    assert float(program.evaluate(run, jax.random.key(1)).episode_return[ROLE].min()) == 1.0
    np.testing.assert_array_equal(run.policies[ROLE].logits.argmax(-1), [0, 1])
