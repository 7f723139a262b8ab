"""Rosters: named teams, users' own tables and their mistakes."""

import pytest

from jaxmarl_echelon.envs.echelon.battle.unit_tables import HEAVY, LIGHT, MEDIUM, SCOUT
from jaxmarl_echelon.envs.echelon.rosters import read_roster


def test_named_rosters_are_the_eras_tables():
    five = read_roster("blue", "pack5")
    assert sorted(five.classes) == [SCOUT, LIGHT, MEDIUM, MEDIUM, HEAVY]
    ten = read_roster("blue", "pack10")
    assert ten.classes == (HEAVY, *[MEDIUM] * 5, *[LIGHT] * 3, SCOUT)
    assert ten.packs == (0,) * 10 and ten.largest_pack == 10
    assert read_roster("blue", "squad10").packs == (0,) * 5 + (1,) * 5
    thirteen = read_roster("blue", "squad13")
    assert thirteen.packs == (0,) * 6 + (1,) * 6 + (2,)
    assert thirteen.classes[12] == MEDIUM and thirteen.largest_pack == 6


def test_own_tables_are_lists_counts_or_packs():
    assert read_roster("red", ["heavy", "scout"]) == ((HEAVY, SCOUT), (0, 0))
    assert read_roster("red", {"light": 2, "heavy": 0, "scout": 1}) == ((LIGHT, LIGHT, SCOUT), (0, 0, 0))
    several = read_roster("red", ["leader", ["heavy", "scout"], {"light": 2}])
    assert several == ((MEDIUM, HEAVY, SCOUT, LIGHT, LIGHT), (0, 1, 1, 2, 2))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("pack7", ("env.blue", "pack7", "pack5")),
        (["heavy", "medum"], ("env.blue", "medum", "medium")),
        ([["heavy"], ["tank"]], ("env.blue", "tank", "scout")),
        ({"heavy": -1}, ("env.blue.heavy", "-1")),
        ({"heavy": 0}, ("env.blue", "at least one")),
        ({"tank": 1}, ("env.blue", "tank", "scout")),
        ([], ("env.blue", "at least one")),
        (5, ("env.blue=5",)),
        ({"scout": 60, "light": 5}, ("env.blue", "65", "64")),
    ],
)
def test_mistakes_are_named_in_one_line(value, words):
    with pytest.raises(ValueError) as error:
        read_roster("blue", value)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words)
