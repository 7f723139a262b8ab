import functools

import jax
import jax.numpy as jnp
import numpy as np
import on_policy_cases
import pytest
from arrays import assert_same, changed, numbers
from marked import mark_others, thorough

from algos.nets.actor_critic import make_actor_critic
from algos.on_policy.losses import surrogate_loss, value_loss
from algos.on_policy.minibatches import MinibatchCarry, clip_apart, run_minibatch_epoch, sum_alive
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.sample_epochs import SampleBatch, ppo_loss
from algos.types import ActionSpec, ObservationSpec, Rollout

CONTINUOUS = ActionSpec("continuous", (2,))
DISCRETE = ActionSpec("discrete", (3, 2))
T, E, A, F = 8, 3, 2, 5
SMALL = {"horizon": T, "widths": (16,), "epochs": 4, "num_minibatches": 2}
STEPS = SMALL["epochs"] * SMALL["num_minibatches"]
WITHOUT_THE_SECOND = np.broadcast_to(np.arange(5) != 1, (T, E, A, 5))


def make(action=CONTINUOUS, **settings):
    """An agent, and its state before the first update."""
    return on_policy_cases.make(PPOConfig(**SMALL | settings), (F,), action, samples=E * A)


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


@functools.cache
def played(action=CONTINUOUS):
    """Experience of an agent with the usual networks before its first update."""
    mask = None if action is CONTINUOUS else WITHOUT_THE_SECOND
    agent, state = make(action)
    return numbers(jax.jit(lambda state: rollout_of(agent, state, mask=mask))(state))


def learn(agent, state, rollout, key=2):
    return numbers(jax.jit(agent.update)(state, jax.random.key(key), rollout))


@pytest.mark.parametrize(
    ("action", "settings"),
    [
        thorough(CONTINUOUS, {}),
        (CONTINUOUS, {"squash": True, "shared": True, "state_dependent_std": True}),
        thorough(DISCRETE, {"normalize_reward": True}),
    ],
)
def test_the_first_minibatch_has_ratio_one_with_warm_normalisers(action, settings):
    agent, state = make(action, epochs=1, num_minibatches=1, **settings)
    mask = None if action is CONTINUOUS else WITHOUT_THE_SECOND

    @jax.jit
    def update(state, i):
        return agent.update(state, jax.random.key(i), rollout_of(agent, state, i, mask))

    for i in range(3):
        state, metrics = numbers(update(state, i))
        assert abs(metrics["approx_kl"]) < 1e-9 and metrics["clip_fraction"] == 0.0
        assert all(np.isfinite(float(x)) for x in metrics.values())
    assert state.observations.count == 3 * T * E * A and state.updates == 3


def test_loss_is_the_policy_gradient_plus_value_loss_minus_entropy():
    policy = make_actor_critic(PPOConfig(widths=(16,)), ObservationSpec((F,)), CONTINUOUS)
    hyper = {"clip": 0.2, "value_clip": jnp.inf, "value_coefficient": 0.7, "entropy_coefficient": 0.1}
    obs, advantage = (np.float32(np.random.default_rng(0).normal(size=shape)) for shape in ((6, F), 6))

    @jax.jit
    def gradients(key):
        params = policy.init(key)
        distribution, value = policy.apply(params, obs, None)
        action = distribution.sample(key)
        batch = SampleBatch(
            obs=obs,
            action=action,
            log_prob=distribution.log_prob(action),
            value=value,
            advantage=advantage,
            target=value + 1.0,
            alive=jnp.ones(6, bool),
            mask=None,
        )

        def expected(params):
            distribution, value = policy.apply(params, obs, None)
            policy_term = -(distribution.log_prob(action) * advantage).mean()
            value_term = 0.35 * jnp.square(value - batch.target).mean()
            return policy_term + value_term - 0.1 * distribution.entropy().mean()

        found = jax.grad(ppo_loss, argnums=1, has_aux=True)(policy, params, batch, hyper)
        return *found, jax.grad(expected)(params)

    grads, samples, expected = gradients(jax.random.key(0))
    assert_same(grads, expected, rtol=1e-4, atol=1e-6)
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
    program = jax.make_jaxpr(agent.update)(state, jax.random.key(0), played()).jaxpr
    (passes,) = (loop for loop in loops(program) if loop.params["length"] == epochs)
    inner = list(loops(passes.params["jaxpr"].jaxpr))
    assert inner
    for loop in (passes, *inner):
        carried = loop.params["jaxpr"].jaxpr.outvars
        stacked = [
            x.aval for x, one in zip(loop.outvars, carried, strict=True) if x.aval.shape != one.aval.shape
        ]
        assert stacked and all(x.size <= loop.params["length"] * 6 for x in stacked)


def results(jaxpr):
    """Shapes of all that a program computes, inside its loops and functions too."""
    for equation in jaxpr.eqns:
        yield from (x.aval.shape for x in equation.outvars)
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from results(inner)


@pytest.mark.parametrize("settings", [{}, {"accumulation": 2}, {"sampling": "sequential"}], ids=str)
def test_passes_copy_minibatches_and_never_the_whole_batch(settings):
    agent, state = make(epochs=11, num_minibatches=6, widths=(4,), **settings)
    program = jax.make_jaxpr(agent.update)(state, jax.random.key(0), played()).jaxpr
    (passes,) = (loop for loop in loops(program) if loop.params["length"] == 11)
    shapes = set(results(passes.params["jaxpr"].jaxpr))
    assert max(map(np.prod, shapes)) < T * E * A * F
    assert {shape for shape in shapes if shape[-1:] == (F,) and np.prod(shape) == T * E * A // 6 * F}


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
        return jnp.ones(()), *sum_alive({"approx_kl": minibatch[0]}, minibatch[1]), memory

    optimizer = config.make_optimizer()
    hyper = {name: jnp.float32(getattr(config, name)) for name in config.traced() if getattr(config, name)}
    hyper["target_kl"] = jnp.float32(target_kl)
    start = MinibatchCarry(jnp.zeros(()), optimizer.init(jnp.zeros(())), jnp.zeros((), bool), ())
    poisoned = jnp.asarray(np.where(alive, kl, np.nan)), jnp.asarray(alive)
    _, steps = run_minibatch_epoch(config, optimizer, gradient, start, poisoned, hyper)
    np.testing.assert_allclose(steps.metrics()["approx_kl"], kl[learnt].mean(), rtol=1e-6)


def test_clipped_terms():
    ratio, advantage = jnp.array([1.5, 1.5, 0.5, 0.5]), jnp.array([1.0, -1.0, 1.0, -1.0])
    np.testing.assert_allclose(surrogate_loss(ratio, advantage, 0.2), [-1.2, 1.5, -0.5, 0.8])
    slope = jax.jit(jax.grad(lambda r: surrogate_loss(r, advantage, 0.2).sum()))(ratio)
    np.testing.assert_allclose(slope, [0.0, 1.0, -1.0, 0.0])
    value, target = jnp.array([2.0, 2.0]), jnp.array([2.0, 0.0])
    np.testing.assert_allclose(value_loss(value, jnp.ones(2), target, 0.5), [0.125, 2.0])
    np.testing.assert_allclose(value_loss(value, jnp.ones(2), target, jnp.inf), [0.0, 2.0])


@pytest.mark.thorough
def test_dead_agents_do_not_influence_learning_whatever_their_data():
    agent, state = make(DISCRETE, normalize_reward=True)
    rollout = played(DISCRETE)
    alive = np.array(rollout.alive)
    alive[:, 0, 1], alive[3:, 1, 0] = False, False
    rollout = rollout.replace(
        alive=alive,
        discount=changed(rollout.discount, (2, 1, 0), 0.0),
        boundary=changed(changed(rollout.boundary, np.s_[:, 1, 0], False), (-1, 1, 0), True),
    )

    def poison(x, value):
        return np.where(alive.reshape(alive.shape + (1,) * (x.ndim - 3)), x, x.dtype.type(value))

    poisoned = rollout.replace(
        obs=poison(rollout.obs, np.nan),
        action=poison(rollout.action, 1),
        extras={
            "log_prob": poison(rollout.extras["log_prob"], -np.inf),
            "value": poison(rollout.extras["value"], np.nan),
        },
        reward=poison(rollout.reward, np.inf),
        bootstrap=poison(rollout.bootstrap, np.nan),
        mask=poison(rollout.mask, False),
        last_value=changed(changed(rollout.last_value, (0, 1), np.nan), (1, 0), np.inf),
    )
    clean, garbage = (learn(agent, state, x, key=5) for x in (rollout, poisoned))
    assert_same(clean[0].replace(hyper={}), garbage[0].replace(hyper={}), rtol=1e-6)
    assert_same(clean[1], garbage[1], rtol=1e-6)
    assert any(jax.tree.leaves(jax.tree.map(lambda x, y: np.any(x != y), clean[0].params, state.params)))

    nobody, _ = learn(agent, state, poisoned.replace(alive=np.zeros_like(alive)), key=5)
    assert_same(nobody.params, state.params)


@pytest.mark.thorough
def test_vmapping_over_learning_rates_equals_single_runs():
    (agent, state), rollout = make(), played()
    rates = np.float32([1e-4, 1e-3, 1e-2])

    def start(rate):
        return state.replace(hyper=state.hyper | {"learning_rate": rate})

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def together(rate, rollout):
        return agent.update(start(rate), jax.random.key(2), rollout)

    results = numbers(together(rates, rollout))
    for i, rate in enumerate(rates):
        single = learn(agent, start(rate), rollout)
        assert_same(jax.tree.map(lambda x, i=i: x[i], results), single, rtol=1e-3, atol=1e-5)


def test_kl_stop_skips_the_rest_of_the_update():
    agent, state = make(learning_rate=0.05, target_kl=1e-3)
    stopped, metrics = learn(agent, state, played())
    applied = int(stopped.optimizer.count)
    assert 1 <= applied < STEPS
    np.testing.assert_allclose(metrics["skipped_minibatches"], 1 - applied / STEPS, rtol=1e-6)

    free = state.replace(hyper=state.hyper | {"target_kl": np.float32(np.inf)})
    full, metrics = learn(agent, free, played())
    assert full.optimizer.count == STEPS and metrics["skipped_minibatches"] == 0.0


def test_kl_is_judged_over_whole_epochs_if_asked_to():
    """The epoch that diverges is finished, and the last; under a bound above its divergence it is not."""
    settings = {"epochs": 3, "num_minibatches": 4, "kl_stop": "epoch"}
    agent, state = make(learning_rate=0.05, target_kl=1e-3, **settings)
    stopped, metrics = learn(agent, state, played())
    assert int(stopped.optimizer.count) == 4
    bound = state.hyper | {"target_kl": metrics["approx_kl"] * np.float32(1.01)}
    longer, _ = learn(agent, state.replace(hyper=bound), played())
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
    seen = []
    for i in range(6):
        state, metrics = learn(agent, state, played(), i)
        seen.append([float(metrics[k]) for k in ("learning_rate", "entropy_coefficient", "clip")])
    share = np.minimum(np.arange(6) / 4, 1.0)
    np.testing.assert_allclose([s[0] for s in seen], 3e-4 - 2e-4 * share, rtol=1e-4)
    np.testing.assert_allclose([s[1] for s in seen], 0.05 * (1 + np.cos(np.pi * share)), atol=1e-6)
    np.testing.assert_allclose([s[2] for s in seen], 0.2 - 0.1 * share, rtol=1e-4)


def test_acting_leaves_the_normaliser_alone_and_uses_it():
    agent, state = make()
    trained, _ = learn(agent, state, played(), key=0)
    np.testing.assert_allclose(trained.observations.mean, 3.0, atol=1.0)
    obs, reset = np.full((E, A, F), 4.0, np.float32), np.zeros((E, A), bool)
    bare, greedy = trained.replace(observations=state.observations), jax.jit(agent.greedy)
    with_statistics, carry = greedy(trained, obs, (), reset, None)
    assert carry == () and with_statistics.shape == (E, A, 2)
    assert not np.allclose(with_statistics, greedy(bare, obs, (), reset, None)[0])
    shifted = (obs - trained.observations.mean) / np.sqrt(trained.observations.var)
    np.testing.assert_allclose(
        with_statistics, greedy(bare, shifted, (), reset, None)[0], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("normalize_advantage", mark_others(["batch", "none"], "batch"))
def test_a_continuous_target_is_learnt(normalize_advantage):
    def reward(obs, action):
        return -jnp.square(action - jnp.array([0.5, -0.4])).sum(-1)

    agent, state = make(learning_rate=0.01, gamma=0.0, normalize_advantage=normalize_advantage)

    def step(state, i):
        rollout = rollout_of(agent, state, i, reward=reward)
        return agent.update(state, jax.random.key(i), rollout)

    @jax.jit
    def learnt(state):
        state, metrics = jax.lax.scan(step, state, jnp.arange(60))
        return agent.greedy(state, jnp.full((4, F), 3.0), (), jnp.zeros(4, bool), None)[0], metrics

    action, metrics = numbers(learnt(state))
    np.testing.assert_allclose(action, np.broadcast_to([0.5, -0.4], (4, 2)), atol=0.15)
    assert metrics["action_std"][-1] < 0.5 * metrics["action_std"][0]


def test_a_masked_choice_is_learnt():
    mask = np.broadcast_to(np.arange(5) != 2, (T, E, A, 5))

    def reward(obs, action):
        return (action[..., 0] == 1) + 0.5 * (action[..., 1] == 0)

    agent, state = make(DISCRETE, learning_rate=0.01, gamma=0.0)

    def step(state, i):
        return agent.update(state, jax.random.key(i), rollout_of(agent, state, i, mask, reward))

    @jax.jit
    def learnt(state):
        state, _ = jax.lax.scan(step, state, jnp.arange(40))
        return agent.greedy(state, jnp.full((4, F), 3.0), (), jnp.zeros(4, bool), mask[0, 0, :1])[0]

    action = learnt(state)
    np.testing.assert_array_equal(action, np.broadcast_to([1, 0], (4, 2)))


def test_time_limits_bootstrap_and_deaths_do_not():
    """Reward 1 for ever, cut every fourth step: the value is 1 / (1 - gamma) unless the cut is a death."""
    gamma = 0.8
    agent, state = make(gamma=gamma, learning_rate=0.01, normalize_observation=False)
    boundary = np.broadcast_to((np.arange(T) % 4 == 3)[:, None, None], (T, E, A))

    def step(state, i, terminal):
        rollout = rollout_of(agent, state, i, reward=lambda obs, action: jnp.ones((T, E, A)))
        ones = jnp.ones_like(rollout.obs)
        _, _, extras = agent.act(state, jax.random.key(0), ones, (), rollout.reset, None)
        rollout = rollout.replace(
            obs=ones,
            extras=extras,
            last_value=extras["value"][0],
            boundary=boundary,
            bootstrap=jnp.where(boundary & ~terminal, extras["value"], 0.0),
            discount=jnp.where(boundary & terminal, 0.0, 1.0),
        )
        return agent.update(state, jax.random.key(i), rollout)[0], extras["value"][0, 0, 0]

    @jax.jit
    def values(states, terminal):
        both = jax.vmap(step, (0, None, 0))
        return jax.lax.scan(lambda states, i: both(states, i, terminal), states, jnp.arange(250))[1]

    cut, died = np.asarray(values(jax.tree.map(lambda x: np.stack([x, x]), state), np.array([False, True]))).T
    assert 1.5 < died[-1] < 3.5
    np.testing.assert_allclose(cut[-1], 1 / (1 - gamma), rtol=0.03)


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
    _, state = make()
    with pytest.raises(ValueError, match="num_minibatches=5"):
        agent.update(state, jax.random.key(0), played())


def test_first_states_hold_the_settings_and_the_length_of_the_run():
    """Those of `agent.init`, which other tests share; how it is learnt leaves all else as it is."""
    config = PPOConfig(**SMALL, learning_rate=0.05, clip=0.3, target_kl=0.1)
    agent = config.make((F,), CONTINUOUS, samples=E * A, updates=10)
    state = jax.jit(agent.init)(jax.random.key(0))
    numbers_of = {"learning_rate": 0.05, "clip": 0.3, "target_kl": 0.1, "total_updates": 10.0}
    for name, value in numbers_of.items():
        assert state.hyper[name] == agent.hyper()[name] == np.float32(value)
    _, shared = on_policy_cases.make(config, (F,), CONTINUOUS, samples=E * A, updates=10)
    assert_same(state, shared, rtol=1e-6, atol=1e-7)


def test_settings_from_lists_are_hashable():
    assert hash(PPOConfig(widths=[8, 8])) == hash(PPOConfig(widths=(8, 8)))


@pytest.mark.parametrize("normalize", ["minibatch", "batch"])
def test_slots_that_never_act_take_no_share_of_a_minibatch(normalize):
    """Half of the rows belong to a slot that is never filled: half of the minibatches are full."""
    agent, state = make(normalize_advantage=normalize)
    rollout = played()
    after, _ = learn(agent, state, rollout)
    assert int(after.optimizer.count) == STEPS
    alive = changed(rollout.alive, np.s_[:, :, 1], False)
    after, metrics = learn(agent, state, rollout.replace(alive=alive))
    assert int(after.optimizer.count) == STEPS // 2
    assert all(np.isfinite(float(x)) for x in metrics.values())
    # A slot that is filled for a while is learnt from wherever its rows lie.
    alive = changed(rollout.alive, np.s_[1:, :, 1], False)
    after, _ = learn(agent, state, rollout.replace(alive=alive))
    assert int(after.optimizer.count) == STEPS


@pytest.mark.parametrize("separate", [True, False])
def test_the_critics_gradient_leaves_the_actors_step_alone_where_they_are_clipped_apart(separate):
    """A large critic shrinks the actor's gradient in a joint norm, which a large epsilon of Adam shows."""
    agent, state = make(separate_clipping=separate, adam_eps=1.0, max_grad_norm=0.1)
    rollout = played()
    learn = jax.jit(agent.update)

    def learnt(coefficient):
        hyper = state.hyper | {"value_coefficient": jnp.float32(coefficient)}
        after, _ = learn(state.replace(hyper=hyper), jax.random.key(0), rollout)
        moved = jax.tree.map(lambda x, y: x - y, after.params, state.params)["params"]
        return {name: np.concatenate([*map(np.ravel, jax.tree.leaves(one))]) for name, one in moved.items()}

    little, much = learnt(1.0), learnt(1000.0)
    actor = ("actor_trunk", "policy")
    if separate:
        for name in actor:
            np.testing.assert_array_equal(little[name], much[name])
            assert np.abs(much[name]).max() > 0
    else:
        for name in actor:
            assert np.linalg.norm(much[name]) < 0.1 * np.linalg.norm(little[name])


def test_gradients_of_actor_and_critic_are_clipped_to_a_norm_each():
    grads = {"params": {"actor_trunk": {"kernel": jnp.full(4, 1.5)}, "value": {"out": jnp.full(9, 10.0)}}}
    clipped = clip_apart(grads, 6.0)["params"]
    np.testing.assert_allclose(clipped["actor_trunk"]["kernel"], 1.5)
    np.testing.assert_allclose(clipped["value"]["out"], 2.0, rtol=1e-6)


def test_shared_layers_cannot_be_clipped_apart():
    with pytest.raises(ValueError, match="separate_clipping=True: must be false with shared=True"):
        make(separate_clipping=True, shared=True)
    with pytest.raises(
        ValueError, match="separate_clipping=True: must be false with core.kind=gru, whose core"
    ):
        make(separate_clipping=True, core={"kind": "gru", "width": 8}, sampling="sequential")
