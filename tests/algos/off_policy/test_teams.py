import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from value_cases import GAME, SMALL, A, E, act_in_game, make, moved, numpy_values, play_two_steps

from algos.nets.action_values import ValueLayer, make_action_values
from algos.nets.networks import Layers
from algos.off_policy.dqn import DQNConfig
from algos.off_policy.replay.rings import Sample, make_windows, read_samples, read_sequences
from algos.off_policy.teams import MonotonicMixer, QMIXConfig, VDNConfig, rows_of_teams
from algos.teams import append_agent_ids
from algos.types import ActionSpec, Context, ObservationSpec, Transition

RANDOM = {"tau": 0.05, "normalize_observation": False}


@functools.cache
def learnt(config_class, **settings):
    """What learners of random play in the game of two steps know at the end.

    Returns:
      values of the first agent's actions at the start, of the four joint actions in the state that pays
      `PAYOFF`, the mean error, and greedy actions; of each agent alone where they are independent.
    """
    config = config_class(**SMALL | RANDOM | settings, replay={"capacity": 4096})
    agent, team = make(config, team=A), {} if config_class is DQNConfig else {"team": A}
    method = config.method(ObservationSpec((3,), **team), GAME)
    actions = np.float32([[0, 0], [1, 0], [0, 0], [0, 1], [1, 0], [1, 1]])[..., None]
    places = np.eye(3, dtype=np.float32)[[0, 0, 2, 2, 2, 2]]
    asked = Sample(
        obs=np.broadcast_to(places[:, None], (6, A, 3)), action=actions, reward=None, discount=None,
        next_obs=None, weight=None, index=None, context=Context(alive=np.ones((6, A), bool)),
    )  # fmt: skip

    @jax.jit
    def play(key):
        state, metrics = play_two_steps(agent, key, 1200)
        value = method.predict(state.params["critic"], asked)[0, ..., 0]
        return value, metrics["td_error"][-100:].mean(), act_in_game(agent, state)

    value, error, action = jax.device_get(play(jax.random.key(2)))
    return value[:2], value[2:].reshape(2, 2, *value.shape[1:]), float(error), action


@pytest.mark.thorough
def test_independent_learners_average_over_what_the_others_do():
    """Each is worth 1/2 or 9/2 where 8 could be had, so that the safe 7 is chosen.

    The second agent, whose first choice decides nothing, has the mean of 7 and 9/2 there, and the two share
    their values.
    """
    start, table, _, action = learnt(DQNConfig)
    np.testing.assert_allclose(table[..., 0], [[0.5, 0.5], [4.5, 4.5]], atol=0.4)
    np.testing.assert_allclose(start[:, 0], [6.375, 5.125], atol=0.4)
    assert action[0, 0] == 0


@pytest.mark.thorough
def test_sums_of_values_fit_a_payoff_as_well_as_sums_can():
    """The least-squares sum for 0, 1, 1, 8 is -3/2, 5/2, 5/2, 13/2, and 13/2 is less than the safe 7."""
    start, table, _, action = learnt(VDNConfig, team_reward="mean")
    np.testing.assert_allclose(table, [[-1.5, 2.5], [2.5, 6.5]], atol=0.4)
    np.testing.assert_allclose(start, [7.0, 6.5], atol=0.4)
    assert action[0, 0] == 0 and action[2].tolist() == [1, 1]


@pytest.mark.thorough
def test_mixtures_of_values_fit_a_monotonic_payoff():
    """QMIX finds the 8 (Rashid et al. 2018, table 1)."""
    start, table, error, action = learnt(QMIXConfig, team_reward="mean")
    np.testing.assert_allclose(table, [[0.0, 1.0], [1.0, 8.0]], atol=0.3)
    np.testing.assert_allclose(start, [7.0, 8.0], atol=0.3)
    assert action[0, 0] == 1 and action[2].tolist() == [1, 1] and error < 0.2


def test_mixtures_never_fall_as_a_value_rises():
    mixer, noise = MonotonicMixer(8, (16,)), np.random.default_rng(0)
    values, state = (np.float32(3.0 * noise.standard_normal((200, n))) for n in (3, 5))
    params = moved(jax.jit(mixer.init)(jax.random.key(0), values, state), scale=1.0)
    slopes = jax.jit(jax.grad(lambda *given: mixer.apply(params, *given).sum(), argnums=(0, 1)))
    of_values, of_state = slopes(values, state)
    assert (of_values >= 0).all() and (of_values > 0).any(0).all()
    assert (of_state < 0).any() and (of_state > 0).any()


def test_mixtures_equal_the_formula():
    """The weights of an agent are its own, and the last bias has a hidden layer of the mixture's width."""
    mixer, noise = MonotonicMixer(4, (16,)), np.random.default_rng(0)
    values, state = (np.float32(noise.standard_normal((6, n))) for n in (3, 5))
    params = moved(jax.jit(mixer.init)(jax.random.key(0), values, state), scale=1.0)
    layers = jax.tree.map(np.asarray, params)["params"]

    def produce(name):
        trunk, last = layers[f"{name}_trunk"]["layer_0"], layers[name]
        hidden = np.maximum(state @ trunk["kernel"] + trunk["bias"], 0.0)
        return hidden @ last["kernel"].T + last["bias"]

    first = np.abs(produce("first")).reshape(6, 3, 4)
    bias = state @ layers["bias"]["kernel"].T + layers["bias"]["bias"]
    hidden = np.einsum("ba,bak->bk", values, first) + bias
    hidden = np.where(hidden > 0, hidden, np.expm1(np.minimum(hidden, 0)))
    expected = (hidden * np.abs(produce("second"))).sum(-1) + produce("value")[:, 0]
    assert layers["value_trunk"]["layer_0"]["kernel"].shape == (5, 4)
    np.testing.assert_allclose(jax.jit(mixer.apply)(params, values, state), expected, rtol=1e-5, atol=1e-5)


def test_mixtures_begin_near_zero_for_states_of_any_scale():
    """Positions in SMAX reach 32: a first value of 40 where returns are 20 never fell in training."""
    mixer, noise = MonotonicMixer(64, (256,)), np.random.default_rng(0)
    values, state = np.float32(noise.standard_normal((50, 3))), np.float32(noise.uniform(-32, 32, (50, 75)))
    mixed = jax.jit(lambda key: mixer.init_with_output(key, values, state)[0])(jax.random.key(0))
    assert 0 < np.abs(mixed).max() < 1.0


ALIVE = np.array([[True, True], [True, False], [False, False], [True, True]])
LATER = np.array([[True, True], [True, False], [False, False], [False, False]])


def decision(garbage=0.0):
    """A decision of four teams: both act; one does; nobody does; both die in it."""
    noise = np.random.default_rng(0)

    def some(alive, *shape):
        x = np.float32(noise.standard_normal((*alive.shape, *shape)))
        return np.where(alive.reshape(alive.shape + (1,) * len(shape)), x, np.float32(garbage))

    return Transition(
        obs=some(ALIVE, 3),
        action=np.ones((4, 2, 1), np.int32),
        reward=some(ALIVE),
        discount=np.float32(LATER | ~ALIVE),
        next_obs=some(LATER, 3),
        boundary=ALIVE & ~LATER,
        success=np.zeros((4, 2), bool),
        alive=ALIVE,
        context=Context(ALIVE, None, some(ALIVE, 5)),
        next_context=Context(LATER, noise.random((4, 2, 2)) < 0.5, some(LATER, 5)),
    )


def test_a_row_holds_a_team_without_what_is_seen_of_the_dead():
    given, spec = decision(), ObservationSpec((3,), (), (5,), 2)
    rows = rows_of_teams(GAME, "sum", given, spec)
    np.testing.assert_array_equal(rows.alive, [True, True, False, True])
    np.testing.assert_array_equal(rows.discount, [1.0, 1.0, 0.0, 0.0])
    np.testing.assert_array_equal(rows.boundary, [False, False, True, True])
    np.testing.assert_allclose(rows.reward, np.where(ALIVE, given.reward, 0.0).sum(1), rtol=1e-6)
    np.testing.assert_array_equal(rows.obs[1, 1], np.zeros(3))
    np.testing.assert_array_equal(rows.context.critic_obs[:2], given.context.critic_obs[:2, 0])
    np.testing.assert_array_equal(rows.next_context.mask, given.next_context.mask)
    mean = rows_of_teams(GAME, "mean", given, spec).reward
    np.testing.assert_allclose(mean, np.where(ALIVE, given.reward, 0.0).sum(1) / [2, 1, 1, 2], rtol=1e-6)
    paid = given.replace(
        reward=np.ones((4, 2), np.float32), context=given.context.replace(paid=np.ones((4, 2), bool))
    )
    for kind, reward in (("sum", 2.0), ("mean", 1.0)):
        np.testing.assert_array_equal(rows_of_teams(GAME, kind, paid, spec).reward, np.full(4, reward))
    wild = rows_of_teams(GAME, "sum", decision(np.nan), spec)
    kept = [(x.obs, x.next_obs, x.reward, x.context, x.next_context) for x in (rows, wild)]
    jax.tree.map(np.testing.assert_array_equal, *kept)


def test_the_first_living_agent_tells_the_state():
    given = decision()
    alive = np.array([[False, True]] * 4)
    context = given.context.replace(alive=alive)
    rows = rows_of_teams(
        GAME, "sum", given.replace(alive=alive, context=context), ObservationSpec((3,), (), (5,), 2)
    )
    np.testing.assert_array_equal(rows.context.critic_obs, given.context.critic_obs[:, 1])


def test_team_targets_add_the_best_legal_values_of_those_who_act_next():
    config = VDNConfig(widths=(8,), agent_ids=False, normalize_observation=False, double=False)
    method = config.method(ObservationSpec((3,), team=2), GAME)
    params = moved(method.init(jax.random.key(0)))
    rows = rows_of_teams(GAME, "sum", decision(), ObservationSpec((3,), team=2))
    mask = np.asarray(rows.next_context.mask) | ~np.asarray(rows.next_context.mask).any(-1, keepdims=True)
    values = numpy_values(params["critic"]["agent"], np.asarray(rows.next_obs))
    best = np.where(LATER, np.where(mask, values, -np.inf).max(-1), 0.0).sum(1)
    batch = Sample(
        **{name: getattr(rows, name) for name in ("obs", "action", "reward", "discount", "next_obs")},
        weight=None, index=None, context=rows.context,
        next_context=rows.next_context.replace(mask=mask),
    )  # fmt: skip
    state = type("State", (), {"params": params, "targets": params})
    found = method.target(state, None, batch)
    np.testing.assert_allclose(found, rows.reward + rows.discount * best, rtol=1e-5)
    own = numpy_values(params["critic"]["agent"], np.asarray(rows.obs))[..., 1]
    predicted = method.predict(params["critic"], batch)[0, :, 0]
    np.testing.assert_allclose(predicted, np.where(ALIVE, own, 0.0).sum(1), rtol=1e-5)


def test_an_agent_that_comes_is_valued_from_an_empty_memory():
    """The second agent of a team is there in the last two of four steps, the first in all."""
    steps, there = 4, np.array([[True, False], [True, False], [True, True], [True, True]])
    config = VDNConfig(
        widths=(8,), batch_size=8, learning_starts=1000, agent_ids=False, normalize_observation=False,
        core={"kind": "gru", "width": 8}, replay={"sequence": steps, "capacity": 128},
    )  # fmt: skip
    spec, agent = ObservationSpec((3,), team=A), make(config, team=A)
    method = config.method(spec, GAME)
    policy = make_action_values(ValueLayer(GAME.sizes), (8,), Layers("relu"), 3, config.core)
    obs = np.float32(np.random.default_rng(0).standard_normal((steps + 1, A, 3)))
    begins = np.array([[True, True], [False, False], [False, True], [False, False]])

    def spread(x):
        return np.broadcast_to(x[:, None], (steps, E, *x.shape[1:]))

    alive, last = spread(there), np.arange(steps) == steps - 1
    later = [np.concatenate([x[1:], x[:1]]) & ~last[:, None] for x in (there, begins)]
    given = Transition(
        obs=spread(obs[:-1]),
        action=np.zeros((steps, E, A, 1), np.int32),
        reward=np.zeros((steps, E, A), np.float32),
        discount=1.0 - np.float32(spread(there & last[:, None])),
        next_obs=spread(obs[1:]),
        boundary=spread(there & last[:, None]),
        success=np.zeros((steps, E, A), bool),
        alive=alive,
        context=Context(alive, begins=spread(begins)),
        next_context=Context(spread(later[0]), begins=spread(later[1])),
    )

    shapes = jax.eval_shape(agent.init, jax.random.key(0)).params
    params = moved(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes))
    own = params["critic"]["agent"]

    @jax.jit
    def learn(key):
        state = agent.init(key).replace(params=params, targets={"critic": params["critic"]})
        state, _ = jax.lax.scan(lambda state, x: agent.update(state, key, x), state, given)
        ring, first = state.replay.ring, jnp.zeros(1, jnp.int32)
        batch = read_sequences(ring, first, first, steps, jnp.ones(1), first, 1.0)
        carry, values, best = policy.initial_carry((A,)), [], []
        for t in range(steps):
            carry, now, _ = policy.step(own, obs[t], carry, begins[t], None)
            values.append(jnp.where(there[t], now.of(jnp.zeros((A, 1))), 0.0).sum())
            best.append(jnp.where(there[t], now.best(), 0.0).sum())
        targets = method.target(state, None, batch).value[0, :-1]
        predicted = method.predict(state.params["critic"], batch)[0, 0, :, 0]
        return predicted, jnp.stack(values), targets, jnp.stack(best[1:])

    predicted, values, targets, best = learn(jax.random.key(0))
    np.testing.assert_allclose(predicted, values, rtol=1e-4)
    np.testing.assert_allclose(targets, best, rtol=1e-4)


def test_an_agent_that_is_cut_before_the_others_is_valued_by_its_last_observation():
    """The second agent of a team is cut after the second of four steps, the first goes on to the end."""
    steps, there = 4, np.array([[True, True], [True, True], [True, False], [True, False]])
    cut = np.array([[False, False], [False, True], [False, False], [False, False]])
    over = (np.arange(steps) == steps - 1)[:, None] & there
    later = np.concatenate([there[1:], there[:1] & False]) | cut
    core = {"kind": "gru", "width": 8}
    config = VDNConfig(
        widths=(8,),
        batch_size=8,
        learning_starts=1000,
        core=core,
        replay={"sequence": steps, "capacity": 128},
    )
    obs = np.float32(1.0 + np.arange((steps + 1) * A * 3)).reshape(steps + 1, A, 3)

    def spread(x):
        return np.broadcast_to(x[:, None], (steps, E, *x.shape[1:]))

    given = Transition(
        obs=spread(obs[:-1]),
        action=np.zeros((steps, E, A, 1), np.int32),
        reward=spread(np.float32(there)),
        discount=spread(np.float32(~over)),
        next_obs=spread(obs[1:]),
        boundary=spread(cut | over | ~there),
        success=np.zeros((steps, E, A), bool),
        alive=spread(there),
        context=Context(spread(there), begins=np.zeros((steps, E, A), bool)),
        next_context=Context(spread(later), begins=np.zeros((steps, E, A), bool)),
    )
    agent, first = make(config, team=A), jnp.zeros(1, jnp.int32)

    @jax.jit
    def stored(key):
        ring = jax.lax.scan(lambda state, x: agent.update(state, key, x), agent.init(key), given)[
            0
        ].replay.ring
        window = make_windows(ring, first, first, 3, 0.5)
        one = read_samples(ring, window, None, None)
        run = read_sequences(ring, first, first, steps, None, None, 0.5)
        return one, run

    one, run = stored(jax.random.key(0))
    # Two steps of two rewards each, and then both agents' values.
    assert (one.reward.item(), one.discount.item()) == (3.0, 0.25)
    np.testing.assert_array_equal(one.next_obs[0], obs[2])
    np.testing.assert_array_equal(run.inside[0], [True, True, False, True])
    np.testing.assert_array_equal(run.next_obs[0, 1], obs[2])
    np.testing.assert_array_equal(run.next_context.alive[0, 1], [True, True])


def test_agents_of_a_team_are_told_apart_by_their_places():
    np.testing.assert_array_equal(append_agent_ids(3, jnp.zeros((2, 3, 1)))[1, :, 1:], np.eye(3))
    for shape in ((3, 1), (2, 2, 1)):
        with pytest.raises(ValueError, match="agent_ids=True: acts for all 3 agents of a team at once"):
            append_agent_ids(3, jnp.zeros(shape))


@pytest.mark.parametrize(
    ("config", "sizes", "message"),
    [
        (
            VDNConfig(),
            {"late": True},
            "algo=vdn: teams cannot learn from rewards after the end of all",
        ),
        (
            QMIXConfig(replay={"hindsight_ratio": 0.5}),
            {},
            "hindsight_ratio=0.5: must be 0 with algo=qmix",
        ),
        (VDNConfig(), {"action": ActionSpec("continuous", (2,))}, "algo=vdn: needs discrete actions"),
    ],
)
def test_tasks_that_teams_cannot_learn_are_refused(config, sizes, message):
    with pytest.raises(ValueError, match=message):
        make(config, team=A, **sizes)


def test_settings_of_teams_are_checked():
    with pytest.raises(ValueError, match="team_reward=max: unknown; allowed: sum, mean"):
        VDNConfig(team_reward="max")
    with pytest.raises(ValueError, match="mixing_width=0: must be a whole number of at least 1"):
        QMIXConfig(mixing_width=0)


def test_memory_counts_rows_of_teams():
    config = QMIXConfig(replay={"capacity": 600}, batch_size=16)
    sizes = {"samples": E * A, "episode_limit": 20, "team": A, "critic_shape": (5,)}
    agent = config.make((3,), GAME, **sizes)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    nbytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay))
    assert config.memory((3,), GAME, **sizes) == nbytes
    assert state.replay.ring.obs.shape == (E, 600 // E, A, 3)
    assert state.replay.ring.context.critic_obs.shape == (E, 600 // E, 5)
