import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from value_cases import GAME, moved, numpy_values

from algos.nets.cores import CoreConfig
from algos.on_policy.pqn import PQNConfig, ValueBatch, action_value_loss, value_targets
from algos.on_policy.pqn_vdn import PQNVDNConfig, team_value_targets
from algos.stacked_agents import split_batch_by_agent
from algos.types import ActionSpec, Block, ObservationSpec, Rollout

T, E, A, F = 4, 6, 2, 3
TINY = {"widths": (8,), "horizon": T, "num_minibatches": 2, "normalize_observation": False}
GAMMA = 0.9
GRU = CoreConfig(kind="gru", width=8)
# What follows each decision of a team: the end, values of final observations, or those of the next decision.
END, CUT, GOES_ON = "end", "cut", "goes on"
FOLLOWS = [
    [GOES_ON] * 4,  # nothing ends
    [GOES_ON, GOES_ON, GOES_ON, END],  # the second agent dies in the second step, the other in the last
    [GOES_ON, CUT, GOES_ON, GOES_ON],  # a time limit; the second agent dies in the last step
    [GOES_ON, GOES_ON, GOES_ON, END],  # the second agent is out from the third step on, and paid
    [GOES_ON, CUT, GOES_ON, GOES_ON],  # the second agent is cut alone
    [GOES_ON, GOES_ON, None, GOES_ON],  # not finite in the third step: a new episode
]


def stories():
    """A rollout of six environments as in `FOLLOWS`, with agents whose values must not count at 1000."""
    noise = np.random.default_rng(0)
    normal = lambda *shape: np.float32(noise.standard_normal(shape))  # noqa: E731
    alive, boundary = np.ones((T, E, A), bool), np.zeros((T, E, A), bool)
    discount, out = np.ones((T, E, A), np.float32), np.zeros((T, E, A), bool)
    last_alive = np.ones((E, A), bool)

    def end(t, e, agents, terminated):
        boundary[t, e, agents] = True
        discount[t, e, agents] = 0.0 if terminated else 1.0

    end(1, 1, 1, True)
    end(3, 1, [0, 1], True)
    alive[2:, 1, 1] = False
    end(1, 2, [0, 1], False)
    end(3, 2, 1, True)
    last_alive[2, 1] = False
    alive[2:, 3, 1], out[2:, 3, 1] = False, True
    end(3, 3, [0, 1], True)
    end(1, 4, 1, False)
    alive[2:, 4, 1] = False
    last_alive[4, 1] = False
    alive[2, 5] = False
    boundary[2, 5] = True
    cut = boundary & (discount > 0) & alive
    return Rollout(
        obs=np.where(alive[..., None], normal(T, E, A, F), np.float32(0)),
        action=noise.integers(0, 2, (T, E, A, 1), np.int32),
        # The value in the step that is not finite counts for the one before it.
        extras={"value": np.where(alive | (np.arange(E) == 5)[:, None], normal(T, E, A), np.float32(1000))},
        reward=np.where(alive | out, normal(T, E, A), np.float32(1000)),
        reset=np.zeros((T, E, A), bool),
        discount=discount,
        boundary=boundary,
        bootstrap=np.where(cut, normal(T, E, A), np.float32(0)),
        alive=alive,
        mask=None,
        carry=(),
        last_value=np.where(last_alive, normal(E, A), np.float32(1000)),
        last_alive=last_alive,
        out=out,
    )


def recount(rollout, kind, lambda_):
    """Targets `[T, E]` by the definition, one team at a time."""
    targets = np.zeros((T, E))
    for e, follows in enumerate(FOLLOWS):
        after = rollout.last_value[e][rollout.last_alive[e]].sum()
        later = after
        for t in reversed(range(T)):
            paid = rollout.reward[t, e][rollout.alive[t, e] | rollout.out[t, e]]
            reward = paid.sum() / (max(len(paid), 1) if kind == "mean" else 1)
            mixed = {END: 0.0, GOES_ON: (1 - lambda_) * later + lambda_ * after}
            # Of the environment in which one agent is cut alone, the other one's next decision counts too.
            mixed[CUT] = rollout.bootstrap[t, e].sum() + (later if e == 4 else 0.0)
            known = rollout.alive[t, e] | (e == 5)
            later = rollout.extras["value"][t, e][known].sum()
            if follows[t] is None:
                after = later
                continue
            targets[t, e] = after = reward + GAMMA * mixed[follows[t]]
    return targets


@functools.cache
def learner(**settings):
    """A configuration, its agent and first state."""
    config = PQNVDNConfig(**TINY | {"agent_ids": False} | settings)
    agent = config.make((F,), GAME, samples=E * A, team=A, updates=20)
    return config, agent, jax.tree.map(np.asarray, jax.jit(agent.init)(jax.random.key(0)))


def hyper(lambda_):
    return {"gamma": GAMMA, "gae_lambda": lambda_, "reward_scale": 1.0, "reward_clamp": np.inf}


@pytest.mark.parametrize(("kind", "lambda_"), [("sum", 0.0), ("sum", 1.0), ("mean", 0.7)])
def test_targets_are_returns_of_the_sum_of_the_values_of_agents_that_act(kind, lambda_):
    config, _, state = learner(team_reward=kind)
    rollout = stories()
    batch = jax.jit(functools.partial(team_value_targets, config))(state, rollout, hyper(lambda_))
    learnt = rollout.alive.any(-1)
    np.testing.assert_array_equal(batch.alive, learnt.ravel())
    np.testing.assert_allclose(
        np.asarray(batch.target).reshape(T, E),
        np.where(learnt, recount(rollout, kind, lambda_), 0),
        rtol=1e-4,
    )
    assert batch.obs.shape == (T * E, A, F) and batch.acts.shape == (T * E, A)


def test_a_team_of_one_learns_what_a_single_agent_learns():
    own = PQNConfig(**TINY)
    rollout = split_batch_by_agent(stories().replace(out=None))
    # Alone, the second agent's trajectory ends with it; a team has no decision where it does not act.
    first = jax.tree.map(lambda x: x[0, :, :5] if x.ndim > 3 else x[0, :5], rollout)
    first = first.replace(
        reward=np.where(first.alive, first.reward, 0), extras={"value": first.extras["value"]}
    )
    config, _, state = learner()
    team = jax.jit(functools.partial(team_value_targets, config))(state, first, hyper(0.7))
    alone = jax.jit(functools.partial(value_targets, own))(state, first, hyper(0.7))
    for name in ("target", "value", "alive"):
        np.testing.assert_allclose(getattr(team, name), getattr(alone, name), rtol=1e-5, atol=1e-6)
    assert split_batch_by_agent(stories()).last_alive.shape == (A, E, 1)


def test_the_loss_is_that_of_the_sum_over_the_agents_that_act():
    config, _, state = learner()
    batch = jax.jit(functools.partial(team_value_targets, config))(state, stories(), hyper(0.7))
    params, policy = moved(state.params), config.networks(ObservationSpec((F,), team=A), GAME)
    loss, samples = jax.jit(functools.partial(action_value_loss, policy))(params, batch)
    values = numpy_values(params, np.asarray(batch.obs))
    chosen = np.take_along_axis(values, np.asarray(batch.action), -1)[..., 0]
    together = np.where(batch.acts, chosen, 0.0).sum(-1)
    np.testing.assert_allclose(samples["value"], together, rtol=1e-4, atol=1e-5)
    errors = np.square(together - np.asarray(batch.target))[np.asarray(batch.alive)]
    np.testing.assert_allclose(loss, 0.5 * errors.mean(), rtol=1e-4)


def test_rows_with_memory_are_whole_teams():
    config, agent, state = learner(core=GRU)
    rollout = stories().replace(carry=((np.ones((1, E, A, 8), np.float32),),))
    batch = jax.jit(functools.partial(team_value_targets, config))(state, rollout, hyper(0.7))
    assert isinstance(batch, ValueBatch) and batch.target.shape == (E, T) and batch.obs.shape == (E, T, A, F)
    assert jax.tree.leaves(batch.carry)[0].shape == (E, A, 8) and batch.idle.shape == (E,)
    after, metrics = jax.jit(agent.update)(state, jax.random.key(0), rollout)
    moves = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), state.params, jax.device_get(after.params))
    assert min(jax.tree.leaves(moves)) > 0 and np.isfinite(float(metrics["value_loss"]))


def test_sums_of_values_fit_a_payoff_as_well_as_sums_can():
    """Of 0, 3, 1, 8 the least-squares sums are -1, 4, 2, 7; each agent has values of its own."""
    config = PQNVDNConfig(
        widths=(32,), horizon=4, num_minibatches=1, epochs=1, learning_rate=1e-2, normalize_observation=False
    )
    teams, payoff = 64, jnp.asarray([[0.0, 3.0], [1.0, 8.0]])
    agent = config.make((1,), GAME, samples=teams * A, team=A, updates=200)
    ones, shape = jnp.ones((4, teams, A)), (4, teams, A)

    def step(state, key):
        action = jax.random.randint(key, shape, 0, 2)
        paid = jnp.zeros(shape).at[..., 0].set(payoff[action[..., 0], action[..., 1]])
        rollout = Rollout(
            obs=ones[..., None], action=action[..., None], extras={"value": 0 * ones}, reward=paid,
            reset=ones > 0, discount=0 * ones, boundary=ones > 0, bootstrap=0 * ones, alive=ones > 0,
            mask=None, carry=(), last_value=0 * ones[0], last_alive=ones[0] > 0,
        )  # fmt: skip
        return agent.update(state, key, rollout)

    @jax.jit
    def values(key):
        state, _ = jax.lax.scan(step, agent.init(key), jax.random.split(key, 200))
        policy = config.networks(ObservationSpec((1,), team=A), GAME)
        return policy.apply(state.params, jnp.ones((1, A, 1)), None)[0].values[0]

    first, second = values(jax.random.key(0))
    np.testing.assert_allclose(first[:, None] + second, [[-1.0, 4.0], [2.0, 7.0]], atol=0.3)


@pytest.mark.parametrize(
    ("settings", "sizes", "message"),
    [
        ({"team_reward": "max"}, {}, "team_reward=max: unknown; allowed: sum, mean"),
        ({"num_minibatches": 5}, {}, r"must divide the 24 samples of a rollout \(horizon \* environments\)"),
        ({"num_minibatches": 4, "core": {"kind": "gru"}}, {}, "num_minibatches=4: must divide the 6 teams"),
        ({"encoder": {"kind": "deepset"}}, {"blocks": (Block("all", 0, (1, F), "set"),)}, "agent_ids=True"),
        ({}, {"action": ActionSpec("continuous", (2,))}, "algo=pqn_vdn: needs discrete actions"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, sizes, message):
    given = {"action": GAME, "samples": E * A, "team": A, "updates": 10} | sizes
    with pytest.raises(ValueError, match=message):
        PQNVDNConfig(**TINY | settings).make((F,), **given)
