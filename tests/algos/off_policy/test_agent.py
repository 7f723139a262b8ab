import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import assert_same, numbers
from marked import thorough
from off_policy_cases import (
    CONTINUOUS,
    ROWS,
    SMALL,
    A,
    D,
    E,
    F,
    build,
    changed,
    lived,
    make,
    method_of,
    perturbed,
    sample_of,
    transition_of,
)

from algos.nets.normalize import exact_moments, merge_moments, normalize_by_moments
from algos.off_policy.learning import critic_step, gradient_step, optimize_part, update_targets
from algos.off_policy.replay.replay import Replay
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.tqc import TQCConfig
from algos.optim.optimizers import make_adam
from algos.types import ActionSpec

CONFIGS = [SACConfig, TD3Config, TQCConfig]
QUICK = {"learning_rate": 3e-3, "tau": 0.3, "gamma": 0.9, "normalize_observation": False}
ALPHA = 0.7
BEST = (0.5, -0.4)
NO_ENTROPY = {"alpha": 1e-6, "alpha_learning_rate": 0.0}
RESET = np.zeros((E, A), bool)
ONES = np.ones((E, A, F), np.float32)


def each(*configs):
    """Runs a test for these learners."""
    return pytest.mark.parametrize("config", configs)


def plain(config):
    """Settings under which the fixed point of the critics is the plain expected return."""
    if config is TD3Config:
        return {}
    return NO_ENTROPY | ({"drop_per_critic": 0, "n_quantiles": 5} if config is TQCConfig else {})


def run(agent, state, steps, experience):
    """Feeds `experience(state, key, i)` to the agent; returns the state and the metrics of all steps."""

    def step(state, i):
        key_learn, key = jax.random.split(jax.random.fold_in(jax.random.key(1), i))
        return agent.update(state, key_learn, experience(state, key, i))

    return jax.lax.scan(step, state, jnp.arange(steps))


class Fates(NamedTuple):
    """Results of several runs, each with a leading axis of runs."""

    value: np.ndarray
    entropy: np.ndarray
    moved: np.ndarray
    action: np.ndarray
    gradient_steps: np.ndarray


@functools.cache
def fates(config):
    """Final values of states, entropies, drift of the actors' parameters, and final actions.

    In the first three runs, with reward 1 for ever, episodes are cut after every step, end in death after
    every step, or go on; only in the last case entropy is rewarded, that of a fixed policy. The fourth, which
    TQC does without, is rewarded for its own action.
    """
    plays = config is not TQCConfig
    settings = QUICK | plain(config) | {"actor_learning_rate": QUICK["learning_rate"], "learning_starts": 16}
    settings |= {"batch_size": 32, "widths": (32,)} if plays else {}
    agent, fixed = make(config, {"n_step": 3 if config is SACConfig else 1}, **settings)
    paid = fixed.replace(hyper=fixed.hyper | {"actor_learning_rate": np.float32(0.0)})
    if config is not TD3Config:
        paid = paid.replace(params=fixed.params | {"log_alpha": np.log(np.float32(ALPHA))})
    starts = [fixed, fixed, paid, bandit(fixed)][: 3 + plays]
    starts = jax.tree.map(lambda *x: np.stack(x), *map(numbers, starts))

    def step(state, i, boundary, terminal, played):
        key_learn, key = jax.random.split(jax.random.fold_in(jax.random.key(1), i))
        key, key_act = jax.random.split(key)
        lived = transition_of(key, reward=jnp.ones((E, A)), boundary=boundary, terminal=terminal)
        lived = lived.replace(obs=ONES, next_obs=ONES)
        if plays:
            action, _, _ = agent.act(state, key_act, ONES, (), RESET, None)
            reward = jnp.where(played, paid_for(action), 1.0)
            lived = lived.replace(action=jnp.where(played, action, lived.action), reward=reward)
        return agent.update(state, key_learn, lived)

    def found(start, after, metrics):
        moved = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), after.params["actor"], start.params["actor"])
        return Fates(
            value=metrics["value"][-100:].mean(),
            entropy=metrics.get("entropy", jnp.zeros(600))[10:].mean(),
            moved=jnp.stack(jax.tree.leaves(moved)).max(),
            action=agent.greedy(after, ONES, (), RESET, None)[0],
            gradient_steps=metrics["gradient_steps"][-1],
        )

    @jax.jit
    def lives(starts, *given):
        steps = jax.vmap(step, (0, None, 0, 0, 0))
        after, metrics = jax.lax.scan(lambda states, i: steps(states, i, *given), starts, jnp.arange(600))
        return jax.vmap(found, (0, 0, 1))(starts, after, metrics)

    boundary, terminal = np.array([True, True, False, True]), np.array([False, True, False, True])
    return numbers(lives(starts, *(x[: 3 + plays] for x in (boundary, terminal, np.arange(4) == 3))))


def paid_for(action):
    return -jnp.square(action - np.float32(BEST)).sum(-1)


def bandit(state):
    """The state with numbers that suit learning from one's own actions."""
    settings = {"learning_rate": 1e-2, "actor_learning_rate": 1e-3, "learning_starts": 100}
    settings |= {"alpha_learning_rate": 1e-2} if "alpha_learning_rate" in state.hyper else {}
    hyper = {name: np.asarray(x, state.hyper[name].dtype) for name, x in settings.items()}
    params = {"log_alpha": np.log(np.float32(0.1))} if "log_alpha" in state.params else {}
    return state.replace(hyper=state.hyper | hyper, params=state.params | params)


@each(SACConfig, thorough(TD3Config), thorough(TQCConfig))
def test_time_limits_bootstrap_and_deaths_do_not(config):
    """Reward 1 for ever, cut after every step: 1 / (1 - gamma), unless the cut is a death; then 1."""
    cut, died, *_ = fates(config).value
    np.testing.assert_allclose(cut, 1 / (1 - 0.9), rtol=0.03)
    np.testing.assert_allclose(died, 1.0, rtol=0.03)


@each(SACConfig, thorough(TQCConfig))
def test_soft_values_do_not_depend_on_the_steps_of_a_return(config):
    """Reward 1 and the entropy of a fixed policy, for ever: (1 + gamma alpha H) / (1 - gamma).

    SAC learns from three steps at once, TQC from single ones.
    """
    found = fates(config)
    assert (found.moved[:3] > 0).tolist() == [True, True, False]
    np.testing.assert_allclose(found.value[2], (1 + 0.9 * ALPHA * found.entropy[2]) / (1 - 0.9), rtol=0.03)


@each(SACConfig, thorough(TD3Config))
def test_the_best_action_of_a_bandit_is_learnt(config):
    found = fates(config)
    np.testing.assert_allclose(found.action[3], np.broadcast_to(BEST, (E, A, D)), atol=0.15)
    assert found.gradient_steps[3] == 1.0


@pytest.mark.thorough
def test_the_best_action_of_a_bandit_is_learnt_from_truncated_quantiles():
    settings = {"learning_rate": 1e-2, "actor_learning_rate": 1e-3, "batch_size": 32, "widths": (32,)}
    settings |= {"alpha": 0.1, "n_quantiles": 5, "drop_per_critic": 1}
    agent, state = make(TQCConfig, **QUICK | settings, learning_starts=100)

    def experience(state, key, i):
        key, key_act = jax.random.split(key)
        step = transition_of(key, boundary=True, terminal=True)
        action, _, _ = agent.act(state, key_act, ONES, (), RESET, None)
        return step.replace(obs=ONES, action=action, reward=paid_for(action))

    @jax.jit
    def learnt(state):
        state, metrics = run(agent, state, 600, experience)
        return agent.greedy(state, ONES, (), RESET, None)[0], metrics["gradient_steps"][-1]

    action, gradient_steps = learnt(state)
    np.testing.assert_allclose(action, np.broadcast_to(BEST, (E, A, D)), atol=0.15)
    assert gradient_steps == 1.0


@each(SACConfig)
def test_actions_are_uniform_until_learning_starts(config):
    agent, state = make(config)
    obs, reset = np.ones((3000, A, F), np.float32), np.zeros((3000, A), bool)
    act = jax.jit(agent.act)
    action, carry, extras = act(state, jax.random.key(1), obs, (), reset, None)
    assert carry == () and extras == {} and action.shape == (3000, A, D)
    quartiles = np.quantile(action, [0.25, 0.5, 0.75], axis=(0, 1))
    np.testing.assert_allclose(quartiles, np.outer([-0.5, 0.0, 0.5], np.ones(D)), atol=0.05)
    assert 0.99 < np.abs(action).max() <= 1.0
    late = state.replace(seen=np.int32(24))
    assert changed(action, act(late, jax.random.key(1), obs, (), reset, None)[0])
    early = state.replace(seen=np.int32(23))
    assert_same(action, act(early, jax.random.key(1), obs, (), reset, None)[0])


@each(SACConfig, TD3Config)
def test_first_states_hold_the_settings(config):
    """Those of `agent.init`, which other tests share; how it is learnt leaves all else as it is."""
    settings = {"learning_rate": 0.05, "actor_learning_rate": 0.02, "gamma": 0.9, "learning_starts": 77}
    expected = dict(settings)
    if config is SACConfig:
        settings |= {"alpha": 0.3, "target_entropy": -5.0}
        expected |= {"target_entropy": -5.0}
    state = jax.jit(build(config(**SMALL | settings, replay={"capacity": 600})).init)(jax.random.key(0))
    for name, value in expected.items():
        assert state.hyper[name] == np.float32(value)
    if config is SACConfig:
        np.testing.assert_allclose(state.params["log_alpha"], np.log(0.3), rtol=1e-6)
    _, shared = make(config, **settings)
    assert_same(state, shared, rtol=1e-6, atol=1e-7)


@each(TD3Config)
def test_learning_waits_for_enough_transitions_and_a_full_batch(config):
    traces = []
    agent, state = make(config, learning_starts=20, batch_size=30, updates_per_step=2)

    @jax.jit
    def update(state, key, transition):
        traces.append(None)
        return agent.update(state, key, transition)

    for starts, waits in ((20, 4), (36, 5)):
        steps, now = [], state.replace(hyper=state.hyper | {"learning_starts": np.int32(starts)})
        for i in range(7):
            before = now
            now, metrics = update(now, jax.random.key(i), lived(i))
            steps.append(float(metrics["gradient_steps"]))
            assert changed(before.params, now.params) == (steps[-1] > 0)
            losses = (x for name, x in metrics.items() if name != "parameter_norm")
            assert steps[-1] > 0 or all(x == 0 for x in losses)
            assert all(np.isfinite(float(x)) for x in metrics.values())
        assert steps == [0.0] * waits + [2.0] * (7 - waits)
        assert now.seen == 7 * ROWS and now.updates == 2 * (7 - waits)
    assert len(traces) == 1


def test_dead_agents_are_neither_counted_nor_learnt_from():
    agent, start = make(SACConfig, learning_starts=4)
    dead, update = np.arange(E) == 1, jax.jit(agent.update)
    alive = np.broadcast_to(~dead[:, None], (E, A))

    def feed(garbage):
        state, found = start, []
        for i in range(5):
            step = lived(i).replace(alive=alive)
            fields = {name: np.array(getattr(step, name)) for name in ("obs", "reward", "next_obs")}
            for values in fields.values():
                values[dead] = garbage
            state, metrics = update(state, jax.random.key(i), step.replace(**fields))
            found.append(numbers(metrics))
        return numbers(state), found

    clean, garbage = feed(0.0), feed(np.nan)
    assert clean[0].seen == 5 * 4 and clean[0].observations.count == 5 * 4
    assert [metrics["gradient_steps"] for metrics in clean[1]] == [0, 0, 0, 1, 1]
    assert_same(clean[0].params, garbage[0].params)
    assert_same(clean[1], garbage[1])


def test_decisions_of_a_learner_that_has_diverged_are_not_stored_for_the_next_one():
    agent, state = make(SACConfig, learning_starts=4)
    update = jax.jit(agent.update)
    for i in range(4):
        step = lived(i)
        action = np.array(step.action)
        if i == 1:
            action[:, 1, 0] = np.nan
        state, metrics = update(state, jax.random.key(i), step.replace(action=action))
    assert state.seen == 4 * ROWS - E and np.isfinite(state.replay.ring.action).all()
    np.testing.assert_array_equal(state.replay.ring.count, [4, 3] * E)
    # No window goes on from the decision before to the one after.
    np.testing.assert_array_equal(state.replay.ring.last[:, 0], [False, True] * E)
    assert np.isfinite(metrics["critic_loss"])


def test_observations_are_merged_as_they_come():
    agent, state = make(SACConfig, learning_starts=1)
    moments = state.observations
    update, merge = jax.jit(agent.update), jax.jit(merge_moments)
    for i in range(6):
        step = lived(i)
        state, _ = update(state, jax.random.key(i), step)
        moments = merge(moments, step.obs, step.alive)
    for name in ("mean", "var", "count"):
        assert_same(getattr(state.observations, name), getattr(moments, name), rtol=1e-5)


def test_a_gradient_step_sees_normalised_observations_and_returns_its_errors_as_priorities():
    method, state = method_of(SACConfig, reward_scale=0.1)
    moments = exact_moments(np.arange(4, dtype=np.float32), np.full(4, 2, np.float32), np.float32(9.0))
    state, sample, seen = perturbed(state).replace(observations=moments), sample_of(), {}

    def spy(state, key, batch):
        seen["batch"] = batch
        return method.target(state, key, batch)

    def reprioritize(memory, index, priority):
        return {"index": index, "priority": priority}

    replay = Replay(None, None, lambda memory, *_: (memory, sample), reprioritize, None, 0)

    @jax.jit
    def step(state):
        state, metrics = gradient_step(method._replace(target=spy), replay, state, jax.random.key(0))
        return state.replay, metrics, seen["batch"]

    memory, metrics, batch = step(state)
    assert_same(batch.obs, normalize_by_moments(moments, sample.obs), rtol=1e-4, atol=1e-5)
    assert_same(batch.next_obs, normalize_by_moments(moments, sample.next_obs), rtol=1e-4, atol=1e-5)
    assert_same(batch.reward, 0.1 * sample.reward, rtol=1e-6)
    assert_same(memory["index"], sample.index)
    assert memory["priority"].shape == (16,)
    np.testing.assert_allclose(memory["priority"].mean(), metrics["td_error"], rtol=1e-5)


@each(SACConfig, TD3Config)
def test_acting_uses_the_normaliser_and_leaves_the_state_alone(config):
    agent, state = make(config)
    state = perturbed(state)
    trained = state.replace(observations=state.observations.replace(mean=np.full(F, 2, np.float32)))
    obs, act = lived(2).obs, jax.jit(agent.greedy)
    greedy, carry = act(trained, obs, (), RESET, None)
    assert carry == () and greedy.shape == (E, A, D) and np.abs(greedy).max() < 1.0
    assert_same(greedy, act(state, obs - 2.0, (), RESET, None)[0], rtol=1e-5)
    assert changed(greedy, act(state, obs, (), RESET, None)[0])


@each(SACConfig, TD3Config)
def test_a_policy_needs_no_replay_critic_or_optimizer(config):
    agent, state = make(config, learning_starts=1)
    state = perturbed(state).replace(seen=np.int32(9))
    policy, obs, key = agent.policy_state(state), lived(2).obs, jax.random.key(4)
    greedy, act = jax.jit(agent.greedy), jax.jit(agent.act)
    assert_same(*(greedy(s, obs, (), RESET, None)[0] for s in (state, policy)))
    assert_same(*(act(s, key, obs, (), RESET, None)[0] for s in (state, policy)))
    held = sum(x.size for x in jax.tree.leaves((policy.params, policy.targets, policy.optimizers)))
    assert held == sum(x.size for x in jax.tree.leaves(state.params["actor"]))
    assert policy.replay is None


def test_targets_follow_by_exactly_tau():
    _, state = make(TD3Config, tau=0.25)
    state = perturbed(state)
    expected = jax.tree.map(lambda slow, fast: 0.75 * slow + 0.25 * fast, state.targets, state.params)
    update = jax.jit(update_targets)
    assert_same(update(state).targets, expected, rtol=1e-5, atol=1e-6)
    assert set(state.targets) == {"actor", "critic"}
    still = update(state.replace(hyper=state.hyper | {"tau": np.float32(0.0)}))
    assert_same(still.targets, state.targets)


def test_targets_start_as_copies_so_that_a_state_can_be_donated():
    agent, _ = make(TD3Config)
    state = agent.init(jax.random.key(0))
    assert_same(state.targets, {part: state.params[part] for part in state.targets})
    leaves = jax.tree.leaves((state.params, state.targets))
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_a_part_has_its_own_learning_rate_or_the_common_one():
    _, state = make(SACConfig, learning_rate=0.01, actor_learning_rate=0.002)
    grads = jax.tree.map(np.ones_like, state.params)
    step = jax.jit(functools.partial(optimize_part, make_adam()), static_argnums=(1, 3))
    for part, rate, expected in [
        ("actor", "actor_learning_rate", 0.002),
        ("log_alpha", "alpha_learning_rate", 0.01),
        ("critic", "learning_rate", 0.01),
    ]:
        after = numbers(step(state, part, grads[part], rate))
        moved = jax.tree.map(lambda old, new: old - new, state.params[part], after.params[part])
        assert_same(moved, jax.tree.map(lambda x, e=expected: np.full(x.shape, e), moved), rtol=1e-3)
        others = [name for name in state.params if name != part]
        assert not changed(*({name: x.params[name] for name in others} for x in (after, state)))


@each(SACConfig, TQCConfig)
def test_importance_weights_scale_the_critics_loss_and_errors_become_priorities(config):
    method, state = method_of(config)
    state, batch, key = perturbed(state), sample_of(), jax.random.key(2)

    @jax.jit
    def judged(state, batch):
        prediction = method.predict(state.params["critic"], batch)
        return prediction, *method.critic_loss(prediction, method.target(state, key, batch))

    prediction, loss, td = numbers(judged(state, batch))
    step = jax.jit(lambda state, batch: critic_step(method, state, key, batch))
    after, priority, metrics = step(state, batch)
    assert_same(priority, td, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["critic_loss"], (loss * batch.weight).mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["td_error"], td.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["value"], prediction.mean(), rtol=1e-4, atol=1e-5)
    idle, _, _ = step(state, batch.replace(weight=np.zeros(16, np.float32)))
    assert_same(idle.params["critic"], state.params["critic"])
    assert changed(after.params["critic"], state.params["critic"])


@each(thorough(TQCConfig))
def test_vmapped_seeds_equal_single_runs(config):
    settings = {"learning_starts": 12, "batch_size": 8, "n_quantiles": 5}
    agent, first = make(config, replay={"prioritized": True}, **settings)

    def start(key):
        return agent.init(key).replace(hyper=first.hyper)

    def step(state, key):
        key_learn, key_data = jax.random.split(key)
        return agent.update(state, key_learn, transition_of(key_data))

    def whole(step, start, key):
        state, metrics = jax.lax.scan(step, start, key)
        return state.params, state.observations, metrics

    @jax.jit
    def together(keys):
        key_init, key_run = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        steps = jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, 5))(key_run), 1, 0)
        params, observations, metrics = whole(jax.vmap(step), jax.vmap(start)(key_init), steps)
        return params, observations, jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), metrics)

    @jax.jit
    def single(key):
        key_init, key_run = jax.random.split(key)
        return whole(step, start(key_init), jax.random.split(key_run, 5))

    keys = jax.random.split(jax.random.key(8), 3)
    many = numbers(together(keys))
    for i in (0, 2):
        assert_same(jax.tree.map(lambda x, i=i: x[i], many), single(keys[i]), rtol=1e-3, atol=2e-5)


@each(*CONFIGS)
def test_discrete_actions_are_refused(config):
    sizes = {"samples": 4, "episode_limit": 10, "goal": None}
    message = f"algo={config.NAME}: needs continuous actions; these are discrete"
    with pytest.raises(ValueError, match=message):
        config().make((F,), ActionSpec("discrete", (3,)), updates=1, **sizes)
    with pytest.raises(ValueError, match=message):
        config().memory((F,), ActionSpec("discrete", (3,)), **sizes)


def test_settings_that_do_not_fit_the_task_are_refused():
    with pytest.raises(ValueError, match=r"replay.capacity=10: must be at least 18"):
        make(SACConfig, replay={"capacity": 10})
    with pytest.raises(ValueError, match="hindsight_ratio=0.5: this environment has no goals"):
        make(SACConfig, replay={"hindsight_ratio": 0.5})
    for config in (SACConfig, TD3Config):
        with pytest.raises(ValueError, match=r"initial_action=\(0.1,\): must be 2 numbers"):
            make(config, initial_action=(0.1,))


@each(SACConfig, TD3Config)
def test_the_first_mean_action_can_be_chosen(config):
    agent, state = make(config, initial_action=(0.2, -0.7))
    action, _ = jax.jit(agent.greedy)(state, ONES, (), RESET, None)
    np.testing.assert_allclose(action, np.broadcast_to([0.2, -0.7], (E, A, D)), atol=0.05)


def test_memory_is_what_the_replay_allocates():
    config = SACConfig(**SMALL, replay={"capacity": 600, "prioritized": True})
    agent = config.make((2, 2), CONTINUOUS, samples=ROWS, updates=1, episode_limit=20, goal=None)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    nbytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay))
    assert config.memory((2, 2), CONTINUOUS, samples=ROWS, episode_limit=20) == nbytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: must be a whole number of at least 1"),
        ({"learning_starts": 1.5}, "learning_starts=1.5: must be a whole number"),
        ({"tau": 1.5}, "tau=1.5: must be a number from 0 to 1"),
        ({"gamma": None}, "gamma=None: must be a number"),
        ({"activation": "gelu"}, "activation=gelu: unknown"),
        ({"critic_widths": ()}, "critic_widths=(): needs at least one layer"),
        ({"widths": (8.0,)}, "widths=(8.0,): must hold positive whole numbers"),
        ({"initial_action": (1.0, 0.0)}, "must lie strictly inside (-1, 1)"),
        ({"compute_dtype": "float16"}, "compute_dtype=float16: unknown"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError) as error:
        SACConfig(**settings)
    assert message in str(error.value) and "\n" not in str(error.value)
