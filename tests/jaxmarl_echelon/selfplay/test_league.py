"""Whom the learners of a league meet, when they leave a snapshot and begin anew; by hand-made scores."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.selfplay import league
from jaxmarl_echelon.selfplay.league import LEAGUE_EXPLOITER, MAIN, MAIN_EXPLOITER, NO_LEARNER
from jaxmarl_echelon.selfplay.settings import PoolSettings

# A main agent, an exploiter of it, one of the league; three slots each, of which "-" are empty; a script.
ROLES = (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER)
NAMES = ("main", "exploiter", "rover", "m0", "m1", "m2", "e0", "e1", "-", "r0", "-", "-", "script")
OWNERS = (0, 1, 2, 0, 0, 0, 1, 1, NO_LEARNER, 2, NO_LEARNER, NO_LEARNER, NO_LEARNER)
USUAL = {"main": 0.5, "exploiter": 0.6, "rover": 0.6, "r0": 0.5, "script": 0.9}


def standing(names=NAMES, owners=OWNERS, **payoff: float) -> league.LeagueView:
    """Scores by name; snapshots of a learner are numbered from the oldest."""
    scores = USUAL | payoff
    known = [name in scores for name in names]
    return league.LeagueView(
        payoff=jnp.array([scores.get(name, 0.0) for name in names]),
        past=jnp.array(
            [ok and (name[-1].isdigit() or name == "script") for name, ok in zip(names, known, strict=True)]
        ),
        learner_index=jnp.array(
            [owner if ok else NO_LEARNER for owner, ok in zip(owners, known, strict=True)]
        ),
        iteration=jnp.array([int(name[-1]) * 7 if name[-1].isdigit() else -1 for name in names]),
    )


def shared(*parts: tuple[float, Mapping[str, float]]) -> dict[str, float]:
    """A mixture of weights by name, each of which is scaled to a sum of 1 before it gets its share."""
    found = {}
    for share, weights in parts:
        for name, weight in weights.items():
            found[name] = found.get(name, 0.0) + share * weight / sum(weights.values())
    return found


def require(chances, expected: Mapping[str, float], names=NAMES) -> None:
    np.testing.assert_allclose(chances, [expected.get(name, 0.0) for name in names], atol=1e-6)
    assert float(jnp.sum(chances)) == pytest.approx(1.0, abs=1e-6)


def hard(**payoff: float) -> dict[str, float]:
    return {name: (1 - x) ** 2 for name, x in payoff.items()}


# The scores of a main agent, and whom the 15 % of verification meet.
MAIN_AGENTS = {
    "a past exploiter still beats it": (
        {"m0": 0.5, "m1": 0.8, "m2": 0.6, "e0": 0.2, "e1": 0.6},
        {"e0": 0.64, "e1": 0.16},
    ),
    # The score rises from m0 to m1 and falls to m2, which is left out.
    "it forgets its past": (
        {"m0": 0.5, "m1": 0.6, "m2": 0.4, "e0": 0.3, "e1": 0.6},
        {"m0": 0.25, "m1": 0.16},
    ),
    "its past gets harder from old to new": (
        {"m0": 0.6, "m1": 0.5, "m2": 0.5, "e0": 0.4, "e1": 0.6},
        {"main": 1.0},
    ),
    "it has forgotten nothing": (
        {"m0": 0.7, "m1": 0.8, "m2": 0.1, "e0": 0.4, "e1": 0.6},
        {"main": 1.0},
    ),
    "nobody has left a second snapshot": ({"m0": 0.2, "e0": 0.5}, {"main": 1.0}),
}


@pytest.mark.parametrize("name", MAIN_AGENTS)
def test_main_agent_plays_the_past_itself_and_its_weaknesses(name):
    payoff, checks = MAIN_AGENTS[name]
    found = league.league_probabilities(standing(**payoff), ROLES, jnp.int32(0))
    past = hard(**payoff, r0=0.5, script=0.9)
    require(found, shared((0.5, past), (0.15, checks), (0.35, {"main": 1.0})))


def test_the_power_of_the_weight():
    payoff, _ = MAIN_AGENTS["it has forgotten nothing"]
    past = {name: (1 - x) ** 8 for name, x in {**payoff, "r0": 0.5, "script": 0.9}.items()}
    found = league.league_probabilities(standing(**payoff), ROLES, jnp.int32(0), power=8.0)
    require(found, shared((0.5, past), (0.5, {"main": 1.0})))


TWO = (MAIN, MAIN, MAIN_EXPLOITER)
TWO_NAMES = ("main", "other", "exploiter", "m0", "m1", "o0", "o1", "e0", "-")
TWO_OWNERS = (0, 1, 2, 0, 0, 1, 1, 2, NO_LEARNER)


@pytest.mark.parametrize("score", [0.3, 0.31])
def test_main_agent_that_is_too_strong_is_replaced_by_its_past(score):
    """At .3 its past by x (1 - x), above the agent itself; each main agent in half of these games."""
    payoff = {"other": score, "m0": 0.9, "m1": 0.8, "o0": 0.5, "o1": 0.2, "e0": 0.6}
    found = league.league_probabilities(standing(TWO_NAMES, TWO_OWNERS, **payoff), TWO, jnp.int32(0))
    meets = {"o0": 0.25, "o1": 0.16} if score == 0.3 else {"other": 1.0}
    past = hard(m0=0.9, m1=0.8, o0=0.5, o1=0.2, e0=0.6)
    require(found, shared((0.5, past), (0.25, {"main": 1.0}), (0.25, meets)), TWO_NAMES)


def test_forgotten_entries_come_from_the_past_of_one_main_agent():
    payoff = {"other": 0.5, "m0": 0.9, "m1": 0.8, "o0": 0.2, "o1": 0.6, "e0": 0.6}
    found = league.league_probabilities(standing(TWO_NAMES, TWO_OWNERS, **payoff), TWO, jnp.int32(0))
    past, forgotten = hard(m0=0.9, m1=0.8, o0=0.2, o1=0.6, e0=0.6), {"o0": 0.64, "o1": 0.16}
    require(
        found,
        shared((0.5, past), (0.175 + 0.075, {"main": 1.0}), (0.175, {"other": 1.0}), (0.075, forgotten)),
        TWO_NAMES,
    )


@pytest.mark.parametrize("score", [0.1, 0.11])
def test_main_exploiter_plays_main_agents_or_their_past(score):
    payoff = {"main": score, "other": 0.7, "m0": 0.5, "m1": 0.1, "o0": 0.9, "o1": 0.9, "e0": 0.0}
    found = league.league_probabilities(standing(TWO_NAMES, TWO_OWNERS, **payoff), TWO, jnp.int32(2))
    meets = {"m0": 0.25, "m1": 0.09} if score == 0.1 else {"main": 1.0}
    require(found, shared((0.5, meets), (0.5, {"other": 1.0})), TWO_NAMES)


def test_league_exploiter_plays_the_whole_past():
    """By min(1/2, 1 - x), and evenly where it beats all of it."""
    payoff = {"m0": 0.1, "m1": 0.6, "e0": 0.8, "r0": 0.5, "script": 1.0}
    found = league.league_probabilities(standing(**payoff), ROLES, jnp.int32(2))
    require(found, shared((1.0, {"m0": 0.5, "m1": 0.4, "e0": 0.2, "r0": 0.5})))
    payoff = dict.fromkeys(("m0", "e0", "r0", "script"), 1.0)
    require(league.league_probabilities(standing(**payoff), ROLES, jnp.int32(2)), dict.fromkeys(payoff, 0.25))


def test_score_that_triggers_a_snapshot():
    payoff = {"main": 0.65, "m0": 0.8, "m1": 0.75, "e0": 0.72, "r0": 0.9, "script": 0.71}
    scores = [league.worst_score(standing(**payoff), ROLES, jnp.int32(member)) for member in range(3)]
    np.testing.assert_allclose(scores, [0.71, 0.65, 0.71], atol=1e-6)
    two = {"main": 0.8, "other": 0.9, "m0": 0.1}
    assert float(
        league.worst_score(standing(TWO_NAMES, TWO_OWNERS, **two), TWO, jnp.int32(2))
    ) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "score,waited,taken",
    [(0.9, 9, False), (0.71, 10, True), (0.7, 10, False), (0.1, 19, False), (0.1, 20, True)],
)
def test_snapshots_depend_on_score_and_waiting_time(score, waited, taken):
    assert bool(league.ready_for_snapshot(jnp.float32(score), jnp.int32(waited), 10)) == taken


def test_roles_that_are_reset_after_a_snapshot():
    keys = jax.random.split(jax.random.key(0), 4000)
    shares = [
        float(jnp.mean(jax.vmap(lambda key, role=role: league.should_reset(key, jnp.int32(role)))(keys)))
        for role in ROLES
    ]
    assert shares[:2] == [0.0, 1.0] and shares[2] == pytest.approx(0.25, abs=0.03)


def test_own_and_common_numbering_of_entries():
    assert league.common_numbering(5, jnp.int32(0)).tolist() == [0, 1, 2, 3, 4]
    own = league.common_numbering(5, jnp.int32(2))
    assert own.tolist() == [2, 1, 0, 3, 4] and own[own].tolist() == [0, 1, 2, 3, 4]


def test_settings_of_a_league():
    settings = PoolSettings(
        capacity=3, fixed=("random",), league={"main": 2, "main_exploiter": 1, "league_exploiter": 1}
    )
    assert settings.roles == (MAIN, MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER) and settings.mirrored == 0
    assert (settings.learners, settings.first_fixed, settings.entries) == (4, 16, 17)
    names = [settings.learner_name(number) for number in range(4)]
    assert names == ["main_0", "main_1", "main_exploiter", "league_exploiter"]


@pytest.mark.parametrize(
    "given,message",
    [
        ({"mains": 1}, "pool.league.mains=1: unknown role; allowed: main, main_exploiter, league_exploiter"),
        ({"main": 1.5}, "pool.league.main=1.5: must be a whole number of at least 0"),
        ({"main": 1}, "must have a main agent and another learner"),
        ({"main_exploiter": 2}, "must have a main agent and another learner"),
        ("main", "pool.league=main: must map main, main_exploiter, league_exploiter to numbers"),
    ],
)
def test_invalid_league_settings_are_rejected(given, message):
    with pytest.raises(ValueError, match=message):
        PoolSettings(league=given)
