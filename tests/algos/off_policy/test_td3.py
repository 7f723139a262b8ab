import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import assert_same, numbers
from off_policy_cases import (
    ROWS,
    A,
    D,
    E,
    F,
    changed,
    lived,
    make,
    method_of,
    numpy_actor,
    numpy_critics,
    perturbed,
    sample_of,
)

from algos.off_policy.td3 import TD3Config, add_action_noise

KEY = jax.random.key(5)


def test_target_adds_bounded_noise_to_the_target_actor_and_takes_the_lesser_value():
    method, state = method_of(TD3Config, target_noise=0.5, target_noise_clip=0.3)
    state, batch = perturbed(state), sample_of()
    noise = np.clip(0.5 * np.asarray(jax.random.normal(KEY, (16, D))), -0.3, 0.3)
    assert (np.abs(noise) == np.float32(0.3)).any()
    mean, _ = numpy_actor(state.targets["actor"], np.asarray(batch.next_obs))
    action = np.clip(np.tanh(mean) + noise, -1.0, 1.0)
    values = numpy_critics(state.targets["critic"], np.asarray(batch.next_obs), action)[..., 0]
    expected = batch.reward + batch.discount * np.minimum(*values)
    np.testing.assert_allclose(jax.jit(method.target)(state, KEY, batch), expected, rtol=1e-4, atol=1e-5)


def test_actor_maximises_the_first_critic():
    method, state = method_of(TD3Config, policy_delay=1)
    state, batch = perturbed(state), sample_of()
    after, metrics = jax.jit(method.improve)(state, KEY, batch)
    mean, _ = numpy_actor(state.params["actor"], np.asarray(batch.obs))
    first, second = numpy_critics(state.params["critic"], np.asarray(batch.obs), np.tanh(mean))
    assert abs(first.mean() - second.mean()) > 1e-2
    np.testing.assert_allclose(metrics["actor_loss"], -first.mean(), rtol=1e-4)
    again = jax.jit(method.improve)(after, KEY, batch)[1]
    assert again["actor_loss"] < metrics["actor_loss"]


@pytest.mark.parametrize("delay", [1, 3])
def test_actor_and_targets_move_only_every_so_many_steps(delay):
    agent, state = make(TD3Config, policy_delay=delay, learning_starts=ROWS)
    update, history, losses = jax.jit(agent.update), [], []
    for i in range(12):
        before = state
        state, metrics = update(state, jax.random.key(i), lived(i))
        if metrics["gradient_steps"] == 0:
            continue
        assert changed(before.params["critic"], state.params["critic"])
        history.append(changed(before.params["actor"], state.params["actor"]))
        assert changed(before.targets, state.targets) == history[-1]
        losses.append((float(metrics["actor_steps"]), float(metrics["actor_loss"])))
    assert len(history) >= 9
    assert history == [(i + 1) % delay == 0 for i in range(len(history))]
    assert [steps == 1 and np.isfinite(loss) for steps, loss in losses] == history


def test_metrics_average_over_the_actors_own_steps():
    """Of four steps, with a delay of three, one or two are the actor's; unlearnt, all losses are near."""
    settings = {"learning_starts": 1, "updates_per_step": 4, "learning_rate": 0.0}
    agent, state = make(TD3Config, policy_delay=3, **settings)
    every, _ = make(TD3Config, policy_delay=1, **settings)
    updates, told = [jax.jit(a.update) for a in (agent, every)], []
    for i in range(5):
        transition = lived(i)
        delayed, direct = (update(state, jax.random.key(i), transition)[1] for update in updates)
        state, _ = updates[0](state, jax.random.key(i), transition)
        if delayed["gradient_steps"] == 0:
            continue
        told.append((float(delayed["actor_steps"]), float(delayed["actor_loss"] / direct["actor_loss"])))
    steps, ratio = np.array(told).T
    assert steps[:3].tolist() == [1.0, 1.0, 2.0]
    np.testing.assert_allclose(ratio, 1.0, rtol=0.2)


def test_exploration_is_the_clipped_greedy_action_plus_noise():
    agent, state = make(TD3Config, exploration_noise=0.2)
    state = perturbed(state, 0.1).replace(seen=np.int32(1000))
    obs, reset = np.ones((2000, A, F), np.float32), np.zeros((2000, A), bool)

    @jax.jit
    def both(state):
        action, _, _ = agent.act(state, KEY, obs, (), reset, None)
        return action, agent.greedy(state, obs, (), reset, None)[0]

    action, greedy = numbers(both(state))
    assert np.abs(greedy).max() < 0.6
    np.testing.assert_allclose((action - greedy).std((0, 1)), 0.2, rtol=0.05)
    np.testing.assert_allclose((action - greedy).mean((0, 1)), 0.0, atol=0.02)
    still = state.replace(hyper=state.hyper | {"exploration_noise": np.float32(0.0)})
    assert_same(both(still)[0], greedy)
    wide = add_action_noise(KEY, jnp.full((E, D), 0.9), 100.0, jnp.inf)
    assert jnp.all(jnp.abs(wide) == 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_delay": 0}, "policy_delay=0: must be a whole number of at least 1"),
        ({"target_noise": -0.1}, "target_noise=-0.1: must be a number from 0"),
        ({"exploration_noise": None}, "exploration_noise=None: must be a number"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        TD3Config(**settings)
