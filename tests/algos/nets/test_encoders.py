"""Encoders of structured observations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_after

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


def observations(seed, number=6):
    return np.float32(np.random.default_rng(seed).normal(size=(number, SIZE)))


def with_rows(obs, rows):
    changed = np.array(obs)
    changed[..., ROWS] = rows.reshape(*obs.shape[:-1], -1)
    return changed


def there(rows):
    return (rows != 0).any(-1)


def built(kind, **changes):
    encoder = EntityEncoder(EncoderConfig(kind=kind, width=16, **changes), BLOCKS)
    obs = observations(1)
    return jax.jit(partial(encoder.apply, jax.jit(encoder.init)(jax.random.key(0), obs))), obs


def set_encoder(heads, rows):
    """`(rows, who is there) -> summary` with parameters made for these."""
    encoder = SetEncoder(16, heads)
    params = jax.jit(encoder.init)(jax.random.key(0), rows, there(rows))
    return jax.jit(encoder.apply), params


@pytest.mark.parametrize("kind", ["deepset", "attention"])
def test_the_order_of_entities_does_not_matter_and_everything_else_does(kind):
    encode, obs = built(kind)
    rows = obs[:, ROWS].reshape(-1, 4, 5)
    np.testing.assert_allclose(encode(with_rows(obs, rows[:, ::-1])), encode(obs), atol=1e-5)
    for feature in (0, 5, 40):
        moved = obs + np.float32(np.arange(SIZE) == feature)
        assert float(np.abs(encode(moved) - encode(obs)).max()) > 1e-3


@pytest.mark.parametrize("heads", [0, 4])
def test_empty_places_change_nothing(heads):
    rows = np.float32(np.random.default_rng(2).normal(size=(3, 2, 5)))
    padded = np.concatenate([rows, np.zeros((3, 4, 5), np.float32)], axis=1)
    apply, params = set_encoder(heads, rows)
    np.testing.assert_allclose(
        apply(params, padded, there(padded)), apply(params, rows, there(rows)), atol=1e-5
    )
    nobody = np.zeros((3, 6, 5), np.float32), np.zeros((3, 6), bool)
    np.testing.assert_array_equal(apply(params, *nobody), 0.0)
    gradient = jax.jit(jax.grad(lambda p: apply(p, *nobody).sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_attention_lets_entities_look_at_each_other():
    """One row's share in the summary depends on the others only with attention."""

    def interaction(heads):
        both = np.float32(np.random.default_rng(3).normal(size=(2, 5)))
        apply, params = set_encoder(heads, both)
        alone, together = (np.asarray(apply(params, x, there(x)))[..., :16] for x in (both[:, None], both))
        return float(np.abs(2 * together - alone.sum(0)).max())

    assert interaction(0) < 1e-5
    assert interaction(4) > 1e-3


def test_maps_are_seen_as_maps_or_as_they_are():
    for changes, size in (({}, 3 + 32 + 16), ({"maps": "flat"}, 3 + 32 + 49)):
        encode, obs = built("deepset", **changes)
        assert jax.eval_shape(encode, obs).shape == (6, size)


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


def sorted_contacts(seed, lead):
    """Observations whose rows are ordered by their first feature, and rarer the farther down they are."""
    rng = np.random.default_rng(seed)
    rows = 3.0 + np.sort(rng.normal(size=(*lead, 4, 1)), axis=-2)
    rows = np.concatenate([rows, 1.0 + rng.normal(size=(*lead, 4, 4))], axis=-1)
    number = rng.integers(0, 4, (*lead, 1))
    rows = np.where((np.arange(4) <= number)[..., None], rows, 0.0)
    return with_rows(np.float32(2.0 + rng.normal(size=(*lead, SIZE))), rows)


def experience(agent, obs):
    """Rollout of decisions `[T, E, A]` with these observations."""
    zeros, no, yes = np.zeros((T, E, A), np.float32), np.zeros((T, E, A), bool), np.ones((T, E, A), bool)
    action = np.full((T, E, A, 2), 0.3, np.float32)
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
    mark_after(
        1, [("recurrent", "attention"), ("td3", "deepset"), ("apart", "deepset"), ("sac", "attention")]
    ),
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

    before, now = (sorted_contacts(seed, (64, 1)) for seed in (1, 3))
    reversed_rows = now[..., ROWS].reshape(64, 1, 4, 5)[..., ::-1, :]
    seen, other_way_round = look(jax.random.key(0), before, now, with_rows(now, reversed_rows))
    for x, y in zip(jax.tree.leaves(seen), jax.tree.leaves(other_way_round), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)
        assert float(np.std(x)) > 100 * 1e-4


@pytest.mark.parametrize(("learner", "kind"), [("recurrent", "attention"), ("sac", "deepset")])
def test_an_update_merges_what_was_seen_into_statistics_that_rows_share(learner, kind):
    agent = agent_of(learner, kind)
    obs = sorted_contacts(1, (T, E, A))

    @jax.jit
    def statistics(key, batch):
        return agent.update(agent.init(key), key, batch)[0].observations

    moments = statistics(jax.random.key(0), experience(agent, obs)).moments["contacts"]
    seen = np.asarray(obs if agent.learns == "rollout" else obs[0], np.float64)
    rows = seen[..., ROWS].reshape(-1, 5)
    rows = rows[(rows != 0).any(-1)]
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
