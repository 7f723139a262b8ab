"""The navigation aid: what it shows, that it is all that the script knows of its way, and what it hides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mission_games import EAST, LIMIT, WEST, Game, built

from jaxmarl_echelon.envs.check_env import check_traces
from jaxmarl_echelon.envs.echelon.battle.unit_tables import FORWARD, STRAFE, YAW_RATE
from jaxmarl_echelon.envs.echelon.missions.navigation import BLOCK
from jaxmarl_echelon.envs.echelon.scripts.heuristic import FULL_TURN, STUCK_PATIENCE, TOO_CLOSE

SPAN = 40.0


@pytest.fixture(scope="module")
def guided() -> Game:
    return Game(built(navigation=True, frame="body"))


def shown(game, time, role="blue"):
    fields = game.env.layout[BLOCK].fields
    return dict(zip(fields, np.asarray(game.block(time, BLOCK, role)).T, strict=True))


def place_of(seen, state, mech, name, number=None):
    """Where a mech's field points, x and y."""
    mechs, own = state.echelon.battle.mechs, mech if number is None else number
    turn = float(mechs.yaw[mech]) + np.arctan2(seen[f"{name}_sin"][own], seen[f"{name}_cos"][own])
    away = seen[f"{name}_distance"][own] * SPAN
    return np.asarray(mechs.position[mech, :2]) + away * np.array([np.cos(turn), np.sin(turn)])


def test_the_block_follows_the_others_and_needs_the_mechs_own_frame(guided, game):
    assert guided.env.layout.names == (*game.env.layout.names, BLOCK)
    assert BLOCK not in game.env.layout.names and not game.env.navigates
    with pytest.raises(ValueError, match=r"env\.navigation=true: needs env\.frame=body, not world"):
        built(navigation=True, frame="world")


def test_environment_with_navigation_is_traced_as_the_contract_says():
    check_traces(built(time_limit=3.0, objective=None, navigation=True))


def test_an_assault_leads_to_its_objective_and_a_flank_around_it(guided):
    state, time = guided.step(guided.start("assault"))
    seen = shown(guided, time)
    for mech in (0, 1):
        np.testing.assert_allclose(place_of(seen, state, mech, "goal"), (10.0, 20.0), atol=1e-3)
    state, time = guided.step(guided.start("flank"))
    beside = place_of(shown(guided, time), state, 0, "goal")
    assert np.linalg.norm(beside - (10.0, 20.0)) > 5.0 and (shown(guided, time)["arrived"] == 0).all()
    # A mech that has been there goes on to the objective, its mate does not.
    places = (tuple(beside), WEST[1], *EAST)
    state, time = guided.step(guided.start("flank", places=places))
    seen = shown(guided, time)
    np.testing.assert_allclose(place_of(seen, state, 0, "goal"), (10.0, 20.0), atol=1e-3)
    assert state.navigation.leg.tolist()[:2] == [1, 0]
    np.testing.assert_allclose(place_of(seen, state, 1, "goal"), beside, atol=1.5)


def test_an_enemy_that_only_a_mate_sees_is_shown_where_it_is(guided):
    hidden, seen_by_one = guided.start(), guided.start(places=((30.0, 20.0), WEST[1], *EAST))
    assert not shown(guided, guided.step(hidden)[1])["enemy_known"].any()
    assert not shown(guided, guided.step(hidden)[1])["enemy_distance"].any()
    state, time = guided.step(seen_by_one)
    timer = np.asarray(state.by_mech.timer)
    assert timer[0, 2] > 0 and not timer[1, 2:].any()
    seen, mechs = shown(guided, time), np.asarray(state.echelon.battle.mechs.position)
    assert seen["enemy_known"].tolist() == [1, 1]
    # The mate behind the wall is shown the nearest to itself of those that its squad sees.
    known = np.flatnonzero(timer[:2, 2:].any(0)) + 2
    nearest = known[np.linalg.norm(mechs[known] - mechs[1], axis=1).argmin()]
    found = seen["enemy_distance"][1] * SPAN
    np.testing.assert_allclose(found, np.linalg.norm(mechs[nearest] - mechs[1]), rtol=1e-4)
    np.testing.assert_allclose(place_of(seen, state, 1, "enemy"), mechs[nearest, :2], atol=0.2)


def test_a_stuck_mech_is_shown_a_way_out(guided):
    """Still for more than the patience: it pauses, goes back three decisions and aside four, and pauses."""
    state = guided.start("assault")
    position = state.echelon.battle.mechs.position
    motion = state.navigation.motion.replace(position=position, still=jnp.full(4, STUCK_PATIENCE, jnp.int32))
    state = state.replace(navigation=state.navigation.replace(motion=motion))
    ahead, left, escaping = [], [], []
    for number in range(10):
        state, time = guided.step(state, key=number)
        seen = shown(guided, time)
        ahead.append(seen["escape_ahead"][0]), left.append(seen["escape_left"][0])
        escaping.append(seen["escaping"][0])
    assert escaping == [1] * 9 + [0] and ahead == [0, -1, -1, -1, 0, 0, 0, 0, 0, 0]
    assert abs(left[4]) == 1 and left == [0] * 4 + [left[4]] * 4 + [0] * 2


@pytest.mark.parametrize("verb", ["assault", "overwatch", "flank", "scout"])
def test_the_teacher_s_way_is_a_function_of_what_its_pupil_observes(guided, verb):
    """Throttles and turning recomputed from the block alone, by the formulas of the reference (14)."""
    script = guided.env.scripts["heuristic_blue"]
    teach = jax.jit(lambda memory, state: script.teach(jax.random.key(0), memory, state, guided.params))
    memory, checked, met = script.init(), 0, 0
    state = guided.start(verb, places=((16.0, 34.0), (14.0, 30.0), (4.0, 34.0), (4.0, 37.0)))
    state, time = guided.step(state)
    for number in range(LIMIT - 2):
        memory, action = teach(memory, state)
        seen, action = shown(guided, time), np.asarray(action)
        alive = np.asarray(state.echelon.battle.mechs.alive)[:2]
        known = seen["enemy_known"] == 1
        close = known & (seen["enemy_distance"] * SPAN < TOO_CLOSE)
        slow = np.where(seen["arrived"] == 1, 0.5, 1.0)
        forward = slow * np.where(close, -0.3, seen["goal_cos"])
        strafe = slow * np.where(close, 1.0, 0.25) * seen["goal_sin"]
        error = np.where(
            known,
            np.arctan2(seen["enemy_sin"], seen["enemy_cos"]),
            np.arctan2(seen["goal_sin"], seen["goal_cos"]),
        )
        free = seen["escaping"] == 0
        for column, expected, rest in (
            (FORWARD, forward, seen["escape_ahead"]),
            (STRAFE, strafe, seen["escape_left"]),
            (YAW_RATE, np.clip(error / FULL_TURN, -1, 1), 0.0 * free),
        ):
            wanted = np.where(free, expected, rest)
            np.testing.assert_allclose(action[alive, column], wanted[alive], atol=2e-3)
        checked, met = checked + alive.sum(), met + known.sum()
        state, time = guided.step(state, {"blue": action}, key=number)
    assert checked > LIMIT and met > 0
