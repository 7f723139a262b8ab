"""Rewards that arrive while an agent does not act: normalisation, centring, losses, orders of samples."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.nets.normalize import init_reward_scale, masked_mean_or_zero
from algos.on_policy.agent import OnPolicyMethod, update_from_rollout
from algos.on_policy.losses import acting_weights, clipped_loss
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.sample_epochs import samples_from_rollout
from algos.on_policy.segment_epochs import segments_from_rollout as prepare_segments
from algos.on_policy.settings import OnPolicyState
from algos.types import ActionSpec, Rollout

RATE, GAMMA = 0.25, 0.9
E = 3


def state_of(**parts) -> OnPolicyState:
    hyper = PPOConfig(gamma=GAMMA).initial_hyper(1)
    empty = {"params": {"w": jnp.zeros(1)}, "optimizer": (), "observations": None, "rewards": None}
    return OnPolicyState(**empty | {"hyper": hyper, "updates": jnp.int32(0)} | parts)


def rollout_of(reward, alive, boundary=None, **parts) -> Rollout:
    """A rollout `[T, E, 1]` of which only rewards and flags matter; its values are 0."""
    column = lambda x: jnp.asarray(x)[..., None]  # noqa: E731
    reward, alive = column(reward), column(alive)
    none = jnp.zeros(reward.shape)
    given = {
        "obs": none[..., None],
        "action": none[..., None],
        "extras": {"log_prob": none, "value": none},
        "reward": reward,
        "reset": none > 0,
        "discount": 1.0 - none,
        "boundary": none > 0 if boundary is None else column(boundary),
        "bootstrap": none,
        "alive": alive,
        "mask": None,
        "carry": (),
        "last_value": none[0],
    }
    return Rollout(**given | {name: column(x) for name, x in parts.items()})


def learnt(state, rollout):
    """The state after an update that changes statistics of rewards only, and the rewards it learns from."""
    config = PPOConfig(gamma=GAMMA, reward_centering=RATE, normalize_reward=True)

    def look(config, state, rollout, hyper):
        zeros = jnp.zeros(rollout.reward.shape)
        return SimpleNamespace(value=zeros, target=zeros, alive=rollout.alive, reward=rollout.reward)

    def learn(state, key, batch, hyper):
        return state.params, state.optimizer, {"reward": batch.reward}

    method = OnPolicyMethod(None, learn, look)
    state, metrics = update_from_rollout(config, method, state, jax.random.key(0), rollout)
    return state, np.asarray(metrics["reward"])[..., 0]


def test_the_mean_reward_is_subtracted_once_per_decision():
    """Decisions worth 1, as the mean of those before, and three rows of waiting: 0, not -3."""
    acts = np.arange(8)[:, None] % 4 == 0
    rollout = rollout_of(np.float32(acts), acts, skip=~acts, last_skip=np.array([False]))
    state, reward = learnt(state_of(centre=jnp.ones(1), rewards=init_reward_scale(1)), rollout)
    np.testing.assert_array_equal(reward, 0.0)
    np.testing.assert_array_equal(state.centre, 1.0)


def test_waiting_rows_leave_the_statistics_of_rewards_to_the_decisions():
    """Rewards spread over rows of waiting, also past the end of a rollout, count as if they came at once."""
    rng, length = np.random.default_rng(0), 32
    acts = rng.random(length) < 0.4
    acts[0], acts[15], acts[16] = True, True, False
    acts = np.broadcast_to(acts[:, None], (length, E))
    following = np.concatenate([acts[1:], np.ones((1, E), bool)])
    ends = following & (rng.random((length, E)) < 0.3)
    paid = rng.normal(size=(length, E)).astype(np.float32)
    first = np.flatnonzero(acts[:, 0])
    own = rollout_of(np.add.reduceat(paid, first), acts[first], boundary=np.logical_or.reduceat(ends, first))
    fresh = state_of(centre=jnp.zeros(E), rewards=init_reward_scale(E))
    wanted, centred = learnt(fresh, own)
    found, rows = fresh, []
    for part in (slice(0, 16), slice(16, 32)):
        after = ~acts[part.stop % length]
        rollout = rollout_of(paid[part], acts[part], boundary=ends[part], skip=~acts[part], last_skip=after)
        found, reward = learnt(found, rollout)
        rows.append(reward)
    np.testing.assert_allclose(np.add.reduceat(np.concatenate(rows), first), centred, atol=1e-5)
    np.testing.assert_allclose(found.centre, wanted.centre, atol=1e-5)
    for name in ("mean", "var", "count"):
        a, b = (getattr(x.rewards.moments, name) for x in (found, wanted))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(found.rewards.sums, wanted.rewards.sums, atol=1e-5)


def test_decisions_whose_rewards_come_after_the_rollout_are_not_learnt_from():
    """Only the last decision of an agent that waits at the end is open, and only if its episode goes on."""
    acts = np.array([[1, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
    ends = np.zeros((6, E), bool)
    ends[5, 1] = ends[3, 2] = True
    rollout = rollout_of(np.float32(acts), acts, boundary=ends, skip=~acts, last_skip=np.ones(E, bool))
    wanted = acts.copy()
    wanted[4, 0] = False
    np.testing.assert_array_equal(rollout.without_open_decisions().alive[..., 0], wanted)
    acting = rollout.replace(last_skip=~rollout.last_skip)
    np.testing.assert_array_equal(acting.without_open_decisions().alive, rollout.alive)

    config = PPOConfig(gamma=GAMMA, normalize_advantage="batch")
    seen = {}

    def learn(state, key, batch, hyper):
        seen.update(alive=batch.alive, advantage=batch.advantage)
        return state.params, state.optimizer, {}

    update_from_rollout(
        config, OnPolicyMethod(None, learn, samples_from_rollout), state_of(), jax.random.key(0), rollout
    )
    alive, advantage = (np.asarray(seen[name]).reshape(6, E) for name in ("alive", "advantage"))
    np.testing.assert_array_equal(alive, wanted)
    assert advantage[4, 0] == 0 and abs(advantage[alive].mean()) < 1e-6


def test_last_decisions_are_left_out_whether_or_not_their_games_end_in_time():
    """Of them only those after which games end at once are known; each agent loses one decision, no more."""
    acts, ends = np.ones((6, E), bool), np.zeros((6, E), bool)
    ends[5, 1] = ends[4, 2] = True
    rollout = rollout_of(np.float32(acts), acts, boundary=ends, skip=~acts, last_skip=np.ones(E, bool))
    wanted = acts.copy()
    wanted[5] = False
    left = rollout.without_open_decisions()
    for sampling in ("samples", "sequential"):
        config = PPOConfig(gamma=GAMMA, sampling=sampling, horizon=6)
        prepare = samples_from_rollout if sampling == "samples" else prepare_segments
        batch = prepare(config, state_of(), left, config.initial_hyper(1))
        np.testing.assert_array_equal(np.asarray(batch.alive).reshape(6, E), wanted, err_msg=sampling)
    # Of given advantages, such as those of whole games, every one that is known counts.
    wanted[5, 1] = True
    told = rollout.replace(advantage=rollout.reward).without_open_decisions()
    np.testing.assert_array_equal(told.alive[..., 0], wanted)


def test_decisions_whose_rewards_come_after_their_segment_are_not_learnt_from():
    """The first two agents wait into the second half of the rollout; the game of the second ends before."""
    acts = np.ones((6, E), bool)
    acts[3, :2] = acts[2, 1] = False
    ends = np.zeros((6, E), bool)
    ends[2, 1] = True
    rollout = rollout_of(np.float32(acts), acts, boundary=ends, skip=~acts, last_skip=np.zeros(E, bool))
    config = PPOConfig(gamma=GAMMA, sampling="sequential", horizon=3, segments_per_agent=2)
    batch = prepare_segments(config, state_of(), rollout, config.initial_hyper(1))
    wanted = acts.copy()
    wanted[2, 0] = False
    learnt_from = np.asarray(batch.learning).reshape(3, 2, E).swapaxes(0, 1).reshape(6, E)
    np.testing.assert_array_equal(learnt_from, wanted)


def test_time_goes_on_for_an_agent_that_is_out():
    """It is centred and counted as if it acted: a mean above 0 must not reward agents for being out."""
    reward = np.random.default_rng(1).normal(size=(6, E)).astype(np.float32)
    fresh, acts = state_of(centre=jnp.ones(E), rewards=init_reward_scale(E)), np.ones((6, E), bool)
    living = learnt(fresh, rollout_of(reward, acts))
    acts[2:5, 1] = False
    found = learnt(fresh, rollout_of(reward, acts, out=~acts))
    jax.tree.map(np.testing.assert_array_equal, found, living)


class Distribution(SimpleNamespace):
    """Entropies and deviations of a distribution, as losses ask for them."""

    def entropy(self):
        return self.given


def test_of_agents_that_are_out_only_values_are_learnt():
    """Means of the policy's terms are over decisions, those of values also over agents that are out."""
    rng, number = np.random.default_rng(2), 40
    arrays = rng.normal(size=(6, number))
    alive = rng.random(number) < 0.5
    valued = alive | (rng.random(number) < 0.5)
    nowhere = np.where(valued, 0.0, np.nan)
    log_ratio, advantage, value, old, target, entropy = arrays + nowhere
    log_ratio = np.where(alive, log_ratio, np.inf)
    hyper = {"clip": 0.2, "value_clip": np.inf, "value_coefficient": 0.7, "entropy_coefficient": 0.1}
    with jax.enable_x64(True):
        loss, samples = clipped_loss(
            Distribution(given=jnp.asarray(entropy), std=None),
            jnp.asarray(value),
            jnp.asarray(log_ratio),
            advantage=advantage,
            old_value=old,
            target=target,
            alive=valued,
            hyper=hyper,
            acting=acting_weights(jnp.asarray(alive), jnp.asarray(valued)),
        )
    ratio = np.exp(log_ratio)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)[alive].mean()
    errors = 0.5 * np.square(value - target)[valued].mean()
    np.testing.assert_allclose(loss, -surrogate + 0.7 * errors - 0.1 * entropy[alive].mean(), rtol=1e-6)
    means = {name: masked_mean_or_zero(x, valued) for name, x in samples.items()}
    np.testing.assert_allclose(means["entropy"], entropy[alive].mean(), rtol=1e-5)
    divergence = ratio[alive] - 1 - log_ratio[alive]
    np.testing.assert_allclose(means["approx_kl"], divergence.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "sampling"), [(samples_from_rollout, "samples"), (prepare_segments, "sequential")]
)
def test_agents_out_for_a_whole_rollout_train_the_critic_and_empty_slots_do_not(method, sampling):
    acts = np.broadcast_to([True, False, False], (4, E))
    rollout = rollout_of(np.ones((4, E), np.float32), acts, out=acts[:, [1, 0, 2]])
    config = PPOConfig(gamma=GAMMA, sampling=sampling)
    batch = method(config, state_of(), rollout, config.initial_hyper(1))
    parts = np.asarray(batch.alive).reshape(4, E), np.asarray(batch.acting).reshape(4, E)
    np.testing.assert_array_equal(parts[0], np.broadcast_to([True, True, False], (4, E)))
    np.testing.assert_array_equal(parts[1], np.broadcast_to([2.0, 0.0, 0.0], (4, E)))
    target = np.asarray(batch.target).reshape(4, E)
    np.testing.assert_allclose(target[0, 1], 1 + GAMMA + GAMMA**2 + GAMMA**3, rtol=1e-6)


def shapes_in(jaxpr) -> set[tuple[int, ...]]:
    """Shapes of all arrays in a program, those of its loops and branches included."""
    found = set()
    for equation in jaxpr.eqns:
        found |= {variable.aval.shape for variable in equation.outvars}
        for part in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(part, "jaxpr", part)
            found |= shapes_in(inner) if hasattr(inner, "eqns") else set()
    return found


def test_memory_does_not_grow_with_the_number_of_epochs():
    """No array of an update on N samples has epochs * N elements or more."""
    config = PPOConfig(epochs=160, num_minibatches=4, widths=(4,), normalize_observation=False)
    agent = config.make((1,), ActionSpec("continuous", (1,)))
    rollout = rollout_of(np.ones((16, E), np.float32), np.ones((16, E), bool))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    shapes = shapes_in(jax.make_jaxpr(agent.update)(state, jax.random.key(0), rollout).jaxpr)
    number = rollout.reward.size
    assert (number,) in shapes and (config.epochs, config.num_minibatches) in shapes
    assert max(int(np.prod(shape)) for shape in shapes) < config.epochs * number
