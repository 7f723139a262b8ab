"""Hardened facts on moments made by hand, and what does not move them."""

import jax
import numpy as np
import pytest
from mission_moments import SIZE, TEAMS, ZONE, log, moment, nothing, order, placed

from jaxmarl_echelon.envs.echelon.battle.unit_tables import AUTOCANNON
from jaxmarl_echelon.envs.echelon.missions.measures import facts, squads
from jaxmarl_echelon.envs.echelon.missions.state import CONFIRMATION

advance = jax.jit(lambda now, mine, ours: facts.update_facts(now._replace(teams=TEAMS), mine, ours))


@jax.jit
def tracks(now):
    """Tracks of one decision, from nothing."""
    return facts.update_tracks(now._replace(teams=TEAMS), np.zeros((SIZE, SIZE), np.int8))


unite_bits = jax.jit(squads.unite_bits, static_argnums=1)


def played(moments, start=None):
    """Facts after some moments, from nothing; and the news of the last one."""
    mine, ours = start or nothing()
    for now in moments:
        mine, ours, news = advance(now._replace(teams=None), mine, ours)
    return jax.device_get((mine, ours, news))


def covered(mine, teams=TEAMS):
    words, _ = unite_bits(mine.visited, teams)
    return [int(np.unpackbits(np.asarray(row).view(np.uint8)).sum()) for row in words]


def test_spinning_in_place_covers_nothing():
    mine, _, _ = played([moment(yaw=np.full(SIZE, 0.1 * turn, np.float32)) for turn in range(20)])
    assert covered(mine) == [0, 0]


def test_cells_are_covered_once_entered_and_only_once():
    walk = [moment(placed(b0=(5.0 + 1.5 * step, 20.0))) for step in range(8)]  # from 5 to 15.5: cells 2 and 3
    mine, _, _ = played(walk)
    assert covered(mine) == [2, 0]
    mine, _, _ = played(walk[::-1], (mine, nothing()[1]))  # and back into the first
    assert covered(mine) == [3, 0]
    other = [
        moment(placed(b0=(12.0, 20.0), b1=(5.0, 23.0))),
        moment(placed(b0=(12.0, 20.0), b1=(12.0, 23.0))),
    ]
    mine, _, _ = played(other)
    assert covered(mine) == [1, 0] and (mine.visited[0] == mine.visited[1]).all()


def test_unreachable_cells_and_the_dead_cover_nothing():
    closed = [moment(placed(b0=(12.0, 20.0)))._replace(open_cells=np.zeros(5, np.uint32))]
    assert covered(played(closed)[0]) == [0, 0]
    dead = [moment(placed(b0=(12.0, 20.0)), alive=[False, True, True, True])]
    assert covered(played(dead)[0]) == [0, 0]


SEEN = np.zeros((SIZE, SIZE), bool)
SEEN[0, 2] = SEEN[2, 0] = True
CLOSE = placed(b0=(20.0, 20.0), r0=(45.0, 20.0))


def test_two_seconds_of_sight_confirm_and_stay_confirmed():
    looks = [moment(CLOSE, sight=SEEN)] * CONFIRMATION
    mine, ours, news = played(looks[:-1])
    assert not mine.confirmed.any() and not ours.met.any()
    mine, ours, news = played(looks)
    assert np.argwhere(mine.confirmed).tolist() == [[0, 2], [2, 0]]
    assert news.found.tolist() == [1.0, 0.0, 1.0, 0.0] and ours.met.tolist() == [True, True]
    mine, _, news = played([moment(CLOSE)], (mine, ours))
    assert mine.confirmed[0, 2] and mine.timer[0, 2] == 0 and not news.found.any()


def test_interrupted_sight_confirms_no_track():
    flicker = [moment(CLOSE, sight=SEEN)] * (CONFIRMATION - 1) + [moment(CLOSE)]
    mine, _, _ = played(flicker * 3)
    assert not mine.confirmed.any()


def test_a_first_track_is_shared_among_those_who_had_it_together():
    both = np.zeros((SIZE, SIZE), bool)
    both[[0, 1, 2, 2], [2, 2, 0, 1]] = True
    near = placed(b0=(20.0, 20.0), b1=(20.0, 24.0), r0=(45.0, 20.0))
    _, _, news = played([moment(near, sight=both)] * CONFIRMATION)
    assert news.found.tolist() == [0.5, 0.5, 2.0, 0.0]


@pytest.mark.parametrize(
    ("distance", "changes", "seen"),
    [
        (29.0, {}, True),
        (31.0, {}, False),
        (29.0, {"stealth": (0.0, 0.5)}, False),  # 30 x (1 - 0.5 x 0.5)
        (22.0, {"stealth": (0.0, 0.5)}, True),
        (29.0, {"heat": [101.0, 0, 0, 0]}, False),  # shut down
        (29.0, {"alive": [True, True, False, True]}, False),
    ],
)
def test_reach_of_sensors(distance, changes, seen):
    now = moment(placed(b0=(10.0, 20.0), r0=(10.0 + distance, 20.0)), sight=SEEN, **changes)
    assert bool(np.asarray(tracks(now._replace(teams=None)))[0, 2]) == seen
    scouts = np.zeros((SIZE, SIZE), bool)
    scouts[1, 2] = True  # scouts look half as far again
    far = moment(placed(b1=(10.0, 20.0), r0=(54.0, 20.0)), sight=scouts)
    assert np.asarray(tracks(far._replace(teams=None)))[1, 2]


def test_shooting_walls_suppresses_no_mech():
    shots = np.zeros((SIZE, 7), int)
    shots[0, AUTOCANNON] = 1
    mine, _, _ = played([moment(tally={"shots": shots})] * 10)
    assert not mine.pinned.any() and not mine.pinning.any()
    assert mine.shots.tolist() == [10, 0, 0, 0] and mine.hits.tolist() == [0] * SIZE


def test_suppression_is_lost_stability_and_belongs_to_the_last_hitter():
    low = {"suppressed": [0, 0, 20, 0], "stability": [100.0, 100.0, 40.0, 100.0]}
    now = [
        moment(hits=log(suppressor={2: 1}), **low),
        moment(**low),
        moment(hits=log(suppressor={2: 0}), **low),
    ]
    mine, _, news = played(now)
    assert mine.pinned[2] == pytest.approx(3 * 0.6 * 0.25) and not mine.pinned[np.array([0, 1, 3])].any()
    assert mine.pinning.tolist() == pytest.approx([0.15, 0.3, 0.0, 0.0])
    assert news.pinning.tolist() == pytest.approx([0.15, 0.0, 0.0, 0.0])
    steady, _, _ = played([moment(suppressed=[0, 0, 20, 0], hits=log(suppressor={2: 1}))])
    assert steady.pinned.max() < 1e-6  # hit, but not off balance
    fallen, _, _ = played([moment(fallen=[0, 0, 30, 0], stability=[100.0, 100.0, 0.0, 100.0])])
    assert fallen.pinned[2] == pytest.approx(0.25) and not fallen.pinning.any()


def test_the_objective_is_captured_by_ten_seconds_alone():
    inside = placed(b0=(20.0, 20.0))
    mine, ours, news = played([moment(inside)] * 39)
    assert not ours.captured.any() and ours.capture.tolist() == [39, 0] and ours.alone.tolist() == [39, 0]
    assert news.inside.tolist() == [True, False, False, False] and news.tick.tolist() == [1.0, 0.0]
    mine, ours, _ = played([moment(inside)], (mine, ours))
    assert ours.captured.tolist() == [True, False]
    assert mine.held.tolist() == pytest.approx([40 * 0.25 * 55.0, 0, 0, 0])
    lost = placed(r1=(20.0, 20.0))
    _, ours, _ = played([moment(lost)] * 50, (mine, ours))
    assert ours.captured[0] and ours.capture.tolist() == [0, 50]  # latched, though it is lost again


def test_a_contested_objective_stands_still():
    both = placed(b0=(20.0, 20.0), r1=(21.0, 22.0))
    mine, ours, news = played([moment(both)] * 4)
    assert (
        ours.capture.tolist() == [0, 0]
        and ours.contested.tolist() == [4, 4]
        and ours.alone.tolist() == [0, 0]
    )
    tick = 0.25 + 0.75 * (55 - 20) / 75
    assert news.tick.tolist() == pytest.approx([tick, 0.25])
    assert mine.held[0] == pytest.approx(4 * 0.5 * 0.25 * 55.0)


def test_each_team_has_an_objective_of_its_own():
    apart = order(zones=(ZONE, (50.0, 20.0, 5.0)))
    _, ours, news = played([moment(placed(b0=(50.0, 20.0), r0=(20.0, 20.0)), told=apart)] * 3)
    assert not news.inside.any() and ours.capture.tolist() == [0, 0]
    assert ours.alone.tolist() == [0, 0] and ours.contested.tolist() == [0, 0]


def test_support_counts_enemies_near_the_objective_that_are_dealt_with():
    near = placed(r0=(30.0, 20.0))
    _, ours, _ = played([moment(near)] * 4)
    assert ours.exposure.tolist() == [4, 8] and ours.supported.tolist() == [0, 0]
    quiet = [moment(near)] * 10
    _, ours, _ = played([moment(near, hits=log(struck=[2])), *quiet])
    assert ours.exposure[0] == 11 and ours.supported[0] == 8  # a hit counts for two seconds
    dead = [moment(near, alive=[True, True, False, True])]
    assert played(dead)[1].exposure[0] == 0


def test_waiting_and_being_tracked_end_with_the_first_damage():
    looks = [moment(CLOSE, sight=SEEN)] * (CONFIRMATION + 2)
    mine, ours, _ = played(looks)
    assert ours.waited.tolist() == [10, 10] and ours.tracked.tolist() == [3, 3]
    struck = [moment(CLOSE, sight=SEEN, tally={"dealt": [7.0, 0, 0, 0]}, hits=log(rear=[7.0, 0, 0, 0]))]
    mine, ours, _ = played([*struck, *looks], (mine, ours))
    assert ours.engaged.tolist() == [True, False]
    assert ours.waited.tolist() == [10, 21] and ours.tracked.tolist() == [3, 14]
    assert mine.dealt[0] == mine.rear[0] == 7.0


def test_samples_in_sight_are_counted_with_those_of_one_mech_alone():
    views = [
        moment(watching=[True, False, False, False]),
        moment(watching=[True, True, False, True]),
        moment(),
    ]
    mine, ours, _ = played(views)
    assert ours.covered.tolist() == [2, 1] and ours.elapsed.tolist() == [3, 3]
    assert mine.lone_cover.tolist() == [1, 0, 0, 1]
