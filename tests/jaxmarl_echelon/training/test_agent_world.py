"""Arrays that all copies of an agent share: an argument of programs, in no state and no checkpoint."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from algos.stacked_agents import vectorize_over_agents
from jaxmarl_echelon import command_line
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.agents import acts_by_same_program, make_agents
from jaxmarl_echelon.training.program.program import make_program

SIZE = 70_001
POOL = ("controllers.player=pool:player", "pool.capacity=2", "pool.groups=2", "pool.snapshot_every=1")
SMALL = ("env=textgames/kuhn", "algo=ppo", "num_envs=16", "total_env_steps=64", "algo.horizon=4")
JOB = (*SMALL, "algo.num_minibatches=1", "algo.widths=[8]", "eval_episodes=4", *POOL)


def with_shared_numbers(agent, digest="numbers"):
    """The agent with its observations shifted by the mean of SIZE shared numbers."""

    def build(world):
        def shifted(fn, place):
            return lambda *given: fn(*given[:place], given[place] + world.mean(), *given[place + 1 :])

        return agent._replace(
            act=shifted(agent.act, 2),
            greedy=shifted(agent.greedy, 1),
            value=shifted(agent.value, 1),
            world=world,
            with_world=build,
            digest=digest,
        )

    return build(np.linspace(0.0, 1.0, SIZE, dtype=np.float32))


@cache
def config():
    arguments = command_line.normalize_overrides([*JOB])
    return build.build_run_config(command_line.compose_config(arguments, Sources(None))[0])


@cache
def program():
    return make_program(
        config(), {role: with_shared_numbers(one) for role, one in make_agents(config()).items()}
    )


@cache
def traced_update():
    state = jax.eval_shape(lambda key, world: program().init(key, world=world), run_key(0), program().world)
    return jax.jit(program().update).trace(state, program().world)


def shapes(jaxpr):
    """Shapes of all arrays in a traced program."""
    for one in jaxpr.eqns:
        yield from (
            tuple(var.aval.shape) for var in (*one.invars, *one.outvars) if hasattr(var.aval, "shape")
        )
        for inner in jaxprs_in_params(one.params):
            yield from shapes(inner)


def test_programs_and_states_hold_no_copy_of_an_agents_world():
    assert program().world.agents["numbers"].size == SIZE
    closed = traced_update().jaxpr
    assert not any(np.size(constant) == SIZE for constant in closed.consts)
    state = jax.eval_shape(lambda key, world: program().init(key, world=world), run_key(0), program().world)
    assert not any(SIZE in leaf.shape for leaf in jax.tree.leaves(state) if hasattr(leaf, "shape"))
    # The groups of a pool map over past policies and not over what they share.
    found = set(shapes(closed.jaxpr))
    assert (SIZE,) in found and not any(SIZE in shape and len(shape) > 1 for shape in found)


@pytest.mark.thorough
def test_an_update_over_the_given_world_is_one_over_the_agents_own():
    own = with_shared_numbers(make_agents(config())["player"])
    state = jax.jit(lambda: program().init(run_key(0)))()
    given, _ = jax.jit(program().update)(state, program().world)
    constant, _ = jax.jit(program().update)(state)
    for one, other in zip(*(jax.tree.leaves(x.policies) for x in (given, constant)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    shifted = jax.tree.map(lambda x: x + 1, program().world.agents)
    other, _ = jax.jit(program().update)(state, program().world._replace(agents=shifted))
    differs = (
        not np.allclose(x, y)
        for x, y in zip(*map(jax.tree.leaves, (given.policies, other.policies)), strict=True)
    )
    assert any(differs) and own.digest == "numbers"


def test_a_policy_per_agent_shares_the_world():
    agent = with_shared_numbers(make_agents(config())["player"])
    stacked = vectorize_over_agents(agent, 2)
    state = jax.jit(stacked.init)(jax.random.key(0))
    inputs = (jax.random.key(1), jnp.zeros((3, 2, config().env.spec.roles[0].observation.shape[0])), ())
    later = inputs[2], jnp.zeros((3, 2), bool), None
    mine = jax.jit(stacked.act)(state, *inputs[:2], *later)
    given = jax.jit(stacked.with_world(agent.world).act)(state, *inputs[:2], *later)
    np.testing.assert_array_equal(mine[0], given[0])


@pytest.mark.parametrize(("digest", "same"), [("numbers", True), ("others", False)])
def test_policies_over_different_worlds_do_not_act_by_the_same_program(digest, same):
    (role,) = config().env.spec.roles
    ours = with_shared_numbers(make_agents(config())["player"])
    theirs = with_shared_numbers(make_agents(config())["player"], digest)
    state = theirs.policy_state(theirs.init(jax.random.key(0)))
    assert acts_by_same_program(ours, theirs, state, role) is same
