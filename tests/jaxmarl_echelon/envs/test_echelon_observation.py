"""Observations of mechs: golden contacts, slots, the pack's board, the local map, the own state."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import make_battle, make_mechs, make_params, make_state, quiet_tally

from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.surroundings import chassis_of
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    AUTOCANNON,
    CHASSIS,
    FLAMER,
    GAUSS,
    HEAVY,
    LASER,
    LIGHT,
    MEDIUM,
    MISSILE,
    PAINTER,
    SCOUT,
    SMOKE,
    WEAPON,
)
from jaxmarl_echelon.envs.echelon.observing import contacts as contacts_lib
from jaxmarl_echelon.envs.echelon.observing import true_state
from jaxmarl_echelon.envs.echelon.observing.contacts import BIGGEST, CLOSEST, MOST_DAMAGED, MechSides
from jaxmarl_echelon.envs.echelon.observing.layout import CONTACT_FIELDS, make_layout
from jaxmarl_echelon.envs.echelon.observing.observe import Place, Senses, observe_mechs, pack_board

ZONE = (30.0, 20.0, 6.0)


def sides_of(teams, classes, packs=None):
    packs = [0] * len(teams) if packs is None else packs
    return MechSides(*(np.asarray(row, np.int32) for row in (teams, packs, classes)))


def make_senses(size, **changes):
    """Sensors that miss nothing and hear nothing."""
    everything, zero = np.ones((size, size), bool), np.zeros(size, np.float32)
    senses = Senses(everything, everything, zero + 1, zero, np.zeros((size, 4), np.float32))
    return senses._replace(**changes)


def make_place(occupancy=None):
    occupancy = np.zeros((1, 40, 40), bool) if occupancy is None else occupancy
    telemetry = np.linspace(0.0, 1.0, 256, dtype=np.float32).reshape(16, 16)
    return Place(np.float32(ZONE), occupancy, telemetry, np.int32(0), (40, 40, 20))


@partial(jax.jit, static_argnums=(2, 3))
def see(state, params, teams, layout, senses, place):
    sides = MechSides(jnp.asarray(teams, jnp.int32), params.pack, params.classes)
    place = place.replace(size=(40, 40, 20))
    flat, contacts = observe_mechs(layout, state, params, sides, chassis_of(params), senses, place)
    return layout.split(flat), contacts


def look(state, params, teams, senses=None, place=None):
    """Blocks of all mechs' observations, and the contacts."""
    layout = make_layout(5)
    senses = make_senses(len(teams)) if senses is None else senses
    return see(state, params, tuple(teams), layout, senses, place or make_place())


def own(blocks, field, mech=0):
    return float(np.asarray(blocks["self"])[mech, make_layout(5).index("self", field)])


def test_layout_is_the_original_s_with_the_heading_added():
    layout = make_layout(5)
    starts = {block.name: (block.start, block.stop) for block in layout.blocks}
    assert starts == {
        "contacts": (0, 125),
        "pack": (125, 165),
        "local_map": (165, 286),
        "telemetry": (286, 542),
        "acoustic": (542, 546),
        "self": (546, 591),
    }
    # The spec counts from the acoustic quadrants, which are four features.
    assert 4 + layout.index("self", "velocity_x") == 27
    assert make_layout(10).size == layout.size + 40
    assert make_layout(5, telemetry=False).size == layout.size - 256
    flat = jnp.arange(2 * layout.size, dtype=jnp.float32).reshape(2, -1)
    assert (layout.join(layout.split(flat)) == flat).all()
    assert hash(layout) == hash(make_layout(5))
    with pytest.raises(KeyError, match="telemetry"):
        make_layout(5, telemetry=False)["telemetry"]
    with pytest.raises(KeyError, match="hp"):
        layout.index("contacts", "ph")


def test_golden_contact():
    mechs = make_mechs(
        [[10, 10, 2], [20, 15, 1.5]],
        [HEAVY, MEDIUM],
        velocity=[[1, 0, 0], [1, 2, 0]],
        yaw=[0.3, -1.0],
        hp=[200, 75],
        heat=[0, 50],
        stability=[100, 40],
        painted=[0, 30],
        painter=[-1, 0],
    )
    state, params = make_state(make_battle(mechs)), make_params([HEAVY, MEDIUM])
    blocks, contacts = look(state, params, [0, 1])
    wanted = [0.25, 0.125, -0.0125, 0, 0.2, 0, -0.841471, 0.540302, 0.5, 0.5, 0.4, 0, 0, 0, 1, 0]
    wanted += [0, 0, 1, 0, 1, 1, -0.013301, -0.089353, 0.200799]
    np.testing.assert_allclose(blocks["contacts"][0, 0], wanted, atol=2e-6)
    assert contacts[0].tolist() == [1, -1, -1, -1, -1]
    assert (blocks["contacts"][0, 1:] == 0).all()


def test_paint_shows_to_the_painter_s_pack_only():
    mechs = make_mechs(
        [[5, 5, 1], [6, 9, 1], [7, 20, 1], [20, 20, 1]],
        [SCOUT] * 4,
        painted=[0, 0, 0, 9],
        painter=[-1, -1, -1, 0],
    )
    blocks, _ = look(
        make_state(make_battle(mechs), hostile_only=[True] * 4),
        make_params([SCOUT] * 4, packs=[0, 0, 1, 0]),
        [0, 0, 0, 1],
    )
    painted = blocks["contacts"][:, 0, CONTACT_FIELDS.index("painted")]
    assert painted.tolist() == [1, 1, 0, 0]


# Six friends and three enemies of mech 0, at distances 1, 2, ... in the order of their indices.
CLASSES = [HEAVY, SCOUT, LIGHT, MEDIUM, HEAVY, MEDIUM, SCOUT, MEDIUM, SCOUT, HEAVY]
TEAMS = [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]


CHOOSE = jax.jit(contacts_lib.assign_contact_slots)


def choose(sort=CLOSEST, hostile_only=False, hidden=(), hp=None, teams=TEAMS):
    size = len(teams)
    x = np.arange(size, dtype=np.float32)
    offset = np.zeros((size, size, 3), np.float32)
    offset[..., 0] = x[None] - x[:, None]
    visible = np.ones((size, size), bool)
    visible[:, list(hidden)] = False
    picked = CHOOSE(
        visible,
        offset,
        np.ones(size, np.float32) if hp is None else np.float32(hp),
        sides_of(teams, CLASSES[:size]),
        np.full(size, sort),
        np.full(size, hostile_only),
    )
    return picked[0].tolist()


def test_slots_take_three_friends_then_enemies_then_more_friends():
    assert choose() == [1, 2, 3, 7, 8]
    assert choose(hidden=(1, 2, 3, 4)) == [5, 6, 7, 8, 9]
    assert choose(hidden=(7, 8)) == [1, 2, 3, 9, 4]
    assert choose(hidden=(7, 8, 9)) == [1, 2, 3, 4, 5]
    assert choose(hostile_only=True) == [7, 8, 9, -1, -1]
    assert choose(hidden=range(1, 10)) == [-1] * 5


def test_orders_of_contacts():
    assert choose(BIGGEST) == [4, 3, 5, 9, 7]
    hp = [1.0, 0.9, 0.8, 0.2, 0.9, 0.5, 1.0, 1.0, 0.4, 0.4]
    assert choose(MOST_DAMAGED, hp=hp) == [3, 5, 2, 8, 9]
    assert choose(MOST_DAMAGED, hostile_only=True, hp=hp) == [8, 9, 7, -1, -1]


def test_contacts_agree_with_sorting_on_random_scenes():
    generator, size = np.random.default_rng(3), 9
    for _ in range(60):
        teams, classes = generator.integers(0, 2, size), generator.integers(0, 4, size)
        hp, position = generator.random(size).astype(np.float32), generator.normal(size=(size, 3))
        visible = generator.random((size, size)) < 0.8
        offset = (position[None] - position[:, None]).astype(np.float32)
        sort, only = generator.integers(0, 3, size), generator.random(size) < 0.3
        got = np.asarray(CHOOSE(visible, offset, hp, sides_of(teams, classes), sort, only))
        bigness = np.array([1, 1, 2, 3])
        for viewer in range(size):
            key = (np.zeros(size), -bigness[classes], hp)[sort[viewer]]
            near = (offset[viewer] ** 2).sum(-1)
            order = sorted(range(size), key=lambda j: (key[j], near[j]))
            order = [j for j in order if j != viewer and visible[viewer, j]]
            friends = [j for j in order if teams[j] == teams[viewer] and not only[viewer]]
            foes = [j for j in order if teams[j] != teams[viewer]]
            wanted = (friends[:3] + foes + friends[3:] + [-1] * 5)[:5]
            assert got[viewer].tolist() == wanted


def test_messages_reach_the_own_pack_of_the_living_only():
    said = np.arange(5 * 8, dtype=np.float32).reshape(5, 8) + 1
    sides = sides_of([0, 0, 0, 1, 1], [SCOUT] * 5, packs=[0, 0, 1, 0, 0])
    show = jax.jit(pack_board, static_argnums=3)
    board = np.asarray(show(said, np.array([True, True, True, True, False]), sides, 3))
    assert (board[0, :2] == said[:2]).all() and (board[1] == board[0]).all()
    assert (board[0, 2] == 0).all()
    assert (board[2, 0] == said[2]).all() and (board[2, 1:] == 0).all()
    assert (board[3, 0] == said[3]).all() and (board[3, 1:] == 0).all()


def test_local_map_turns_with_the_mech_and_ends_at_the_border():
    occupancy = np.zeros((1, 40, 40), bool)
    occupancy[0, 20, 23] = True  # x = 23, y = 20
    place = make_place(jnp.asarray(occupancy))
    mechs = make_mechs(
        [[20.5, 20.5, 1], [20.5, 20.5, 1], [1.5, 20.5, 1]], [SCOUT] * 3, yaw=[0.0, np.pi / 2, np.pi]
    )
    blocks, _ = look(make_state(make_battle(mechs)), make_params([SCOUT] * 3), [0, 1, 0], place=place)
    local = np.asarray(blocks["local_map"])
    assert np.argwhere(local[0]).tolist() == [[5 + 3, 5]]
    # Looking along +y, what lies at larger x is on the right.
    assert np.argwhere(local[1]).tolist() == [[5, 5 - 3]]
    # x = 1.5 - 2 = -0.5 is truncated into the first column; farther ahead is outside.
    assert (local[2][8:] == 1).all() and (local[2][:8] == 0).all()


def test_own_state_fields():
    mechs = make_mechs(
        [[10, 10, 1], [14, 10, 1], [30, 21, 1]],
        [LIGHT, SCOUT, HEAVY],
        yaw=[np.pi / 2, 0, 0],
        velocity=[[1, 2, 3], [0, 0, 0], [0, 0, 0]],
        hp=[20, 60, 200],
        heat=[72, 0, 0],
        stability=[30, 100, 100],
        painted=[5, 0, 0],
        suppressed=[12, 0, 0],
        cooldown=[[7, 61, 3, 10, 5], [0] * 5, [0] * 5],
        ecm=[True, False, False],
    )
    tally = quiet_tally(3, hit=[True, False, False], hit_direction=[[1, 0, 0], [0, 0, 0], [0, 0, 0]])
    battle = make_battle(mechs, tally)
    missile = battle.projectiles.replace(
        kind=battle.projectiles.kind.at[1, 2].set(MISSILE),
        target=battle.projectiles.target.at[1, 2].set(0),
    )
    state = make_state(battle.replace(projectiles=missile), decision=60, score=[6.0, 15.0], sort=[1, 0, 0])
    senses = make_senses(3, quality=jnp.array([0.75, 1.0, 1.0]), jam=jnp.array([0.4, 0.0, 0.0]))
    blocks, _ = look(state, make_params([LIGHT, SCOUT, HEAVY]), [0, 1, 1], senses)
    wanted = {
        "light": 1, "heavy": 0, "targeted": 1, "under_fire": 1, "painted": 1, "shutdown": 0,
        "critical_heat": 1, "hp": 0.25, "heat": 0.9, "heat_headroom": 0.1, "stability_risk": 0.7,
        "hit_x": 0, "hit_y": -1, "hit_z": 0, "incoming_missile": 1, "sensor_quality": 0.5, "jammed": 0.4,
        "ecm": 1, "eccm": 0, "suppressed": 0.5, "ams_cooldown": 0.25, "velocity_x": 0.1,
        "velocity_y": 0.2, "velocity_z": 0.3, "laser_cooldown": 6 / 12, "missile_cooldown": 1,
        "kinetic_cooldown": 3 / 80, "painter_cooldown": 0.5, "in_zone": 0, "zone_x": 0.5, "zone_y": 0.25,
        "zone_z": -1 / 40, "zone_radius": 0.15, "control": -1, "score": 0.2, "enemy_score": 0.5,
        "time": 0.25, "sort_closest": 0, "sort_biggest": 1, "sort_most_damaged": 0, "hostile_only": 0,
        "sin_yaw": 1, "cos_yaw": 0,
    }  # fmt: skip
    for field, value in wanted.items():
        np.testing.assert_allclose(own(blocks, field), value, atol=1e-6, err_msg=field)
    assert own(blocks, "incoming_missile", 1) == 0
    assert own(blocks, "in_zone", 2) == 1 and own(blocks, "control", 2) == 1
    assert own(blocks, "score", 2) == 0.5 and own(blocks, "enemy_score", 2) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("kind", "weapon", "field", "seconds", "scale"),
    [
        (MEDIUM, LASER, "laser_cooldown", 0.6, 0.6),
        (HEAVY, MISSILE, "missile_cooldown", 3.0, 3.0),
        (HEAVY, SMOKE, "missile_cooldown", 5.0, 3.0),
        (HEAVY, GAUSS, "kinetic_cooldown", 4.0, 4.0),
        (MEDIUM, AUTOCANNON, "kinetic_cooldown", 0.2, 4.0),
        (LIGHT, FLAMER, "kinetic_cooldown", 0.15, 4.0),
        (LIGHT, PAINTER, "painter_cooldown", 1.0, 1.0),
    ],
)
def test_cooldowns_are_seen_in_the_seconds_of_the_tables(kind, weapon, field, seconds, scale):
    """Right after a shot, one substep later, and in the substep before the next shot."""
    left = jnp.array([WEAPON.period[weapon], WEAPON.period[weapon] - 1, 1])
    cooldown = jnp.zeros((3, 5), jnp.int32).at[:, WEAPON.slot[weapon]].set(left)
    mechs = make_mechs([[10, 10, 1], [14, 10, 1], [18, 10, 1]], [kind] * 3, cooldown=cooldown)
    blocks, _ = look(make_state(make_battle(mechs)), make_params([kind] * 3), [0, 0, 1])
    last = 0.0 if WEAPON.period[weapon] > WEAPON.cooldown[weapon] else 0.05
    for mech, wanted in enumerate((seconds, seconds - 0.05, last)):
        np.testing.assert_allclose(own(blocks, field, mech), wanted / scale, atol=1e-6)


def test_a_shut_down_mech_observes_no_velocity():
    mechs = make_mechs([[10, 10, 1]] * 2, [LIGHT] * 2, velocity=[[5, 5, 5]] * 2, heat=[80.5, 79.5])
    blocks, _ = look(make_state(make_battle(mechs)), make_params([LIGHT] * 2), [0, 1])
    assert own(blocks, "shutdown") == 1 and own(blocks, "velocity_x") == 0
    assert own(blocks, "shutdown", 1) == 0 and own(blocks, "velocity_x", 1) == 0.5


def test_a_mech_whose_heat_equals_the_capacity_observes_that_it_is_shut_down():
    mechs = make_mechs([[10, 10, 1]] * 2, [LIGHT] * 2, heat=[CHASSIS.heat_capacity[LIGHT], 79.0])
    params = make_params([LIGHT] * 2)
    blocks, _ = look(make_state(make_battle(mechs)), params, [0, 1])
    seen = [own(blocks, "shutdown", mech) for mech in (0, 1)]
    assert seen == is_shut_down(mechs, chassis_of(params)).tolist() == [True, False]


def test_targeted_needs_a_living_enemy_in_sight_and_range():
    def targeted(distance, team=1, alive=True, sight=True):
        mechs = make_mechs([[10, 10, 1], [10 + distance, 10, 1]], [SCOUT] * 2, alive=[True, alive])
        senses = make_senses(2, sight=jnp.full((2, 2), sight))
        return own(
            look(make_state(make_battle(mechs)), make_params([SCOUT] * 2), [0, team], senses)[0], "targeted"
        )

    assert targeted(7.9) == 1
    assert targeted(8.1) == 0
    assert targeted(7.9, team=0) == 0
    assert targeted(7.9, alive=False) == 0
    assert targeted(7.9, sight=False) == 0


def test_the_dead_see_nothing_and_are_not_seen():
    mechs = make_mechs([[10, 10, 1], [12, 10, 1], [14, 10, 1]], [SCOUT] * 3, alive=[True, False, True])
    state, params = make_state(make_battle(mechs)), make_params([SCOUT] * 3)
    blocks, contacts = jax.device_get(look(state, params, [0, 0, 1]))
    assert all((block[1] == 0).all() for block in blocks.values())
    assert contacts[0].tolist() == [2, -1, -1, -1, -1]
    assert contacts[1].tolist() == [-1] * 5
    assert (blocks["telemetry"][0] == blocks["telemetry"][2]).all()


def test_both_sides_see_the_same_from_their_own_side():
    """Swapping the teams swaps the observations, so that one policy can play either."""
    generator = np.random.default_rng(0)
    position = generator.uniform(3, 37, (4, 3)).astype(np.float32)
    mechs = make_mechs(position, [HEAVY, SCOUT] * 2, yaw=generator.uniform(-3, 3, 4))
    params = make_params([HEAVY, SCOUT] * 2)
    state = make_state(make_battle(mechs), score=[3.0, 9.0])
    swapped = state.replace(score=state.score[::-1])
    blocks, _ = look(state, params, [0, 0, 1, 1])
    mirrored, _ = look(swapped, params, [1, 1, 0, 0])
    for name in blocks:
        assert (blocks[name] == mirrored[name]).all(), name


def test_observations_are_one_trace_over_rosters_and_maps():
    traces = []

    @jax.jit
    @jax.vmap
    def see_all(classes, index):
        traces.append(1)
        mechs = make_mechs([[10, 10, 1], [15, 12, 1]], [SCOUT, SCOUT])
        place = place_of(index)
        blocks, _ = look(make_state(make_battle(mechs)), params_of(classes), [0, 1], place=place)
        return blocks

    def place_of(index):
        occupancy = jnp.stack([jnp.zeros((40, 40), bool), jnp.ones((40, 40), bool)])
        return make_place(occupancy).replace(index=index)

    def params_of(classes):
        return dataclasses.replace(make_params([SCOUT, SCOUT]), classes=classes)

    blocks = see_all(jnp.array([[SCOUT, HEAVY], [MEDIUM, LIGHT]]), jnp.arange(2))
    assert blocks["local_map"][0].sum() == 0 and blocks["local_map"][1].min() == 1
    seen = blocks["contacts"][:, 0, 0, 16:20]
    assert seen.tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    see_all(jnp.array([[LIGHT, HEAVY], [MEDIUM, LIGHT]]), jnp.arange(2))
    assert len(traces) == 1


BODY_LAYOUT = make_layout(5, frame="body")


def turned_battle(turn):
    """A battle of three mechs around the zone's centre, turned by an angle about it."""
    rng = np.random.default_rng(3)
    cos, sin = np.cos(turn), np.sin(turn)
    rotation = np.array([[cos, sin], [-sin, cos]])
    offset = np.array([[-6.0, 2.0], [3.0, -7.0], [8.0, 4.0]])
    velocity = np.concatenate([rng.normal(size=(3, 2)) @ rotation, [[0.1]] * 3], 1)
    position = np.concatenate([offset @ rotation + ZONE[:2], [[1.0], [1.5], [2.0]]], 1)
    yaw = np.array([0.3, -1.0, 2.5]) + turn
    return make_mechs(position, [SCOUT, MEDIUM, HEAVY], velocity=velocity, yaw=yaw, hp=[60, 75, 150])


def test_in_the_own_frame_nothing_depends_on_the_direction_of_the_world():
    """Turned as a whole, a battle looks the same to its mechs, but for their absolute heading and the map."""
    seen = []
    for turn in (0.0, 0.7, 2.4):
        state, params = (
            make_state(make_battle(turned_battle(turn))),
            make_params([SCOUT, MEDIUM, HEAVY]),
        )
        blocks, _ = see(state, params, (0, 0, 1), BODY_LAYOUT, make_senses(3), make_place())
        heading = [BODY_LAYOUT.index("self", name) for name in ("sin_yaw", "cos_yaw")]
        own = np.delete(np.asarray(blocks["self"]), heading, axis=1)
        seen.append(np.concatenate([np.asarray(blocks["contacts"]).reshape(3, -1), own], 1))
    np.testing.assert_allclose(seen[1], seen[0], atol=2e-5)
    np.testing.assert_allclose(seen[2], seen[0], atol=2e-5)


def test_the_own_frame_points_ahead_and_to_the_left():
    mechs = make_mechs(
        [[10, 10, 1], [10, 16, 1]],
        [SCOUT, SCOUT],
        yaw=[np.pi / 2, np.pi],
        velocity=[[0, 0, 0], [0, 2, 0]],
    )
    state, params = make_state(make_battle(mechs)), make_params([SCOUT, SCOUT])
    blocks, _ = see(state, params, (0, 1), BODY_LAYOUT, make_senses(2), make_place())
    contact = dict(zip(BODY_LAYOUT["contacts"].fields, np.asarray(blocks["contacts"])[0, 0], strict=True))
    # The first looks along y, at the second, which looks along -x: to the first's left.
    expected = {"ahead": 6 / 40, "left": 0, "velocity_ahead": 0.2, "velocity_left": 0, "sin_heading": 1}
    expected |= {"cos_heading": 0, "sin_bearing": 0, "cos_bearing": 1, "hostile": 1, "visible": 1}
    for name, value in expected.items():
        assert contact[name] == pytest.approx(value, abs=1e-6), name
    own = dict(zip(BODY_LAYOUT["self"].fields, np.asarray(blocks["self"])[0], strict=True))
    # The zone lies 20 along x, to the right, and 10 along y, ahead.
    assert own["zone_ahead"] == pytest.approx(0.25) and own["zone_left"] == pytest.approx(-0.5)
    assert own["zone_sin"] == pytest.approx(-2 / 5**0.5) and own["zone_cos"] == pytest.approx(1 / 5**0.5)
    assert BODY_LAYOUT.size == make_layout(5).size + 5 * 2 + 2


def test_critics_see_mechs_that_no_sensor_sees():
    mechs = make_mechs(
        [[10, 10, 1], [30, 10, 1], [5, 5, 1]], [SCOUT, HEAVY, SCOUT], alive=[True, True, False]
    )
    sides = sides_of([0, 1, 0], [SCOUT, HEAVY, SCOUT])
    params = make_params([SCOUT, HEAVY, SCOUT])
    critic = np.ones((3, 2), np.float32)
    flat = np.asarray(
        jax.jit(
            lambda mechs, params: true_state.observe_true_state(
                mechs, chassis_of(params), sides, 40.0, critic
            )
        )(mechs, params)
    )
    assert flat.shape == (3, true_state.true_state_size(3, 2)) and (flat[:, -2:] == 1).all()
    rows = flat[:, :-2].reshape(3, 3, -1)
    first = dict(zip(true_state.MECH_FIELDS, rows[0, 1], strict=True))
    assert (first["alive"], first["friendly"], first["heavy"], first["hp"]) == (1, 0, 1, 1)
    assert first["ahead"] == pytest.approx(0.5) and first["left"] == pytest.approx(0.0, abs=1e-6)
    # Of a dead mech only its team is known.
    assert rows[0, 2].tolist() == [0, 1] + [0] * (len(true_state.MECH_FIELDS) - 2)
