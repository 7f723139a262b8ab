"""The compiled program: known values on probes, one trace, vmapped seeds, frozen evaluation."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.curricula.phased import phased
from jaxmarl_echelon.curricula.ramp import ramp
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.program import make_program, make_train

ROLE = probes.ROLE


def configure(env, updates=60, num_envs=16, horizon=16, **algo):
    settings = {
        "horizon": horizon,
        "epochs": 4,
        "num_minibatches": 4,
        "widths": (32,),
        "learning_rate": 1e-2,
        "learning_rate_schedule": "linear",
        "gamma": 0.9,
        "normalize_reward": False,
    }
    return RunConfig(
        env=env,
        algo=PPOConfig(**{**settings, **algo}),
        curriculum=fixed,
        total_env_steps=updates * num_envs * horizon,
        num_envs=num_envs,
        eval_episodes=16,
        window=64,
        episode_rows=64,
    )


def trained(config):
    program = make_program(config)
    run, reports = jax.jit(make_train(config))(jax.random.key(0))
    return program, run, reports


def value_of(program, run, obs):
    obs = jnp.asarray(obs, jnp.float32)
    obs = obs.reshape(-1, 1, obs.shape[-1])
    reset = jnp.zeros(obs.shape[:2], bool)
    return program.agents[ROLE].value(run.policies[ROLE], obs, (), reset, None)[:, 0]


@pytest.mark.parametrize(
    ("env", "obs", "expected"),
    [
        (probes.ObservationReward(), [[-1.0], [1.0]], [-1.0, 1.0]),
        (probes.DelayedReward(), [[0.0], [1.0]], [0.9, 1.0]),
        (probes.ObservationActionReward(), [[-1.0], [1.0]], [1.0, 1.0]),
        (probes.TimeLimit(), [[0.0]], [10.0]),
    ],
    ids=lambda p: type(p).__name__ if isinstance(p, probes.Probe) else "",
)
def test_values_of_probes(env, obs, expected):
    program, run, _ = trained(configure(env, updates=150))
    np.testing.assert_allclose(
        value_of(program, run, obs), expected, atol=0.1 * max(1.0, max(expected)) * 0.6
    )


@pytest.mark.parametrize("env", [probes.Credit(), probes.MaskOnly()], ids=["credit", "mask"])
def test_best_return_is_learnt_and_never_exceeded(env):
    program, run, reports = trained(configure(env, updates=80))
    result = program.evaluate(run, jax.random.key(1))
    best = float(env.spec.episode_limit)
    assert float(jnp.mean(result.episode_return[ROLE])) == pytest.approx(best)
    assert float(jnp.nanmax(reports.metrics["train/return"])) <= best + 1e-5


def test_first_minibatch_ratio_is_one():
    config = configure(
        probes.ObservationActionReward(), updates=3, epochs=1, num_minibatches=1, learning_rate=1e-3
    )
    _, _, reports = trained(config)
    assert np.abs(np.asarray(reports.metrics["losses/approx_kl"])).max() < 1e-9
    assert np.asarray(reports.metrics["losses/clip_fraction"]).max() == 0.0


def test_one_trace_per_program():
    program = make_program(configure(probes.TimeLimit(), updates=2))
    update = jax.jit(chex.assert_max_traces(program.update, n=1))
    run = jax.jit(program.init)(jax.random.key(0))
    for _ in range(3):
        run, _ = update(run)
    assert int(run.updates) == 3


@pytest.mark.parametrize("tuned", [False, True])
def test_only_a_tuned_program_has_products_that_need_compiler_options(tuned):
    config = configure(probes.Credit(), updates=1, widths=(64, 64))
    text = jax.jit(make_train(config, tuned=tuned)).lower(jax.random.key(0)).as_text()
    assert ("optimization_barrier" in text) == tuned
    assert bool(make_program(config, tuned=tuned).compiler_options) == tuned


def test_vmapped_seeds_equal_single_runs():
    train = make_train(configure(probes.Credit(), updates=5))
    keys = jax.random.split(jax.random.key(7), 3)
    many, _ = jax.jit(jax.vmap(train))(keys)
    for index in range(3):
        single, _ = jax.jit(train)(keys[index])
        for a, b in zip(jax.tree.leaves(many.policies), jax.tree.leaves(single.policies), strict=True):
            np.testing.assert_allclose(a[index], b, rtol=2e-4, atol=2e-5)


def test_same_seed_same_bits_and_other_seed_other_bits():
    train = jax.jit(make_train(configure(probes.ObservationActionReward(), updates=4)))
    first, again, other = (train(jax.random.key(seed))[0].policies for seed in (1, 1, 2))
    chex.assert_trees_all_equal(first, again)
    differs = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), first, other)
    assert any(jax.tree.leaves(differs))


def test_an_evaluation_between_updates_changes_neither_the_run_nor_itself():
    """Learning goes on as if nobody had looked, and looking twice shows the same."""
    config = configure(probes.Credit(), updates=4)
    program = make_program(config)
    update, assess = jax.jit(program.update), jax.jit(program.assess)
    start = jax.jit(program.init)(jax.random.key(0))
    watched = alone = start
    for _ in range(3):
        course, first = assess(watched, jax.random.key(1))
        _, again = assess(watched, jax.random.key(1))
        chex.assert_trees_all_equal(first, again)
        watched, _ = update(watched.replace(curriculum=course))
        alone, _ = update(alone)
    chex.assert_trees_all_equal(jax.tree.map(_raw, watched), jax.tree.map(_raw, alone))
    assert np.all(np.asarray(first.result.length) == 1)


def _raw(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else leaf


class Poisoned(probes.Poison):
    """Every episode becomes not-a-number in its third step."""

    def default_params(self):
        return super().default_params() | {"poison": np.int32(3)}


def test_poisoned_environment_is_counted_and_does_not_reach_the_learner():
    _, run, reports = trained(configure(Poisoned("obs"), updates=4))
    assert float(reports.metrics["train/quarantined"].sum()) > 0
    chex.assert_tree_all_finite(run.policies[ROLE].params)


def test_a_role_without_a_learner_is_refused():
    env = probes.ConstantReward()
    with pytest.raises(ValueError, match="at least one role must be a learner"):
        configure(env).__class__(
            env=env, algo=None, curriculum=fixed, total_env_steps=1, num_envs=1, controllers={ROLE: "none"}
        )
    with pytest.raises(ValueError, match="controllers.ghost: no such role; allowed: player"):
        configure(env).__class__(
            env=env,
            algo=None,
            curriculum=fixed,
            total_env_steps=1,
            num_envs=1,
            controllers={"ghost": "learner"},
        )


class PaidPush(probes.ActionReward):
    """One step, paid as much as the action, a number."""

    action = Box((1,), -1.0, 1.0)

    def reward(self, state, action, params):
        return action[:, 0]


def test_parameters_that_are_not_finite_show_where_every_environment_is_thrown_away():
    """Actions that are not finite put all environments into quarantine: the losses of nothing are 0."""
    program = make_program(configure(PaidPush(), updates=1))

    def broken(key):
        run = program.init(key)
        learner = run.policies[ROLE]
        params = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), learner.params)
        return program.update(run.replace(policies={ROLE: learner.replace(params=params)}))[1].metrics

    metrics = jax.jit(broken)(jax.random.key(0))
    assert metrics["train/quarantined"] > 0 and metrics["losses/policy_loss"] == 0
    assert not np.isfinite(metrics["losses/parameter_norm"])


def test_episodes_that_may_be_broken_off_count_nowhere():
    """Environments whose episodes take 5 decisions and are broken off once, by the 40th of the run."""

    class Short(probes.TimeLimit):
        @property
        def spec(self):
            return replace(super().spec, episode_limit=40)

    program = make_program(configure(Short(5), num_envs=8, epochs=1, num_minibatches=1))
    run, update = program.init(jax.random.key(0)), jax.jit(program.update)
    stagger, counted = np.asarray(run.stagger), np.zeros(8, int)
    for index in range(4):
        run, report = update(run)
        rows = {name: np.asarray(values) for name, values in report.episodes.items()}
        step, env, length = (rows[name][: rows["number"]] for name in ("step", "env", "length"))
        assert np.all(16 * index + step + 1 - length >= stagger[env])
        np.add.at(counted, env, 1)
    np.testing.assert_array_equal(counted, (64 - stagger) // 5)
    assert int(run.recent.count) == counted.sum()


class Uneven(probes.TimeLimit):
    """Half of the episodes succeed, in 2 decisions; the others time out after 12."""

    def __init__(self):
        super().__init__(12)

    def task_params(self, settings):
        return self.default_params()

    def disturb(self, state, time, params):
        won = (state.cue[0] > 0) & (state.clock == 2)
        return state, time.replace(
            terminated={ROLE: time.terminated[ROLE] | won},
            alive={ROLE: time.alive[ROLE] & ~won},
            over=time.over | won,
            info=time.info | {"outcome": jnp.where(won, 0, time.info["outcome"])},
        )


def test_a_curriculum_is_not_climbed_by_the_half_of_episodes_that_is_fast():
    criteria = {"success_rate": 0.8, "min_episodes": 50, "window_size": 50}
    phases = [{"name": f"p{index}", "criteria": criteria} for index in range(5)]
    config = configure(Uneven(), updates=20, num_envs=64, epochs=1, num_minibatches=1)
    _, run, reports = trained(replace(config, curriculum=lambda env: phased(env, phases)))
    assert int(run.curriculum.course.stage) == 0
    assert int(run.curriculum.course.episodes) > 1500
    assert float(reports.metrics["train/success_rate"][-1]) == pytest.approx(0.5, abs=0.2)


class Gained(probes.ConstantReward):
    """One step, paid what the curriculum says."""

    def task_params(self, settings):
        return self.default_params() | {name: np.float32(value) for name, value in settings.items()}


def test_a_ramp_changes_what_a_run_is_paid():
    def course(env):
        return ramp(env, {"gain": 0.0}, {"gain": 1.0}, updates=2)

    config = configure(Gained(), updates=3, num_envs=4, epochs=1, num_minibatches=1)
    config = replace(config, curriculum=course, window=1, stagger=False)
    _, _, reports = trained(config)
    np.testing.assert_allclose(reports.metrics["train/return"], [0.0, 0.5, 1.0])
    np.testing.assert_allclose(reports.metrics["curriculum/progress"], [0.5, 1.0, 1.0])
