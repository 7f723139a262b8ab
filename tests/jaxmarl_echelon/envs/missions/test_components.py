"""Shaping components on decisions made by hand, and their weights under an order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import make_mechs
from mission_moments import CLASSES, SIZE, TEAMS, moment, nothing, order, placed, scenario

from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.measures.facts import FactChanges
from jaxmarl_echelon.envs.echelon.missions.pay import components
from jaxmarl_echelon.envs.echelon.missions.pay.decision import read_order_terms
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import STANDARD, Registry

LIMIT = 240.0
QUIET = FactChanges(
    jnp.zeros(SIZE),
    jnp.zeros(SIZE),
    jnp.zeros(SIZE, bool),
    jnp.zeros(SIZE, bool),
    jnp.zeros(2),
    jnp.zeros(SIZE),
)


@jax.jit
def _compute(it):
    it = it._replace(now=it.now._replace(teams=TEAMS))
    return components.compute_shaping(it), components.potential_growth(it), components.dithering(it)


MIDDLING = (0.5, 0.5, 0.5, 0.5)


def shaped(before=None, after=None, parameters=MIDDLING, news=None, potential=((0, 0), (0, 0)), **given):
    """Components by name, `[M]` each, of a decision; `given` is for `moment` or the situation."""
    return judged(before, after, parameters, news, potential, **given)[0]


def judged(before=None, after=None, parameters=MIDDLING, news=None, potential=((0, 0), (0, 0)), **given):
    """`shaped`, with `dithering`, and the growth of potentials."""
    told = order(parameters=parameters)
    fields = {
        name: given.pop(name)
        for name in ("stalled", "gamma", "was_alive", "over", "decision")
        if name in given
    }
    before = placed() if before is None else before
    now = moment(before if after is None else after, told=told, **given)
    mine, _ = nothing()
    it = components.ShapingInputs(
        now=now._replace(teams=None),
        before=make_mechs(before, CLASSES, alive=fields.get("was_alive", [True] * SIZE)),
        news=QUIET._replace(**{name: jnp.asarray(value) for name, value in (news or {}).items()}),
        scenario=scenario(),
        gap=mine.gap,
        potential=jnp.float32(potential),
        over=jnp.bool_(fields.get("over", False)),
        stalled=jnp.int32(fields.get("stalled", (0, 0))),
        orders=read_order_terms(told, jnp.float32(LIMIT)),
        limit=jnp.float32(LIMIT),
        gamma=jnp.float32(fields.get("gamma", 1.0)),
        decision=jnp.int32(fields.get("decision", LIMIT)),
        asked=jnp.float32(40.0),
    )
    paid, grown, dithering = _compute(it)
    return dict(zip(COMPONENTS, np.asarray(paid).T, strict=True)) | {"dithering": dithering}, grown


def test_survival_rewards_living_and_penalises_dying_less_with_loss_appetite():
    dies = {"alive": [False, True, True, True]}
    paid = shaped(**dies, parameters=(0.5, 0.2, 0.5, 0.5))["survival"]
    assert paid.tolist() == pytest.approx([-0.8, 1 / LIMIT, 1 / LIMIT, 1 / LIMIT])
    assert shaped(**dies, parameters=(0.5, 1.0, 0.5, 0.5))["survival"][0] == 0.0


def test_damage_is_a_share_of_all_enemies_times_the_own_number():
    paid = shaped(tally={"dealt": [21.0, 0.0, 0.0, 0.0], "dealt_to_friends": [0.0, 50.0, 0, 0]})
    assert paid["damage_dealt"].tolist() == pytest.approx([2 * 21 / 210, 0, 0, 0])


def test_heat_is_free_up_to_three_quarters():
    paid = shaped(heat=[75.0, 0.875 * 75, 100.0, 120.0])["heat_management"] * LIMIT
    assert paid.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("apart", "paid"), [(4.0, 0.0), (18.0, 1.0), (40.0, 1.0), (60.0, 0.0), (110.0, -0.5)]
)
def test_spacing_is_that_of_the_order(apart, paid):
    """With a grouping of 0.5 mechs should keep 18 voxels from their centre."""
    places = placed(b0=(5.0, 20.0), b1=(5.0 + apart, 20.0))
    assert shaped(places)["pack_cohesion"][0] * LIMIT == pytest.approx(paid)


def test_squads_in_their_objective_are_well_placed_whatever_the_spacing():
    places = placed(b0=(20.0, 20.0), b1=(21.0, 20.0))
    assert not shaped(places)["pack_cohesion"][0]
    inside = shaped(places, news={"inside": [True, True, False, False]})["pack_cohesion"] * LIMIT
    assert inside[:2].tolist() == pytest.approx([1.0, 1.0])


def test_ending_early_pays_the_last_rates_for_the_remaining_time():
    """As much as the same rates to the limit, discounted to the last decision."""
    news = {"inside": [True] * SIZE, "tick": [1.0, 0.5]}
    for gamma in (1.0, 0.9):
        early = shaped(news=news, gamma=gamma, over=True, decision=LIMIT - 3.0)
        on_time = shaped(news=news, gamma=gamma)
        lasting = 1 + gamma + gamma**2 + gamma**3
        for name in ("survival", "heat_management", "zone_control", "stealth", "resource_preservation"):
            np.testing.assert_allclose(early[name], on_time[name] * lasting, rtol=1e-5, err_msg=name)
    fallen = shaped(news=news, over=True, decision=0.0, alive=[False, True, True, True])
    assert fallen["survival"][0] == pytest.approx(-0.5) and fallen["heat_management"][0] == 0.0


def test_new_cells_are_shares_of_those_asked_for():
    paid = shaped(news={"entered": [1.0, 0.5, 0.0, 2.0]})["coverage"]
    assert paid.tolist() == pytest.approx([1 / 40, 0.5 / 40, 0.0, 2 / 40])


def test_zone_progress_is_a_difference_of_potentials():
    paid = shaped(placed(), placed(b0=(8.0, 20.0), r0=(56.0, 20.0)))["zone_progress"]
    assert paid.tolist() == pytest.approx([3 / 15, 0, -1 / 35, 0], abs=1e-6)
    there = shaped(placed(), placed(b0=(20.0, 20.0)))["zone_progress"]
    assert there[0] == pytest.approx(1.0)  # the whole way pays 1


def test_zone_control_rewards_mechs_in_the_objective():
    news = {"inside": [True, False, True, False], "tick": [0.25, 1.0]}
    paid = shaped(news=news)["zone_control"] * LIMIT
    assert paid.tolist() == pytest.approx([0.25, 0.0, 1.0, 0.0])


def test_mission_progress_is_a_difference_of_potentials_whatever_the_time_pressure():
    for pressure in (0.0, 1.0):
        paid = shaped(
            potential=((0.2, 0.5), (0.3, 0.5)),
            gamma=0.9,
            stalled=(20, 20),
            parameters=(0.5, 0.5, pressure, 0.5),
        )
        assert paid["mission_progress"].tolist() == pytest.approx([0.07, 0.07, -0.05, -0.05])


def test_dithering_is_penalised_under_time_pressure():
    hurried = shaped(stalled=(20, 19), parameters=(0.5, 0.5, 1.0, 0.5), was_alive=[True, False, True, True])[
        "dithering"
    ]
    assert hurried.tolist() == pytest.approx([-0.1 / LIMIT, 0.0, 0.0, 0.0])
    assert not shaped(stalled=(20, 20), parameters=(0.5, 0.5, 0.0, 0.5))["dithering"].any()


def test_dead_mechs_return_the_potential_like_survivors_at_the_end():
    fallen = shaped(potential=((0.2, 0.5), (0.3, 0.5)), gamma=0.9, alive=[False, True, True, True])
    assert fallen["mission_progress"].tolist() == pytest.approx([-0.2, 0.07, -0.05, -0.05])
    ended = shaped(potential=((0.2, 0.5), (0.3, 0.5)), gamma=0.9, over=True)
    assert ended["mission_progress"].tolist() == pytest.approx([-0.2, -0.2, -0.5, -0.5])


def test_potentials_are_logged_by_their_growth():
    """Standing still is rewarded with the discount of the remaining distance, which is not progress."""
    paid, grown = judged(gamma=0.9, potential=((0.5, 0.5), (0.5, 0.6)))
    assert paid["zone_progress"].tolist() == pytest.approx([0.1] * SIZE)
    assert paid["mission_progress"].tolist() == pytest.approx([-0.05, -0.05, 0.04, 0.04])
    assert grown["zone_progress"].tolist() == [0.0] * SIZE
    assert grown["mission_progress"].tolist() == pytest.approx([0.0, 0.0, 0.1, 0.1])
    flags = {"was_alive": [True, False, True, True], "alive": [False, False, True, True], "over": True}
    _, ended = judged(placed(), placed(b0=(8.0, 20.0)), gamma=0.9, potential=((0.2, 0), (0.3, 0)), **flags)
    assert ended["zone_progress"].tolist() == pytest.approx([3 / 15, 0, 0, 0], abs=1e-6)
    assert ended["mission_progress"].tolist() == pytest.approx([0.1, 0, 0, 0])


def test_hiding_without_a_task_is_not_stealth():
    far = placed(b0=(2.0, 20.0), b1=(2.0, 23.0))
    assert not shaped(far)["stealth"].any()  # unseen, but doing nothing, away from the objective
    nearing = shaped(far, placed(b0=(2.5, 20.0), b1=(2.0, 23.0)))["stealth"] * LIMIT
    assert nearing.tolist() == [1.0, 0.0, 0.0, 0.0]
    on_task = placed(b0=(30.0, 20.0), b1=(28.0, 23.0))
    paid = shaped(on_task, news={"tracked": [True, False, False, False]})["stealth"] * LIMIT
    assert paid.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_first_tracks_and_suppression_are_shares_of_their_targets():
    paid = shaped(news={"found": [1.0, 0.5, 0, 0], "pinning": [2.5, 0, 0, 0]})
    assert paid["detection"].tolist() == pytest.approx([0.5, 0.25, 0, 0])
    assert paid["suppression_effect"].tolist() == pytest.approx([0.25, 0, 0, 0])


def test_resources_are_heat_body_and_stability():
    paid = shaped(hp=[75.0, 60.0, 150.0, 60.0], heat=[50.0, 0, 0, 0], stability=[50.0, 100.0, 100.0, 100.0])
    assert paid["resource_preservation"][:2] * LIMIT == pytest.approx([0.5, 1.0])


def test_mechs_dead_before_the_decision_receive_no_shaping():
    paid = shaped(was_alive=[False, True, True, True], alive=[False, True, True, True])
    assert not any(values[0] for values in paid.values()) and paid["survival"][1] > 0


def test_weights_depend_on_verb_and_time_pressure():
    registry = Registry(STANDARD)
    shares = jax.jit(weights.family_shares)(np.int32(0), np.float32(0.5))
    given = np.asarray(jax.jit(weights.component_weights)(shares, weights.base_weights()))
    verbs, gates_of = [VERBS.index("scout"), VERBS.index("assault")], np.asarray(registry.gates)
    told = order(parameters=((0, 0, 0, 0), (0, 0, 1, 0)))
    hurry = jax.jit(read_order_terms)(told, np.float32(LIMIT))
    by_order, by_verb = jax.jit(components.weights_by_verb), jax.jit(weights.verb_weights)
    found = by_order(given, gates_of[verbs], hurry)
    scout, assault = (dict(zip(COMPONENTS, row.tolist(), strict=True)) for row in found)
    assert (
        scout["damage_dealt"] == scout["suppression_effect"] == 0.0
        and scout["detection"] > scout["stealth"] > 0
    )
    # Scouts are paid the whole objective share for progress; the hurried assault is paid double.
    objective = float(given[COMPONENTS.index("zone_control")] + given[COMPONENTS.index("mission_progress")])
    assert scout["mission_progress"] == pytest.approx(objective) and scout["zone_control"] == 0.0
    assert assault["mission_progress"] == pytest.approx(2 * objective * 0.3 / 0.8)
    assert sum(scout.values()) == pytest.approx(float(given.sum()))  # gates keep the sum
    for verb, gates in enumerate(weights.gate_table()):
        row, _ = by_order(given, gates_of[[verb, verb]], hurry)
        np.testing.assert_allclose(row, by_verb(given, gates), rtol=1e-6)
