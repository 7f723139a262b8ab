"""Candidates and commanders: who is promoted, who is met, and who goes."""

from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import pytest

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.command_line import compose_config
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay import report
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.config import build

SMALL = PoolSettings(
    capacity=7,
    groups=4,
    mode="commanders",
    top=2,
    recent=2,
    promote_after=5,
    snapshot_every=1,
    fixed=("script",),
    hold=2,
    evict="idle",
    anchor="none",
    rating="glicko2",
)
SCRIPT = 8


def started(settings: PoolSettings = SMALL):
    pool = pool_lib.make_pool(settings, episode_limit=10, horizon=5)
    return pool, jax.jit(partial(pool_lib.init_pool, pool))(jax.random.key(0), {"w": np.zeros(1, np.float32)})


@cache
def small():
    """A pool of these settings, and its first state in NumPy."""
    pool, state = started()
    return pool, jax.device_get(state)


@cache
def compiled(function):
    """A function of this pool and a state."""
    return jax.jit(partial(function, small()[0]))


def filled(commanders: tuple[int, ...], ratings: dict[int, tuple[float, float]], games: dict[int, int]):
    """Seven snapshots, the higher the slot the newer, that have won all their games with the learner."""
    pool, state = small()
    rating, wins = np.array(state.rating), np.zeros((9, 9), np.int32)
    for entry, given in ratings.items():
        rating[entry, :2] = given
    for entry, number in games.items():
        wins[entry, 0] = number
    entry = np.arange(9, dtype=np.int32)
    past = (entry > 0) & (entry < SCRIPT)
    return pool, state.replace(
        kind=np.where(past, np.int32(pool_lib.SNAPSHOT), state.kind),
        iteration=np.where(past, entry - 1, np.int32(-1)),
        rating=rating,
        wins=wins,
        taken=np.int32(7),
        commander=np.isin(entry, commanders),
    )


# Ratings and deviations; pessimistically 1500, 1580, 1400, 1530.
RATINGS = {1: (1600.0, 50.0), 2: (1700.0, 60.0), 3: (1650.0, 125.0), 4: (1550.0, 10.0)}
MET = [
    # The best two of three commanders by rating, the newest two of four candidates, the script.
    ((1, 2, 3), {2, 3, 6, 7, SCRIPT}),
    ((2,), {2, 6, 7, SCRIPT}),
    ((), {6, 7, SCRIPT}),
    ((1, 2, 3, 4, 5, 6), {2, 3, 7, SCRIPT}),
    # The newest candidates need not be the newest snapshots.
    ((3, 5, 6), {3, 5, 4, 7, SCRIPT}),
]


@pytest.mark.parametrize("commanders,met", MET)
def test_opponents_are_equally_likely(commanders, met):
    """Top commanders, newest candidates and the script, also where there are fewer than asked for."""
    ratings = RATINGS | {5: (1500.0, 50.0), 6: (1490.0, 50.0), 7: (1480.0, 50.0)}
    _, state = filled(commanders, ratings, {})
    chances = compiled(pool_lib.opponent_probabilities)(state)
    np.testing.assert_allclose(chances, [(entry in met) / len(met) for entry in range(9)], atol=1e-6)


def test_empty_league_plays_its_script_and_the_first_candidate():
    _, state = small()
    np.testing.assert_allclose(
        compiled(pool_lib.opponent_probabilities)(state), np.eye(9)[[1, SCRIPT]].sum(0) / 2, atol=1e-6
    )


PROMOTED = [
    # Below both commanders, and enough games.
    ({4: (1520.0, 20.0)}, {4: 5}, {1, 2}),
    # Above one of them; it stays a commander.
    ({4: (1550.0, 10.0)}, {4: 5}, {1, 2, 4}),
    ({4: (1550.0, 10.0)}, {4: 4}, {1, 2}),
    # Rated high, and too uncertain.
    ({4: (1900.0, 250.0)}, {4: 50}, {1, 2}),
    # Two at once: one of them is pessimistically behind a commander and the other.
    ({4: (1550.0, 10.0), 5: (1540.0, 10.0)}, {4: 9, 5: 9}, {1, 2, 4}),
    ({4: (1600.0, 5.0), 5: (1620.0, 5.0)}, {4: 9, 5: 9}, {1, 2, 4, 5}),
]


@pytest.mark.parametrize("ratings,games,expected", PROMOTED)
def test_promotions(ratings, games, expected):
    _, state = filled((1, 2), RATINGS | {4: (1000.0, 50.0)} | ratings, games)
    assert set(np.flatnonzero(compiled(pool_lib.promote_candidates)(state).commander)) == expected


def test_entries_that_are_never_drawn_are_evicted_first():
    """Idle ones by their pessimistic ratings, whatever they have played; then the weakest that has played."""
    ratings = RATINGS | {5: (1450.0, 10.0), 7: (1400.0, 350.0)}
    pool, state = filled((1, 2, 3), ratings, {2: 9, 3: 9})
    judged = pool._replace(settings=replace(SMALL, evict_games=5))

    @jax.jit
    def chosen(state, held):
        slots = (pool_lib.eviction_slots(one, state, held, 1) for one in (pool, judged))
        return [pool_lib.eviction.choose_slot("idle", one) for one in slots]

    def gone(*held):
        (place, found), (other, _) = chosen(state, np.isin(np.arange(9), held))
        assert bool(found)
        return int(place) + 1, int(other) + 1

    # Not met: 1 (1500), 4 (1530) and 5 (1430).
    assert gone()[0] == 5
    assert gone(5)[0] == 1
    assert gone(1, 4, 5) == (7, 3)


def update(step, state, number: int):
    """The state after random games against whoever is played."""
    rng, counts = np.random.default_rng(number), np.zeros((9, 3), np.int32)
    for slot in np.asarray(state.slots):
        counts[slot] += rng.multinomial(4, [0.5, 0.1, 0.4])
    return jax.device_get(step(state, jax.random.key(number), counts, {"w": np.ones(1, np.float32)}))


def test_candidates_commanders_and_evictions_over_many_updates(tmp_path):
    """Candidates first, then commanders until their slots are reused; also from a checkpoint."""
    pool, state = small()
    step, promotions, states = compiled(pool_lib.update_pool_state), 0, []
    for number in range(60):
        before, state = jax.device_get(state), update(step, state, number)
        states.append(state)
        new = state.iteration != before.iteration
        assert not state.commander[new].any() and not state.commander[[0, SCRIPT]].any()
        assert state.commander[~new & before.commander].all()
        risen = state.commander & ~before.commander
        assert (np.asarray(pool_lib.games_per_entry(state))[risen] >= 5).all()
        promotions += risen.sum()
        changed = np.asarray(pool_lib.groups_due_for_change(pool, before.updates))
        chances = np.asarray(compiled(pool_lib.opponent_probabilities)(state))
        assert (chances[state.slots[changed]] > 0).all()
        kinds = np.asarray(report.entry_kinds(state))
        assert (state.commander == (kinds == report.COMMANDER)).all() and kinds[SCRIPT] == pool_lib.FIXED
        assert report.CANDIDATE in kinds and pool_lib.SNAPSHOT not in kinds
    assert promotions > 5 and state.taken > 40 and states[49].commander.any()
    checkpoints.save_checkpoint(tmp_path, ("latest",), states[49], {"step": 0})
    again = checkpoints.restore_state(
        checkpoints.find_checkpoint(tmp_path, "latest"), jax.eval_shape(lambda: states[49])
    )
    for number in range(50, 60):
        again = update(step, again, number)
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shares": {"mirror": 1, "top": 1}},
        {"mode": "commanders", "league": {"main": 1, "main_exploiter": 1}},
    ],
)
def test_pools_without_promotions_have_no_kinds(options):
    settings = PoolSettings(**options)
    assert not settings.promotes
    if settings.league is None:
        pool, state = started(settings)
        assert state.commander is None and report.entry_kinds(state) is state.kind
        assert pool_lib.promote_candidates(pool, state) is state


WRONG = [
    ({"recent": 0}, "pool.recent=0: must be a whole number of at least 1"),
    ({"promote_after": 2.5}, "pool.promote_after=2.5: must be a whole number of at least 1"),
    ({"evict": "idle", "league": {"main": 2}}, "pool.evict=idle: cannot be used with pool.league"),
]


@pytest.mark.parametrize("options,message", WRONG)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError) as error:
        PoolSettings(**options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_echelons_own_league():
    composed, _ = compose_config(["env=echelon", "pool=echelon_league"])
    pool = build.instantiate_node(composed.pool, "pool")
    assert pool.promotes and pool.mixture == {"mirror": 0.5, "commanders": 0.5}
    assert (pool.top, pool.recent, pool.promote_after, pool.evict_games) == (20, 5, 20, 20)
    assert (pool.fixed, pool.rating, pool.evict) == (("heuristic",), "glicko2", "idle")
    # Somebody whom nobody meets can always go.
    assert pool.capacity > pool.top + pool.recent and pool.episodic
