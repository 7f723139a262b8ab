"""Recurrent policies through the whole program: the training pass sees what the rollout saw."""

import jax
import numpy as np
import probes
import pytest
from marked import mark_others

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon.command_line import compose_config
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program.program import make_program, make_train_function

ROLE = probes.ROLE


class Cut(probes.Memory):
    """Two agents with cues of their own in episodes of three steps, cut off by the clock."""

    agents = 2
    times_out = True

    def observe(self, state, params):
        return (state.cue * (1.0 + state.clock))[:, None]


def configure(env, kind, updates=3, num_envs=4, **algo):
    settings = {
        "core": {"kind": kind, "width": 8},
        "sampling": "sequential",
        "horizon": 8,
        "epochs": 1,
        "num_minibatches": 1,
        "widths": (8,),
        "learning_rate": 1e-2,
        "gamma": 0.9,
        "normalize_observation": False,
    }
    algo = PPOConfig(**settings | algo)
    return RunConfig(
        env=env,
        algo=algo,
        curriculum=constant_curriculum,
        total_env_steps=updates * num_envs * algo.horizon * algo.segments_per_agent,
        num_envs=num_envs,
        eval_episodes=8,
        window=16,
        episode_rows=16,
    )


def decided(run):
    """The run with a policy head that makes much of what it is given."""
    state = run.policies[ROLE]
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: 1000.0 * x if "policy" in jax.tree_util.keystr(path) else x, state.params
    )
    return run.replace(policies={ROLE: state.replace(params=params)})


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "segments"), [("lstm", 1), ("gru", 2), ("mingru", 2)])
def test_the_first_minibatch_has_ratio_one(kind, segments):
    program = make_program(configure(Cut(), kind, segments_per_agent=segments))

    def update(run, _):
        after, report = program.update(run)
        # Else the next update would be another program.
        assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, run)
        return after, report.metrics

    metrics = jax.jit(lambda key: jax.lax.scan(update, decided(program.init(key)), None, 4)[1])
    metrics = jax.device_get(metrics(jax.random.key(0)))
    assert (np.abs(metrics["losses/approx_kl"]) < 1e-7).all()
    assert (metrics["losses/clip_fraction"] == 0.0).all()
    assert (metrics["losses/entropy"] > 0.001).all() and (metrics["losses/entropy"] < 0.69).all()
    assert program.steps_per_update == 4 * 8 * segments


@pytest.mark.thorough
def test_vmapped_seeds_equal_single_runs():
    config = configure(Cut(), "lstm", segments_per_agent=2, num_minibatches=2)
    program, keys = make_program(config), jax.random.split(jax.random.key(7), 2)

    @jax.jit
    def together(keys):
        update = jax.vmap(program.update)
        return jax.lax.scan(lambda runs, _: update(runs), jax.vmap(program.init)(keys), None, 3)[0]

    many = together(keys)
    single, _ = jax.jit(make_train_function(config))(keys[1])
    for a, b in zip(jax.tree.leaves(many.policies), jax.tree.leaves(single.policies), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=2e-4, atol=2e-5)


def cue_followed(kind):
    config = configure(
        probes.Memory(3), kind, updates=60, num_envs=16, num_minibatches=4, epochs=4, widths=(16,)
    )
    program, train = make_program(config), make_train_function(config)

    @jax.jit
    def returns(key):
        run, _ = train(key)
        return program.evaluate(run, jax.random.key(1), episodes=256).episode_return[ROLE]

    return float(np.mean(returns(jax.random.key(0))))


@pytest.mark.parametrize("kind", mark_others(["lstm", "mingru"], "mingru"))
def test_a_core_remembers_the_cue(kind):
    assert cue_followed(kind) == 1.0


@pytest.mark.thorough
def test_a_policy_without_core_cannot_remember_the_cue():
    """Every answer is right for one cue of two: means of 256 episodes deviate by 1 / 16."""
    assert abs(cue_followed("none")) < 0.25


@pytest.mark.needs("gymnax")
@pytest.mark.parametrize(
    ("name", "agents", "batch", "steps"),
    [
        ("ppo_rnn_metta", 8192, 524288, 32),
        ("ppo_rnn_metta26", 8192, 2097152, 128),
        ("ppo_rnn_puffer3", 4096, 262144, 32),
        ("ppo_rnn_drive", 16384, 524288, 16),
    ],
)
def test_named_trainers_have_the_sizes_of_their_originals(name, agents, batch, steps):
    config, _ = compose_config([f"algo={name}", "env=gymnax/CartPole-v1", f"num_envs={agents}"])
    (plan,) = build.update_sizes_of_learners(build.build_run_config(config)).values()
    assert (plan.batch_size, plan.gradient_steps, plan.accumulation) == (batch, steps, 1)
    config.num_envs = 100
    with pytest.raises(ValueError, match="minibatch_size=.*nearest"):
        make_program(build.build_run_config(config))
