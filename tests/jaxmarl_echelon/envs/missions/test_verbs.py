"""Evaluators of the seven verbs, constraints, follow-ons, and verbs of one's own."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxmarl_echelon.envs.echelon.missions.measures import success
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, NEVER, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs import levels
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import STANDARD, Registry, read_verbs
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import ACTS, DRIVES, Template, Verb

REGISTRY = Registry(STANDARD)
NOTHING = dict.fromkeys(OutcomeRecord._fields, 0.0) | {"strength": 10.0, "enemies": 8.0, "elapsed": 60.0}
SHARES = ("covered", "captured", "watched", "protected", "engaged", "enfilade", "removed", "arrived", "ready")
SHARES += ("form", "speed")
# Per verb the facts by which success grows, and those by which it falls.
BETTER = {
    "assault": ["captured"],
    "hold": ["alone", "contested", "enemies_lost"],
    "overwatch": ["watched", "supported", "protected"],
    "flank": ["engaged", "enfilade", "removed", "waited"],
    "suppress": ["suppression", "hits"],
    "scout": ["detected", "covered"],
    "stage": ["arrived", "ready", "form", "speed"],
}
WORSE = {"assault": ["casualties"], "overwatch": ["exposure"], "flank": ["tracked"], "suppress": ["shots"]}


def outcome(**facts):
    """An outcome in which nothing happened, but for these facts."""
    return OutcomeRecord(**{name: np.float32(value) for name, value in (NOTHING | facts).items()})


evaluate = jax.jit(REGISTRY.evaluate)


@jax.jit
def judge(verb, gone, outcome):
    """Success, and whether it completes the mission, of orders and what follows them."""
    found = success.success_parts(REGISTRY, verb, outcome)
    value = success.base_success(REGISTRY, verb, gone, found, outcome)
    return value, success.is_complete(REGISTRY, verb, gone, found)


def judged(verb, **facts):
    return float(evaluate(outcome(**facts))[VERBS.index(verb)])


@pytest.mark.parametrize(
    ("verb", "facts", "expected"),
    [
        ("assault", {}, 0.3),
        ("assault", {"captured": 1, "casualties": 5}, 0.85),
        ("assault", {"casualties": 10}, 0.0),
        ("hold", {}, 0.0),
        ("hold", {"alone": 30, "contested": 20, "enemies_lost": 4}, 0.6 * 40 / 60 + 0.2),
        ("hold", {"alone": 60, "enemies": 0}, 1.0),
        ("overwatch", {"protected": 1}, 0.6),
        ("overwatch", {"watched": 1, "exposure": 40, "supported": 10, "protected": 0.5}, 0.4 + 0.075 + 0.15),
        ("flank", {"enfilade": 1, "waited": 20}, 0.0),
        ("flank", {"engaged": 1, "enfilade": 1, "waited": 20, "removed": 0.5}, 1.0),
        ("flank", {"engaged": 1, "enfilade": 0.5, "waited": 20, "tracked": 5, "removed": 0.25}, 0.575),
        ("suppress", {"suppression": 20, "shots": 40, "hits": 10}, 0.35 + 0.15),
        ("suppress", {"suppression": 400, "shots": 10, "hits": 10}, 1.0),
        ("suppress", {"enemies": 0}, 0.7),
        ("scout", {"enemies": 0, "covered": 1}, 1.0),
        ("scout", {"enemies": 0}, 0.6),
        ("scout", {"detected": 2, "covered": 0.5}, 0.15 + 0.2),
        ("stage", {"ready": 1, "form": 1, "speed": 1}, 0.0),
        ("stage", {"arrived": 1, "ready": 1, "form": 0.5, "speed": 0.25}, 0.1 + 0.4 + 0.1),
    ],
)
def test_corners_of_evaluators(verb, facts, expected):
    assert judged(verb, **facts) == pytest.approx(expected, abs=1e-6)


def drawn(seed, size):
    """Random outcomes `[size]`, consistent in what is part of what."""
    rng = np.random.default_rng(seed)
    facts = {name: rng.uniform(0, 60, size) for name in OutcomeRecord._fields}
    facts |= {name: rng.uniform(0, 1, size) for name in SHARES}
    facts["engaged"] = np.round(facts["engaged"])
    facts["strength"], facts["enemies"] = rng.integers(0, 11, size), rng.integers(0, 21, size)
    parts = {
        "casualties": "strength",
        "enemies_lost": "enemies",
        "detected": "enemies",
        "alone": "elapsed",
        "contested": "elapsed",
        "supported": "exposure",
        "tracked": "waited",
        "hits": "shots",
    }
    for part, whole in parts.items():
        facts[part] = facts[whole] * rng.uniform(0, 1, size) / (2 if whole == "elapsed" else 1)
    return {name: np.asarray(facts[name], np.float32) for name in OutcomeRecord._fields}


def test_success_stays_between_0_and_1_and_moves_the_right_way():
    facts = drawn(0, 400)
    before = np.asarray(evaluate(OutcomeRecord(**facts)))
    assert np.isfinite(before).all() and before.min() >= 0 and before.max() <= 1 + 1e-6
    for signs, direction in ((BETTER, 1), (WORSE, -1)):
        for verb, names in signs.items():
            for name in names:
                more = facts[name] + (0.1 if name in SHARES and name != "engaged" else 1.0)
                more = np.minimum(more, 1.0) if name in SHARES else more
                after = np.asarray(evaluate(OutcomeRecord(**{**facts, name: more})))
                change = direction * (after - before)[:, VERBS.index(verb)]
                assert change.min() >= -1e-6 and change.max() > 1e-3, (verb, name)


def test_success_depends_only_on_the_fields_of_its_formula():
    facts = drawn(1, 50)
    before = np.asarray(evaluate(OutcomeRecord(**facts)))
    named = {verb: {*BETTER[verb], *WORSE.get(verb, ()), "strength", "enemies", "elapsed"} for verb in VERBS}
    for name in OutcomeRecord._fields:
        after = np.asarray(evaluate(OutcomeRecord(**{**facts, name: facts[name] * 0.5})))
        for index, verb in enumerate(VERBS):
            if name not in named[verb]:
                assert (after[:, index] == before[:, index]).all(), (verb, name)


constrain = jax.jit(partial(success.apply_constraints, REGISTRY))


def constrained(verb="assault", value=0.8, casualties=2.0, appetite=0.3, taken=40.0, budget=50.0):
    numbers = [np.float32([x]) for x in (appetite, budget, taken)]
    index = np.int32([VERBS.index(verb)])
    return float(constrain(np.float32([value]), index, *numbers, outcome(casualties=casualties))[0])


def test_constraints_of_the_order_cost_success():
    assert constrained() == pytest.approx(0.8)
    assert constrained(casualties=3.0) == pytest.approx(0.8)  # as many as are accepted
    assert constrained(casualties=4.0) == pytest.approx(0.4)
    assert constrained(taken=60.0) == pytest.approx(0.64)
    assert constrained(casualties=4.0, taken=60.0) == pytest.approx(0.32)
    assert constrained(verb="hold", taken=60.0) == pytest.approx(0.8)  # lasts to the end by its nature


def test_the_terminal_reward_is_symmetric():
    assert success.terminal_reward(np.float32([0.0, 0.5, 1.0])).tolist() == [-1.0, 0.0, 1.0]


def test_time_is_taken_until_done_or_to_the_end_by_the_order_s_nature():
    verbs = np.int32([VERBS.index(name) for name in ("assault", "assault", "hold", "stage", "overwatch")])
    latched = np.int32([NEVER, 20, 20, 20, NEVER])
    taken = jax.jit(partial(success.time_taken, REGISTRY))(verbs, latched, np.int32(100))
    assert taken.tolist() == [25.0, 5.0, 25.0, 5.0, 25.0]


def test_a_follow_on_is_half_of_the_success_and_counts_from_go():
    verb = np.int32([[VERBS.index("stage"), VERBS.index("scout")]] * 2)
    facts = {"arrived": 1, "ready": 0.5, "form": 1, "covered": 1, "enemies": 0}
    both = OutcomeRecord(*(np.full(2, field) for field in outcome(**facts)))
    value, done = judge(verb, np.array([False, True]), both)
    assert value.tolist() == pytest.approx([0.2, 0.7])
    assert done.tolist() == [False, True]


@pytest.mark.parametrize(
    ("following", "facts", "expected"),
    [
        ("flank", {"enemies_lost": 8}, 0.8),
        ("suppress", {"enemies_lost": 8}, 0.8),
        ("flank", {"enemies_lost": 7}, 0.4),
        ("flank", {"enemies_lost": 8, "engaged": 1, "enfilade": 1, "removed": 0.5}, 0.4 + 0.5),
        ("suppress", {"enemies_lost": 8, "engaged": 1, "suppression": 20}, 0.4 + 0.5 * 0.35),
        ("assault", {"enemies_lost": 8, "captured": 1}, 0.4 + 0.5),
        ("hold", {"enemies_lost": 8, "alone": 60}, 0.4 + 0.5),
    ],
)
def test_an_order_that_needs_enemies_is_void_where_none_is_left_at_go(following, facts, expected):
    """Then the stage is the whole mission; no order is void in which an enemy was left, or was fought."""
    verb = np.int32([[VERBS.index("stage"), VERBS.index(following)]])
    one = OutcomeRecord(*(field[None] for field in outcome(**{"arrived": 1, "ready": 1, "speed": 1} | facts)))
    value, _ = judge(verb, np.array([True]), one)
    assert value.tolist() == pytest.approx([expected])
    before, _ = judge(verb, np.array([False]), one)
    assert before.tolist() == pytest.approx([0.4])


def test_missions_complete_at_their_threshold():
    def done(name, **facts):
        verb = np.int32([[VERBS.index(name)] * 2])
        one = OutcomeRecord(*(field[None] for field in outcome(**facts)))
        return bool(judge(verb, np.array([False]), one)[1][0])

    assert done("assault", captured=1, casualties=10) and not done("assault", casualties=0)
    assert done("scout", covered=1, detected=8) and not done("scout", covered=1, detected=7)
    assert not done("hold", alone=60, enemies_lost=8)


def ambush(outcome):
    return outcome.removed


AMBUSH = Verb(
    name="ambush",
    evaluate=ambush,
    gates={"damage_dealt": 1.0, "stealth": 0.5},
    template=Template(friendly=(0.3, 0.5), enemy=(0.5, 1.0), opposed=("scout",)),
)


def test_a_user_adds_a_verb_in_one_file():
    registry = read_verbs(["scout", f"{__name__}:AMBUSH"])
    assert registry.names == ("scout", "ambush")
    values = registry.evaluate(outcome(removed=0.25))
    assert values.tolist() == pytest.approx([0.0, 0.25])
    row = dict(zip(COMPONENTS, registry.gates[1].tolist(), strict=True))
    assert row["damage_dealt"] == 1.0 and row["stealth"] == 0.5 and row["survival"] == 0.0
    assert row["mission_progress"] == row["pack_cohesion"] == 1.0 and row["zone_control"] == 0.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["scout", "escort"], ("env.verbs=escort", "assault")),
        (["scout", "scout"], ("each verb once",)),
        (["no.such:VERB"], ("env.verbs=no.such:VERB", "no")),
        ("scout", ("must be a list",)),
        ([Verb("odd", ambush, AMBUSH.template)], ("odd has no gates",)),
        ([Verb("odd", ambush, AMBUSH.template, gates={"speed": 1.0})], ("verbs.odd.gates", "survival")),
    ],
)
def test_wrong_verbs_are_named_in_one_line(given, words):
    with pytest.raises(ValueError) as error:
        read_verbs(given)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


def test_orders_of_all_levels_resolve_to_squad_orders():
    missions = levels.list_squad_orders()
    assert missions["assault"] == ("assault",) and "company_seize" in missions and "platoon_recon" in missions
    assert all(set(squads) <= set(VERBS) for squads in missions.values())


def test_standard_verbs_are_described_by_known_words():
    assert REGISTRY.names == VERBS
    assert all(verb.drive in DRIVES and verb.begins in ACTS for verb in REGISTRY.verbs)
    assert all(name in VERBS for verb in REGISTRY.verbs for name in verb.template.opposed)
    assert REGISTRY.staged.tolist() == [name == "stage" for name in VERBS]
