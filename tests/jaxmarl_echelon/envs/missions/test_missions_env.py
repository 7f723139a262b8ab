"""The missions as an environment: what is shown and hidden, ends, pay, scripts, configuration."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation_starts import check_starts_differ
from hydra import compose, initialize_config_dir
from mission_games import EAST, LIMIT, WEST, built

from algos.defaults import config_directory
from jaxmarl_echelon.command_line import compose_config, normalize_overrides
from jaxmarl_echelon.envs.check_env import check_env, check_traces, random_actions
from jaxmarl_echelon.envs.echelon.battle.unit_tables import PRIMARY, SUPPRESSION, TERTIARY
from jaxmarl_echelon.envs.echelon.commands import STATUS_REPORT
from jaxmarl_echelon.envs.echelon.missions import results
from jaxmarl_echelon.envs.echelon.missions.env import DEAD_SEE
from jaxmarl_echelon.envs.echelon.missions.measures.facts import CAPTURE
from jaxmarl_echelon.envs.echelon.missions.pay.components import PATIENCE, POTENTIALS
from jaxmarl_echelon.envs.echelon.missions.rewards import make_mission_reward
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, CONFIRMATION, NEVER, PAID, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs.scout import SCOUT
from jaxmarl_echelon.envs.echelon.missions.verbs.suppress import TARGET_TIME
from jaxmarl_echelon.envs.echelon.missions.weights import DITHERING
from jaxmarl_echelon.envs.echelon.observing.layout import SELF_FIELDS
from jaxmarl_echelon.envs.echelon.scripts.heuristic import LAPSE, STEADY
from jaxmarl_echelon.training.config import build

# Of a scenario, what a team may know.
KNOWN = ("orders", "present", "classes", "start", "strength", "hp")
PATROL = dataclasses.replace(SCOUT, name="patrol", gates={"detection": 1.0})


@pytest.mark.thorough
def test_environment_passes_the_contract_checks():
    check_env(built(time_limit=3.0, objective=None), steps=16, plain=False)


def test_environment_is_traced_as_the_contract_says():
    check_traces(built(time_limit=3.0, objective=None))


def test_observations_and_actions_are_those_of_the_battle_and_of_the_order(game):
    spec = game.env.spec
    assert [role.name for role in spec.roles] == ["blue", "red"] and spec.episode_limit == LIMIT
    assert all(role.action.shape == (27,) for role in spec.roles) and game.env.layout["mission"].shape == (
        15,
    )
    assert spec.late and spec.score == "mission" and spec.role("red").score == "mission/red"
    assert spec.tasks == VERBS and spec.components == PAID
    state, time = game.step(game.start("flank"))
    order = game.block(time, "mission")
    assert order[:, VERBS.index("flank")].tolist() == [1, 1] and order[:, :7].sum() == 2
    assert game.block(time, "mission", "red")[:, VERBS.index("hold")].tolist() == [1, 1]
    offset = np.array([10.0, 20.0]) - np.asarray(state.echelon.battle.mechs.position[0, :2])
    own = game.block(time, "self")[0]
    index = game.env.layout.index("self", "zone_ahead")
    yaw = float(state.echelon.battle.mechs.yaw[0])
    turn = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]])
    np.testing.assert_allclose(own[index : index + 2] * 40.0, turn @ offset, atol=1e-4)


def hidden(state, change):
    scenario = state.scenario
    return state.replace(
        scenario=scenario.replace(**{name: change(getattr(scenario, name)) for name in HIDDEN})
    )


HIDDEN = ("disposition", "awareness", "stealth", "fire", "route", "difficulty")


def test_no_observation_shows_hidden_facts_of_the_enemy(game):
    state = game.start()
    assert {*HIDDEN, *KNOWN} == {field.name for field in dataclasses.fields(state.scenario)}
    orders = state.scenario.orders
    others = {
        "facts of the scenario": hidden(state, lambda x: (x + 1).astype(x.dtype)),
        "red's order": state.replace(
            scenario=state.scenario.replace(
                orders=orders.replace(
                    verb=orders.verb.at[1].set(0),
                    objective=orders.objective.at[1].add(9.0),
                    parameters=orders.parameters.at[1].set(0.9),
                )
            )
        ),
        "when GO comes": state.replace(
            scenario=state.scenario.replace(orders=orders.replace(go=jnp.int32([20, 20])))
        ),
        "red's progress": state.replace(
            by_team=state.by_team.replace(capture=jnp.int32([0, 30])), success=jnp.float32([0, 0.9])
        ),
    }
    battle = state.echelon.battle
    gone = battle.mechs.replace(alive=jnp.array([True, True, True, False]))
    others["how many enemies there are"] = state.replace(
        echelon=state.echelon.replace(battle=battle.replace(mechs=gone)),
        scenario=state.scenario.replace(
            present=jnp.array([True, True, True, False]), strength=jnp.int32([2, 1])
        ),
    )
    _, seen = game.step(state)
    for name, other in others.items():
        _, time = game.step(other)
        assert (time.obs["blue"] == seen.obs["blue"]).all(), name
    near = game.start(places=(*WEST, (12.0, 20.0), EAST[1]))
    assert (game.step(near)[1].obs["blue"] != seen.obs["blue"]).any()


def moved_objective(state, team, place, **orders):
    """The episode with another objective for one team."""
    given = {name: jnp.asarray(value) for name, value in orders.items()}
    told = state.scenario.orders
    told = told.replace(objective=told.objective.at[team].set(jnp.float32(place)), **given)
    return state.replace(scenario=state.scenario.replace(orders=told))


def test_unseen_enemies_in_the_objective_do_not_show(game):
    control = game.env.layout.index("self", "control")
    behind = game.start()
    hidden_there = moved_objective(behind, 0, EAST[0])
    assert game.block(game.step(hidden_there)[1], "self")[0, control] == 0.0
    here = moved_objective(game.start(places=(*WEST, (12.0, 20.0), EAST[1])), 0, (14.0, 20.0))
    assert game.block(game.step(here)[1], "self")[0, control] == -1.0
    lost = behind.replace(by_team=behind.by_team.replace(capture=jnp.int32([10, 30])))
    own = game.block(game.step(lost)[1], "self")[0]
    assert own[game.env.layout.index("self", "enemy_score")] == 0.0
    assert 0 < own[game.env.layout.index("self", "score")] <= 11 / CAPTURE


def test_go_is_not_observable_in_advance_and_changes_the_order(game):
    params = game.env.task_params({"mission": "stage", "follow_on": "assault", "go": 0.5})
    state, time = game.reset(jax.random.key(3), params)
    assert state.scenario.orders.go.tolist() == [LIMIT // 2, NEVER]
    shown = []
    for _ in range(LIMIT // 2):
        shown.append(game.block(time, "mission")[0, :7])
        state, time = game.step(state, params=params)
    assert (np.stack(shown) == np.eye(7)[VERBS.index("stage")]).all()
    assert game.block(time, "mission")[0, VERBS.index("assault")] == 1
    assert state.by_team.elapsed.tolist() == [0, LIMIT // 2]
    # What mechs gained towards the old objective is not compared with where the new one is.
    assert np.asarray(state.scenario.orders.objective[0]).std(0).max() > 1.0
    state, _ = game.step(state, params=params)
    gained = np.diff(np.asarray(state.report.distance[:2, -(LIMIT // 2) :]))
    assert np.abs(gained).max() < 0.1


def test_dead_mechs_receive_the_terminal_reward_and_observe_the_mission(game):
    state = game.start("assault", hp=[0.0, 60.0, 150.0, 80.0])
    state, time = game.step(state)
    assert time.alive["blue"].tolist() == [False, True] and not time.terminated["blue"].any()
    assert time.present["blue"].all() and time.reward["blue"][0] < 0
    state, after = game.step(state)
    assert after.reward["blue"][0] == 0.0
    for name in game.env.layout.names:
        assert game.block(after, name)[0].any() == (name in DEAD_SEE), name
    clock = SELF_FIELDS.index("time")
    passed = game.block(after, "self")[:2, clock] - game.block(time, "self")[:2, clock]
    np.testing.assert_allclose(passed, 1 / LIMIT, rtol=1e-5)
    _, time = game.last(state)
    assert time.over and time.terminated["blue"].all() and time.terminated["red"].all()
    assert time.reward["blue"][0] < -0.05 and not time.alive["blue"].any()


def test_both_teams_can_succeed(game):
    """Blue has found both enemies while red held its objective throughout."""
    state = game.start("scout", "hold", places=(*WEST, (35.0, 20.0), EAST[1]))
    confirmed = np.zeros((4, 4), bool)
    confirmed[0, 2:] = True
    state = moved_objective(state, 1, (35.0, 20.0))
    state = state.replace(by_mech=state.by_mech.replace(confirmed=jnp.asarray(confirmed)))
    held = [0, LIMIT - 1]
    _, time = game.last(state, elapsed=[LIMIT - 1] * 2, alone=held, latched=[4, 4])
    assert game.env.spec.outcomes[time.info["outcome"]] == "both"
    assert time.info["mission"] == pytest.approx(0.6) and time.info["mission/red"] == pytest.approx(0.6)
    assert game.env.spec.labels("ending")[time.info["ending"]] == "time"
    assert game.env.spec.tasks[time.info["task"]] == "scout" and time.info["detected"] == 1.0


def test_the_free_rider_receives_no_credit(game):
    state = game.start("scout")
    confirmed = np.zeros((4, 4), bool)
    confirmed[1, 2:] = True
    state = state.replace(by_mech=state.by_mech.replace(confirmed=jnp.asarray(confirmed)))
    params = only("credit", game.params)
    echelon = state.echelon.replace(decision=jnp.int32(LIMIT - 1))
    done = state.by_team.replace(latched=jnp.int32([4, NEVER]))
    _, time = game.step(state.replace(echelon=echelon, by_team=done), params=params)
    assert time.reward["blue"].tolist() == pytest.approx([0.0, 0.6], abs=1e-6)


@pytest.mark.parametrize(
    ("verb", "against", "hp", "ending"),
    [
        ("assault", "hold", [150.0, 60.0, 0.0, 0.0], None),
        ("hold", "assault", [150.0, 60.0, 0.0, 0.0], "elimination"),
        ("scout", "hold", [150.0, 60.0, 0.0, 0.0], None),
        ("scout", "hold", [0.0, 0.0, 150.0, 80.0], "elimination"),
        ("hold", "scout", [0.0, 0.0, 150.0, 80.0], None),
        ("hold", "scout", [0.0, 0.0, 0.0, 0.0], "elimination"),
    ],
)
def test_a_team_s_end_ends_the_episode_where_nothing_is_left_to_do(game, verb, against, hp, ending):
    _, time = game.step(game.start(verb, against, hp=hp))
    assert bool(time.over) == (ending is not None)
    if ending:
        assert results.MISSION_ENDINGS[time.info["ending"]] == ending


def test_a_capture_completes_an_assault(game):
    state = game.start("assault", places=((10.0, 20.0), WEST[1], *EAST))
    near = state.replace(by_team=state.by_team.replace(capture=jnp.int32([CAPTURE - 2, 0])))
    near, time = game.step(near)
    assert not time.over
    _, time = game.step(near)
    assert time.over and results.MISSION_ENDINGS[time.info["ending"]] == "complete"
    assert time.info["captured"] == 1.0 and time.info["mission"] == pytest.approx(1.0)


def only(name, params):
    """Parameters with a reward of one component alone."""
    reward = make_mission_reward({one: {"weight": float(one == name)} for one in PAID})
    return params.replace(echelon=params.echelon.replace(reward=reward.params()))


@pytest.mark.parametrize(("pressure", "progress"), [(0.0, 0.625), (1.0, 0.625), (1.0, 1.0)])
def test_discounted_mission_progress_depends_only_on_the_start(game, pressure, progress):
    """Discounted, its sum is minus the potential at the start for every mech, whether it falls or lives.

    Under time pressure the penalty for dithering comes on top, at the document's weight: 0 in the last phase.
    """
    params = only(
        "mission_progress",
        game.env.task_params(
            {"mission": "assault", "gamma": 0.9, "time_pressure": pressure, "progress": progress}
        ),
    )
    state, time = game.reset(jax.random.key(1), params)
    opening, paid, said = float(state.potential[0]), np.zeros(2), 0.0
    weight = float(params.weights.components[COMPONENTS.index("mission_progress")]) * (1.0 + pressure)
    early = 2.0 * float(params.weights.early * params.weights.terminal)
    penalty, dithering, dithered = weight * DITHERING * pressure / LIMIT, np.zeros(2), 0.0
    draw = jax.jit(partial(random_actions, game.env.spec))
    for decision in range(LIMIT):
        if decision == LIMIT // 2:
            mechs = state.echelon.battle.mechs
            battle = state.echelon.battle.replace(mechs=mechs.replace(hp=mechs.hp.at[0].set(0.0)))
            state, before = state.replace(echelon=state.echelon.replace(battle=battle)), state.potential[0]
        living = np.asarray(state.echelon.battle.mechs.alive[:2])
        actions = draw(jax.random.key(decision), time)
        state, time = game.step(state, actions, params, decision)
        paid += 0.9**decision * np.asarray(time.reward["blue"])
        said += float(time.info["reward/mission_progress"])
        idle = living * float(state.by_team.stalled[0] >= PATIENCE)
        dithering, dithered = dithering + 0.9**decision * idle, dithered + idle.mean()
        if decision == LIMIT // 2:
            first = state.potential[0] - opening
    assert time.over and time.present["blue"].all() and before > 0 and dithered > 0
    expected = -(weight + early) * opening - penalty * dithering
    assert paid.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    # Reported is by how much the potential grew while mechs lived, which is not given back.
    grown = (weight + early) * (first + state.potential[0] - opening) / 2 - penalty * dithered
    assert said == pytest.approx(float(grown), abs=1e-5)


def test_logged_components_equal_rewards_except_for_potentials(game):
    params = game.env.task_params({"mission": "assault", "gamma": 0.9})
    params = params.replace(echelon=params.echelon.replace(reward=game.params.echelon.reward))
    _state, time = game.step(game.start("assault"), params=params)
    potentials = {f"reward/{name}" for name in POTENTIALS}
    said = {name: float(v) for name, v in time.info.items() if name.startswith("reward/")}
    rest = sum(value for name, value in said.items() if name not in potentials)
    paid = [game.step(game.start("assault"), params=only(name, params))[1] for name in POTENTIALS]
    paid = sum(float(one.reward["blue"].mean()) for one in paid)
    assert float(time.reward["blue"].mean()) == pytest.approx(rest + paid, abs=1e-6)
    assert abs(said["reward/zone_progress"]) < 1e-4 < abs(paid)  # nobody has moved


def test_status_reports_are_remembered(game):
    said = {
        "blue": jnp.zeros((2, STATUS_REPORT + 1)).at[0, STATUS_REPORT].set(1.0).at[1, STATUS_REPORT].set(-0.5)
    }
    state, _ = game.step(game.start(), said)
    assert state.report.status[:, -1].tolist() == pytest.approx([1.0, 0.25, 0.5, 0.5])
    assert state.report.pending.tolist() == [1] * 4


def test_scenarios_without_enemies_are_possible(game):
    params = game.env.task_params({"mission": "scout", "enemy_count": 0})
    state, time = game.reset(jax.random.key(0), params)
    assert not time.present["red"].any() and not time.alive["red"].any()
    state, time = game.step(state, params=params)
    assert not time.over and time.reward["red"].tolist() == [0.0, 0.0] and time.info["mission"] >= 0.3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(time))


def test_curricula_change_settings_without_recompiling(game):
    changed = game.env.task_params(
        settings={"mission": "hold", "risk": 0.5, "objective": None, "progress": 1.0}
    )
    same = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (changed, game.params)]
    assert same[0] == same[1] and changed.weights.terminal > 0.9


@pytest.mark.thorough
def test_evaluation_cycles_through_verbs(game):
    check_starts_differ(game.env, game.params)
    chosen = jax.jit(jax.vmap(game.env.evaluation_params, (None, 0)))(game.params, np.arange(8))
    assert np.asarray(chosen.levers.mission).argmax(-1).tolist() == [*range(7), 0]


@pytest.fixture(scope="module")
def red(game):
    """Actions of the scripted red in a state."""
    script = game.env.scripts["heuristic_red"]
    act = jax.jit(lambda memory, state: script.act(jax.random.key(0), memory, state, game.params))

    def play(state, memory=None):
        memory, actions = act(script.init() if memory is None else memory, state)
        return memory, np.asarray(actions)

    return play


def of_red(state, **facts):
    return state.replace(
        scenario=state.scenario.replace(**{n: jnp.int32([v, v]) for n, v in facts.items()}, fire=jnp.ones(2))
    )


def sighted(state, decisions=1):
    timer = jnp.zeros((4, 4), jnp.int8).at[2:, :2].set(decisions)
    return state.replace(by_mech=state.by_mech.replace(timer=timer))


DEFENSIVE, AMBUSH, ROUTE = range(3)
COLD, WARM, HOT = range(3)


def test_a_cold_team_is_idle_until_it_tracks_or_is_hit(game, red):
    state = of_red(game.start(), disposition=DEFENSIVE, awareness=COLD)
    _, idle = red(state)
    assert not idle[:, :2].any()
    _, idle = red(sighted(state))
    assert not idle[:, :2].any()
    memory, awake = red(sighted(state, CONFIRMATION))
    assert np.abs(awake[:, :2]).max() > 0.1
    assert np.abs(red(state, memory)[1][:, :2]).max() > 0.1  # and stays awake
    assert np.abs(red(of_red(state, disposition=DEFENSIVE, awareness=WARM))[1][:, :2]).max() > 0.1


def faced(game, distance, **facts):
    """Red's mechs with enemies in sight ahead of them, `distance` voxels away."""
    places = ((36.0 - distance, 20.0), (36.0 - distance, 26.0), *EAST)
    state = sighted(of_red(game.start(places=places), **facts))
    bodies = state.echelon.battle.mechs
    bodies = bodies.replace(yaw=np.full(4, np.pi, np.float32))
    return state.replace(echelon=state.echelon.replace(battle=state.echelon.battle.replace(mechs=bodies)))


def shoots_and_moves(action):
    return bool((action[:, [PRIMARY, TERTIARY]] > 0).any()), bool((action[:, :2] != 0).any())


def test_an_ambush_holds_fire_until_the_enemy_is_close(game, red):
    def fires(distance, **facts):
        return shoots_and_moves(red(faced(game, distance, **facts))[1])

    assert fires(7.0, disposition=AMBUSH, awareness=HOT) == (True, True)
    assert fires(13.0, disposition=AMBUSH, awareness=HOT) == (False, False)
    assert fires(11.9, disposition=DEFENSIVE, awareness=HOT)[0]


def test_a_teacher_of_missions_plays_without_the_handicap(game, red):
    """A cold team under a probability of fire of 0 would do nothing; so would an ambush out of its range."""
    script = game.env.scripts["heuristic_red"]
    teach = jax.jit(lambda state: script.teach(jax.random.key(0), script.init(), state, game.params)[1])
    for distance, facts in ((7.0, (DEFENSIVE, COLD)), (13.0, (AMBUSH, HOT))):
        state = faced(game, distance, **dict(zip(("disposition", "awareness"), facts, strict=True)))
        state = state.replace(scenario=state.scenario.replace(fire=jnp.zeros(2)))
        assert shoots_and_moves(red(state)[1]) == (False, False)
        assert shoots_and_moves(np.asarray(teach(state))) == (True, True)


def test_a_squad_flanks_after_a_stage(game):
    """It stands on the objective of its stage; that is no point of the way to the flank."""
    script = game.env.scripts["heuristic_blue"]
    act = jax.jit(lambda memory, state: script.act(jax.random.key(0), memory, state, game.params))
    state = game.start("stage", "scout", places=((10.0, 20.0), (11.0, 20.0), *EAST))
    orders = state.scenario.orders
    orders = orders.replace(
        verb=orders.verb.at[0, 1].set(VERBS.index("flank")),
        objective=orders.objective.at[0].set(jnp.float32([[10.0, 20.0], [30.0, 20.0]])),
        go=jnp.int32([1, NEVER]),
    )
    state = state.replace(scenario=state.scenario.replace(orders=orders))
    memory, _ = act(script.init(), state)
    after = state.replace(echelon=state.echelon.replace(decision=jnp.int32(1)))
    _, goes = act(memory, after)
    _, flanks = act(memory.replace(leg=jnp.zeros(2, jnp.int32)), after)
    _, attacks = act(memory.replace(leg=jnp.ones(2, jnp.int32)), after)
    np.testing.assert_array_equal(goes, flanks)
    assert not np.array_equal(flanks, attacks)


def test_a_team_reacts_to_enemies_that_it_sees_unless_it_is_hot(game, red):
    places = ((30.0, 20.0), WEST[1], *EAST)
    state = of_red(game.start(places=places), disposition=DEFENSIVE, awareness=WARM)
    turned = [
        red(one)[1][0, 3] for one in (state, sighted(state), of_red(state, disposition=0, awareness=HOT))
    ]
    assert turned[1] == turned[2]
    blind = red(state)[1]
    assert not (blind[:, [PRIMARY, TERTIARY]] > 0).any()


def test_a_squad_that_suppresses_keeps_its_enemy_down_without_destroying_it(game):
    script = game.env.scripts["heuristic_blue"]
    act = jax.jit(lambda state: script.act(jax.random.key(0), script.init(), state, game.params)[1])

    def pulled(verb="suppress", seconds=0.0, **enemy):
        """Triggers of a medium mech seven voxels from an enemy ahead, whose condition `enemy` changes."""
        changes = {name: [value] * 4 for name, value in enemy.items()}
        state = game.start(verb, "assault", ((29.0, 20.0), (6.0, 26.0), *EAST), **changes)
        timer = jnp.zeros((4, 4), jnp.int8).at[:2, 2:].set(1)
        facts = state.by_mech.replace(timer=timer, pinned=jnp.full(4, seconds))
        action = np.asarray(act(state.replace(by_mech=facts)))
        return [trigger for trigger in (PRIMARY, TERTIARY) if action[0, trigger] > 0]

    assert pulled("overwatch") == pulled(seconds=TARGET_TIME) == [PRIMARY, TERTIARY]
    assert pulled() == pulled(stability=STEADY + 1, suppressed=SUPPRESSION) == [TERTIARY]
    assert pulled(stability=STEADY, suppressed=SUPPRESSION) == []
    assert pulled(stability=STEADY, suppressed=LAPSE) == [TERTIARY]


def test_a_patrol_follows_its_route(game, red):
    state = of_red(game.start(), disposition=ROUTE, awareness=WARM)
    route = jnp.broadcast_to(jnp.float32([[36.0, 36.0], [36.0, 4.0], [30.0, 4.0], [30.0, 36.0]]), (2, 4, 2))
    state = state.replace(scenario=state.scenario.replace(route=route))
    memory, action = red(state)
    assert (
        memory.leg.tolist() == [0, 0] and action[0, 1] > 0.2 and abs(action[0, 0]) < 0.1
    )  # north, to its left
    there = game.start(places=(*WEST, (36.0, 34.0), EAST[1]))
    there = of_red(there, disposition=ROUTE, awareness=WARM)
    memory, _ = red(there.replace(scenario=there.scenario.replace(route=route)))
    assert memory.leg.tolist() == [1, 0]
    assert action.shape == (2, 27) and bool((np.abs(action) <= 1).all())


def test_configurations_build_and_take_overrides():
    def read(*overrides):
        small = (
            "env.maps=1",
            "env.size=[40,40,20]",
            "env.cache=null",
            "env.telemetry=true",
            "env.blue=pack5",
            "env.red=pack5",
        )
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            return build.build_run_config(compose("config", ["env=echelon_missions", *small, *overrides]))

    read_one = read("env.mission=scout", "reward.components.stealth.weight=0", "env.frame=world")
    env = read_one.env
    assert env.teams == (5, 5) and env.default_params().echelon.reward["stealth"]["weight"] == 0.0
    assert env.layout.size == 591 + 15 and read_one.controllers == {"blue": "learner", "red": "heuristic"}
    own = read("env.verbs=[assault,hold,'" + f"{__name__}:PATROL" + "']", "env.mission=patrol").env
    assert own.registry.names == ("assault", "hold", "patrol") and own.layout["mission"].shape == (11,)
    assert own.default_params().levers.mission.tolist() == [0, 0, 1]


def fields_of(game, time, block, role="blue"):
    """A block of the first mech of a role by field."""
    values = np.asarray(game.block(time, block, role))[0]
    return dict(zip(game.env.layout[block].fields, values, strict=True))


def test_progress_shows_the_own_mission_in_the_mech_s_frame(game):
    state, time = game.step(game.start("assault", places=((6.0, 20.0), (6.0, 26.0), *EAST)))
    seen = fields_of(game, time, "progress")
    assert seen["living"] == 1 and seen["captured"] == seen["follow_on"] == seen["tracked"] == 0
    assert seen["stage_time"] == pytest.approx(1 / LIMIT)
    assert seen["potential"] == pytest.approx(float(state.potential[0]))
    # The mechs look along x; the squad's centre lies 3 to the left of the first.
    assert seen["squad_left"] * 40 == pytest.approx(3.0, abs=0.1)
    assert seen["squad_ahead"] == pytest.approx(0.0, abs=0.02)
    assert fields_of(game, time, "progress", "red")["potential"] == pytest.approx(float(state.potential[1]))


def test_contacts_show_what_suppression_has_done_to_them(game):
    state = game.start("suppress", "assault", ((29.0, 20.0), (6.0, 26.0), *EAST), suppressed=[0, 0, 15, 0])
    facts = state.by_mech.replace(pinned=jnp.float32([0, 0, 2.0, 0]))
    state, time = game.step(state.replace(by_mech=facts))
    fields = game.env.layout["contacts"].fields
    rows = np.asarray(game.block(time, "contacts"))[0]
    enemy = dict(zip(fields, rows[rows[:, fields.index("hostile")] == 1][0], strict=True))
    # A decision has five substeps; the enemy's stability is whole.
    assert enemy["suppressed"] == pytest.approx(10 / SUPPRESSION) and enemy["under_fire"] == 1
    assert enemy["suppression"] == pytest.approx(2.0 / TARGET_TIME)


def test_cells_are_shown_until_the_squad_has_entered_them(game):
    state = game.start("scout")
    _, time = game.step(state)
    before = np.asarray(game.block(time, "uncovered"))[0]
    seen = fields_of(game, time, "progress")
    assert before.max() == 1.0 and seen["uncovered_distance"] > 0
    entered = np.asarray(state.by_mech.visited).copy()
    entered[1] = np.uint32(0xFFFFFFFF)  # by the other mech of the squad
    _, time = game.step(state.replace(by_mech=state.by_mech.replace(visited=jnp.asarray(entered))))
    assert not np.asarray(game.block(time, "uncovered"))[0].any()
    assert fields_of(game, time, "progress")["uncovered_distance"] == 0.0
    # Red's squad has entered none of them.
    assert np.asarray(game.block(time, "uncovered", "red"))[0].any()


def test_the_nearest_cell_to_enter_lies_where_its_bearing_points(game):
    state, time = game.step(game.start("scout"))
    seen, mechs = fields_of(game, time, "progress"), state.echelon.battle.mechs
    yaw, here = float(mechs.yaw[0]), np.asarray(mechs.position[0, :2])
    turn = yaw + np.arctan2(seen["uncovered_sin"], seen["uncovered_cos"])
    place = here + seen["uncovered_distance"] * 40 * np.array([np.cos(turn), np.sin(turn)])
    cell = int(game.env.ground.cell_of(place))
    words = np.asarray(game.env.ground.open_cells[0])
    team = np.bitwise_or.reduce(np.asarray(state.by_mech.visited)[:2])
    bit = np.uint32(1) << np.uint32(cell % 32)
    assert words[cell // 32] & bit and not team[cell // 32] & bit


def test_critics_with_the_true_state_know_both_missions():
    env = built(critic="state", objective=None)
    state, time = jax.jit(env.reset)(jax.random.key(0), env.default_params())
    size = env.spec.role("blue").critic_observation.shape[0]
    assert time.critic_obs["blue"].shape == (2, size) and time.critic_obs["red"].shape == (2, size)
    np.testing.assert_array_equal(time.critic_obs["blue"][:, : env.layout.size], time.obs["blue"])
    assert time.critic_obs["blue"][0, -8] == state.potential[0]
    assert time.critic_obs["blue"][0, -4] == state.potential[1] == time.critic_obs["red"][0, -8]


def test_the_world_frame_keeps_the_original_s_numbers():
    env = built(frame="world")
    assert env.layout["contacts"].shape == (5, 25) and env.layout["self"].shape == (45,)
    assert env.layout.names[-1] == "mission" and env.spec.role("blue").critic_observation is None


def test_the_discount_of_potentials_is_the_learner_s():
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("config", ["env=echelon_missions_small", "algo=ppo", "algo.gamma=0.997"])
        alone = compose("config", ["env=echelon_missions_small", "algo=ppo", "env.gamma=0.9"])
    assert config.env.gamma == 0.997 and alone.env.gamma == 0.9


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["algos.blue.gamma=0.9"], 0.9),
        (["algos.blue.learning_rate=1e-3"], 0.99),
        (["+algo@algos.blue=sac", "algos.blue.gamma=0.95"], 0.95),
        (["algos.blue.gamma=0.9", "env.gamma=0.8"], 0.8),
    ],
)
def test_the_discount_of_potentials_is_that_of_blue_s_own_learner(typed, expected):
    config, _ = compose_config(normalize_overrides(["env=echelon_missions_small", "tuning=none", *typed]))
    assert config.env.gamma == expected and config.algo.gamma == 0.99
