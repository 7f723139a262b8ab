"""Orders over time, readiness, the change at GO; and the embedding of an order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import chassis_of, make_mechs
from mission_moments import CLASSES, SIZE, TEAMS, ZONE, nothing, order, placed, scenario

from jaxmarl_echelon.envs.echelon.missions import embedding
from jaxmarl_echelon.envs.echelon.missions.measures import staging
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import ACTS, CONTACT, COVERAGE, PLACE

STAGE, SCOUT = VERBS.index("stage"), VERBS.index("scout")
NEXT = (40.0, 20.0)
STAGED = scenario(
    verb=((STAGE, SCOUT), (1, 1)),
    go=(20, NEVER),
    objective=(((20.0, 20.0), NEXT), ((20.0, 20.0), (20.0, 20.0))),
).orders


def test_the_order_changes_at_go_and_nothing_shows_it_before():
    before, after = (staging.present_orders(STAGED, jnp.int32(decision)) for decision in (19, 20))
    assert before.verb.tolist() == [STAGE, 1] and after.verb.tolist() == [SCOUT, 1]
    assert before.zone[0, :2].tolist() == [20.0, 20.0] and after.zone[0, :2].tolist() == list(NEXT)
    later = staging.present_orders(STAGED.replace(go=jnp.int32([60, NEVER])), jnp.int32(19))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), before, later))


def ready(**mechs):
    bodies = make_mechs(mechs.pop("position", placed(b0=(20.0, 20.0), b1=(22.0, 20.0))), CLASSES, **mechs)
    told = staging.present_orders(STAGED, jnp.int32(0))
    return staging.measure_readiness(bodies, chassis_of(CLASSES), jnp.int32(CLASSES), told, TEAMS)


def test_readiness_is_heat_body_and_weapons_in_place_and_formation():
    assert [float(x[0]) for x in ready()] == [1.0, 1.0, 1.0]
    hot = ready(heat=[50.0, 0, 0, 0], hp=[75.0, 60.0, 150.0, 60.0], cooldown=np.eye(SIZE, 5) * 9)
    # One of the medium's four weapons waits: its laser; of the scout's two its smoke.
    assert hot.ready[0] == pytest.approx(((0.5 + 0.5 + 0.75) / 3 + (1.0 + 1.0 + 0.5) / 3) / 2)
    assert ready(alive=[True, False, True, True], hp=[75.0, 0, 150.0, 60.0]).ready[0] == pytest.approx(
        2.5 / 3
    )
    away = ready(position=placed(b0=(38.0, 20.0), b1=(38.0, 20.0)))
    assert away.arrived[0] == pytest.approx(0.5)  # 18 voxels, of which 12 count as being there
    wide = ready(position=placed(b0=(20.0 - 27.0, 20.0), b1=(20.0 + 27.0, 20.0)))
    assert wide.form[0] == pytest.approx(0.5)  # one and a half times the spacing of 18
    assert [float(x[0]) for x in ready(alive=[False, False, True, True])] == [0.0, 0.0, 0.0]


def advanced(decision, mine=None, ours=None, act=COVERAGE, position=None, **mechs):
    first, second = nothing()
    bodies = make_mechs(placed() if position is None else position, CLASSES, **mechs)
    told = staging.present_orders(STAGED, jnp.int32(decision - 1))
    acts = jnp.int32([ACTS.index(act)] * 2)
    classes = jnp.int32(CLASSES)
    facts = mine or first, ours or second
    return staging.update_stage(
        STAGED, told, jnp.int32(decision), acts, bodies, chassis_of(CLASSES), classes, *facts, TEAMS
    )


def test_facts_are_reset_at_go_for_that_team_only():
    mine, ours = nothing()
    mine = mine.replace(dealt=jnp.ones(SIZE), pinned=jnp.ones(SIZE), shots=jnp.ones(SIZE, jnp.int32))
    ours = ours.replace(
        elapsed=jnp.int32([20, 20]), capture=jnp.int32([5, 5]), engaged=jnp.array([True, True])
    )
    same, kept = advanced(19, mine, ours)
    assert same.dealt.tolist() == [1] * SIZE and kept.elapsed.tolist() == [20, 20]
    after, team = advanced(20, mine, ours)
    assert after.dealt.tolist() == [0, 0, 1, 1] and after.shots.tolist() == [0, 0, 1, 1]
    assert after.pinned.tolist() == [1, 1, 0, 0]  # what red suffered was blue's doing
    assert team.elapsed.tolist() == [0, 20] and team.capture.tolist() == [0, 5]
    assert team.engaged.tolist() == [False, True]
    assert after.gap[:2].tolist() == pytest.approx([35.0, np.hypot(35, 3)]) and after.gap[2] == mine.gap[2]
    slowest = 5.5
    assert team.reference[0] == pytest.approx(1.5 * np.hypot(35, 1.5) / slowest + 2.0)


def test_readiness_is_recorded_at_go():
    there = placed(b0=(20.0, 20.0), b1=(20.0, 20.0))
    mine, ours = advanced(20, position=there)
    assert ours.arrived[0] == 1.0
    mine, ours = advanced(21, mine, ours, position=placed(b0=(55.0, 20.0), b1=(55.0, 20.0)))
    assert ours.arrived[0] == 1.0


@pytest.mark.parametrize(
    ("act", "change", "begun"),
    [
        (CONTACT, {"met": [True, False]}, True),
        (CONTACT, {"entered": [True, False]}, False),
        (COVERAGE, {"entered": [True, False]}, True),
        (COVERAGE, {}, False),
        (PLACE, {"met": [True, True], "entered": [True, True]}, False),
    ],
)
def test_the_follow_on_begins_with_its_own_first_act(act, change, begun):
    _, ours = nothing()
    ours = ours.replace(elapsed=jnp.int32([8, 8]), **{name: jnp.array(flag) for name, flag in change.items()})
    _, after = advanced(28, None, ours, act)
    assert after.transit.tolist() == [8 if begun else NEVER, NEVER]
    _, before = advanced(12, None, ours, act)
    assert before.transit[0] == NEVER  # not before GO


def test_without_enemies_an_order_that_begins_with_contact_begins_at_the_objective():
    _, ours = nothing()
    ours = ours.replace(elapsed=jnp.int32([8, 8]))
    there = placed(b0=(40.0, 20.0), b1=(40.0, 20.0))
    for position, enemies, begun in ((None, False, False), (there, True, False), (there, False, True)):
        alive = jnp.array([True, True, enemies, False])
        _, after = advanced(28, None, ours, CONTACT, position=position, alive=alive)
        assert after.transit.tolist() == [8 if begun else NEVER, NEVER]


def test_a_squad_has_arrived_with_its_centre():
    _, ours = nothing()
    there = placed(b0=(36.0, 20.0), b1=(40.0, 20.0))
    _, after = advanced(30, None, ours.replace(elapsed=jnp.int32([10, 30])), PLACE, there)
    assert after.transit[0] == 10
    speed = staging.follow_on_promptness(after.replace(reference=jnp.float32([5.0, 5.0])))
    assert speed.tolist() == pytest.approx([0.5, 0.0])


def test_the_embedding_of_an_example():
    told = order(zones=((60.0, 110.0, 5.0), ZONE), verb=(5, 1), parameters=(0.1, 0.2, 0.3, 0.4))
    told = told.replace(complexity=jnp.float32([0.7, 0.0]))
    seen = np.asarray(
        embedding.embed_orders(told, jnp.asarray(placed(b0=(10.0, 10.0, 2.0))), len(VERBS), TEAMS)
    )
    assert seen.shape == (SIZE, 15) == (SIZE, len(embedding.embedding_fields(VERBS)))
    assert seen[0, :7].tolist() == [0, 0, 0, 0, 0, 1, 0]
    np.testing.assert_allclose(seen[0, 7:], [0.1, 0.2, 0.3, 0.4, 0.55910, 0.89443, 0.44721, 0.7], atol=1e-5)
    assert seen[2, 1] == 1 and (np.abs(seen) <= 1).all()


def test_bearings_of_mechs_on_their_objective_and_far_away_are_sound():
    told = order(zones=((20.0, 20.0, 5.0), (900.0, 20.0, 5.0)))
    seen = embedding.embed_orders(told, jnp.asarray(placed(b0=(20.0, 20.0))), len(VERBS), TEAMS)
    sine, cosine = seen[:, -3], seen[:, -2]
    assert np.isfinite(seen).all() and np.allclose(sine**2 + cosine**2, 1.0)
    assert seen[2, -4] == 1.0
