"""PPO on segments, given rollouts that the agent itself played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.on_policy.ppo import PPOConfig
from algos.types import ActionSpec, Rollout

DISCRETE = ActionSpec("discrete", (3, 2))
T, E, A, F = 8, 4, 2, 3
SMALL = {
    "horizon": T,
    "widths": (8,),
    "epochs": 1,
    "num_minibatches": 1,
    "learning_rate": 0.01,
    "normalize_observation": False,
    "sampling": "sequential",
}


def make(kind="gru", **settings):
    core = {"kind": kind, "width": 8}
    agent = PPOConfig(**SMALL | {"core": core} | settings).make((F,), DISCRETE, samples=E * A, updates=10)
    state = agent.init(jax.random.key(0))
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: 100.0 * x if "policy" in jax.tree_util.keystr(path) else x, state.params
    )
    return agent, state.replace(params=params)


def play(agent, state, segments=1, key=1):
    """T decisions in episodes of random length, cut into this many segments."""
    keys = jax.random.split(jax.random.key(key), 4)
    shape = (T, E, A)
    obs = jax.random.normal(keys[0], (*shape, F))
    boundary = jax.random.bernoulli(keys[1], 0.2, shape)
    reset = jnp.concatenate([jax.random.bernoulli(keys[2], 0.5, (1, E, A)), boundary[:-1]])
    before = jax.tree.map(lambda x: x + 0.5, agent.initial_carry((E, A)))

    def step(carry, now):
        obs, reset, key = now
        action, after, extras = agent.act(state, key, obs, carry, reset, None)
        return after, (carry, action, extras)

    last, (carries, action, extras) = jax.lax.scan(step, before, (obs, reset, jax.random.split(keys[3], T)))
    return Rollout(
        obs=obs,
        action=action,
        extras=extras,
        reward=jax.random.normal(keys[2], shape),
        reset=reset,
        discount=jnp.where(boundary & (obs[..., 0] > 0), 0.0, 1.0),
        boundary=boundary,
        bootstrap=jnp.where(boundary, 0.3, 0.0),
        alive=jnp.ones(shape, bool),
        mask=None,
        carry=jax.tree.map(lambda x: x[:: T // segments], carries),
        last_value=agent.value(state, obs[0], last, boundary[-1], None),
    )


def learn(agent, state, rollout, key=5):
    return jax.jit(agent.update)(state, jax.random.key(key), rollout)


def assert_same(x, y, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), x, y)


def test_two_segments_look_like_one_before_the_first_step():
    """With lambda 0 nothing of an advantage passes a row's end, so the losses must agree."""
    results = []
    for number in (1, 2):
        agent, state = make("lstm", horizon=T // number, segments_per_agent=number, gae_lambda=0.0)
        results.append(learn(agent, state, play(agent, state, number))[1])
    for name in ("policy_loss", "value_loss", "entropy", "explained_variance"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-4, atol=1e-6)
    assert abs(results[1]["approx_kl"]) < 3e-8 and results[1]["clip_fraction"] == 0.0


@pytest.mark.parametrize("kind", ["lstm", "gru", "mingru"])
def test_ratios_are_one_with_the_carries_and_resets_of_the_rollout_and_with_no_others(kind):
    agent, state = make(kind, horizon=T // 2, segments_per_agent=2)
    rollout = play(agent, state, 2)
    carry = rollout.carry
    wrong = {
        "carry": rollout.replace(carry=jax.tree.map(jnp.zeros_like, carry)),
        "order": rollout.replace(carry=jax.tree.map(lambda x: x[::-1], carry)),
        "reset": rollout.replace(reset=jnp.zeros_like(rollout.reset)),
        "late": rollout.replace(reset=jnp.roll(rollout.reset, 1, axis=0)),
    }
    update = jax.jit(agent.update)
    assert abs(update(state, jax.random.key(0), rollout)[1]["approx_kl"]) < 3e-8
    for name, other in wrong.items():
        assert update(state, jax.random.key(0), other)[1]["approx_kl"] > 1e-5, name


def test_dead_agents_do_not_influence_learning_whatever_their_data():
    agent, state = make()
    rollout = play(agent, state)
    alive = rollout.alive.at[:, 0, 1].set(False).at[3:, 1, 0].set(False)
    rollout = rollout.replace(
        alive=alive,
        discount=rollout.discount.at[2, 1, 0].set(0.0),
        boundary=rollout.boundary.at[:, 1, 0].set(False),
    )

    def poison(x, value):
        return jnp.where(alive.reshape(alive.shape + (1,) * (x.ndim - 3)), x, value)

    poisoned = rollout.replace(
        obs=poison(rollout.obs, jnp.nan),
        extras={
            "log_prob": poison(rollout.extras["log_prob"], -jnp.inf),
            "value": poison(rollout.extras["value"], jnp.nan),
        },
        reward=poison(rollout.reward, jnp.inf),
        bootstrap=poison(rollout.bootstrap, jnp.nan),
        last_value=rollout.last_value.at[0, 1].set(jnp.nan).at[1, 0].set(jnp.inf),
        carry=jax.tree.map(lambda x: x.at[:, 0, 1].set(jnp.nan), rollout.carry),
    )
    clean, garbage = learn(agent, state, rollout), learn(agent, state, poisoned)
    assert_same(clean[0].params, garbage[0].params, rtol=1e-6)
    assert_same(clean[1], garbage[1], rtol=1e-6)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.any(a != b), clean[0].params, state.params)))


@pytest.mark.parametrize(
    "settings", [{}, {"sampling": "prioritized", "normalize_advantage": "batch"}], ids=["all", "drawn"]
)
def test_padding_does_not_influence_learning(settings):
    """Environments without anybody alive leave the update what it is without them."""
    shared = {"normalize_observation": True, "epochs": 2, "adam_eps": 1e-3}
    agent, state = make(**shared | settings)
    rollout = play(agent, state)
    alone = jax.tree.map(lambda x: x[:, :2], rollout.replace(last_value=None))
    alone = alone.replace(last_value=rollout.last_value[:2])
    padded = rollout.replace(alive=rollout.alive.at[:, 2:].set(False), obs=rollout.obs.at[:, 2:].set(jnp.inf))
    few, many = learn(agent, state, alone), learn(agent, state, padded)
    assert_same(few[0].params, many[0].params, rtol=1e-3, atol=1e-5)
    assert_same(few[0].observations, many[0].observations, rtol=1e-5)
    assert_same(few[1], many[1], rtol=1e-3, atol=1e-5)


def test_the_order_of_environments_does_not_matter():
    agent, state = make()
    rollout = play(agent, state)
    order = jnp.array([2, 0, 3, 1])
    moved = jax.tree.map(lambda x: x[:, order], rollout.replace(last_value=None))
    moved = moved.replace(last_value=rollout.last_value[order])
    assert_same(
        learn(agent, state, rollout)[0].params, learn(agent, state, moved)[0].params, rtol=1e-3, atol=1e-5
    )


def test_accumulated_gradients_equal_those_of_whole_minibatches():
    results = []
    for number, accumulation in ((2, 1), (4, 2)):
        agent, state = make(
            num_minibatches=number, accumulation=accumulation, normalize_advantage="batch", adam_eps=1e-3
        )
        rollout = play(agent, state)
        rollout = rollout.replace(alive=rollout.alive.at[5:, 0].set(False))
        results.append(learn(agent, state, rollout)[0])
    assert results[1].optimizer.count == 2
    assert_same(results[0].params, results[1].params, rtol=1e-3, atol=1e-5)


def test_sequential_sampling_sees_every_segment_once_and_others_do_not():
    losses = {}
    for mode, number in (("sequential", 1), ("sequential", 8), ("uniform", 8)):
        agent, state = make(
            sampling=mode, num_minibatches=number, learning_rate=0.0, normalize_advantage="none"
        )
        losses[mode, number] = float(learn(agent, state, play(agent, state))[1]["value_loss"])
    whole = losses["sequential", 1]
    assert losses["sequential", 8] == pytest.approx(whole, rel=1e-5)
    assert abs(losses["uniform", 8] - whole) > 1e-3 * whole


def test_fresh_advantages_equal_old_ones_while_nothing_has_changed():
    agent, state = make()
    rollout = play(agent, state)
    expected = learn(agent, state, rollout)[0].params
    for settings in (
        {"recompute_advantage": "minibatch", "policy_advantage": "vtrace"},
        {"recompute_advantage": "epoch", "value_clip_center": "refreshed", "value_clip": 10.0},
    ):
        other, _ = make(**settings)
        assert_same(expected, learn(other, state, rollout)[0].params, atol=1e-4)


def test_what_was_learnt_of_the_rollout_reaches_later_minibatches():
    """Values of the second epoch are those of the moved critic; the third regresses on targets from them."""
    results = {}
    for mode in ("once", "epoch"):
        agent, state = make(epochs=3, recompute_advantage=mode, learning_rate=0.05)
        results[mode] = learn(agent, state, play(agent, state))[1]["value_loss"]
    assert abs(results["once"] - results["epoch"]) > 1e-4


def test_burn_in_and_the_dropped_last_column():
    agent, state = make(burn_in=3, normalize_advantage="none")
    rollout = play(agent, state)

    def less_likely(steps):
        log_prob = rollout.extras["log_prob"].at[steps].add(-1.0)
        return rollout.replace(extras=rollout.extras | {"log_prob": log_prob})

    changed = less_likely(slice(3))
    assert_same(learn(agent, state, rollout)[0].params, learn(agent, state, changed)[0].params)
    changed = less_likely(slice(3, None))
    assert learn(agent, state, changed)[1]["clip_fraction"] == 1.0

    agent, state = make(bootstrap_last=False, normalize_advantage="none")
    rollout = rollout.replace(boundary=jnp.zeros_like(rollout.boundary))
    changed = rollout.replace(last_value=rollout.last_value + 5.0, reward=rollout.reward.at[-1].add(7.0))
    assert_same(learn(agent, state, rollout)[0].params, learn(agent, state, changed)[0].params)


def test_centred_rewards_are_those_above_the_agents_own_mean():
    agent, state = make(reward_centering=0.25)
    rollout = play(agent, state)
    after, _ = learn(agent, state, rollout)
    mean = np.zeros(E * A)
    for row in np.asarray(rollout.reward).reshape(T, -1):
        mean += 0.25 * (row - mean)
    np.testing.assert_allclose(after.centre, mean, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["muon", "schedule_free"])
def test_other_optimisers_take_the_step(optimizer):
    """Every array moves, by at most a few learning rates, and less where the rate is half."""
    moves = {}
    for rate in (1e-3, 5e-4):
        agent, _ = make(optimizer=optimizer, weight_decay=0.01, learning_rate=rate)
        state = agent.init(jax.random.key(0))
        after, metrics = learn(agent, state, play(agent, state))
        moves[rate] = [
            float(jnp.abs(b - a).max())
            for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(after.params), strict=True)
        ]
        assert all(np.isfinite(float(x)) for x in metrics.values())
    assert min(moves[1e-3]) > 0
    assert max(moves[1e-3]) < 3e-3
    assert sum(moves[5e-4]) < 0.8 * sum(moves[1e-3])
    kept = agent.policy_state(after)
    obs, carry = jnp.ones((E, A, F)), agent.initial_carry((E, A))
    reset = jnp.zeros((E, A), bool)
    assert kept.optimizer is None
    assert_same(agent.value(after, obs, carry, reset, None), agent.value(kept, obs, carry, reset, None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": "samples"}, "sampling=samples: must be one of sequential, .* with core.kind=gru"),
        ({"num_minibatches": 3}, r"num_minibatches=3: must divide the 8 segments .*nearest: 2, 4"),
        ({"accumulation": 2}, "accumulation=2: must divide the 1 of num_minibatches"),
        ({"minibatch_size": 20}, "minibatch_size=20: must hold whole segments of horizon=8; nearest: 16, 32"),
        ({"batch_size": 128}, "batch_size=128: must be segments_per_agent"),
        ({"burn_in": 8}, "burn_in=8: must be a whole number from 0 to 7"),
        ({"value_widths": (8,)}, "value_widths=.*: must be null with core.kind=gru"),
        ({"core": {"kind": "rnn"}}, "kind=rnn: unknown; allowed: none, lstm, gru, mingru"),
        (
            {"policy_advantage": "vtrace", "normalize_advantage": "batch"},
            "normalize_advantage=batch: must be minibatch or none",
        ),
    ],
)
def test_settings_that_do_not_fit_together(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_segments_only_where_they_are_trained_on():
    with pytest.raises(ValueError, match="segments_per_agent=2: must be 1 with sampling=samples"):
        PPOConfig(segments_per_agent=2)
    assert PPOConfig().plan(8) is None
    plan = PPOConfig(**SMALL | {"minibatch_size": 32, "accumulation": 2}).plan(8, 4)
    assert (plan.minibatch_segments, plan.accumulation, plan.gradient_steps) == (2, 2, 2)
