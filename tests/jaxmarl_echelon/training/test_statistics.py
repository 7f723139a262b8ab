"""The rolling statistics and the table of episodes: which episodes they pick, and what that costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos import collectives
from jaxmarl_echelon.envs.base import EnvSpec, Role
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.training.acting import episode_statistics

ROLE, BOX = "player", Box((1,), -1.0, 1.0)
MEASURES = tuple(Result(f"measure_{number}", role=ROLE) for number in range(8))
SPEC = EnvSpec("many", 1, (Role(ROLE, 2, BOX, BOX),), 0.0, 9, MEASURES)


def finished(mask) -> Finished:
    """Episodes `[T, E]` whose lengths are their numbers."""
    number = np.arange(mask.size, dtype=np.int32).reshape(mask.shape)
    everyone = np.ones((*mask.shape, 2), bool)
    ones = np.ones(everyone.shape, np.float32)
    values = {one.name: np.float32(number)[..., None] * ones for one in MEASURES}
    return Finished(mask, {ROLE: everyone}, {ROLE: ones}, number, values, {"tag": -number})


SELECT = jax.jit(episode_statistics.select_finished, static_argnums=1, static_argnames="newest")


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.9])
@pytest.mark.parametrize("newest", [False, True])
def test_the_first_or_newest_episodes_are_picked_in_order(chance, newest):
    mask = np.random.default_rng(0).random((12, 40)) < chance
    true = np.flatnonzero(mask)
    for most in (7, 480, 1000):
        found = jax.device_get(SELECT(finished(mask), most, newest=newest))
        expected = true[-most:] if newest else true[:most]
        np.testing.assert_array_equal(found.place[found.finished.mask], expected)
        assert found.finished.mask[: expected.size].all() and found.finished.mask.size == min(most, 480)
        np.testing.assert_array_equal(found.finished.length[: expected.size], expected)
        np.testing.assert_array_equal(found.finished.tags["tag"][: expected.size], -expected)
        assert int(found.number) == true.size


@pytest.mark.parametrize("newest", [False, True])
def test_shards_count_all_episodes_and_quarantines(newest):
    """Four shards of ten environments, the first of which has more episodes than are picked."""
    mask = np.random.default_rng(0).random((12, 40)) < np.repeat([0.9, 0.02, 0.0, 0.3], 10)
    parts = jnp.asarray(mask.reshape(12, 4, 10).swapaxes(0, 1))

    def follow(part):
        episodes = jax.tree.map(jnp.asarray, finished(part))
        found = episode_statistics.select_finished(episodes, 7, newest=newest)
        return found.place, found.number, episode_statistics.quarantine_metrics(part)

    place, number, counts = jax.jit(jax.vmap(follow, axis_name=collectives.HERE))(parts)
    true = np.flatnonzero(mask)
    for shard in range(4):
        np.testing.assert_array_equal(place[shard], true[-7:] if newest else true[:7])
    assert set(number.tolist()) == set(counts["train/quarantined"].tolist()) == {true.size}
    assert set(counts["train/quarantined_environments"].tolist()) == {int(mask.any(0).sum())}


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("most", [20, 1000])
def test_shards_pick_more_episodes_than_one_of_them_has_places(most, newest):
    """Four shards of four environments and three decisions, in which most decisions end an episode."""
    mask = np.random.default_rng(0).random((3, 16)) < np.repeat([1.0, 0.5, 1.0, 0.9], 4)
    parts = jnp.asarray(mask.reshape(3, 4, 4).swapaxes(0, 1))

    def follow(part):
        episodes = jax.tree.map(jnp.asarray, finished(part))
        return episode_statistics.select_finished(episodes, most, newest=newest)

    found = jax.device_get(jax.jit(jax.vmap(follow, axis_name=collectives.HERE))(parts))
    true = np.flatnonzero(mask)
    assert true.size > 20
    for shard in range(4):
        listed = found.finished.mask[shard]
        assert listed[: listed.sum()].all()
        np.testing.assert_array_equal(found.place[shard][listed], true[-most:] if newest else true[:most])


@jax.jit
def follow_two(ring, finished):
    """The ring after each of two rollouts, and the table of the newest episodes of each."""

    def follow(ring, finished):
        newest = episode_statistics.select_finished(finished, 30, newest=True)
        table = episode_statistics.episode_rows(episode_statistics.keep_newest(newest, 7), SPEC, (ROLE,))
        return episode_statistics.add_recent(ring, newest.finished, SPEC), table

    return jax.lax.scan(follow, ring, finished)


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.9])
def test_a_table_and_the_ring_have_the_newest_episodes_of_one_selection(chance):
    """The ring, of 20 places, after two rollouts; the table, of 7 rows, of the second."""
    masks = np.random.default_rng(1).random((2, 12, 40)) < chance
    both = jax.tree.map(lambda *parts: np.stack(parts), *map(finished, masks))
    ring, tables = jax.device_get(follow_two(episode_statistics.init_recent(SPEC, 20), both))
    table = jax.tree.map(lambda rows: rows[1], tables)
    true = [place for mask in masks for place in np.flatnonzero(mask)[-30:]]
    length = episode_statistics.recent_columns(SPEC).index("length")
    filled = np.arange(20) < int(ring.count)
    assert sorted(np.asarray(ring.values)[filled, length]) == sorted(true[-20:])
    shown = np.flatnonzero(masks[1])[-7:]
    assert int(table["number"]) == masks[1].sum() and table["env"].shape == (7,)
    np.testing.assert_array_equal((table["step"] * 40 + table["env"])[: shown.size], shown)


def test_selecting_finished_episodes_takes_little_memory():
    """No column of all decisions and environments is computed or copied for the few that ended.

    Of each of these only a flag is counted, for which the compiler makes two whole numbers.
    """

    def follow(ring, found):
        newest = episode_statistics.select_finished(found, 32, newest=True)
        return episode_statistics.add_recent(ring, newest.finished, SPEC), episode_statistics.episode_rows(
            episode_statistics.keep_newest(newest, 16), SPEC, (ROLE,)
        )

    found = jax.tree.map(jnp.asarray, finished(np.zeros((64, 512), bool)))
    compiled = jax.jit(follow).lower(episode_statistics.init_recent(SPEC, 16), found).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 16 * found.mask.size
