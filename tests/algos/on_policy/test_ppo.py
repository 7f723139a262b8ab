import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.nets.actor_critic import make_actor_critic
from algos.on_policy.losses import surrogate_loss, value_loss
from algos.on_policy.minibatches import Progress, descend, summed
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.samples import Batch, ppo_loss
from algos.types import ActionSpec, ObservationSpec, Rollout

CONTINUOUS = ActionSpec("continuous", (2,))
DISCRETE = ActionSpec("discrete", (3, 2))
T, E, A, F = 8, 3, 2, 5
SMALL = {"horizon": T, "widths": (16,), "epochs": 2, "num_minibatches": 4}


def make(action=CONTINUOUS, **settings):
    agent = PPOConfig(**SMALL | settings).make((F,), action, samples=E * A)
    return agent, agent.init(jax.random.key(0))


def rollout_of(agent, state, key=1, mask=None, reward=None):
    """A rollout whose actions, log-probabilities and values are the agent's own."""
    keys = jax.random.split(jax.random.key(key), 5)
    shape = (T, E, A)
    obs = 3.0 + 2.0 * jax.random.normal(keys[0], (*shape, F))
    reset = jnp.zeros(shape, bool)
    action, _, extras = agent.act(state, keys[1], obs, (), reset, mask)
    boundary = jax.random.bernoulli(keys[2], 0.2, shape)
    return Rollout(
        obs=obs,
        action=action,
        extras=extras,
        reward=jax.random.normal(keys[3], shape) if reward is None else reward(obs, action),
        reset=reset,
        discount=jnp.where(boundary & jax.random.bernoulli(keys[4], 0.5, shape), 0.0, 1.0),
        boundary=boundary,
        bootstrap=jnp.zeros(shape),
        alive=jnp.ones(shape, bool),
        mask=mask,
        carry=(),
        last_value=jnp.zeros((E, A)),
    )


def assert_same(x, y, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), x, y)


@pytest.mark.parametrize(
    ("action", "settings"),
    [
        (CONTINUOUS, {}),
        (CONTINUOUS, {"squash": True, "shared": True, "state_dependent_std": True}),
        (DISCRETE, {"normalize_reward": True}),
    ],
)
def test_the_first_minibatch_has_ratio_one_with_warm_normalisers(action, settings):
    agent, state = make(action, epochs=1, num_minibatches=1, **settings)
    mask = None if action is CONTINUOUS else jnp.ones((T, E, A, 5), bool).at[..., 1].set(False)
    update = jax.jit(agent.update)
    for i in range(3):
        state, metrics = update(state, jax.random.key(i), rollout_of(agent, state, i, mask))
        assert abs(metrics["approx_kl"]) < 1e-9 and metrics["clip_fraction"] == 0.0
        assert all(np.isfinite(float(x)) for x in metrics.values())
    assert state.observations.count == 3 * T * E * A and state.updates == 3


def test_loss_is_the_policy_gradient_plus_value_loss_minus_entropy():
    policy = make_actor_critic(PPOConfig(widths=(16,)), ObservationSpec((F,)), CONTINUOUS)
    params = policy.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 4)
    obs, advantage = jax.random.normal(keys[0], (6, F)), jax.random.normal(keys[1], (6,))
    distribution, value = policy.apply(params, obs, None)
    action = distribution.sample(keys[2])
    batch = Batch(
        obs=obs,
        action=action,
        log_prob=distribution.log_prob(action),
        value=value,
        advantage=advantage,
        target=value + 1.0,
        alive=jnp.ones(6, bool),
        mask=None,
    )
    hyper = {"clip": 0.2, "value_clip": jnp.inf, "value_coefficient": 0.7, "entropy_coefficient": 0.1}

    def expected(params):
        distribution, value = policy.apply(params, obs, None)
        policy_term = -(distribution.log_prob(action) * advantage).mean()
        value_term = 0.35 * jnp.square(value - batch.target).mean()
        return policy_term + value_term - 0.1 * distribution.entropy().mean()

    grads, samples = jax.jit(jax.grad(ppo_loss, argnums=1, has_aux=True), static_argnums=0)(
        policy, params, batch, hyper
    )
    assert_same(grads, jax.jit(jax.grad(expected))(params), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(samples["value_loss"], 0.5, rtol=1e-5)


def loops(jaxpr):
    """All loops of a program, inner ones included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from loops(inner)


@pytest.mark.parametrize(
    "settings", [{}, {"accumulation": 2, "kl_stop": "epoch"}, {"sampling": "sequential"}], ids=str
)
def test_passes_leave_sums_behind_and_no_samples(settings):
    """Between T * E * A = 48 samples and one number per minibatch there is no third."""
    epochs, minibatches = 11, 3
    agent, state = make(epochs=epochs, num_minibatches=6 if settings else minibatches, **settings)
    program = jax.make_jaxpr(agent.update)(state, jax.random.key(0), rollout_of(agent, state)).jaxpr
    (passes,) = (loop for loop in loops(program) if loop.params["length"] == epochs)
    inner = list(loops(passes.params["jaxpr"].jaxpr))
    assert inner
    for loop in (passes, *inner):
        carried = loop.params["jaxpr"].jaxpr.outvars
        stacked = [
            x.aval for x, one in zip(loop.outvars, carried, strict=True) if x.aval.shape != one.aval.shape
        ]
        assert stacked and all(x.size <= loop.params["length"] * 6 for x in stacked)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("target_kl", [np.inf, 3.0], ids=["all", "stopped"])
def test_metrics_are_means_over_all_samples_that_were_learnt_from(accumulation, target_kl):
    """Minibatches have 0 to 5 living samples; with a bound on the divergence the last two come too late."""
    config = PPOConfig(num_minibatches=6, accumulation=accumulation)
    rng = np.random.default_rng(0)
    kl = rng.random((6, 5)).astype(np.float32)
    alive = np.arange(5) < np.array([5, 1, 3, 2, 0, 4])[:, None]
    kl[2:4] += 5.0
    learnt = alive & (np.arange(6) < (6 if target_kl == np.inf else 4 if accumulation == 2 else 3))[:, None]

    def gradient(params, memory, minibatch):
        return jnp.ones(()), *summed({"approx_kl": minibatch[0]}, minibatch[1]), memory

    optimizer = config.make_optimizer()
    hyper = {name: jnp.float32(getattr(config, name)) for name in config.traced() if getattr(config, name)}
    hyper["target_kl"] = jnp.float32(target_kl)
    start = Progress(jnp.zeros(()), optimizer.init(jnp.zeros(())), jnp.zeros((), bool), ())
    poisoned = jnp.asarray(np.where(alive, kl, np.nan)), jnp.asarray(alive)
    _, steps = descend(config, optimizer, gradient, start, poisoned, hyper)
    np.testing.assert_allclose(steps.metrics()["approx_kl"], kl[learnt].mean(), rtol=1e-6)


def test_clipped_terms():
    ratio, advantage = jnp.array([1.5, 1.5, 0.5, 0.5]), jnp.array([1.0, -1.0, 1.0, -1.0])
    np.testing.assert_allclose(surrogate_loss(ratio, advantage, 0.2), [-1.2, 1.5, -0.5, 0.8])
    slope = jax.jit(jax.grad(lambda r: surrogate_loss(r, advantage, 0.2).sum()))(ratio)
    np.testing.assert_allclose(slope, [0.0, 1.0, -1.0, 0.0])
    value, target = jnp.array([2.0, 2.0]), jnp.array([2.0, 0.0])
    np.testing.assert_allclose(value_loss(value, jnp.ones(2), target, 0.5), [0.125, 2.0])
    np.testing.assert_allclose(value_loss(value, jnp.ones(2), target, jnp.inf), [0.0, 2.0])


def test_dead_agents_do_not_influence_learning_whatever_their_data():
    agent, state = make(DISCRETE, normalize_reward=True)
    mask = jnp.ones((T, E, A, 5), bool).at[..., 1].set(False)
    rollout = rollout_of(agent, state, mask=mask)
    alive = rollout.alive.at[:, 0, 1].set(False).at[3:, 1, 0].set(False)
    rollout = rollout.replace(
        alive=alive,
        discount=rollout.discount.at[2, 1, 0].set(0.0),
        boundary=rollout.boundary.at[:, 1, 0].set(False).at[-1, 1, 0].set(True),
    )

    def poison(x, value):
        return jnp.where(alive.reshape(alive.shape + (1,) * (x.ndim - 3)), x, value)

    poisoned = rollout.replace(
        obs=poison(rollout.obs, jnp.nan),
        action=poison(rollout.action, 1),
        extras={
            "log_prob": poison(rollout.extras["log_prob"], -jnp.inf),
            "value": poison(rollout.extras["value"], jnp.nan),
        },
        reward=poison(rollout.reward, jnp.inf),
        bootstrap=poison(rollout.bootstrap, jnp.nan),
        mask=poison(rollout.mask, False),
        last_value=rollout.last_value.at[0, 1].set(jnp.nan).at[1, 0].set(jnp.inf),
    )
    update = jax.jit(agent.update)
    clean, garbage = (update(state, jax.random.key(5), x) for x in (rollout, poisoned))
    assert_same(clean[0].replace(hyper={}), garbage[0].replace(hyper={}), rtol=1e-6)
    assert_same(clean[1], garbage[1], rtol=1e-6)
    changed = jax.tree.map(lambda x, y: jnp.any(x != y), clean[0].params, state.params)
    assert any(jax.tree.leaves(changed))

    nobody, _ = update(state, jax.random.key(5), poisoned.replace(alive=jnp.zeros_like(alive)))
    assert_same(nobody.params, state.params)


def test_vmapping_over_learning_rates_equals_single_runs():
    agent, state = make()
    rollout = rollout_of(agent, state)
    rates = jnp.array([1e-4, 1e-3, 1e-2])

    def run(rate):
        start = state.replace(hyper=state.hyper | {"learning_rate": rate})
        return agent.update(start, jax.random.key(2), rollout)

    together = jax.jit(jax.vmap(run))(rates)
    single = jax.jit(run)
    for i, rate in enumerate(rates):
        assert_same(jax.tree.map(lambda x, i=i: x[i], together), single(rate), rtol=1e-3, atol=1e-5)


def test_kl_stop_skips_the_rest_of_the_update():
    agent, state = make(learning_rate=0.05, epochs=3, target_kl=1e-3)
    rollout = rollout_of(agent, state)
    stopped, metrics = jax.jit(agent.update)(state, jax.random.key(2), rollout)
    applied = int(stopped.optimizer.count)
    assert 1 <= applied < 12
    np.testing.assert_allclose(metrics["skipped_minibatches"], 1 - applied / 12, rtol=1e-6)

    free = state.replace(hyper=state.hyper | {"target_kl": jnp.array(jnp.inf)})
    full, metrics = jax.jit(agent.update)(free, jax.random.key(2), rollout)
    assert full.optimizer.count == 12 and metrics["skipped_minibatches"] == 0.0


def test_kl_is_judged_over_whole_epochs_if_asked_to():
    """The epoch that diverges is finished, and the last; under a bound above its divergence it is not."""
    agent, state = make(learning_rate=0.05, epochs=3, target_kl=1e-3, kl_stop="epoch")
    rollout = rollout_of(agent, state)
    stopped, metrics = jax.jit(agent.update)(state, jax.random.key(2), rollout)
    assert int(stopped.optimizer.count) == 4
    bound = state.hyper | {"target_kl": metrics["approx_kl"] * 1.01}
    longer, _ = jax.jit(agent.update)(state.replace(hyper=bound), jax.random.key(2), rollout)
    assert int(longer.optimizer.count) >= 8


def test_schedules_follow_the_updates():
    agent, state = make(
        learning_rate_schedule="linear",
        learning_rate_end=1e-4,
        entropy_coefficient=0.1,
        entropy_coefficient_schedule="cosine",
        clip_schedule="linear",
        clip_end=0.1,
        total_updates=4,
    )
    rollout, update, seen = rollout_of(agent, state), jax.jit(agent.update), []
    for i in range(6):
        state, metrics = update(state, jax.random.key(i), rollout)
        seen.append([float(metrics[k]) for k in ("learning_rate", "entropy_coefficient", "clip")])
    share = np.minimum(np.arange(6) / 4, 1.0)
    np.testing.assert_allclose([s[0] for s in seen], 3e-4 - 2e-4 * share, rtol=1e-4)
    np.testing.assert_allclose([s[1] for s in seen], 0.05 * (1 + np.cos(np.pi * share)), atol=1e-6)
    np.testing.assert_allclose([s[2] for s in seen], 0.2 - 0.1 * share, rtol=1e-4)


def test_acting_leaves_the_normaliser_alone_and_uses_it():
    agent, state = make()
    trained, _ = jax.jit(agent.update)(state, jax.random.key(0), rollout_of(agent, state))
    np.testing.assert_allclose(trained.observations.mean, 3.0, atol=1.0)
    obs, reset = jnp.full((E, A, F), 4.0), jnp.zeros((E, A), bool)
    bare = trained.replace(observations=state.observations)
    with_statistics, carry = agent.greedy(trained, obs, (), reset, None)
    assert carry == () and with_statistics.shape == (E, A, 2)
    assert not np.allclose(with_statistics, agent.greedy(bare, obs, (), reset, None)[0])
    shifted = (obs - trained.observations.mean) / jnp.sqrt(trained.observations.var)
    np.testing.assert_allclose(
        with_statistics, agent.greedy(bare, shifted, (), reset, None)[0], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("normalize_advantage", ["batch", "none"])
def test_a_continuous_target_is_learnt(normalize_advantage):
    def reward(obs, action):
        return -jnp.square(action - jnp.array([0.5, -0.4])).sum(-1)

    agent, state = make(learning_rate=0.01, gamma=0.0, normalize_advantage=normalize_advantage)

    def step(state, i):
        rollout = rollout_of(agent, state, i, reward=reward)
        return agent.update(state, jax.random.key(i), rollout)

    state, metrics = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(60)))(state)
    action, _ = agent.greedy(state, jnp.full((4, F), 3.0), (), jnp.zeros(4, bool), None)
    np.testing.assert_allclose(action, np.broadcast_to([0.5, -0.4], (4, 2)), atol=0.15)
    assert metrics["action_std"][-1] < 0.5 * metrics["action_std"][0]


def test_a_masked_choice_is_learnt():
    mask = jnp.ones((T, E, A, 5), bool).at[..., 2].set(False)

    def reward(obs, action):
        return (action[..., 0] == 1) + 0.5 * (action[..., 1] == 0)

    agent, state = make(DISCRETE, learning_rate=0.01, gamma=0.0)

    def step(state, i):
        return agent.update(state, jax.random.key(i), rollout_of(agent, state, i, mask, reward))

    state, _ = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(40)))(state)
    action, _ = agent.greedy(state, jnp.full((4, F), 3.0), (), jnp.zeros(4, bool), mask[0, 0, :1])
    np.testing.assert_array_equal(action, np.broadcast_to([1, 0], (4, 2)))


@pytest.mark.parametrize("terminal", [False, True])
def test_time_limits_bootstrap_and_deaths_do_not(terminal):
    """Reward 1 for ever, cut every fourth step: the value is 1 / (1 - gamma) unless the cut is a death."""
    gamma = 0.8
    agent, state = make(gamma=gamma, learning_rate=0.01, normalize_observation=False)
    boundary = jnp.broadcast_to((jnp.arange(T) % 4 == 3)[:, None, None], (T, E, A))

    def step(state, i):
        rollout = rollout_of(agent, state, i, reward=lambda obs, action: jnp.ones((T, E, A)))
        ones = jnp.ones_like(rollout.obs)
        value = agent.value(state, ones, (), rollout.reset, None)
        rollout = rollout.replace(
            obs=ones,
            extras=agent.act(state, jax.random.key(0), ones, (), rollout.reset, None)[2] | {"value": value},
            last_value=value[0],
            boundary=boundary,
            bootstrap=jnp.where(boundary & ~jnp.array(terminal), value, 0.0),
            discount=jnp.where(boundary & jnp.array(terminal), 0.0, 1.0),
        )
        return agent.update(state, jax.random.key(i), rollout)[0], value[0, 0, 0]

    _, values = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(250)))(state)
    if terminal:
        assert 1.5 < values[-1] < 3.5
    else:
        np.testing.assert_allclose(values[-1], 1 / (1 - gamma), rtol=0.03)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate=-1.0: must be a number from 0 to 1"),
        ({"gamma": 1.1}, "gamma=1.1: must be a number from 0 to 1"),
        ({"clip": float("nan")}, "clip=nan: must be a number"),
        ({"epochs": 0}, "epochs=0: must be a whole number of at least 1"),
        ({"num_minibatches": 2.0}, "num_minibatches=2.0: must be a whole number"),
        ({"clip_schedule": "steps"}, "clip_schedule=steps: unknown; allowed: constant, linear, cosine"),
        ({"normalize_advantage": True}, "normalize_advantage=True: unknown; allowed: minibatch, batch, none"),
        ({"target_kl": 0.0}, "target_kl=0.0: must be a number from"),
        ({"gamma": None}, "gamma=None: must be a number"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**settings)


def test_settings_that_do_not_fit_together():
    with pytest.raises(ValueError, match=r"num_minibatches=5: must divide the 48 .* nearest: 4, 6"):
        make(num_minibatches=5)
    with pytest.raises(ValueError, match="total_updates=None: must be given"):
        make(clip_schedule="linear")
    with pytest.raises(ValueError, match="normalize_reward=True: needs samples"):
        PPOConfig(normalize_reward=True).make((F,), CONTINUOUS)
    agent = PPOConfig(**SMALL | {"num_minibatches": 5}).make((F,), CONTINUOUS)
    state = agent.init(jax.random.key(0))
    with pytest.raises(ValueError, match="num_minibatches=5"):
        agent.update(state, jax.random.key(0), rollout_of(agent, state))
    assert (
        PPOConfig()
        .make((F,), CONTINUOUS, samples=4, updates=10)
        .init(jax.random.key(0))
        .hyper["total_updates"]
        == 10
    )


def test_settings_from_lists_are_hashable():
    assert hash(PPOConfig(widths=[8, 8])) == hash(PPOConfig(widths=(8, 8)))


@pytest.mark.parametrize("normalize", ["minibatch", "batch"])
def test_slots_that_never_act_take_no_share_of_a_minibatch(normalize):
    """Half of the rows belong to a slot that is never filled: half of the minibatches are full."""
    agent, state = make(normalize_advantage=normalize, normalize_observation=False)
    rollout = rollout_of(agent, state)
    after, metrics = jax.jit(agent.update)(state, jax.random.key(2), rollout)
    assert int(after.optimizer.count) == SMALL["epochs"] * SMALL["num_minibatches"]
    alive = rollout.alive.at[:, :, 1].set(False)
    after, metrics = jax.jit(agent.update)(state, jax.random.key(2), rollout.replace(alive=alive))
    assert int(after.optimizer.count) == SMALL["epochs"] * SMALL["num_minibatches"] // 2
    assert all(np.isfinite(float(x)) for x in metrics.values())
    # A slot that is filled for a while is learnt from wherever its rows lie.
    alive = rollout.alive.at[1:, :, 1].set(False)
    after, _ = jax.jit(agent.update)(state, jax.random.key(2), rollout.replace(alive=alive))
    assert int(after.optimizer.count) == SMALL["epochs"] * SMALL["num_minibatches"]
