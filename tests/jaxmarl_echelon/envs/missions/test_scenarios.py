"""Scenarios: what the terrains offer, forces, places, orders, settings and presets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import flat_bank

from algos.defaults import read_defaults
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CHASSIS, HEAVY, LIGHT, MEDIUM, SCOUT
from jaxmarl_echelon.envs.echelon.missions.make import make
from jaxmarl_echelon.envs.echelon.missions.rewards import make_mission_reward
from jaxmarl_echelon.envs.echelon.missions.scenarios import forces, placement
from jaxmarl_echelon.envs.echelon.missions.scenarios.deploy import deploy_mechs
from jaxmarl_echelon.envs.echelon.missions.scenarios.draw import ScenarioLimits, draw_scenario
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import TERRAINS, draw_biomes
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, VERBS
from jaxmarl_echelon.envs.echelon.terrain.biomes import BIOMES

WALL = ((18, 0, 0), (19, 30, 20))
MANY = 192


@pytest.fixture(scope="module")
def bank():
    return flat_bank(boxes=(WALL,))


def built(bank, **given):
    return make(
        **{"reward": make_mission_reward(), "bank": bank, "pages": 0, "blue": "pack10", "red": ["pack10"] * 2}
        | given
    )


@pytest.fixture(scope="module")
def env(bank):
    return built(bank)


@pytest.fixture(scope="module")
def sample(env):
    """Draws many scenarios with parameters, by one program."""

    @jax.jit
    def drawn(params):
        def one(key):
            limits = ScenarioLimits(
                env.teams, env.bank.size, params.echelon.max_decisions, params.echelon.fire_probability
            )
            found = draw_scenario(
                key, env.registry, env.ground, jnp.int32(0), params.levers, params.weights, limits
            )
            battle = env.battle_params(found.scenario, params)
            return found, deploy_mechs(key, found, env.simulation, battle)

        return jax.vmap(one)(jax.random.split(jax.random.key(0), MANY))

    return lambda params: jax.device_get(drawn(params))


def packs(scenario, side, teams=(10, 20)):
    here = slice(0, teams[0]) if side == 0 else slice(teams[0], None)
    weight = forces.WEIGHTS[np.asarray(scenario.classes)] * np.asarray(scenario.present)
    return weight[:, here].sum(1)


def test_places_are_clear_of_walls_and_cells_can_be_reached(env):
    ground = env.ground
    free = np.asarray(ground.free[0]).reshape(10, 10)
    assert not free[:7, 4].any() and free[:7, 3].all() and free[8:, 4].all()  # columns 16 to 19 hold the wall
    assert ground.places[1].tolist() == [6.0, 2.0]
    bits = np.unpackbits(np.asarray(ground.open_cells[0]).view(np.uint8), bitorder="little")
    assert ground.cell == 5 and bits[:64].all() and not bits[64:].any()
    dense = np.asarray(ground.complexity[0]).reshape(10, 10, 21)
    assert dense[0, 9, 5] == 0 and 0 < dense[1, 2, 5] < 1
    between = ground.complexity_of(0, jnp.int32([12]), jnp.float32(7.25))
    assert between[0] == pytest.approx(0.75 * dense[1, 2, 7] + 0.25 * dense[1, 2, 8])
    assert ground.complexity_of(0, jnp.int32(12), jnp.float32(99.0)) == dense[1, 2, 20]
    assert int(ground.cell_of(jnp.array([12.0, 27.0, 1.0]))) == 5 * 8 + 2


def test_terrain_types_and_complexity_say_which_biomes_are_painted():
    assert sorted(name for names in TERRAINS.values() for name in names) == sorted(BIOMES)
    whole = draw_biomes(4, 7, ["urban", "forest"], (1.0, 1.0))
    kinds = ["urban", "forest"] * 2
    assert all(set(names) <= set(TERRAINS[kind]) for names, kind in zip(whole, kinds, strict=True))
    bare = draw_biomes(2, 7, ["urban"], (0.0, 0.0))
    assert all(names.count("barrens") == 3 and len(names) == 4 for names in bare)
    assert draw_biomes(4, 7, ["urban", "forest"], (0.0, 1.0)) == draw_biomes(
        4, 7, ["urban", "forest"], (0.0, 1.0)
    )


def test_forces_approximate_the_requested_strength():
    assert forces.strength_in_packs([HEAVY, *[MEDIUM] * 5, *[LIGHT] * 3, SCOUT]) == pytest.approx(0.96)
    pattern = jnp.asarray(forces.class_patterns((MEDIUM,) * 12)[1])
    for strength in (0.0, 0.3, 0.77, 1.0, 9.0):
        force = forces.muster_force(pattern, jnp.float32(strength), jnp.int32(-1), 0)
        assert abs(force.packs - min(strength, forces.strength_in_packs(pattern))) <= 0.1 + 1e-6
        assert force.packs == pytest.approx(forces.strength_in_packs(pattern[: int(force.count)]))
    assert forces.muster_force(pattern, jnp.float32(0.0), jnp.int32(-1), 1).count == 1
    assert forces.muster_force(pattern, jnp.float32(0.0), jnp.int32(5), 1).count == 5


def test_the_class_that_an_order_needs_comes_first():
    pack = jnp.int32([HEAVY, MEDIUM, MEDIUM, LIGHT, SCOUT, LIGHT])
    assert forces.move_class_first(pack, jnp.int32(SCOUT)).tolist() == [
        SCOUT,
        HEAVY,
        MEDIUM,
        MEDIUM,
        LIGHT,
        LIGHT,
    ]
    assert forces.move_class_first(pack, jnp.int32(HEAVY)).tolist() == pack.tolist()
    assert forces.move_class_first(pack, jnp.int32(-1)).tolist() == pack.tolist()
    assert forces.move_class_first(pack[:4], jnp.int32(SCOUT)).tolist() == pack[:4].tolist()


@pytest.mark.parametrize("difficulty", [[0.0, 0.4], [0.5, 1.0]])
@pytest.mark.parametrize(
    ("given", "team", "needed"),
    [
        ({"mission": "scout"}, 0, SCOUT),
        ({"mission": "stage", "follow_on": "scout"}, 0, SCOUT),
        ({"mission": "stage", "opposing": "scout"}, 1, SCOUT),
        ({"mission": "suppress", "friendly_count": 1}, 0, MEDIUM),
    ],
)
def test_squads_have_the_class_that_their_order_needs(env, sample, difficulty, given, team, needed):
    scenario = sample(env.task_params({"difficulty": difficulty} | given))[0].scenario
    here = np.asarray(scenario.present) & (np.asarray(scenario.classes) == needed)
    own = slice(0, 10) if team == 0 else slice(10, None)
    some = np.asarray(scenario.strength)[:, team] > 0
    assert some.any() and here[some, own].any(1).all()


@pytest.mark.parametrize(
    "given",
    [
        {"mission": "stage", "follow_on": "flank", "difficulty": 0.0},
        {"mission": "flank", "enemy_strength": [0.0, 0.2]},
    ],
)
def test_orders_that_need_enemies_get_some(env, sample, given):
    scenario = sample(env.task_params(given))[0].scenario
    assert (np.asarray(scenario.strength)[:, 1] >= 1).all()


@pytest.mark.parametrize("nobody", [{"enemy_count": 0}, {"enemy_strength": 0.0}])
def test_without_enemies_no_follow_on_needs_some(env, sample, nobody):
    orders = sample(env.task_params({"mission": "stage"} | nobody))[0].scenario.orders
    assert set(np.asarray(orders.verb)[:, 0, 1].tolist()) == {VERBS.index("overwatch"), VERBS.index("scout")}


@pytest.mark.parametrize("radius", [20.0, 55.0])
def test_the_density_of_terrain_is_that_around_the_objective(env, bank, sample, radius):
    """In the ring of 12 voxels around it, whatever its radius: the wall is three columns of 40."""
    given = {"mission": "hold", "objective": [10.0, 14.0], "objective_radius": radius}
    told = sample(env.task_params(given))[0].scenario.orders
    blocks = np.zeros((40, 40), bool)
    blocks[WALL[0][1] : WALL[1][1], WALL[0][0] : WALL[1][0]] = True
    ys, xs = np.indices(blocks.shape) + 0.5
    apart = np.hypot(xs - 10.0, ys - 14.0)
    ring = (apart > radius / 5.0) & (apart <= radius / 5.0 + 12.0)
    np.testing.assert_allclose(told.complexity[:, 0], blocks[ring].mean() / 0.35, rtol=1e-5)


def test_formations_keep_their_shape():
    line, wedge, column, loose = (
        np.asarray(placement.formation_offsets(jnp.int32(k), jnp.int32(5), 5)) for k in range(4)
    )
    assert line.tolist() == [[0, -2], [0, -1], [0, 0], [0, 1], [0, 2]]
    assert column[:, 0].tolist() == [2, 1, 0, -1, -2] and not column[:, 1].any()
    assert wedge.tolist() == [[0, 0], [-1, 1], [-1, -1], [-2, 2], [-2, -2]]
    apart = np.linalg.norm(loose[:, None] - loose, axis=-1)[~np.eye(5, dtype=bool)]
    assert apart.min() > 0.5
    turned = placement.place_formation(
        jnp.zeros(2), jnp.asarray(column), jnp.float32(2.0), jnp.float32(np.pi / 2)
    )
    np.testing.assert_allclose(turned[0], [0.0, 4.0], atol=1e-5)


def test_scenarios_are_possible(env, sample):
    drawn, mechs = sample(env.default_params())
    scenario, here = drawn.scenario, np.asarray(drawn.scenario.present)
    orders = scenario.orders
    assert set(np.unique(orders.verb[:, 0, 0])) == set(range(len(VERBS)))
    for index, name in enumerate(VERBS):
        red = set(np.asarray(orders.verb[orders.verb[:, 0, 0] == index, 1, 0]).tolist())
        allowed = {VERBS.index(verb) for verb in env.registry.verbs[index].template.opposed}
        assert red and red <= allowed, name
    staged = np.asarray(orders.verb[:, 0, 0]) == VERBS.index("stage")
    go = np.asarray(orders.go[:, 0])
    assert (go[~staged] == NEVER).all() and ((go[staged] >= 72) & (go[staged] <= 120)).all()
    assert (np.asarray(orders.parameters) >= 0).all() and (np.asarray(orders.parameters) <= 1).all()
    np.testing.assert_allclose(orders.budget, 60.0 * (1 - 0.5 * orders.parameters[:, :, 2]), rtol=1e-5)
    assert (np.asarray(scenario.strength[:, 0]) >= 1).all()
    assert here.sum(1).tolist() == np.asarray(scenario.strength.sum(1)).tolist()
    assert (np.asarray(mechs.alive) == here).all() and (np.asarray(mechs.hp) > 0).tolist() == here.tolist()
    np.testing.assert_allclose(np.asarray(mechs.hp)[:, :10].sum(1), scenario.hp[:, 0], rtol=1e-5)


def test_mechs_start_apart_from_each_other_and_from_walls(env, sample):
    drawn, mechs = sample(env.default_params())
    half = np.asarray(CHASSIS.size)[np.asarray(drawn.scenario.classes)] / 2
    place, here = np.asarray(mechs.position), np.asarray(drawn.scenario.present)
    gap = np.abs(place[:, :, None] - place[:, None])[..., :2] - (half[:, :, None] + half[:, None])[..., :2]
    both = here[:, :, None] & here[:, None] & ~np.eye(30, dtype=bool)
    assert (gap.max(-1) >= -1e-4)[both].all()
    low, high = place - half, place + half
    in_wall = (low[..., 0] < 19) & (high[..., 0] > 18) & (low[..., 1] < 30)
    assert not in_wall[here].any()
    inside = (low[..., :2] >= -1e-4).all(-1) & (high[..., :2] <= 40 + 1e-4).all(-1)
    assert inside[here].all()


def test_strength_follows_the_difficulty(env, sample):
    def strengths(difficulty):
        params = env.task_params({"mission": "assault", "difficulty": difficulty})
        scenario = sample(params)[0].scenario
        return packs(scenario, 0), packs(scenario, 1), np.asarray(scenario.fire)

    easy, hard = strengths(0.0), strengths(1.0)
    assert (abs(easy[0] - 1.0) <= 0.2).all() and (abs(easy[1] - 0.5) <= 0.16).all()
    assert (abs(hard[0] - 0.6) <= 0.17).all() and (abs(hard[1] - 1.5) <= 0.26).all()
    np.testing.assert_allclose(easy[2], [[1.0, 0.2]] * MANY, atol=1e-6)
    np.testing.assert_allclose(hard[2], [[1.0, 1.0]] * MANY, atol=1e-6)


def test_difficulty_raises_one_lever_after_the_other(env, sample):
    def strengths(difficulty):
        given = {"mission": "assault", "difficulty": difficulty, "ramp": "in_turn", "odds": [0.5, 1.5]}
        scenario = sample(env.task_params(given))[0].scenario
        own, enemy, fire = packs(scenario, 0), packs(scenario, 1), np.asarray(scenario.fire)[:, 1]
        return own.mean(), (enemy / own).mean(), fire.mean()

    easy, armed, strong, hard = (strengths(difficulty) for difficulty in (0.0, 1 / 3, 2 / 3, 1.0))
    assert easy[2] == pytest.approx(0.2) and all(x[2] == pytest.approx(1.0) for x in (armed, strong, hard))
    assert easy[1] == pytest.approx(0.5, abs=0.1) and armed[1] == pytest.approx(easy[1], abs=0.1)
    assert strong[1] == pytest.approx(1.5, abs=0.15) and hard[1] == pytest.approx(1.5, abs=0.25)
    assert strong[0] == pytest.approx(easy[0], abs=0.1) and hard[0] < 0.75 * strong[0]


def test_odds_refer_to_the_mechs_that_blue_has(env, sample):
    for count in (2, 5):
        given = {"mission": "assault", "difficulty": 0.0, "odds": 1.5, "friendly_count": count}
        scenario = sample(env.task_params(given))[0].scenario
        ratio = packs(scenario, 1) / packs(scenario, 0)
        assert ratio.mean() == pytest.approx(1.5, abs=0.1) and (abs(ratio - 1.5) <= 0.4).all()


def test_the_composition_can_follow_the_verb(env, sample):
    for verb, pattern in (("scout", "scout_heavy"), ("suppress", "assault_heavy")):
        given = {"mission": verb, "composition": "verb", "friendly_count": 5}
        classes = np.asarray(sample(env.task_params(given))[0].scenario.classes[:, :5])
        assert sorted(classes[0].tolist()) == sorted(
            forces.move_class_first(
                np.asarray(forces.PATTERNS[pattern][:10]), env.registry.first[VERBS.index(verb)]
            ).tolist()[:5]
        )
        assert (classes == classes[:1]).all()


def test_no_order_that_is_followed_by_another_follows(env):
    """A stage after a stage would count its arrival, readiness and formation twice."""
    stage = VERBS.index("stage")
    for given in ("mixed", {"stage": 3, "hold": 1}):
        follow_on = np.asarray(env.task_params({"follow_on": given}).levers.follow_on)
        assert follow_on[stage, stage] == 0 and follow_on[stage, VERBS.index("hold")] == 1
    with pytest.raises(ValueError, match=r"^env.follow_on=\['stage'\]: .* follow on stage$"):
        env.task_params({"follow_on": "stage"})


def test_levers_set_their_quantities(env, sample):
    given = {
        "mission": "hold",
        "opposing": "flank",
        "friendly_count": 3,
        "enemy_count": 4,
        "enemy_composition": "scout_heavy",
        "health": "critical",
        "disposition": "ambush",
        "awareness": "cold",
        "stealth": 1.0,
        "risk": 0.25,
        "objective": [10.0, 30.0],
        "objective_radius": 25.0,
        "engagement_distance": 100.0,
    }
    drawn, _ = sample(env.task_params(given))
    scenario = drawn.scenario
    assert (np.asarray(scenario.orders.verb[:, :, 0]) == [VERBS.index("hold"), VERBS.index("flank")]).all()
    assert (np.asarray(scenario.strength) == [3, 4]).all()
    assert (np.asarray(scenario.classes[:, 10:14]) == list(forces.PATTERNS["scout_heavy"][:4])).all()
    assert (np.asarray(scenario.disposition) == 1).all() and (np.asarray(scenario.awareness) == 0).all()
    assert (np.asarray(scenario.stealth) == 1).all() and (
        np.asarray(scenario.orders.parameters[:, 0, 0]) == 0.25
    ).all()
    health = np.asarray(drawn.health)
    assert (health[:, :3] >= 0.3).all() and (health[:, :3] <= 0.5).all() and (health[:, 10:14] == 1).all()
    np.testing.assert_allclose(scenario.orders.objective[:, 0, 0], np.tile([10.0, 30.0], (MANY, 1)))
    np.testing.assert_allclose(scenario.orders.radius, 5.0)
    centre = np.asarray(scenario.start[:, 10:14]).mean(1)
    away = np.linalg.norm(centre - [10.0, 30.0], axis=-1)
    assert abs(np.median(away) - 20.0) < 4.0
    near = np.linalg.norm(np.asarray(scenario.start[:, 0]) - [10.0, 30.0], axis=-1)
    assert np.median(near) < 9.0  # who holds starts on the objective


def test_risk_is_a_noisy_belief_of_the_balance_of_forces(env, sample):
    drawn, _ = sample(env.task_params({"mission": "assault", "enemy_count": 6, "friendly_count": 10}))
    scenario = drawn.scenario
    balance = packs(scenario, 1) / (2 * packs(scenario, 0))
    error = np.asarray(scenario.orders.parameters[:, 0, 0]) - balance
    assert np.abs(error).max() <= 0.2 + 1e-5 and error.std() > 0.05


@pytest.mark.parametrize(
    ("name", "strength"),
    [("nervous_empty_room", [5, 0]), ("hornets_nest", [5, 18]), ("depleted_force", [3, 8])],
)
def test_presets_have_their_settings(bank, sample, name, strength):
    preset = built(bank, scenario=name)
    drawn, _ = sample(preset.default_params())
    scenario = drawn.scenario
    assert (np.asarray(scenario.strength) == strength).all()
    verb = "assault" if name == "depleted_force" else "scout"
    assert (np.asarray(scenario.orders.verb[:, 0, 0]) == VERBS.index(verb)).all()
    told = [0.7, 0.8, 0.9, 0.8] if verb == "assault" else [0.3, 0.1, 0.4, 0.3]
    np.testing.assert_allclose(scenario.orders.parameters[:, 0], np.tile(told, (MANY, 1)), rtol=1e-6)
    wounded = np.asarray(drawn.health[:, :3]).max() <= 0.5
    assert wounded == (name == "depleted_force")


def test_a_preset_wins_over_the_values_of_the_file(bank):
    """As for a run, whose configuration has every setting."""
    own = {"blue": "pack10", "red": ["pack10"] * 2, "pages": 0, "scenario": "depleted_force"}
    every = {**read_defaults("env/echelon_missions"), **own}
    alone = built(bank, scenario="depleted_force").default_params().levers
    jax.tree.map(np.testing.assert_array_equal, built(bank, **every).default_params().levers, alone)
    assert np.asarray(alone.health[0]).tolist() == [0.0, 0.0, 1.0]


def test_given_settings_override_a_preset(bank, sample):
    changed = built(bank, scenario="hornets_nest", enemy_count=12, risk=0.9)
    scenario = sample(changed.default_params())[0].scenario
    assert (np.asarray(scenario.strength) == [5, 12]).all()
    assert (np.asarray(scenario.orders.parameters[:, 0, 0]) == np.float32(0.9)).all()


def test_orders_of_higher_levels_are_those_of_their_squads(env):
    recon = np.asarray(env.task_params({"mission": "platoon_recon"}).levers.mission)
    assert {VERBS[i]: float(w) for i, w in enumerate(recon) if w} == pytest.approx(
        {"scout": 2 / 3, "overwatch": 1 / 3}
    )
    mixed = np.asarray(env.task_params({"mission": {"scout": 2.0, "hold": 1.0}}).levers.mission)
    assert mixed[VERBS.index("scout")] == 2.0 and mixed.sum() == 3.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mission": "charge"}, ("env.mission=charge", "assault", "platoon_recon")),
        ({"loss_appetite": 1.5}, ("env.loss_appetite=1.5", "from 0 to 1")),
        ({"grouping": [0.5, -0.1]}, ("env.grouping",)),
        ({"mission": "hold", "enemy_count": 0}, ("env.enemy_count=0", "hold needs at least one enemy")),
        (
            {"mission": "hold", "enemy_strength": 0.0},
            ("env.enemy_strength=0", "hold needs at least one enemy"),
        ),
        (
            {"mission": "stage", "follow_on": ["flank", "hold"], "enemy_count": 0},
            ("env.follow_on=['hold', 'flank']", "without enemies", "stage"),
        ),
        ({"objective": [18.5, 10.0]}, ("env.objective=[18.5, 10.0]", "inside a wall")),
        ({"objective": [99.0, 10.0]}, ("env.objective=[99.0, 10.0]", "inside 40 x 40")),
        ({"odds": 0.5, "enemy_count": 2}, ("env.odds=[0.5, 0.5]", "env.enemy_count=2 sets")),
        ({"odds": 0.5, "enemy_strength": 1.0}, ("env.odds=[0.5, 0.5]", "env.enemy_strength=")),
        ({"enemy_count": 25}, ("env.enemy_count=25", "env.red has only 20 mechs")),
        ({"friendly_strength": 2.0}, ("env.friendly_strength=[2.0, 2.0]", "10 slots", "0.96")),
        ({"opposing": "none"}, ("env.opposing=none", "scout")),
        ({"health": "fine"}, ("env.health=fine", "critical")),
        ({"time_limit": 600.0}, ("env.time_limit=600.0",)),
        ({"blue": "pack5"}, ("env.blue",)),
        ({"speed": 1.0}, ("env.speed",)),
    ],
)
def test_wrong_missions_are_named_in_one_line(env, given, words):
    with pytest.raises(ValueError) as error:
        env.task_params(given)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), str(error.value)


def test_evaluations_have_terrains_of_their_own():
    zones = [(20.0, 20.0, 5.0)] * 5
    env = built(flat_bank(zones), held_out=0.4)
    params = env.default_params()
    np.testing.assert_array_equal(params.echelon.map_weights > 0, [1, 1, 1, 0, 0])

    def played(params):
        posed = [env.evaluation_params(params, i).echelon.map_weights for i in range(4)]
        return [int(np.argmax(weights)) for weights in posed]

    def rounds(params, size):
        return [sorted(played(params)[i : i + size]) for i in range(0, 4, size)]

    assert rounds(params, 2) == [[3, 4]] * 2
    assert len(set(played(env.task_params({"held_out": 0.0})))) == 4
    chosen = env.task_params({"map_weights": [0, 2, 1, 0, 0]})
    assert rounds(chosen, 2) == [[1, 2]] * 2, "none of the held-out terrains is to be drawn"
    with pytest.raises(
        ValueError, match=r"env.map_weights=\[0, 0, 0, 1, 1\]: leaves no terrain for training"
    ):
        env.task_params({"map_weights": [0, 0, 0, 1, 1]})


def test_evaluations_combine_all_orders_with_all_terrains_by_weight():
    """Four verbs and eight terrains: every pair is played, about equally often."""
    env = built(flat_bank([(20.0, 20.0, 5.0)] * 8), held_out=0.0)

    def played(mission, number):
        params = env.task_params({"held_out": 0.0, "mission": mission})
        posed = jax.vmap(env.evaluation_params, (None, 0))(params, jnp.arange(number))
        verb, terrain = (np.asarray(x).argmax(-1) for x in (posed.levers.mission, posed.echelon.map_weights))
        return np.stack([np.bincount(terrain[verb == v], minlength=8) for v in range(len(VERBS))])

    pairs = played(["assault", "hold", "flank", "scout"], 320)
    assert (pairs.sum(0) == 40).all() and set(pairs.sum(1).tolist()) == {0, 80}
    used = pairs[pairs.sum(1) > 0]
    assert used.min() >= 3 and used.max() <= 18
    uneven = played({"scout": 2.0, "hold": 1.0}, 96).sum(1)
    assert abs(uneven[VERBS.index("scout")] - 64) <= 2 and uneven.sum() == 96
    assert abs(played({"scout": 7.0, "hold": 2.0, "stage": 1.0}, 64).sum(1)[VERBS.index("stage")] - 6.4) <= 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scenario": "picnic"}, ("env.scenario=picnic", "hornets_nest")),
        ({"scenario": "hornets_nest", "red": "pack10"}, ("env.enemy_count=18", "env.red has only 10")),
        ({"mission": "suppress", "blue": ["heavy", "scout"]}, ("env.blue", "suppress needs a medium mech")),
        ({"terrain": "lunar"}, ("env.terrain=lunar", "urban")),
        ({"verbs": ["dance"]}, ("env.verbs=dance",)),
    ],
)
def test_wrong_environments_are_named_in_one_line(bank, given, words):
    with pytest.raises(ValueError) as error:
        built(bank, **given)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), str(error.value)
