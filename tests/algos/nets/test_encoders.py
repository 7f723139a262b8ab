"""Encoders of structured observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.nets.encoders import EncoderConfig, EntityEncoder, SetEncoder, make_encoder
from algos.nets.observations import merge_statistics
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.on_policy.ppo import PPOConfig
from algos.types import ActionSpec, Block, Rollout, Transition

BLOCKS = (
    Block("self", 0, (3,), "vector"),
    Block("contacts", 3, (4, 5), "set"),
    Block("terrain", 23, (7, 7), "map"),
)
SIZE = 72
ROWS = slice(3, 23)


def observations(key, number=6):
    return jax.random.normal(key, (number, SIZE))


def with_rows(obs, rows):
    return obs.at[..., ROWS].set(rows.reshape(*obs.shape[:-1], -1))


def there(rows):
    return jnp.any(rows != 0, -1)


def built(kind, **changes):
    encoder = EntityEncoder(EncoderConfig(kind=kind, width=16, **changes), BLOCKS)
    obs = observations(jax.random.key(1))
    params = encoder.init(jax.random.key(0), obs)
    return lambda x: encoder.apply(params, x), obs


@pytest.mark.parametrize("kind", ["deepset", "attention"])
def test_the_order_of_entities_does_not_matter_and_everything_else_does(kind):
    encode, obs = built(kind)
    rows = obs[:, ROWS].reshape(-1, 4, 5)
    np.testing.assert_allclose(encode(with_rows(obs, rows[:, ::-1])), encode(obs), atol=1e-5)
    for feature in (0, 5, 40):
        assert float(jnp.abs(encode(obs.at[:, feature].add(1.0)) - encode(obs)).max()) > 1e-3


@pytest.mark.parametrize("heads", [0, 4])
def test_empty_places_change_nothing(heads):
    encoder = SetEncoder(16, heads)
    rows = jax.random.normal(jax.random.key(2), (3, 2, 5))
    padded = jnp.concatenate([rows, jnp.zeros((3, 4, 5))], axis=1)
    params = encoder.init(jax.random.key(0), rows, there(rows))
    np.testing.assert_allclose(
        encoder.apply(params, padded, there(padded)), encoder.apply(params, rows, there(rows)), atol=1e-5
    )
    nobody = jnp.zeros((3, 4, 5)), jnp.zeros((3, 4), bool)
    np.testing.assert_array_equal(encoder.apply(params, *nobody), 0.0)
    gradient = jax.jit(jax.grad(lambda p: encoder.apply(p, *nobody).sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_attention_lets_entities_look_at_each_other():
    """One row's share in the summary depends on the others only with attention."""

    def interaction(heads):
        encoder = SetEncoder(16, heads)
        a, b = jax.random.normal(jax.random.key(3), (2, 1, 5))
        both = jnp.concatenate([a, b])
        params = encoder.init(jax.random.key(0), both, there(both))
        mean = lambda rows: encoder.apply(params, rows, there(rows))[:16]  # noqa: E731
        return float(jnp.abs(2 * mean(jnp.concatenate([a, b])) - mean(a) - mean(b)).max())

    assert interaction(0) < 1e-5
    assert interaction(4) > 1e-3


def test_maps_are_seen_as_maps_or_as_they_are():
    assert built("deepset")[0](observations(jax.random.key(0))).shape == (6, 3 + 32 + 16)
    assert built("deepset", maps="flat")[0](observations(jax.random.key(0))).shape == (6, 3 + 32 + 49)


E, A, T = 8, 2, 2
CONTINUOUS = ActionSpec("continuous", (2,))
ONE_STEP = {"horizon": T, "num_minibatches": 1, "epochs": 1}
RECURRENT = {"sampling": "sequential", "core": {"kind": "gru", "width": 8}}
LEARNERS = {
    "shared": (PPOConfig, {"shared": True} | ONE_STEP),
    "apart": (PPOConfig, ONE_STEP),
    "recurrent": (PPOConfig, RECURRENT | ONE_STEP),
    "sac": (SACConfig, {"replay": {"capacity": 1024}}),
    "td3": (TD3Config, {"replay": {"capacity": 1024}}),
}


def agent_of(learner, kind):
    config_class, settings = LEARNERS[learner]
    config = config_class(
        widths=(8,), normalize_observation=True, encoder={"kind": kind, "width": 8, "heads": 2}, **settings
    )
    return config.make((SIZE,), CONTINUOUS, blocks=BLOCKS, samples=E * A, updates=1, episode_limit=5)


def sorted_contacts(key, lead):
    """Observations whose rows are ordered by their first feature, and rarer the farther down they are."""
    keys = jax.random.split(key, 3)
    rows = 3.0 + jnp.sort(jax.random.normal(keys[0], (*lead, 4, 1)), axis=-2)
    rows = jnp.concatenate([rows, 1.0 + jax.random.normal(keys[1], (*lead, 4, 4))], axis=-1)
    number = jax.random.randint(keys[2], (*lead, 1), 0, 4)
    rows = jnp.where((jnp.arange(4) <= number)[..., None], rows, 0.0)
    return with_rows(2.0 + jax.random.normal(keys[0], (*lead, SIZE)), rows)


def experience(agent, state, obs):
    """What an agent is shown after decisions `[T, E, A]` with these observations."""
    zeros, no, yes = jnp.zeros((T, E, A)), jnp.zeros((T, E, A), bool), jnp.ones((T, E, A), bool)
    action = jnp.full((T, E, A, 2), 0.3)
    if agent.learns == "step":
        return Transition(
            obs=obs[0],
            action=action[0],
            reward=zeros[0],
            discount=zeros[0],
            next_obs=obs[1],
            boundary=no[0],
            success=no[0],
            alive=yes[0],
        )
    carry = jax.tree.map(lambda x: x[None], agent.initial_carry((E, A)))
    return Rollout(
        obs=obs,
        action=action,
        extras={"log_prob": zeros, "value": zeros},
        reward=zeros,
        reset=no,
        discount=zeros,
        boundary=no,
        bootstrap=zeros,
        alive=yes,
        mask=None,
        carry=carry,
        last_value=zeros[0],
    )


@pytest.mark.parametrize(
    ("learner", "kind"),
    [("apart", "deepset"), ("recurrent", "attention"), ("sac", "attention"), ("td3", "deepset")],
)
def test_the_order_of_entities_matters_to_no_agent_whose_normaliser_runs(learner, kind):
    agent = agent_of(learner, kind)
    heads = {"policy", "value", "head"}

    @jax.jit
    def look(key, before, *now):
        state = agent.policy_state(agent.init(key))
        params = jax.tree_util.tree_map_with_path(
            lambda path, x: 100.0 * x if {entry.key for entry in path[:3]} & heads else x, state.params
        )
        observations = merge_statistics(state.observations, before, jnp.ones(before.shape[:-1], bool))
        state = state.replace(params=params, observations=observations)
        seen = []
        for obs in now:
            arguments = obs, agent.initial_carry(obs.shape[:-1]), jnp.zeros(obs.shape[:-1], bool), None
            values = [] if agent.value is None else [agent.value(state, *arguments)]
            seen.append([agent.greedy(state, *arguments)[0], *values])
        return seen

    before, now = (sorted_contacts(jax.random.key(key), (64, 1)) for key in (1, 3))
    reversed_rows = now[..., ROWS].reshape(64, 1, 4, 5)[..., ::-1, :]
    seen, other_way_round = look(jax.random.key(0), before, now, with_rows(now, reversed_rows))
    for x, y in zip(seen, other_way_round, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)
        assert float(jnp.std(x)) > 100 * 1e-4


@pytest.mark.parametrize(("learner", "kind"), [("recurrent", "attention"), ("sac", "deepset")])
def test_an_update_merges_what_was_seen_into_statistics_that_rows_share(learner, kind):
    agent = agent_of(learner, kind)
    state = jax.jit(agent.init)(jax.random.key(0))
    obs = sorted_contacts(jax.random.key(1), (T, E, A))
    state, _ = jax.jit(agent.update)(state, jax.random.key(2), experience(agent, state, obs))
    seen = np.asarray(obs if agent.learns == "rollout" else obs[0], np.float64)
    rows = seen[..., ROWS].reshape(-1, 5)
    rows = rows[(rows != 0).any(-1)]
    moments = state.observations.moments["contacts"]
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.var, rows.var(0), rtol=1e-4)
    np.testing.assert_allclose(moments.count, len(rows))


@pytest.mark.parametrize("learner", ["shared", "apart", "recurrent", "sac"])
def test_every_trunk_has_an_encoder(learner):
    agent = agent_of(learner, "attention")
    state = jax.eval_shape(agent.init, jax.random.key(0))
    names = jax.tree_util.tree_flatten_with_path(state.params)[0]
    encoders = {jax.tree_util.keystr(path).split("encoder")[0] for path, _ in names if "encoder" in str(path)}
    assert len(encoders) == (2 if learner in ("apart", "sac") else 1)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="encoder.kind=cnn: unknown; allowed: none, deepset, attention"):
        EncoderConfig(kind="cnn")
    with pytest.raises(ValueError, match="encoder.heads=3: must divide encoder.width=64"):
        EncoderConfig(kind="attention", heads=3)
    with pytest.raises(ValueError, match="encoder.kind=deepset: must be none; this environment"):
        make_encoder(EncoderConfig(kind="deepset"), ())
    assert make_encoder(EncoderConfig(), ()) is None
