"""The compiled program: known values on probes, one trace, vmapped seeds, frozen evaluation."""

from contextlib import nullcontext
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from jax.extend import core

from algos.on_policy.ppo import PPOConfig
from algos.optim.small_batches import traced_for_options
from jaxmarl_echelon.command_line import compose_config, normalize_overrides
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.curricula.ramp import ramp_curriculum
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.training.config.build import RunConfig, build_run_config
from jaxmarl_echelon.training.program.program import make_program, make_train_function

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
        curriculum=constant_curriculum,
        total_env_steps=updates * num_envs * horizon,
        num_envs=num_envs,
        eval_episodes=16,
        window=64,
        episode_rows=64,
    )


def trained(config):
    program = make_program(config)
    run, reports = jax.jit(make_train_function(config))(jax.random.key(0))
    return program, run, reports


class OneOf(probes.Probe):
    """One of several probes that look alike: `which` of the parameters says which."""

    def __init__(self, *kinds):
        self.kinds, self.horizon = kinds, max(kind.horizon for kind in kinds)

    def default_params(self):
        return super().default_params() | {"which": np.int32(0)}

    def reset(self, key, params):
        return self._chosen(params, [kind.reset(key, params) for kind in self.kinds])

    def step(self, key, state, actions, params):
        return self._chosen(params, [kind.step(key, state, actions, params) for kind in self.kinds])

    def _chosen(self, params, found):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[params["which"]], *found)


SEEN = np.float32([-1.0, 0.0, 1.0])
VALUES = [
    (probes.ObservationReward(), [-1.0, None, 1.0]),
    (probes.DelayedReward(), [None, 0.9, 1.0]),
    (probes.ObservationActionReward(), [1.0, None, 1.0]),
    (probes.TimeLimit(), [None, 10.0, None]),
]


@pytest.fixture(scope="module")
def values():
    """Values of each probe's observations after a run on it; the runs differ only in a number."""
    env = OneOf(*(probe for probe, _ in VALUES))
    config = configure(env, updates=100)
    program = make_program(config)
    (agent,) = program.agents.values()

    def start(which):
        return program.init(jax.random.key(0), course=program.curriculum.init() | {"which": which})

    def value(run):
        reset = jnp.zeros((SEEN.size, 1), bool)
        return agent.value(run.policies[ROLE], SEEN[:, None, None], (), reset, None)[:, 0]

    @jax.jit
    def learnt(which):
        update = jax.vmap(program.update)
        runs, _ = jax.lax.scan(lambda r, _: update(r), jax.vmap(start)(which), None, config.updates)
        return jax.vmap(value)(runs)

    return jax.device_get(learnt(np.arange(len(VALUES))))


@pytest.mark.thorough
@pytest.mark.parametrize("which", range(len(VALUES)), ids=[type(probe).__name__ for probe, _ in VALUES])
def test_values_of_probes(values, which):
    seen, expected = zip(*((i, x) for i, x in enumerate(VALUES[which][1]) if x is not None), strict=True)
    np.testing.assert_allclose(values[which][list(seen)], expected, atol=0.1 * max(1.0, max(expected)) * 0.6)


@pytest.fixture(scope="module")
def credit():
    """The compiled parts of a program, whose update may be traced once."""
    program = make_program(configure(probes.Credit(), updates=80))
    # Made again where a worker comes back to this file: traces are counted by a function's name and place.
    chex.clear_trace_counter()
    update = jax.jit(chex.assert_max_traces(program.update, n=1))
    return program._replace(init=jax.jit(program.init), update=update, assess=jax.jit(program.assess))


def advanced(program, run, updates):
    """The run after some updates, and their reports."""
    reports = []
    for _ in range(updates):
        run, report = program.update(run)
        reports.append(jax.device_get(report))
    return run, reports


def require_learnt(env, returns, reports):
    best = float(env.spec.episode_limit)
    assert float(np.mean(returns)) == pytest.approx(best)
    assert float(np.nanmax(reports)) <= best + 1e-5


def test_best_return_is_learnt_and_never_exceeded(credit):
    start = credit.init(jax.random.key(1))
    run, reports = advanced(credit, start, 80)
    first, last = (credit.assess(x, jax.random.key(1))[1].result.episode_return[ROLE] for x in (start, run))
    assert np.mean(first) < 0.5
    require_learnt(credit.env, last, [report.metrics["train/return"] for report in reports])


@pytest.mark.thorough
def test_best_return_is_learnt_by_a_mask_and_never_exceeded():
    env = probes.MaskOnly()
    config = configure(env, updates=80)
    program, train = make_program(config), make_train_function(config)

    @jax.jit
    def played(key):
        run, reports = train(key)
        return program.evaluate(run, jax.random.key(1)).episode_return[ROLE], reports.metrics["train/return"]

    require_learnt(env, *played(jax.random.key(0)))


def test_one_trace_per_program(credit):
    run, _ = advanced(credit, credit.init(jax.random.key(0)), 3)
    assert int(run.updates) == 3


@pytest.mark.parametrize("options", [False, True])
def test_only_a_program_for_compiler_options_has_products_that_need_them(options):
    config = configure(probes.Credit(), updates=1, widths=(64, 64))
    jitted = jax.jit(make_train_function(config))
    with traced_for_options() if options else nullcontext():
        traced = jitted.trace(jax.random.key(0))
    assert ("optimization_barrier" in operations(traced.jaxpr.jaxpr)) == options
    assert make_program(config).compiler_options


def operations(jaxpr):
    """Names of all operations of a program, inner ones included."""
    found = set()
    for equation in jaxpr.eqns:
        found.add(equation.primitive.name)
        for inner in core.jaxprs_in_params(equation.params):
            found |= operations(inner)
    return found


@pytest.mark.thorough
def test_vmapped_seeds_equal_single_runs(credit):
    config = configure(probes.Credit(), updates=5)
    keys = jax.random.split(jax.random.key(7), 3)
    many, _ = jax.jit(jax.vmap(make_train_function(config)))(keys)
    renewed = make_program(config).renewed
    for index in range(3):
        # Of a run of this length: what the length changes are numbers of the state.
        single, _ = advanced(credit, renewed(credit.init(keys[index])), 5)
        for a, b in zip(jax.tree.leaves(many.policies), jax.tree.leaves(single.policies), strict=True):
            np.testing.assert_allclose(a[index], b, rtol=2e-4, atol=2e-5)


def test_same_seed_same_bits_and_other_seed_other_bits(credit):
    runs = (advanced(credit, credit.init(jax.random.key(seed)), 4)[0] for seed in (1, 1, 2))
    first, again, other = (jax.device_get(run.policies) for run in runs)
    chex.assert_trees_all_equal(first, again)
    differs = jax.tree.map(lambda a, b: bool(np.any(a != b)), first, other)
    assert any(jax.tree.leaves(differs))


def test_an_evaluation_between_updates_changes_neither_the_run_nor_itself(credit):
    """Learning continues unchanged after an evaluation, and a second evaluation gives the same result."""
    watched = alone = credit.init(jax.random.key(0))
    for _ in range(3):
        course, first = credit.assess(watched, jax.random.key(1))
        _, again = credit.assess(watched, jax.random.key(1))
        chex.assert_trees_all_equal(first, again)
        watched, _ = credit.update(watched.replace(curriculum=course))
        alone, _ = credit.update(alone)
    chex.assert_trees_all_equal(jax.tree.map(_raw, watched), jax.tree.map(_raw, alone))
    assert np.all(np.asarray(first.result.length) == 1)


def _raw(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else leaf


def test_a_role_without_a_learner_is_refused():
    env = probes.ConstantReward()
    with pytest.raises(ValueError, match="at least one role must be a learner"):
        configure(env).__class__(
            env=env,
            algo=None,
            curriculum=constant_curriculum,
            total_env_steps=1,
            num_envs=1,
            controllers={ROLE: "none"},
        )
    with pytest.raises(ValueError, match="controllers.ghost: unknown role; allowed: player"):
        configure(env).__class__(
            env=env,
            algo=None,
            curriculum=constant_curriculum,
            total_env_steps=1,
            num_envs=1,
            controllers={"ghost": "learner"},
        )


class PaidPush(probes.Poison):
    """Paid as much as the action, a number; `poison` of the parameters may spoil what is seen."""

    action = Box((1,), -1.0, 1.0)

    def reward(self, state, action, params):
        return action[:, 0]


@pytest.fixture(scope="module")
def pushed():
    """`(poison, spoilt) -> (run, metrics)` of four updates, where `spoilt` with parameters that are NaN."""
    program = make_program(configure(PaidPush("obs"), updates=4))

    @jax.jit
    def pushed(poison, spoilt):
        run = program.init(jax.random.key(0), course=program.curriculum.init() | {"poison": poison})
        learner = run.policies[ROLE]
        params = jax.tree.map(lambda x: jnp.where(spoilt, jnp.nan, x), learner.params)
        run = run.replace(policies={ROLE: learner.replace(params=params)})
        run, reports = jax.lax.scan(lambda run, _: program.update(run), run, None, 4)
        return run, reports.metrics

    return lambda poison, spoilt: jax.device_get(pushed(np.int32(poison), np.bool_(spoilt)))


def test_poisoned_environment_is_counted_and_does_not_reach_the_learner(pushed):
    """Every episode becomes not-a-number in its third step."""
    run, metrics = pushed(3, False)
    assert float(metrics["train/quarantined"].sum()) > 0
    assert (metrics["train/quarantined_environments"] == configure(PaidPush("obs")).num_envs).all()
    chex.assert_tree_all_finite(run.policies[ROLE].params)


def test_nonfinite_parameters_are_reported_when_all_environments_are_quarantined(pushed):
    """Actions that are not finite put all environments into quarantine: the losses of nothing are unknown."""
    _, metrics = pushed(-1, True)
    assert metrics["train/quarantined"][0] > 0 and metrics["losses/gradient_steps"][0] == 0
    assert np.isnan(metrics["losses/policy_loss"][0])
    assert not np.isfinite(metrics["losses/parameter_norm"][0])


def test_sound_environments_are_not_counted_as_quarantined(pushed):
    assert not pushed(-1, False)[1]["train/quarantined_environments"].any()


def test_episodes_before_the_stagger_are_not_counted():
    """Environments whose episodes take 5 decisions and are truncated once, by the 40th of the run."""

    class Short(probes.TimeLimit):
        @property
        def spec(self):
            return replace(super().spec, episode_limit=40)

    program = make_program(configure(Short(5), num_envs=8, epochs=1, num_minibatches=1))

    @jax.jit
    def played(key):
        start = program.init(key)
        run, reports = jax.lax.scan(lambda run, _: program.update(run), start, None, 4)
        return start.stagger, run.recent.count, reports.episodes

    stagger, recent, episodes = jax.device_get(played(jax.random.key(0)))
    counted = np.zeros(8, int)
    for index in range(4):
        number = episodes["number"][index]
        step, env, length = (episodes[name][index][:number] for name in ("step", "env", "length"))
        assert np.all(16 * index + step + 1 - length >= stagger[env])
        np.add.at(counted, env, 1)
    np.testing.assert_array_equal(counted, (64 - stagger) // 5)
    assert recent == counted.sum()


class Uneven(probes.ObservationActionReward):
    """Half of the episodes succeed, in 2 decisions; the others time out after 12."""

    horizon = 12
    times_out = True

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


@pytest.fixture(scope="module")
def uneven():
    """A run of updates of one step each, under a curriculum."""
    criteria = {"success_rate": 0.8, "min_episodes": 50, "window_size": 50}
    phases = [{"name": f"p{index}", "criteria": criteria} for index in range(5)]
    config = configure(Uneven(), updates=20, num_envs=64, epochs=1, num_minibatches=1)
    _, run, reports = trained(replace(config, curriculum=lambda env: phased_curriculum(env, phases)))
    return run, reports.metrics


@pytest.mark.thorough
def test_a_curriculum_does_not_advance_on_fast_successes_alone(uneven):
    run, metrics = uneven
    assert int(run.curriculum.course.stage) == 0
    assert int(run.curriculum.course.episodes) > 1500
    assert float(metrics["train/success_rate"][-1]) == pytest.approx(0.5, abs=0.2)


@pytest.mark.thorough
def test_first_minibatch_ratio_is_one(uneven):
    _, metrics = uneven
    assert np.abs(np.asarray(metrics["losses/approx_kl"])).max() < 1e-9
    assert np.asarray(metrics["losses/clip_fraction"]).max() == 0.0


class Gained(probes.ConstantReward):
    """One step, with the curriculum's reward."""

    def task_params(self, settings):
        return self.default_params() | {name: np.float32(value) for name, value in settings.items()}


@pytest.mark.thorough
def test_a_ramp_changes_the_rewards_of_a_run():
    def course(env):
        return ramp_curriculum(env, {"gain": 0.0}, {"gain": 1.0}, updates=2)

    config = configure(Gained(), updates=3, num_envs=4, epochs=1, num_minibatches=1)
    config = replace(config, curriculum=course, window=1, stagger=False)
    _, _, reports = trained(config)
    np.testing.assert_allclose(reports.metrics["train/return"], [0.0, 0.5, 1.0])
    np.testing.assert_allclose(reports.metrics["curriculum/progress"], [0.5, 1.0, 1.0])


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=textgames/nim", "algo=ppo"),
        ("env=textgames/kuhn", "algo=ppo", "controllers.player=pool:player", "pool=league"),
        ("env=gymnax/CartPole-v1", "algo=dqn"),
        ("env=gymnax/Pendulum-v1", "algo=sac"),
        ("env=gymnax/CartPole-v1", "algo=ppo_rnn", "curriculum=none"),
    ],
    ids=" ".join,
)
def test_a_policy_begins_as_in_a_run(overrides):
    config, _ = compose_config(normalize_overrides([*overrides, "num_envs=16", "algo.widths=[8]"]))
    program = make_program(build_run_config(config))
    key = jax.random.key(3)
    both = jax.jit(lambda key: (program.policy(program.init(key)), program.init_policy(key)))(key)
    chex.assert_trees_all_equal(*both)
    chex.assert_trees_all_equal_dtypes(*both)
