"""PPO on segments, given rollouts that the agent itself played."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import on_policy_cases
import pytest
from arrays import assert_same, changed, numbers
from marked import mark_others, thorough

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
THRICE = {"epochs": 3, "normalize_observation": True}
LESS = {"burn_in": 3, "bootstrap_last": False, "normalize_advantage": "none", "reward_centering": 0.25}


def fresh(kind="gru", **settings):
    """An agent, and its state before the first update."""
    config = PPOConfig(**SMALL | {"core": {"kind": kind, "width": 8}} | settings)
    return on_policy_cases.make(config, (F,), DISCRETE, samples=E * A, updates=10)


def make(kind="gru", **settings):
    """An agent, and a state that prefers some actions by far."""
    agent, state = fresh(kind, **settings)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: np.float32(100.0) * x if "policy" in jax.tree_util.keystr(path) else x, state.params
    )
    return agent, state.replace(params=params)


def in_minibatches(accumulation):
    """Settings of two steps, on half of the segments each, from this many gradients."""
    return {
        "num_minibatches": 2 * accumulation,
        "accumulation": accumulation,
        "normalize_advantage": "batch",
    }


@functools.cache
def played(kind="gru"):
    """T decisions in episodes of random length; carries are those before each of them."""
    agent, state = make(kind)
    return numbers(jax.jit(functools.partial(play, agent))(state))


def play(agent, state):
    keys = jax.random.split(jax.random.key(1), 4)
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
        carry=carries,
        last_value=agent.value(state, obs[0], last, boundary[-1], None),
    )


def rollout_of(kind="gru", segments=1):
    """Experience, split into this many segments."""
    rollout = played(kind)
    return rollout.replace(carry=jax.tree.map(lambda x: x[:: T // segments], rollout.carry))


def learn(agent, state, rollout, key=5):
    return numbers(jax.jit(agent.update)(state, jax.random.key(key), rollout))


def test_two_segments_look_like_one_before_the_first_step():
    """With lambda 0 nothing of an advantage passes a row's end, so the losses must agree."""
    results = []
    for number in (1, 2):
        agent, state = make(horizon=T // number, segments_per_agent=number, gae_lambda=0.0)
        results.append(learn(agent, state, rollout_of(segments=number))[1])
    for name in ("policy_loss", "value_loss", "entropy", "explained_variance"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-4, atol=1e-6)
    assert abs(results[1]["approx_kl"]) < 3e-8 and results[1]["clip_fraction"] == 0.0


@pytest.mark.parametrize("kind", mark_others(["lstm", "gru", "mingru"], "lstm"))
def test_ratios_are_one_with_the_carries_and_resets_of_the_rollout_and_with_no_others(kind):
    agent, state = make(kind, horizon=T // 2, segments_per_agent=2)
    rollout = rollout_of(kind, 2)
    carry = rollout.carry
    wrong = {
        "carry": rollout.replace(carry=jax.tree.map(np.zeros_like, carry)),
        "order": rollout.replace(carry=jax.tree.map(lambda x: x[::-1], carry)),
        "reset": rollout.replace(reset=np.zeros_like(rollout.reset)),
        "late": rollout.replace(reset=np.roll(rollout.reset, 1, axis=0)),
    }
    assert abs(learn(agent, state, rollout)[1]["approx_kl"]) < 3e-8
    for name, other in wrong.items():
        assert learn(agent, state, other)[1]["approx_kl"] > 1e-5, name


def test_dead_agents_do_not_influence_learning_whatever_their_data():
    agent, state = make()
    rollout = rollout_of()
    alive = np.array(rollout.alive)
    alive[:, 0, 1], alive[3:, 1, 0] = False, False
    rollout = rollout.replace(
        alive=alive,
        discount=changed(rollout.discount, (2, 1, 0), 0.0),
        boundary=changed(rollout.boundary, np.s_[:, 1, 0], False),
    )

    def poison(x, value):
        return np.where(alive.reshape(alive.shape + (1,) * (x.ndim - 3)), x, np.float32(value))

    poisoned = rollout.replace(
        obs=poison(rollout.obs, np.nan),
        extras={
            "log_prob": poison(rollout.extras["log_prob"], -np.inf),
            "value": poison(rollout.extras["value"], np.nan),
        },
        reward=poison(rollout.reward, np.inf),
        bootstrap=poison(rollout.bootstrap, np.nan),
        last_value=changed(changed(rollout.last_value, (0, 1), np.nan), (1, 0), np.inf),
        carry=jax.tree.map(lambda x: changed(x, np.s_[:, 0, 1], np.nan), rollout.carry),
    )
    clean, garbage = learn(agent, state, rollout), learn(agent, state, poisoned)
    assert_same(clean[0].params, garbage[0].params, rtol=1e-6)
    assert_same(clean[1], garbage[1], rtol=1e-6)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: np.any(a != b), clean[0].params, state.params)))


@pytest.mark.parametrize(
    "settings",
    [{}, thorough({"sampling": "prioritized", "normalize_advantage": "batch"})],
    ids=["all", "drawn"],
)
def test_padding_does_not_influence_learning(settings):
    """Environments without anybody alive leave the update what it is without them."""
    agent, state = make(**THRICE | {"adam_eps": 1e-3} | settings)
    rollout = rollout_of()
    alone = jax.tree.map(lambda x: x[:, :2], rollout.replace(last_value=None))
    alone = alone.replace(last_value=rollout.last_value[:2])
    padded = rollout.replace(
        alive=changed(rollout.alive, np.s_[:, 2:], False), obs=changed(rollout.obs, np.s_[:, 2:], np.inf)
    )
    few, many = learn(agent, state, alone), learn(agent, state, padded)
    assert_same(few[0].params, many[0].params, rtol=1e-3, atol=1e-5)
    assert_same(few[0].observations, many[0].observations, rtol=1e-5)
    assert_same(few[1], many[1], rtol=1e-3, atol=1e-5)


def test_the_order_of_environments_does_not_matter():
    agent, state = make()
    rollout = rollout_of()
    order = np.array([2, 0, 3, 1])
    moved = jax.tree.map(lambda x: x[:, order], rollout.replace(last_value=None))
    moved = moved.replace(last_value=rollout.last_value[order])
    assert_same(
        learn(agent, state, rollout)[0].params, learn(agent, state, moved)[0].params, rtol=1e-3, atol=1e-5
    )


@pytest.mark.thorough
def test_accumulated_gradients_equal_those_of_whole_minibatches():
    results = []
    for accumulation in (1, 2):
        agent, state = make(**in_minibatches(accumulation), adam_eps=1e-3)
        rollout = rollout_of()
        rollout = rollout.replace(alive=changed(rollout.alive, np.s_[5:, 0], False))
        results.append(learn(agent, state, rollout)[0])
    assert results[1].optimizer.count == 2
    assert_same(results[0].params, results[1].params, rtol=1e-3, atol=1e-5)


def test_sequential_sampling_sees_every_segment_once_and_others_do_not():
    """While nothing moves, the loss of the values is that of the segments that were drawn."""
    chosen = {"whole": {}, "sequential": in_minibatches(2), "uniform": {"sampling": "uniform"}}
    chosen["uniform"] |= {"num_minibatches": 8}
    losses = {}
    for name, settings in chosen.items():
        agent, state = make(**settings, learning_rate=0.0)
        losses[name] = float(learn(agent, state, rollout_of())[1]["value_loss"])
    assert losses["sequential"] == pytest.approx(losses["whole"], rel=1e-5)
    assert abs(losses["uniform"] - losses["whole"]) > 1e-3 * losses["whole"]


def test_fresh_advantages_equal_old_ones_while_nothing_has_changed():
    agent, state = make()
    rollout = rollout_of()
    expected = learn(agent, state, rollout)[0].params
    for settings in (
        {"recompute_advantage": "minibatch", "policy_advantage": "vtrace"},
        {"recompute_advantage": "epoch", "value_clip_center": "refreshed", "value_clip": 10.0},
    ):
        other, state = make(**settings)
        assert_same(expected, learn(other, state, rollout)[0].params, atol=1e-4)


def test_refreshed_values_and_ratios_reach_later_minibatches():
    """Values of the second epoch are those of the moved critic; the third regresses on targets from them."""
    results = {}
    for mode in ("once", "epoch"):
        agent, state = make(**THRICE, recompute_advantage=mode, learning_rate=0.05)
        results[mode] = learn(agent, state, rollout_of())[1]["value_loss"]
    assert abs(results["once"] - results["epoch"]) > 1e-4


def test_burn_in_and_the_dropped_last_column():
    agent, state = make(**LESS)
    rollout = rollout_of()

    def less_likely(steps):
        log_prob = np.array(rollout.extras["log_prob"])
        log_prob[steps] -= 1.0
        return rollout.replace(extras=rollout.extras | {"log_prob": log_prob})

    assert_same(learn(agent, state, rollout)[0].params, learn(agent, state, less_likely(np.s_[:3]))[0].params)
    assert learn(agent, state, less_likely(np.s_[3:]))[1]["clip_fraction"] == 1.0

    rollout = rollout.replace(boundary=np.zeros_like(rollout.boundary))
    other = rollout.replace(
        last_value=rollout.last_value + 5.0, reward=changed(rollout.reward, -1, rollout.reward[-1] + 7.0)
    )
    assert_same(learn(agent, state, rollout)[0].params, learn(agent, state, other)[0].params)


def test_centred_rewards_are_those_above_the_agents_own_mean():
    agent, state = make(**LESS)
    rollout = rollout_of()
    after, _ = learn(agent, state, rollout)
    mean = np.zeros(E * A)
    for row in rollout.reward.reshape(T, -1):
        mean += 0.25 * (row - mean)
    np.testing.assert_allclose(after.centre, mean, rtol=1e-5)


@pytest.mark.parametrize("optimizer", mark_others(["muon", "schedule_free"], "muon"))
def test_other_optimisers_take_the_step(optimizer):
    """Every array moves, by at most a few learning rates, and less where the rate is half."""
    moves = {}
    for rate in (1e-3, 5e-4):
        agent, state = fresh(optimizer=optimizer, weight_decay=0.01, learning_rate=rate)
        after, metrics = learn(agent, state, rollout_of())
        moves[rate] = [
            float(np.abs(b - a).max())
            for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(after.params), strict=True)
        ]
        assert all(np.isfinite(float(x)) for x in metrics.values())
    assert min(moves[1e-3]) > 0
    assert max(moves[1e-3]) < 3e-3
    assert sum(moves[5e-4]) < 0.8 * sum(moves[1e-3])
    kept = agent.policy_state(after)
    assert kept.optimizer is None
    seen = np.ones((E, A, F), np.float32), agent.initial_carry((E, A)), np.zeros((E, A), bool), None
    assert_same(agent.value(after, *seen), agent.value(kept, *seen))


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
        (
            {"core": {"kind": "none"}, "head_widths": (8,)},
            "head_widths=.8,.: must be .. with core.kind=none",
        ),
        (
            {"core": {"kind": "none"}, "critic_core": True},
            "critic_core=True: must be False with core.kind=no",
        ),
        ({"optimizer": "schedule_free", "adam_beta1": 0.0}, "adam_beta1=0.0: must be a number from 0.001 to"),
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
