from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, VERBS

# Progress, schedules s, o, t, and shares of the three families after normalisation: the spec's table.
TABLE = [
    (0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0),
    (0.125, 0.8417, 0.5, 0.0, 0.596, 0.404, 0.0),
    (0.25, 0.6833, 1.0, 0.0, 0.374, 0.626, 0.0),
    (0.5, 0.3667, 1.0, 0.0, 0.243, 0.757, 0.0),
    (0.625, 0.2083, 0.5, 0.25, 0.183, 0.503, 0.314),
    (0.75, 0.05, 0.0, 0.5, 0.065, 0.0, 0.935),
    (0.875, 0.05, 0.0, 0.75, 0.045, 0.0, 0.955),
    (1.0, 0.05, 0.0, 1.0, 0.034, 0.0, 0.966),
]
RAW = [0.7, 0.9892, 1.2783, 1.0567, 0.7958, 0.535, 0.785, 1.035]
# The spec's gates, by component, in the order of the verbs.
GATES = {
    "damage_dealt": [1, 0.5, 0.7, 0.3, 0, 0, 0],
    "survival": [0.5, 1, 0.8, 0.7, 0.5, 1, 1],
    "stealth": [0, 0, 0.3, 1, 0, 0.8, 0.5],
    "detection": [0, 0.3, 0.5, 0.2, 0.3, 1, 0.3],
    "suppression_effect": [0.2, 0.3, 0.8, 0, 1, 0, 0],
    "zone_progress": [1, 0, 0, 0.5, 0, 0.3, 0.8],
    "resource_preservation": [0.3, 0.5, 0.4, 0.6, 0.3, 0.7, 1],
}
PROGRESS = np.linspace(0.0, 1.0, 201, dtype=np.float32)
NAMES = np.array(COMPONENTS)
SHAPING = np.isin(NAMES, weights.SHAPING)
BASE = weights.base_weights()


family_shares = jax.jit(weights.family_shares)
component_weights = jax.jit(weights.component_weights)
along = jax.jit(jax.vmap(weights.family_shares, in_axes=(None, 0)))
by_verb = jax.jit(weights.verb_weights)


def every(schedule):
    """Shares at all of `PROGRESS`."""
    return np.asarray(along(schedule, PROGRESS))


def at(name, schedule="continuous"):
    return every(weights.SCHEDULES.index(schedule))[:, weights.FAMILIES.index(name)]


def column(row, name):
    return row[..., COMPONENTS.index(name)]


def test_schedules_and_shares_match_the_table():
    table = np.array(TABLE)
    found = np.asarray(jax.jit(weights.schedule_levels)(np.float32(table[:, 0])))
    np.testing.assert_allclose(found, table[:, 1:4], atol=5e-5)
    np.testing.assert_allclose(found @ np.array(weights.TOTALS), RAW, atol=5e-5)
    np.testing.assert_allclose(jax.jit(weights.normalise_shares)(found), table[:, 4:], atol=6e-4)


@pytest.mark.parametrize("schedule", range(len(weights.SCHEDULES)))
def test_the_budget_is_the_same_throughout(schedule):
    found = every(schedule)
    np.testing.assert_allclose(found.sum(axis=-1), weights.BUDGET, atol=1e-6)
    assert np.all(found >= 0.0)


def test_the_floor_is_a_small_and_falling_share_of_the_last_phase():
    last = at("shaping", "document")[PROGRESS >= 0.75]
    assert last[0] == pytest.approx(0.065, abs=5e-4) and last[-1] == pytest.approx(0.034, abs=5e-4)
    assert np.all(np.diff(last) < 0.0)
    np.testing.assert_allclose(at("objective", "document")[PROGRESS >= 0.75], 0.0, atol=1e-6)
    bare = np.asarray(jax.jit(partial(weights.schedule_levels, floor=0.0))(PROGRESS))[:, 0]
    np.testing.assert_allclose(bare[PROGRESS > 0.7501], 0.0, atol=1e-6)


def test_continuous_weights_have_no_steps_and_the_table_has_three():
    jumps = {
        name: np.abs(np.diff(every(index), axis=0)).max(axis=1)
        for index, name in enumerate(weights.SCHEDULES)
    }
    # 0.5 % of progress changes a share by some percent at most.
    assert jumps["continuous"].max() < 0.05
    assert np.sum(jumps["table"] > 0.1) == 3
    assert jumps["terminal"].max() == jumps["constant"].max() == 0.0


def test_the_discrete_table_is_used_by_quarter():
    # Just inside each phase, where (phase - 1) / 4 <= p < phase / 4.
    for phase, row in enumerate([(1.0, 0.0), (0.6, 0.2), (0.2, 0.6), (0.0, 1.0)]):
        here = (phase / 4 + 0.01 <= PROGRESS) & (phase / 4 + 0.24 >= PROGRESS)
        np.testing.assert_allclose(at("shaping", "table")[here], row[0], atol=1e-6)
        np.testing.assert_allclose(at("terminal", "table")[here], row[1], atol=1e-6)


def test_success_is_paid_at_any_progress_but_in_the_document_s_schedules():
    assert at("terminal").min() > 0.25 and np.all(at("terminal")[PROGRESS > 0.75] > 0.5)
    for name in ("document", "table"):
        assert np.all(at("terminal", name)[PROGRESS < 0.25] == 0.0)
    np.testing.assert_allclose(at("terminal", "document")[PROGRESS < 0.5], 0.0)
    # Where the schedule of success has passed its floor both are equal.
    late = PROGRESS >= 0.75
    np.testing.assert_allclose(every(0)[late], every(weights.SCHEDULES.index("document"))[late], atol=1e-6)
    early = {name: weights.early_share(i, 1.0) for i, name in enumerate(weights.SCHEDULES)}
    assert {name for name, share in early.items() if share} == {"continuous", "constant"}


def test_the_other_schedules_do_not_depend_on_progress():
    np.testing.assert_array_equal(at("terminal", "terminal"), 1.0)
    np.testing.assert_allclose(every(weights.SCHEDULES.index("constant"))[0], [0.28, 0.32, 0.4], atol=1e-6)


def test_the_gate_table_has_its_values():
    gates = weights.gate_table()
    assert VERBS == ("assault", "hold", "overwatch", "flank", "suppress", "scout", "stage")
    assert gates.shape == (len(VERBS), len(COMPONENTS))
    for name, row in GATES.items():
        np.testing.assert_allclose(column(gates, name), row, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(
        sum(column(gates, name) for name in GATES), [3.0, 2.6, 3.5, 3.3, 2.1, 3.8, 3.6], atol=1e-6
    )
    np.testing.assert_array_equal(column(gates, "heat_management"), column(gates, "resource_preservation"))
    for name in ("pack_cohesion", "mission_progress"):
        np.testing.assert_array_equal(column(gates, name), 1.0)
    # Only orders that are carried out in the objective pay for being there; scouts are paid for cells.
    assert dict(zip(VERBS, column(gates, "zone_control"), strict=True)) == {
        verb: float(verb in ("assault", "hold", "stage")) for verb in VERBS
    }
    assert dict(zip(VERBS, column(gates, "coverage"), strict=True)) == {
        verb: float(verb == "scout") for verb in VERBS
    }


def test_the_weights_of_scouts():
    base = jnp.array([0.3, 0.2, 0.1, 0.1])  # survival, damage, heat, cohesion
    np.testing.assert_allclose(
        weights.apply_gates(base, jnp.array([1.0, 0.0, 1.0, 1.0])), [0.42, 0, 0.14, 0.14], atol=1e-6
    )


def test_weights_that_no_gate_lets_through_stay_zero():
    np.testing.assert_array_equal(weights.apply_gates(jnp.array([0.3, 0.2]), jnp.zeros(2)), [0.0, 0.0])


@pytest.mark.parametrize("progress", [0.0, 0.125, 0.5, 0.625, 1.0])
def test_gates_move_weight_within_each_family(progress):
    found = np.asarray(family_shares(0, np.float32(progress)))
    components = np.asarray(component_weights(found, BASE))
    np.testing.assert_allclose(components[SHAPING].sum(), found[0], atol=1e-6)
    np.testing.assert_allclose(components[~SHAPING].sum(), found[1], atol=1e-6)
    np.testing.assert_allclose(
        column(components, "zone_control") * 0.3, column(components, "mission_progress") * 0.5, atol=1e-6
    )
    verbs = np.asarray(by_verb(components, weights.gate_table()))
    np.testing.assert_allclose(verbs[:, SHAPING].sum(axis=1), found[0], atol=1e-6)
    # In proportion to gate times base.
    gates = weights.gate_table()
    for part, share in ((SHAPING, found[0]), (~SHAPING, found[1])):
        raw = (gates * BASE)[:, part]
        np.testing.assert_allclose(verbs[:, part], raw / raw.sum(axis=1, keepdims=True) * share, atol=1e-6)
    np.testing.assert_array_equal(column(verbs, "damage_dealt")[-2:], 0.0)


def test_base_weights_are_split_in_proportion():
    given = {"survival": 0.3, "damage_dealt": 0.2, "pack_cohesion": 0.1, "zone_control": 0.5}
    given |= {"mission_progress": 0.3, "stealth": 0.1, "detection": 0.2, "suppression_effect": 0.2}
    given |= {"zone_progress": 0.2, "heat_management": 0.05, "resource_preservation": 0.05, "coverage": 0.3}
    assert dict(zip(COMPONENTS, BASE.tolist(), strict=True)) == pytest.approx(given)
    double = weights.base_weights({name: 2.0 * weights.BASE[name] for name in weights.SHAPING})
    found = family_shares(0, np.float32(0.4))
    np.testing.assert_allclose(component_weights(found, double), component_weights(found, BASE), atol=1e-6)
    assert sum(weights.BASE[name] for name in weights.OBJECTIVE) == pytest.approx(weights.TOTALS[1])


def test_orders_set_penalties_and_spacing():
    low = weights.compute_order_terms(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(0.0), 240)
    high = weights.compute_order_terms(jnp.float32(1.0), jnp.float32(1.0), jnp.float32(1.0), 240)
    # Squads that accept no losses are penalised most for a death; grouping draws a squad together.
    assert (low.death, high.death) == (-1.0, 0.0)
    assert (low.spacing, high.spacing) == (30.0, 6.0)
    assert (low.haste, high.haste) == (1.0, 2.0)
    assert low.dithering == 0.0 and high.dithering == pytest.approx(-0.1 / 240)
    changed = np.asarray(weights.apply_time_pressure(jnp.asarray(BASE), high)) / BASE
    assert dict(zip(COMPONENTS, changed, strict=True)) == {
        name: 2.0 if name in ("zone_progress", "mission_progress") else 1.0 for name in COMPONENTS
    }


def test_blending_shares_blends_every_weight():
    before, after = family_shares(0, np.float32(0.1)), family_shares(0, np.float32(0.25))
    blend = jax.jit(weights.blend_weights)
    for count in (0, 50, 199, 200, 900):
        share = np.float32(count / 200)
        mixed = component_weights(blend(before, after, share), BASE)
        apart = blend(*(component_weights(x, BASE) for x in (before, after)), share)
        np.testing.assert_allclose(mixed, apart, atol=1e-6)
    np.testing.assert_array_equal(blend(before, after, np.float32(0.0)), before)
    np.testing.assert_array_equal(blend(before, after, np.float32(1.5)), after)
