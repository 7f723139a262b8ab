import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from value_cases import A, E, make, moved, numpy_values

from algos import collectives
from algos.nets.action_values import ValueLayer, make_action_values
from algos.nets.networks import Layers
from algos.off_policy.dqn import DQNConfig
from algos.off_policy.learning import anneal_learning_rate
from algos.off_policy.replay.rings import Sample
from algos.types import ActionSpec, Block, Context, ObservationSpec, Transition

SIZES = ActionSpec("discrete", (3, 2))
F, B = 4, 12
TINY = {"widths": (8,), "batch_size": 8, "learning_starts": 8, "normalize_observation": False}


@functools.cache
def small(**settings):
    agent = make(DQNConfig(**TINY | settings), SIZES, F)
    return agent, jax.tree.map(np.asarray, jax.jit(agent.init)(jax.random.key(0)))


def batch_of(mask):
    noise = np.random.default_rng(3)
    return Sample(
        obs=np.float32(noise.standard_normal((B, F))),
        action=np.float32(np.stack([noise.integers(0, 3, B), noise.integers(0, 2, B)], -1)),
        reward=np.float32(noise.standard_normal(B)),
        discount=np.float32(np.where(np.arange(B) % 3 == 0, 0.0, 0.9)),
        next_obs=np.float32(noise.standard_normal((B, F))),
        weight=np.ones(B, np.float32),
        index=np.arange(B),
        next_context=Context(mask=mask),
    )


@pytest.mark.parametrize("double", [True, False])
def test_targets_are_those_of_the_best_legal_action_of_the_online_or_the_target_network(double):
    noise = np.random.default_rng(1)
    mask = noise.random((B, 5)) < 0.5
    mask[:, [0, 3]] = True
    _, state = small()
    params = moved(state.params)
    state = state.replace(params=params, targets=moved(params, 5))
    method = DQNConfig(**TINY, double=double).method(ObservationSpec((F,)), SIZES)
    batch = batch_of(mask)
    online, slow = (
        numpy_values(part["critic"]["agent"], batch.next_obs) for part in (state.params, state.targets)
    )
    judge = np.where(mask, online if double else slow, -np.inf)
    rows = np.arange(B)
    best = slow[rows, judge[:, :3].argmax(-1)] + slow[rows, 3 + judge[:, 3:].argmax(-1)]
    found = jax.jit(method.target)(state, jax.random.key(0), batch)
    np.testing.assert_allclose(found, batch.reward + batch.discount * best, rtol=1e-4, atol=1e-5)
    # That illegal options matter here, and that both networks do.
    free = online if double else slow
    assert (np.where(mask, free, -np.inf)[:, :3].argmax(-1) != free[:, :3].argmax(-1)).any()
    assert (online[:, :3].argmax(-1) != slow[:, :3].argmax(-1)).any()
    first, second = np.int32(batch.action).T
    own = numpy_values(state.params["critic"]["agent"], batch.obs)
    predicted = jax.jit(method.predict)(state.params["critic"], batch)
    np.testing.assert_allclose(predicted[0, :, 0], own[rows, first] + own[rows, 3 + second], rtol=1e-4)


def lived(key, *, mask=None, boundary=False, terminal=False):
    """One decision `[E, A]`, always paid 1, of agents that always see the same."""
    keys = jax.random.split(key, 2)
    action = jnp.stack([jax.random.randint(k, (E, A), 0, n) for k, n in zip(keys, (3, 2), strict=True)], -1)
    ones, alive = jnp.ones((E, A, F)), jnp.ones((E, A), bool)
    return Transition(
        obs=ones,
        action=action,
        reward=jnp.ones((E, A)),
        discount=jnp.broadcast_to(jnp.where(terminal, 0.0, 1.0), (E, A)),
        next_obs=ones,
        boundary=jnp.broadcast_to(boundary, (E, A)),
        success=~alive,
        alive=alive,
        next_context=Context(mask=mask),
    )


def test_time_limits_bootstrap_deaths_do_not_and_targets_are_copied_when_due():
    """Reward 1 for ever, cut after every step: 1 / (1 - gamma), unless the cut is a death; then 1."""
    settings = {"tau": 1.0, "target_period": 5, "gamma": 0.8, "learning_rate": 3e-3}
    agent, state = small(**settings)
    starts = jax.tree.map(lambda x: np.stack([x, x]), state)

    def step(state, i, terminal):
        key = jax.random.fold_in(jax.random.key(1), i)
        after, metrics = agent.update(state, key, lived(key, boundary=True, terminal=terminal))
        return after, (metrics, jax.tree.map(jnp.any, tree_differs(after.targets, state.targets)))

    @jax.jit
    def live(states):
        return jax.lax.scan(
            lambda states, i: jax.vmap(step, (0, None, 0))(states, i, jnp.array([False, True])),
            states,
            jnp.arange(400),
        )

    after, (metrics, copied) = live(starts)
    np.testing.assert_allclose(metrics["value"][-50:].mean(0), [5.0, 1.0], rtol=0.03)
    copied = np.stack([np.asarray(x)[:, 0] for x in jax.tree.leaves(copied)]).any(0)
    assert set(np.flatnonzero(copied) % 5) == {4} and copied.sum() == 80
    assert after.updates.tolist() == [400, 400]
    epsilon = [1 - 0.95 * 16 / 1e4, 1 - 0.95 * 0.64]
    np.testing.assert_allclose(metrics["epsilon"][[0, -1], 0], epsilon, rtol=1e-4)


def test_the_learning_rate_falls_linearly_with_the_transitions_and_stays_at_its_end():
    """16 transitions per decision: nothing is learnt any more from the third on."""
    settings = {"learning_rate": 0.01, "learning_rate_end": 0.0, "learning_rate_transitions": 48}
    agent, state = small(**settings)

    def step(state, i):
        key = jax.random.fold_in(jax.random.key(1), i)
        after, _ = agent.update(state, key, lived(key))
        steps = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), after.params, state.params)
        return after, (anneal_learning_rate(after), jnp.stack(jax.tree.leaves(steps)).max())

    _, (rates, steps) = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(4)))(state)
    np.testing.assert_allclose(rates, [0.02 / 3, 0.01 / 3, 0, 0], rtol=1e-5, atol=1e-9)
    # The first steps of Adam are those of the rate.
    np.testing.assert_allclose(steps, rates, rtol=0.1, atol=1e-9)
    constant, begun = small()
    assert "learning_rate_end" not in constant.hyper() and anneal_learning_rate(begun) == np.float32(3e-4)


def tree_differs(x, y):
    return jax.tree.map(lambda a, b: a != b, x, y)


def test_acting_is_random_at_first_and_never_illegal():
    agent, state = small()
    state = state.replace(params=moved(state.params))
    obs, reset = np.ones((1000, A, F), np.float32), np.zeros((1000, A), bool)
    mask = np.broadcast_to([True, False, True, False, True], (1000, A, 5))
    act = jax.jit(agent.act)
    early, _, extras = act(state, jax.random.key(0), obs, (), reset, mask)
    best, _ = jax.jit(agent.greedy)(state, obs, (), reset, mask)
    late = state.replace(seen=np.int32(10**6))
    found, _, _ = act(late, jax.random.key(0), obs, (), reset, mask)
    assert extras == {} and best.dtype == jnp.int32
    for action in (early, best, found):
        assert set(np.unique(action[..., 0])) <= {0, 2} and set(np.unique(action[..., 1])) == {1}
    np.testing.assert_allclose((early[..., 0] == 0).mean(), 0.5, atol=0.05)
    np.testing.assert_allclose((found != best).any(-1).mean(), 0.05 / 2, atol=0.02)
    kept = agent.policy_state(late)
    assert kept.replay is None and kept.targets == {} and "mixer" not in kept.params["critic"]
    np.testing.assert_array_equal(act(kept, jax.random.key(0), obs, (), reset, mask)[0], found)


def test_sequences_are_run_step_by_step_and_learnt_from_where_they_are_inside():
    config = DQNConfig(**TINY, core={"kind": "gru", "width": 8}, replay={"sequence": 3})
    method, agent = config.method(ObservationSpec((F,)), SIZES), make(config, SIZES, F)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    params = moved(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state.params))
    state = state.replace(params=params, targets=moved(params, 4), replay=None)
    single, carry, none = batch_of(None), agent.initial_carry((4,)), np.zeros(4, bool)
    fields = ("obs", "action", "reward", "discount", "next_obs")
    rows = {name: getattr(single, name).reshape((4, 3, *getattr(single, name).shape[1:])) for name in fields}
    rows["next_obs"][:, :2] = rows["obs"][:, 1:]
    inside = np.array([[True, True, True], [True, True, False], [True, False, False], [True, True, True]])
    batch = Sample(**rows, weight=None, index=None, inside=inside, next_context=Context())
    found = np.asarray(jax.jit(method.predict)(params["critic"], batch))[0, ..., 0]
    late = state.replace(optimizers={}, hyper={}, seen=0, updates=0)
    target = jax.jit(method.target)(late, None, batch)

    policy = make_action_values(ValueLayer(SIZES.sizes), (8,), Layers("relu"), F, config.core)
    seen = np.concatenate([rows["obs"], rows["next_obs"][:, -1:]], 1)

    @jax.jit
    def run(own, carry):
        steps = []
        for t in range(4):
            carry, values, _ = policy.step(own["critic"]["agent"], seen[:, t], carry, none, None)
            steps.append(values)
        return steps

    fast, slow = run(state.params, carry), run(state.targets, carry)
    for t in range(3):
        np.testing.assert_allclose(found[:, t], fast[t].of(rows["action"][:, t]), rtol=1e-4, atol=1e-5)
        best = np.asarray(slow[t + 1].of(fast[t + 1].mode()))
        expected = rows["reward"][:, t] + rows["discount"][:, t] * best
        np.testing.assert_allclose(target.value[:, t], expected, rtol=1e-4, atol=1e-5)
    losses, errors = method.critic_loss(found[None, ..., None], target)
    shared = jax.jit(method.regress)(params["critic"], late, None, batch)
    for one, other in zip(shared, (losses, errors, found[None, ..., None]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    missed = found - np.asarray(target.value)
    np.testing.assert_allclose(losses.mean(), 0.5 * np.square(missed)[inside].mean(), rtol=1e-4)
    np.testing.assert_allclose(errors[2], abs(missed[2, 0]), rtol=1e-4)


def test_shards_weight_the_decisions_of_all_their_sequences_alike():
    """The loss of both halves of a batch, one with more decisions than the other, is that of the whole."""
    config = DQNConfig(**TINY, core={"kind": "gru", "width": 8}, replay={"sequence": 3})
    method, single = config.method(ObservationSpec((F,)), SIZES), batch_of(None)
    params = jax.eval_shape(make(config, SIZES, F).init, jax.random.key(0)).params
    params = moved(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params))
    state = type("State", (), {"params": params, "targets": params})
    fields = ("obs", "action", "reward", "discount", "next_obs")
    rows = {name: getattr(single, name).reshape((4, 3, *getattr(single, name).shape[1:])) for name in fields}
    inside = np.arange(3) < np.array([[1], [1], [3], [2]])
    batch = Sample(**rows, weight=None, index=None, inside=inside, next_context=Context())

    def loss(batch):
        target = method.target(state, None, batch)
        return method.critic_loss(method.predict(params["critic"], batch), target)[0].mean()

    halves = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), batch)
    of_halves = jax.jit(jax.vmap(loss, axis_name=collectives.HERE))(halves)
    np.testing.assert_allclose(of_halves.mean(), jax.jit(loss)(batch), rtol=1e-5)


def test_the_mean_value_of_sequences_is_that_of_the_decisions_inside():
    """Episodes of one decision, from an empty memory: all have the same value, the best one."""
    config = DQNConfig(**TINY, core={"kind": "gru", "width": 8}, replay={"sequence": 4})
    agent = make(config, SIZES, F)
    params = jax.eval_shape(agent.init, jax.random.key(0)).params
    moves = moved(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params))
    given = lived(jax.random.key(0), boundary=True, terminal=True)
    policy = make_action_values(ValueLayer(SIZES.sizes), (8,), Layers("relu"), F, config.core)

    @jax.jit
    def learn(params):
        state, empty = agent.init(jax.random.key(0)).replace(params=params), policy.initial_carry((E, A))
        own, reset = params["critic"]["agent"], jnp.zeros((E, A), bool)
        _, values, best = policy.step(own, given.obs, empty, reset, None)
        _, metrics = agent.update(state, jax.random.key(1), given.replace(action=values.mode()))
        return metrics["value"], best

    value, best = learn(moves)
    np.testing.assert_allclose(value, best.mean(), rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"core": {"kind": "gru"}}, "replay.sequence=1: must be above 1 with core.kind=gru"),
        ({"replay": {"sequence": 4, "n_step": 2}}, "replay.n_step=2: must be 1 with sequence=4"),
        ({"target_period": 0}, "target_period=0: must be a whole number of at least 1"),
        ({"epsilon": 1.5}, "epsilon=1.5: must be a number from 0 to 1"),
        ({"learning_rate_end": -1.0}, "learning_rate_end=-1.0: must be a number from 0 to 1"),
        ({"epsilon_transitions": 0}, "epsilon_transitions=0: must be a whole number of at least 1"),
        ({"widths": ()}, r"widths=\(\): needs at least one layer"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0: must be a number from"),
        ({"double": 1}, "double=1: must be true or false"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        DQNConfig(**settings)


def test_continuous_actions_are_refused():
    with pytest.raises(ValueError, match="algo=dqn: needs discrete actions; these are continuous"):
        make(DQNConfig(), ActionSpec("continuous", (2,)))


def test_sequences_need_a_memory():
    with pytest.raises(ValueError, match="replay.sequence=4: must be 1 without a recurrent core"):
        make(DQNConfig(**TINY, replay={"sequence": 4}), SIZES, F)


@pytest.mark.parametrize("key", ["n_step", "sequence"])
def test_windows_need_consecutive_decisions(key):
    core = {"kind": "gru" if key == "sequence" else "none"}
    with pytest.raises(ValueError, match=f"replay.{key}=4: must be 1 in turn-based games"):
        make(DQNConfig(**TINY, core=core, replay={key: 4}), SIZES, F, late=True, turns=True)


def test_memories_read_sets_of_entities():
    """Two rows of two numbers, normalised; the memory's shape is that of the sequences, not of the rows."""
    config = DQNConfig(
        **TINY | {"normalize_observation": True},
        core={"kind": "gru", "width": 8},
        encoder={"kind": "deepset", "width": 8},
        replay={"sequence": 3},
    )
    agent = make(config, SIZES, F, blocks=(Block("others", 0, (2, 2), "set"),))
    start = jax.eval_shape(agent.init, jax.random.key(0))
    after, metrics = jax.eval_shape(agent.update, start, jax.random.key(0), lived(jax.random.key(1)))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, start) and metrics["value"].shape == ()
