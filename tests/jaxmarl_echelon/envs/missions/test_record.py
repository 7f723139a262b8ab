"""Outcome records, each team's without one of its mechs, and difference rewards."""

import jax.numpy as jnp
import numpy as np
import pytest
from mission_moments import SIZE, TEAMS, nothing, scenario

from jaxmarl_echelon.envs.echelon.missions.measures import credit, facts, record, success
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import STANDARD, Registry

REGISTRY = Registry(STANDARD)
BITS = np.array([[0b0111, 0], [0b1110, 1], [0b0001, 0], [0, 0]], np.uint32)


def evidence(by_mech=(), by_team=(), alive=(True,) * SIZE, cover_target=1.0, **problem):
    """Evidence of nothing but the facts given."""
    mine, ours = nothing()
    mine = mine.replace(**{n: jnp.asarray(v, getattr(mine, n).dtype) for n, v in dict(by_mech).items()})
    ours = ours.replace(**{n: jnp.asarray(v, getattr(ours, n).dtype) for n, v in dict(by_team).items()})
    cells = jnp.uint32([0x000F, 1, 0, 0, 0])
    return record.RecordInputs(
        TEAMS, scenario(**problem), jnp.asarray(alive), mine, ours, cells, jnp.float32(cover_target)
    )


def words(bits):
    return np.pad(np.asarray(bits, np.uint32), ((0, 0), (0, 3)))


TRACKS = np.zeros((SIZE, SIZE), bool)
TRACKS[[0, 0, 1, 2], [2, 3, 3, 0]] = True


def test_records_are_computed_from_facts():
    told = evidence(
        by_mech={
            "visited": words(BITS),
            "confirmed": TRACKS,
            "dealt": [60.0, 15.0, 30.0, 0.0],
            "rear": [30.0, 15.0, 0.0, 0.0],
            "pinned": [0.0, 0.5, 2.0, 1.0],
            "shots": [10, 0, 4, 0],
            "hits": [5, 0, 1, 0],
        },
        by_team={"elapsed": [40, 40], "alone": [20, 0], "contested": [8, 8], "covered": [10, 0]},
        alive=[True, False, True, True],
    )
    found = record.compute_team_records(told)
    expected = {
        "strength": [2, 2],
        "casualties": [1, 0],
        "enemies_lost": [0, 1],
        "detected": [2, 1],
        "covered": [1.0, 0.2],
        "elapsed": [10, 10],
        "alone": [5, 0],
        "contested": [2, 2],
        "watched": [0.25, 0],
        "protected": [0.5, 1],
        "enfilade": [0.6, 0],
        "removed": [75 / 210, 30 / 210],
        "suppression": [3.0, 0.5],
        "shots": [10, 4],
        "hits": [5, 1],
        "speed": [0, 0],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-6, err_msg=name)


def test_a_running_record_holds_the_share_of_a_capture():
    told = evidence(by_team={"capture": [facts.CAPTURE // 2, 0], "captured": [False, True]})
    running = record.with_running_capture(record.compute_team_records(told), told.by_team)
    assert record.compute_team_records(told).captured.tolist() == [0, 1] and running.captured.tolist() == [
        0.5,
        1,
    ]


def test_promptness_of_follow_ons():
    told = evidence(by_team={"transit": [10, NEVER], "reference": [5.0, 5.0]})
    assert record.compute_team_records(told).speed.tolist() == pytest.approx([0.5, 0.0])


def test_detections_and_coverage_without_a_mech_are_unions_over_the_others():
    told = evidence(by_mech={"visited": words(BITS), "confirmed": TRACKS})
    rest = record.compute_records_without(told, record.compute_team_records(told))
    assert rest.detected.tolist() == [1, 2, 0, 1]  # only the first had found the third mech
    np.testing.assert_allclose(rest.covered, [4 / 5, 3 / 5, 0, 1 / 5], rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_records_without_a_mech_are_those_of_a_squad_that_never_had_it(seed):
    """Exact for unions, casualties, shots, angles and lone samples; by shares for the rest."""
    rng = np.random.default_rng(seed)
    mine = {
        "visited": words(rng.integers(0, 16, (SIZE, 2)) & [15, 1]),
        "confirmed": (rng.random((SIZE, SIZE)) < 0.5)
        & (np.arange(SIZE)[:, None] // 2 != np.arange(SIZE) // 2),
        "dealt": rng.uniform(0, 40, SIZE),
        "rear": np.zeros(SIZE),
        "pinning": rng.uniform(0, 2, SIZE),
        "held": rng.uniform(1, 20, SIZE),
        "shots": rng.integers(5, 9, SIZE),
        "hits": rng.integers(0, 5, SIZE),
    }
    mine["rear"] = mine["dealt"] * rng.uniform(0, 1, SIZE)
    mine["pinned"] = np.repeat([mine["pinning"][2:].sum(), mine["pinning"][:2].sum()], 2) / 2
    team = {"elapsed": [40, 40], "alone": [20, 10], "contested": [8, 8], "engaged": [True, True]}
    alive = rng.random(SIZE) < 0.5
    told = evidence(mine, team, alive)
    rest = record.compute_records_without(told, record.compute_team_records(told))
    for mech in range(SIZE):
        gone = {name: np.array(value) for name, value in mine.items()}
        for name in ("visited", "dealt", "rear", "held", "shots", "hits"):
            gone[name][mech] = 0
        gone["confirmed"][mech] = False
        foes = slice(2, 4) if mech < 2 else slice(0, 2)
        share = mine["pinning"][mech] / mine["pinning"][mech // 2 * 2 : mech // 2 * 2 + 2].sum()
        gone["pinned"][foes] *= 1 - share
        there = np.ones(SIZE, bool)
        there[mech] = False
        anew = evidence(gone, team, alive & there, present=there)
        never = record.compute_team_records(anew)
        side = mech // 2
        for name in ("strength", "casualties", "detected", "covered", "enfilade", "shots", "hits"):
            got, want = getattr(rest, name)[mech], getattr(never, name)[side]
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)
        for name in ("removed", "suppression"):
            got, want = getattr(rest, name)[mech], getattr(never, name)[side]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


def difference(told, went=(False, False), decision=100):
    went = jnp.array(went)
    outcome = record.compute_team_records(told)
    verb = told.scenario.orders.verb
    value = success.base_success(
        REGISTRY, verb, went, success.success_parts(REGISTRY, verb, outcome), outcome
    )
    latched = told.by_team.latched
    whole = success.constrain_team_success(
        REGISTRY, told.scenario.orders, value, latched, jnp.int32(decision), outcome
    )
    return credit.difference_rewards(
        credit.CreditInputs(REGISTRY, told, went, outcome, whole, jnp.int32(decision))
    ), whole


@pytest.mark.parametrize(
    ("verb", "by_mech", "by_team", "worth"),
    [
        ("scout", {"confirmed": TRACKS & (np.arange(SIZE) == 0)[:, None]}, {}, 0.6),
        ("scout", {"visited": words(BITS * (np.arange(SIZE) == 0)[:, None])}, {}, 0.4 * 3 / 5),
        ("assault", {"held": [100, 0, 0, 0]}, {"capture": [40, 0], "captured": [True, False]}, 0.7),
        ("hold", {"held": [100, 0, 0, 0]}, {"alone": [40, 0], "elapsed": [40, 40]}, 0.6),
        ("suppress", {"pinning": [5, 0, 0, 0], "pinned": [0, 0, 5, 0]}, {}, 0.7 * 0.5),
        (
            "flank",
            {"dealt": [50, 0, 0, 0], "rear": [50, 0, 0, 0]},
            {"engaged": [True, False]},
            0.8 + 0.2 * 50 / 105,
        ),
        ("overwatch", {"lone_cover": [20, 0, 0, 0]}, {"covered": [20, 0], "elapsed": [40, 40]}, 0.2),
    ],
)
def test_the_worker_gets_the_credit_and_the_free_rider_none(verb, by_mech, by_team, worth):
    index = VERBS.index(verb)
    told = evidence(by_mech, by_team, verb=((index, index), (1, 1)))
    credit, whole = difference(told)
    assert credit[0] == pytest.approx(worth, abs=1e-5) and credit[1] == pytest.approx(0.0, abs=1e-6)
    assert whole[0] >= credit[0] - 1e-6


def test_credit_decreases_with_redundant_help():
    """Two who found the same enemies get no credit for them: the team did fine without either."""
    both = np.zeros((SIZE, SIZE), bool)
    both[:2, 2:] = True
    index = VERBS.index("scout")
    credit, _ = difference(evidence({"confirmed": both}, verb=((index, index), (1, 1))))
    assert credit[:2].tolist() == pytest.approx([0.0, 0.0])


def test_own_losses_reduce_credit_and_empty_slots_get_none():
    index = VERBS.index("assault")
    told = evidence(
        alive=[True, False, True, True], verb=((index, index), (1, 1)), present=[True, True, True, False]
    )
    credit, whole = difference(told)
    assert whole[0] == pytest.approx(0.15)  # one of two lost
    assert credit[1] < 0 and credit[3] == 0
