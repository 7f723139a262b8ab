"""Encoders of structured observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.encoders import EncoderConfig, EntityEncoder, SetEncoder, make_encoder
from algos.ppo import PPOConfig
from algos.sac import SACConfig
from algos.types import ActionSpec, Block

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
    params = encoder.init(jax.random.key(0), rows)
    np.testing.assert_allclose(encoder.apply(params, padded), encoder.apply(params, rows), atol=1e-5)
    empty = encoder.apply(params, jnp.zeros((3, 4, 5)))
    np.testing.assert_array_equal(empty, 0.0)
    gradient = jax.grad(lambda p: encoder.apply(p, jnp.zeros((3, 4, 5))).sum())(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_attention_lets_entities_look_at_each_other():
    """One row's share in the summary depends on the others only with attention."""

    def interaction(heads):
        encoder = SetEncoder(16, heads)
        a, b = jax.random.normal(jax.random.key(3), (2, 1, 5))
        params = encoder.init(jax.random.key(0), jnp.concatenate([a, b]))
        mean = lambda rows: encoder.apply(params, rows)[:16]  # noqa: E731
        return float(jnp.abs(2 * mean(jnp.concatenate([a, b])) - mean(a) - mean(b)).max())

    assert interaction(0) < 1e-5
    assert interaction(4) > 1e-3


def test_maps_are_seen_as_maps_or_as_they_are():
    assert built("deepset")[0](observations(jax.random.key(0))).shape == (6, 3 + 32 + 16)
    assert built("deepset", maps="flat")[0](observations(jax.random.key(0))).shape == (6, 3 + 32 + 49)


def test_every_algorithm_takes_an_encoder():
    action = ActionSpec("continuous", (2,))
    encoder = {"kind": "attention", "width": 8, "heads": 2}
    learners = {
        "shared": PPOConfig(shared=True, encoder=encoder, num_minibatches=1),
        "apart": PPOConfig(encoder=encoder),
        "recurrent": PPOConfig(
            encoder=encoder, num_minibatches=1, sampling="sequential", core={"kind": "gru", "width": 8}
        ),
        "sac": SACConfig(encoder=encoder, replay={"capacity": 1024}),
    }
    for name, config in learners.items():
        agent = config.make((SIZE,), action, blocks=BLOCKS, samples=2, updates=1, episode_limit=5)
        state = jax.eval_shape(agent.init, jax.random.key(0))
        names = jax.tree_util.tree_flatten_with_path(state.params)[0]
        encoders = {
            jax.tree_util.keystr(path).split("encoder")[0] for path, _ in names if "encoder" in str(path)
        }
        assert len(encoders) == (2 if name in ("apart", "sac") else 1), name


def test_settings_are_checked():
    with pytest.raises(ValueError, match="encoder.kind=cnn: unknown; allowed: none, deepset, attention"):
        EncoderConfig(kind="cnn")
    with pytest.raises(ValueError, match="encoder.heads=3: must divide encoder.width=64"):
        EncoderConfig(kind="attention", heads=3)
    with pytest.raises(ValueError, match="encoder.kind=deepset: must be none; this environment"):
        make_encoder(EncoderConfig(kind="deepset"), ())
    assert make_encoder(EncoderConfig(), ()) is None
