"""When episodes end and what their orders have come to by then: attempts, lost positions, efficiency."""

import jax
import jax.numpy as jnp
import pytest
from echelon_battles import make_mechs
from mission_games import EAST, LIMIT, WEST
from mission_moments import ALL_OPEN, CLASSES, SIZE, TEAMS, nothing, order, placed, scenario

from jaxmarl_echelon.envs.echelon.missions import results
from jaxmarl_echelon.envs.echelon.missions.measures import judge, record
from jaxmarl_echelon.envs.echelon.missions.measures.facts import CAPTURE
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import STANDARD, Registry


@pytest.mark.parametrize("verb", VERBS)
def test_no_mission_is_attempted_before_the_first_decision(game, verb):
    """Blue starts in the area of operations of the objective, and with all that it is to protect."""
    _, time = game.reset(jax.random.key(0), game.env.task_params({"mission": verb}))
    assert time.info["attempt"] == 0.0


def test_entering_the_area_is_an_attempt_and_starting_there_is_not(game):
    there = game.start("flank")
    for places, attempted in ((WEST, 0.0), (EAST, 1.0)):
        start = there.scenario.start.at[:2].set(jnp.float32(places))
        _, time = game.step(there.replace(scenario=there.scenario.replace(start=start)))
        assert time.info["attempt"] == attempted


def test_a_position_that_is_lost_early_was_not_kept_to_the_end(game):
    """Held alone for all of 5 decisions and lost then, of the 24 that the order lasts."""
    facts = {"elapsed": jnp.int32([5, 5]), "alone": jnp.int32([5, 0]), "covered": jnp.int32([5, 0])}
    for verb, success in (("hold", 0.6 * 5 / LIMIT), ("overwatch", 0.4 * 5 / LIMIT + 0.3)):
        state = game.start(verb, "assault", hp=[0.0, 0.0, 150.0, 80.0])
        echelon = state.echelon.replace(decision=jnp.int32(5))
        orders = state.scenario.orders.replace(parameters=jnp.ones((2, 4)))
        state = state.replace(by_team=state.by_team.replace(**facts), echelon=echelon)
        _, time = game.step(state.replace(scenario=state.scenario.replace(orders=orders)))
        assert time.info["mission"] == pytest.approx(success), verb


def capturing(game, verb, against, side):
    """A side alone in its objective, one decision before it is captured; the other far away."""
    inside, outside = ((10.0, 20.0), (8.0, 22.0)), ((36.0, 20.0), (36.0, 26.0))
    state = game.start(verb, against, places=(*inside, *outside) if side == 0 else (*outside, *inside))
    capture = jnp.zeros(2, jnp.int32).at[side].set(CAPTURE - 1)
    facts = state.by_team.replace(capture=capture, elapsed=jnp.int32([5, 5]), alone=jnp.int32([5, 5]))
    return state.replace(by_team=facts, echelon=state.echelon.replace(decision=jnp.int32(5)))


def test_red_s_capture_does_not_end_blue_s_order(game):
    state, time = game.step(capturing(game, "hold", "assault", 1))
    assert state.by_team.captured.tolist() == [False, True] and not time.over
    gone = capturing(game, "hold", "assault", 1)
    mechs = gone.echelon.battle.mechs
    battle = gone.echelon.battle.replace(mechs=mechs.replace(alive=mechs.alive.at[:2].set(False)))
    _, time = game.step(gone.replace(echelon=gone.echelon.replace(battle=battle)))
    assert time.over and results.MISSION_ENDINGS[time.info["ending"]] == "complete"


def test_blue_s_capture_counts_the_remaining_time_as_not_held_by_red(game):
    _, time = game.step(capturing(game, "assault", "hold", 0))
    assert time.over and time.info["mission/red"] == pytest.approx(0.6 * 5 / LIMIT)


@pytest.mark.parametrize("last_enemy_falls", [8, 12])
def test_a_hold_that_follows_a_stage_lasts_to_the_end(game, last_enemy_falls):
    """Whether the enemies are gone before GO, at decision 10, or fall after it."""
    state = game.start("stage", "scout", places=((10.0, 20.0), (12.0, 20.0), *EAST))
    orders = state.scenario.orders
    orders = orders.replace(
        verb=orders.verb.at[0].set(jnp.int32([VERBS.index("stage"), VERBS.index("hold")])),
        objective=orders.objective.at[0].set(jnp.float32([10.0, 20.0])),
        go=jnp.int32([10, NEVER]),
    )
    echelon = state.echelon.replace(decision=jnp.int32(8))
    state = state.replace(echelon=echelon, scenario=state.scenario.replace(orders=orders))
    for decision in range(8, LIMIT):
        if decision == last_enemy_falls:
            mechs = state.echelon.battle.mechs
            battle = state.echelon.battle.replace(mechs=mechs.replace(hp=mechs.hp.at[2:].set(0.0)))
            state = state.replace(echelon=state.echelon.replace(battle=battle))
        state, time = game.step(state)
        assert bool(time.over) == (decision == LIMIT - 1), decision
    assert results.MISSION_ENDINGS[time.info["ending"]] == "time" and time.info["mission"] > 0.8


def test_holding_until_the_enemy_completes_elsewhere_counts_as_held_throughout(game):
    """Blue has found all and covered all, while red was alone in the objective from the start."""
    state = capturing(game, "scout", "hold", 1)
    everything = jnp.full_like(state.by_mech.visited, 0xFFFFFFFF)
    found = state.by_mech.confirmed.at[:2, 2:].set(True)
    facts = state.by_mech.replace(confirmed=found, visited=everything)
    _, time = game.step(state.replace(by_mech=facts))
    assert time.over and time.info["mission"] > 0.9 and time.info["mission/red"] == pytest.approx(0.6)


@pytest.mark.parametrize(("verb", "kept"), [("scout", 1.0), ("assault", 5 / LIMIT)])
def test_only_a_capture_that_completes_the_order_ends_red_s_hold(verb, kept):
    """Blue has captured the objective at some time, found all and entered all; red was alone in it."""
    mine, ours = nothing()
    everything = jnp.broadcast_to(ALL_OPEN, mine.visited.shape)
    mine = mine.replace(visited=everything, confirmed=mine.confirmed.at[:2, 2:].set(True))
    five = jnp.int32([5, 5])
    ours = ours.replace(captured=jnp.array([True, False]), elapsed=five, alone=five)
    verbs = jnp.int32([VERBS.index(verb), VERBS.index("hold")])
    told = scenario(verb=jnp.stack([verbs, verbs], 1))
    evidence = record.RecordInputs(TEAMS, told, jnp.ones(SIZE, bool), mine, ours, ALL_OPEN, jnp.float32(1.0))
    verdict = judge.assess_missions(
        Registry(STANDARD),
        evidence,
        order(verb=verbs),
        make_mechs(placed(), CLASSES),
        jnp.int32(5),
        jnp.int32(LIMIT),
    )
    assert verdict.over and verdict.success[1] == pytest.approx(0.6 * kept)


def test_an_order_that_lasts_to_the_end_takes_until_then(game):
    """Its efficiency does not depend on when it first counted as done."""
    found = {}
    for verb in ("overwatch", "assault"):
        facts = {"latched": [6, NEVER], "captured": [verb == "assault", False]}
        _, time = game.last(game.start(verb), **facts)
        found[verb] = float(time.info["efficiency"] / time.info["mission"])
    assert found == pytest.approx({"overwatch": 0.5, "assault": 1 - 0.5 * 6 / LIMIT})
