"""Network inputs from observations: statistics shared in sets and maps, and empty rows that stay empty."""

import jax
import jax.numpy as jnp
import numpy as np

from algos.nets.normalize import init_moments, merge_moments, normalize_by_moments
from algos.nets.observations import init_statistics, merge_statistics, normalize_observations
from algos.types import Block

BLOCKS = (
    Block("terrain", 0, (3, 3), "map"),
    Block("contacts", 9, (4, 2), "set"),
    Block("self", 17, (3,), "vector"),
)
SIZE = 20
RNG = np.random.default_rng(0)


def batch(lead, number):
    """Observations with this many contacts in random places, each with its own distribution."""
    rows = 5.0 + np.arange(4)[:, None] + RNG.normal(size=(*lead, 4, 2))
    there = RNG.permuted(np.broadcast_to(np.arange(4) < number, (*lead, 4)), axis=-1)
    parts = (
        RNG.normal(size=(*lead, 9)),
        np.where(there[..., None], rows, 0.0),
        3.0 + RNG.normal(size=(*lead, 3)),
    )
    return np.concatenate([x.reshape(*lead, -1) for x in parts], -1).astype(np.float32)


def test_statistics_are_shared_within_sets_and_maps_over_present_rows():
    statistics, seen = init_statistics(SIZE, BLOCKS), []
    merge = jax.jit(merge_statistics)
    for number in (1, 3):
        obs, alive = batch((7, 2), number), RNG.random((7, 2)) < 0.7
        statistics = merge(statistics, np.where(alive[..., None], obs, np.nan), alive)
        seen.append(obs[alive])
    seen = np.concatenate(seen).astype(np.float64)
    rows = seen[:, 9:17].reshape(-1, 2)
    samples = {"terrain": seen[:, :9].ravel(), "contacts": rows[rows.any(-1)], "self": seen[:, 17:]}
    for name, expected in samples.items():
        moments = statistics.moments[name]
        np.testing.assert_allclose(moments.mean, expected.mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(moments.var, expected.var(0), rtol=1e-4)
        assert moments.count == len(expected)


def test_empty_places_stay_empty_and_average_entities_do_not_vanish():
    """All contacts are the same, so that each of them becomes a row of zeros."""
    obs = np.zeros((5, SIZE), np.float32)
    obs[:, 11:15] = [7.0, 7.0, 7.0, 7.0]
    statistics = merge_statistics(init_statistics(SIZE, BLOCKS), obs, np.ones(5, bool))
    seen = normalize_observations(statistics, obs)
    np.testing.assert_array_equal(seen.blocks["contacts"], 0.0)
    np.testing.assert_array_equal(seen.present["contacts"], [[False, True, True, False]] * 5)
    other = normalize_observations(statistics, obs + 1.0)
    assert (other.blocks["contacts"] != 0).all() and other.present["contacts"].all()


def test_observations_without_blocks_are_normalised_number_by_number():
    obs, alive = batch((6,), 2), np.arange(6) != 3
    statistics = merge_statistics(init_statistics(SIZE), obs, alive)
    expected = merge_moments(init_moments((SIZE,)), jnp.asarray(obs), jnp.asarray(alive))
    jax.tree.map(np.testing.assert_array_equal, statistics, expected)
    np.testing.assert_array_equal(
        normalize_observations(statistics, obs), normalize_by_moments(expected, obs)
    )
    assert normalize_observations(None, obs) is obs and merge_statistics(None, obs, alive) is None
