"""The pool's state: snapshots, slots, counts and whom groups play."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.nets.observations import merge_statistics, normalize_observations
from algos.on_policy.a2c import A2CConfig
from algos.types import ActionSpec
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.selfplay import diversity, eviction
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay import report as pool_report
from jaxmarl_echelon.selfplay.settings import PoolSettings


def spaced_ages(capacity: int, snapshots: int) -> list[int]:
    """Ages in a bank that takes a snapshot per step and evicts by `spaced`."""

    def take(filled, now):
        slots = eviction.BankSlots(
            iteration=filled,
            filled=filled >= 0,
            free=filled >= 0,
            lower=jnp.zeros(capacity),
            tried=jnp.ones(capacity, bool),
            payoff=jnp.zeros((capacity, 1)),
            met=jnp.zeros((capacity, 1), bool),
            now=now,
        )
        return filled.at[eviction.choose_slot("spaced", slots)[0]].set(now), None

    filled, _ = jax.lax.scan(take, jnp.full(capacity, -1), jnp.arange(snapshots))
    return sorted((snapshots - 1 - np.asarray(filled)).tolist(), reverse=True)


AGES = [
    (8, 100, [99, 51, 28, 16, 8, 3, 1, 0]),
    (8, 1000, [999, 266, 37, 16, 8, 3, 1, 0]),
    (16, 1000, [999, 487, 231, 167, 103, 71, 39, 23, 15, 11, 7, 5, 3, 2, 1, 0]),
]


@pytest.mark.parametrize("capacity,snapshots,expected", AGES)
def test_spaced_ages(capacity, snapshots, expected):
    assert spaced_ages(capacity, snapshots) == expected


def slots(**changes) -> eviction.BankSlots:
    given = {
        "iteration": jnp.array([0, 7, 3, 9]),
        "filled": jnp.ones(4, bool),
        "free": jnp.array([False, True, True, True]),
        "lower": jnp.array([-5.0, 3.0, 2.0, 9.0]),
        "tried": jnp.ones(4, bool),
        "payoff": jnp.array([[0.1, 0.9], [0.5, 0.5], [0.8, 0.2], [0.55, 0.4]]),
        "met": jnp.ones((4, 2), bool),
        "now": jnp.int32(10),
    }
    return eviction.BankSlots(**given | changes)


RULES = [("oldest", 2), ("weakest", 2), ("similar", 1), ("spaced", 2)]


@pytest.mark.parametrize("rule,expected", RULES)
def test_eviction_rules(rule, expected):
    place, found = eviction.choose_slot(rule, slots())
    assert (int(place), bool(found)) == (expected, True)


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES])
def test_a_bank_of_one_slot_takes_the_newest_snapshot(rule):
    one = jax.tree.map(lambda x: x[1:2] if x.ndim else x, slots())
    place, found = eviction.choose_slot(rule, one)
    assert (int(place), bool(found)) == (0, True)


def test_pinned_and_used_slots_are_not_evicted():
    place, found = eviction.choose_slot("weakest", slots(filled=jnp.array([1, 1, 0, 1], bool)))
    assert (int(place), bool(found)) == (2, True)
    tried = slots(tried=jnp.array([True, True, False, True]))
    assert int(eviction.choose_slot("weakest", tried)[0]) == 1
    assert not eviction.choose_slot("weakest", slots(free=jnp.zeros(4, bool)))[1]
    place, _ = eviction.choose_slot("similar", slots(met=jnp.zeros((4, 2), bool)))
    assert int(place) == 2


SMALL = PoolSettings(
    capacity=4, groups=6, snapshot_every=1, fixed=("random",), shares={"mirror": 1, "random": 2}, hold=2
)


def started(settings: PoolSettings):
    pool = pool_lib.make_pool(settings, episode_limit=10, horizon=5)
    return pool, jax.jit(partial(pool_lib.init_pool, pool))(
        jax.random.key(0), {"w": np.arange(3, dtype=np.float32)}
    )


@cache
def small():
    """A pool of these settings, its first state, and its compiled update."""
    pool, state = started(SMALL)
    return pool, jax.device_get(state), jax.jit(partial(pool_lib.update_pool_state, pool))


def random_counts(state, rng) -> np.ndarray:
    """Counts of random games against whoever is played."""
    counts = np.zeros((state.kind.shape[0], 3), np.int32)
    for slot in np.asarray(state.slots):
        counts[slot] += rng.multinomial(rng.integers(0, 6), [0.5, 0.2, 0.3])
    return counts


def test_pool_over_many_updates():
    """Random games: pins hold, reused slots start afresh, held groups keep their opponent."""
    pool, state, step = small()
    rng = np.random.default_rng(0)
    assert pool.rivals == 4 and state.slots.shape == (4,)
    for number in range(40):
        before, counts = jax.device_get(state), random_counts(state, rng)
        state = jax.device_get(
            step(state, jax.random.key(number), counts, {"w": np.full(3, number + 1.0, np.float32)})
        )
        assert state.kind[0] == pool_lib.LEARNER and state.kind[5] == pool_lib.FIXED
        np.testing.assert_array_equal(state.bank["w"][0], [0, 1, 2])
        assert state.iteration[1] == 0 and state.pinned[1]
        playable = (state.kind == pool_lib.SNAPSHOT) | (state.kind == pool_lib.FIXED)
        assert playable[state.slots].all() and (state.slots != 0).all()
        held = ~np.asarray(pool_lib.groups_due_for_change(pool, before.updates))
        np.testing.assert_array_equal(state.slots[held], before.slots[held])
        assert (state.iteration[before.slots[held]] == before.iteration[before.slots[held]]).all()
        np.testing.assert_array_equal(state.draws, state.draws.T)
        new = np.flatnonzero(state.iteration != before.iteration)
        for entry in new:
            assert state.wins[entry].sum() == state.wins[:, entry].sum() == state.games[entry].sum() == 0
            np.testing.assert_array_equal(state.bank["w"][entry - 1], number + 1.0)
            np.testing.assert_allclose(state.rating[entry, 0], state.rating[0, 0], rtol=1e-6)
    assert state.taken > 20 and np.isfinite(state.rating).all()


def test_counts_and_decay():
    _, state, step = small()
    counts = np.zeros((6, 3), np.int32)
    counts[1], counts[5] = [5, 2, 3], [0, 0, 4]
    after = jax.device_get(step(state, jax.random.key(1), counts, {"w": np.ones(3, np.float32)}))
    assert (int(after.wins[0, 1]), int(after.wins[1, 0]), int(after.draws[0, 1])) == (5, 3, 2)
    np.testing.assert_allclose(after.points[0, 1], 0.99 * 6.0, rtol=1e-6)
    np.testing.assert_allclose(after.points[5, 0], 0.99 * 4.0, rtol=1e-6)
    assert after.rating[5, 0] > after.rating[1, 0] and after.rating[0, 1] < 25 / 3
    assert int(after.iteration[2]) == 1 and after.rating[2, 0] == after.rating[0, 0]
    np.testing.assert_allclose(after.rating[2, 1], min(25 / 3, 2 * float(after.rating[0, 1])), rtol=1e-6)


def test_ratings_do_not_depend_on_where_games_were_played():
    """The same games in another order of environments, summed over eight parts, give the same bits."""
    _, state, step = small()
    rng = np.random.default_rng(3)
    games = np.stack([rng.integers(1, 6, 200), rng.integers(0, 3, 200)], axis=1)

    def total(games):
        counts = np.zeros((6, 3), np.int32)
        np.add.at(counts, (games[:, 0], games[:, 1]), 1)
        return counts

    parts = sum(total(part) for part in np.split(rng.permutation(games), 8))
    np.testing.assert_array_equal(parts, total(games))
    policy = {"w": np.ones(3, np.float32)}
    both = [step(state, jax.random.key(0), x, policy) for x in (parts, total(games))]
    np.testing.assert_array_equal(*(one.rating for one in both))


def test_graded_scores_are_summed():
    """Four hands of five are lost, but the fifth wins more: payoffs, ratings and gates follow the points."""
    pool, state, step = small()
    counts, points = np.zeros((6, 3), np.int32), np.zeros(6, np.float32)
    counts[1], points[1] = [20, 0, 80], 60.0
    policy = {"w": np.ones(3, np.float32)}
    plain, graded = (
        jax.device_get(step(state, jax.random.key(1), counts, policy, points=x)) for x in (None, points)
    )
    np.testing.assert_array_equal(graded.wins, plain.wins)
    for after, score in ((plain, 20.0), (graded, 60.0)):
        np.testing.assert_allclose(after.points[[0, 1], [1, 0]], 0.99 * np.array([score, 100.0 - score]))
        assert (after.rating[0, 0] > after.rating[1, 0]) == (score > 50.0)
    gate = pool._replace(settings=replace(SMALL, gate="improved"))
    assert [bool(pool_lib.should_take_snapshot(gate, replace_newest(x))) for x in (plain, graded)] == [
        False,
        True,
    ]


def replace_newest(state):
    """The state as if its newest snapshot were entry 1, and one were due."""
    return state.replace(kind=state.kind * (np.arange(6) < 2), waited=np.int32(5))


GATES = [
    ({"gate": "always"}, [0, 0, 0], True),
    ({"gate": "improved"}, [60, 0, 45], True),
    ({"gate": "improved"}, [54, 0, 46], False),
    ({"gate": "improved"}, [50, 0, 0], False),
    ({"gate": "improved", "gate_timeout": 1}, [0, 0, 0], True),
    ({"gate": "rated"}, [10, 0, 0], False),
    ({"gate": "rated", "gate_sigma": 8.0}, [60, 0, 60], True),
    ({"gate": "rated", "gate_sigma": 1e-3}, [60, 0, 60], False),
    ({"gate": "rated"}, [60, 0, 60], False),
]


@pytest.mark.parametrize("options,counts,taken", GATES)
def test_gates(options, counts, taken):
    pool = pool_lib.make_pool(replace(SMALL, **options), episode_limit=10, horizon=5)
    _, state, _ = small()
    state = jax.tree.map(jnp.asarray, state)
    counts = jnp.asarray(np.eye(6, 1, -1, np.int32) * np.array(counts, np.int32))
    after = pool_lib.update_pool_state(pool, state, jax.random.key(1), counts, {"w": jnp.ones(3)})
    assert bool(after.taken == 2) == taken


@pytest.mark.parametrize(("rating", "least"), [("trueskill", 2.0), ("glicko2", 84.0)])
def test_a_rating_is_sure_in_the_unit_of_its_system(rating, least):
    pool = pool_lib.make_pool(replace(SMALL, gate="rated", rating=rating, gate_games=1), 10, 5)
    state = pool_lib.init_pool(pool, jax.random.key(0), {"w": np.zeros(3, np.float32)})
    waited = state.replace(waited=jnp.int32(5), played=jnp.int32(1))
    opened = [
        bool(
            pool_lib.should_take_snapshot(pool, waited.replace(rating=waited.rating.at[0, 1].set(deviation)))
        )
        for deviation in (0.99 * least, 1.01 * least)
    ]
    assert opened == [True, False]


def test_groups_change_their_opponents_in_turn():
    pool = pool_lib.make_pool(PoolSettings(groups=8), episode_limit=50, horizon=64)
    assert (pool.hold, pool.rivals) == (4, 4)
    turns = np.stack([pool_lib.groups_due_for_change(pool, jnp.int32(number)) for number in range(8)])
    assert (turns.sum(1) == 1).all() and (turns.sum(0) == 2).all()


def test_metrics_without_games_are_nan():
    """Neither the age of snapshots where none is met, nor what is different in games that were not played."""
    pool, state, _ = small()
    assert jnp.isfinite(pool_report.pool_metrics(pool, state)["pool/opponent_age"])
    none = state.replace(kind=jnp.where(state.kind == pool_lib.SNAPSHOT, pool_lib.EMPTY, state.kind))
    assert jnp.isnan(pool_report.pool_metrics(pool, none)["pool/opponent_age"])
    told = pool_report.exploration_metrics(diversity.init(2, 3, 4), Discrete(3))
    assert jnp.isnan(jnp.stack(list(told.values()))).all()


def test_rating_minus_anchor_is_missing_without_an_anchor():
    """Also where a fixed opponent stays for ever, which is no initial policy."""
    pool, state, _ = small()
    assert "pool/rating_minus_anchor" in jax.eval_shape(partial(pool_report.pool_metrics, pool), state)
    alone = pool._replace(settings=replace(SMALL, anchor="none"))
    assert "pool/rating_minus_anchor" not in jax.eval_shape(partial(pool_report.pool_metrics, alone), state)


def test_half_precision_bank_keeps_the_normaliser_exact():
    """A feature that is always about 1000 stays where it was, within its spread."""
    agent = A2CConfig(widths=(2,)).make((1,), ActionSpec("discrete", (2,)), samples=4)
    policy = agent.policy_state(jax.jit(agent.init)(jax.random.key(0)))
    seen = jnp.full((4, 1), 1000.3) + jnp.array([[-0.1], [0.1], [0.1], [-0.1]])
    policy = policy.replace(observations=merge_statistics(policy.observations, seen, jnp.ones(4, bool)))
    held = pool_lib.to_bank_precision(PoolSettings(store="bf16"), policy)
    assert {x.dtype for x in jax.tree.leaves(held.params)} == {jnp.dtype(jnp.bfloat16)}
    found, expected = (normalize_observations(x.observations, seen) for x in (held, policy))
    assert np.abs(expected).max() < 2.0
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(held.hyper["gamma"], policy.hyper["gamma"])


def test_half_precision_bank():
    pool, state = started(PoolSettings(capacity=4, groups=4, store="bf16"))
    assert state.bank["w"].dtype == jnp.bfloat16
    bank, places = pool_lib.playable_policies(pool, state, state.slots, {"w": jnp.zeros(3)})
    assert bank["w"].dtype == jnp.bfloat16 and places.tolist() == [0, 0]
