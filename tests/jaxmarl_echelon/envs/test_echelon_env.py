"""The mech battles as an environment: roles, control of the senses, ends, settings, opponents."""

import dataclasses
import itertools
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import flat_bank
from evaluation_starts import check_starts_differ
from hydra import compose, initialize_config_dir

from algos.defaults import config_directory
from jaxmarl_echelon.envs.check_env import check_env, check_traces, random_actions
from jaxmarl_echelon.envs.echelon import commands
from jaxmarl_echelon.envs.echelon.battle.unit_tables import HEAVY, LIGHT, MEDIUM, PRIMARY, SCOUT
from jaxmarl_echelon.envs.echelon.make import make
from jaxmarl_echelon.envs.echelon.rewards import make_battle_reward
from jaxmarl_echelon.envs.echelon.terrain.layout import check_size
from jaxmarl_echelon.training.acting.controllers import find_script, find_teacher
from jaxmarl_echelon.training.config import build

SAY = tuple(range(18, 26))
ZONES = ((20.0, 20.0, 5.0), (12.0, 27.0, 4.0))
BLUE = [["heavy", "scout"], ["light"]]
RED = {"medium": 1, "scout": 2}


def built(bank, **changes):
    given = {"blue": BLUE, "red": RED, "pages": 0, "bank": bank, "fire_probability": 1.0} | changes
    return make(**{"reward": make_battle_reward()} | given)


class Game:
    """One environment with its functions compiled once."""

    def __init__(self):
        self.env = built(flat_bank(ZONES))
        self.params = self.env.default_params()
        self.reset, self.jitted_step = jax.jit(self.env.reset), jax.jit(self.env.step)
        self._random_actions = jax.jit(partial(random_actions, self.env.spec))

    def step(self, state, actions=None, key=0, params=None):
        actions = {} if actions is None else actions
        still = {
            role.name: np.zeros((role.size, commands.ACTION_SIZE), np.float32) for role in self.env.spec.roles
        }
        params = self.params if params is None else params
        return self.jitted_step(jax.random.key(key), state, still | actions, params)

    def random_actions(self, time, key):
        return self._random_actions(jax.random.key(key), time)

    def start(self, key=0, **mechs):
        """A fresh episode in which fields of the mechs are replaced: `{field: {mech: value}}`."""
        state, _ = self.reset(jax.random.key(key), self.params)
        return self.alter(state, **mechs)

    @staticmethod
    def alter(state, **mechs):
        changed = state.battle.mechs
        for field, values in mechs.items():
            column = np.array(getattr(changed, field))
            for mech, value in values.items():
                column[mech] = value
            changed = changed.replace(**{field: column})
        return state.replace(battle=state.battle.replace(mechs=changed))


@pytest.fixture(scope="module")
def game():
    return Game()


def act(team_size, given):
    """Actions `[A, 26]` of a team: 0 but for `{(mech, index): value}`."""
    action = np.zeros((team_size, commands.ACTION_SIZE), np.float32)
    for (mech, index), value in given.items():
        action[mech, np.asarray(index)] = value
    return action


def blocks(game, time, role):
    return game.env.layout.split(np.asarray(time.obs[role]))


SHORT = {"blue": ["scout", "light"], "red": ["medium"], "time_limit": 3.0, "zone_seconds": 1.5}


@pytest.mark.thorough
def test_environment_passes_the_contract_checks():
    check_env(built(flat_bank(ZONES), **SHORT), steps=16, plain=False)


def test_environment_is_traced_as_the_contract_says():
    check_traces(built(flat_bank(ZONES), **SHORT))


def test_roles_share_spaces_for_teams_of_one_size(game):
    blue, red = game.env.spec.roles
    assert (blue.name, red.name) == ("blue", "red")
    assert (blue.observation, blue.action, blue.size) == (red.observation, red.action, red.size)
    assert blue.action.shape == (26,) and blue.observation.shape == (game.env.layout.size,)
    assert game.env.layout["pack"].shape == (3, 8)
    assert game.env.spec.episode_limit == 240 and game.env.spec.decision_period == 0.25
    spec, ended = game.env.spec, {"outcome": np.arange(3)}
    assert spec.outcomes == ("blue_win", "red_win", "draw") and spec.good_outcomes == ("blue_win",)
    for role, wins in ((None, [1, 0, 0]), ("blue", [1, 0, 0]), ("red", [0, 1, 0])):
        assert spec.scores(ended, role).tolist() == wins


def test_messages_are_read_by_packmates_in_the_next_decision(game):
    said = act(3, {(0, SAY): 0.5, (2, SAY): -0.25})
    _, time = game.step(game.start(), {"blue": said})
    board = np.asarray(blocks(game, time, "blue")["pack"])
    assert (board[:2, 0] == 0.5).all() and (board[:2, 1:] == 0).all()
    assert (board[2, 0] == -0.25).all() and (board[2, 1:] == 0).all()
    assert (np.asarray(blocks(game, time, "red")["pack"]) == 0).all()


def test_shut_down_mechs_observe_zero_velocity(game):
    state = game.start(heat={0: 200.0, 1: 20.0}, velocity={0: [2.0, 1.0, 0.0], 1: [2.0, 1.0, 0.0]})
    _, time = game.step(state)
    own = blocks(game, time, "blue")["self"]
    speed = game.env.layout.index("self", "velocity_x")
    assert own[0, game.env.layout.index("self", "shutdown")] == 1
    assert (own[0, speed : speed + 3] == 0).all()


def test_target_scores_pick_living_enemies_from_the_last_contacts(game):
    state, _time = game.reset(jax.random.key(0), game.params)
    contacts = np.asarray(state.contacts)
    assert sorted(contacts[0, :2].tolist()) == [1, 2] and set(contacts[0, 2:]) == {3, 4, 5}
    slots = {(0, 9 + 2): 0.7, (0, 9 + 3): 0.2, (1, 9 + 0): 0.9, (2, 9 + 3): -0.1}
    after, _ = game.step(state, {"blue": act(3, slots)})
    focus = np.asarray(after.battle.mechs.focus)
    assert focus[0] == contacts[0, 2]
    assert focus[1] == -1  # a friend is no target
    assert focus[2] == -1  # no positive score
    dead = game.alter(state, alive={int(contacts[0, 2]): False}, hp={int(contacts[0, 2]): 0.0})
    after, _ = game.step(dead, {"blue": act(3, slots)})
    assert after.battle.mechs.focus[0] == -1


def test_order_and_filter_of_contacts_hold_for_the_next_observation(game):
    control = act(3, {(0, 15): 1.0, (0, 17): 1.0, (1, 16): 1.0})
    after, time = game.step(game.start(hp={4: 30.0}), {"blue": control})
    assert after.contacts[0].tolist()[0] == 3  # the medium is the biggest enemy
    assert set(after.contacts[0].tolist()) == {3, 4, 5, -1}
    own = np.asarray(blocks(game, time, "blue")["self"])
    sort = game.env.layout.index("self", "sort_closest")
    assert own[:, sort : sort + 3].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert own[:, game.env.layout.index("self", "hostile_only")].tolist() == [1, 0, 0]
    seen = np.asarray(after.contacts[1]).tolist()
    assert seen[2] == 4  # the enemy that is worst off comes right after the friends


def test_partial_observation_hides_what_is_behind_a_wall():
    env = built(flat_bank(ZONES[:1], boxes=(((18, 0, 0), (19, 40, 20)),)))
    reset, full = jax.jit(env.reset), env.default_params()
    partly = env.task_params({"observation": "partial"})
    seen = np.asarray(reset(jax.random.key(0), full)[0].contacts)
    assert sorted(seen[0].tolist()) == [1, 2, 3, 4, 5]
    seen = np.asarray(reset(jax.random.key(0), partly)[0].contacts)
    assert sorted(seen[0].tolist()) == [-1, -1, -1, 1, 2] and sorted(seen[3].tolist()) == [-1, -1, -1, 4, 5]


def test_non_finite_actions_count_as_zero(game):
    bad = np.full((3, 26), np.nan, np.float32)
    bad[:, 0] = np.inf
    state = game.start()
    broken, time = game.step(state, {"blue": bad})
    still, _ = game.step(state)
    jax.tree.map(np.testing.assert_array_equal, broken.battle, still.battle)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(time.obs))


def test_a_death_terminates_only_that_mech(game):
    state = game.start(hp={4: 0.0})
    state, time = game.step(state)
    assert time.terminated["red"].tolist() == [False, True, False]
    assert time.alive["red"].tolist() == [True, False, True]
    assert time.alive["blue"].all() and not time.over and not time.terminated["blue"].any()
    assert time.reward["red"][1] == pytest.approx(-1.0)
    assert (time.obs["red"][1] == 0).all()
    _, later = game.step(state, {"red": np.ones((3, 26), np.float32)})
    assert later.reward["red"][1] == 0 and not later.terminated["red"].any()
    assert later.alive["red"].tolist() == [True, False, True] and not later.over


def test_the_last_death_ends_the_episode(game):
    _, time = game.step(game.start(hp={3: 0.0, 4: 0.0, 5: 0.0}))
    assert time.over and time.info["outcome"] == 0 and game.env.endings[time.info["ending"]] == "elimination"
    assert time.terminated["blue"].all() and time.terminated["red"].all()
    assert not time.truncated["blue"].any() and not time.alive["blue"].any()
    _, time = game.step(game.start(hp={0: 0.0, 1: 0.0, 2: 0.0}))
    assert game.env.spec.outcomes[time.info["outcome"]] == "red_win"


def test_holding_the_zone_scores_and_wins(game):
    state = game.start(position={0: [*zone_of(game)[:2], 2.0]})
    state, time = game.step(state)
    assert state.score.tolist() == [0.25, 0.0]
    assert time.info["reward/zone_hold"] == pytest.approx(3.0 / 3)
    own = blocks(game, time, "blue")["self"][0]
    assert own[game.env.layout.index("self", "in_zone")] == 1
    assert own[game.env.layout.index("self", "control")] == 1
    _, time = game.step(state.replace(score=np.float32([29.9, 12.0])))
    assert time.over and game.env.endings[time.info["ending"]] == "zone"
    assert game.env.spec.outcomes[time.info["outcome"]] == "blue_win"
    assert time.terminated["red"].all()


def zone_of(game, key=0):
    state, _ = game.reset(jax.random.key(key), game.params)
    return np.asarray(game.env.bank.zone[state.battle.map_index])


def test_time_up_decides_the_battle_and_terminates_the_living(game):
    state = game.start(hp={3: 0.0, 4: 10.0}).replace(decision=np.int32(239))
    _, time = game.step(state)
    assert time.over and game.env.endings[time.info["ending"]] == "time"
    assert game.env.spec.outcomes[time.info["outcome"]] == "blue_win"
    assert all(time.terminated[team].all() for team in ("blue", "red"))
    assert not any(time.truncated[team].any() or time.alive[team].any() for team in ("blue", "red"))


def test_the_time_limit_rewards_survivors_and_truncates_no_agent(game):
    """One of blue and one of red die in the first of four decisions; blue wins on hit points."""
    assert built(flat_bank(ZONES), time_limit=1.0).spec.episode_limit == 4
    only = {name: {"weight": 5.0 * (name == "win")} for name in game.env.spec.components}
    params = game.env.task_params({"reward": only, "time_limit": 1.0})
    state, seen = game.start(hp={2: 0.0, 3: 0.0}), []
    for _ in range(4):
        state, time = game.step(state, params=params)
        seen.append(time)
    assert [bool(time.over) for time in seen] == [False, False, False, True]
    assert game.env.endings[seen[-1].info["ending"]] == "time"
    blue, red = ([time.terminated[team].tolist() for time in seen] for team in ("blue", "red"))
    assert blue == [[False, False, True], *[[False] * 3] * 2, [True, True, False]]
    assert red == [[True, False, False], *[[False] * 3] * 2, [False, True, True]]
    assert not any(time.truncated[team].any() for time in seen for team in ("blue", "red"))
    assert all((time.reward[team] == 0).all() for time in seen[:-1] for team in ("blue", "red"))
    assert seen[-1].reward["blue"].tolist() == [5.0, 5.0, 0.0]
    assert seen[-1].reward["red"].tolist() == [0.0, -5.0, -5.0]


def test_a_kill_in_the_zone_counts_double_only_while_a_living_enemy_is_in_it(game):
    x, y, _ = zone_of(game)
    places = {0: [x - 2, y, 2.0], 4: [x + 1, y, 0.9], 3: [x + 2, y + 2, 1.5]}
    fire = act(3, {(0, PRIMARY): 1.0})

    def paid(*there):
        state = game.start(position={mech: places[mech] for mech in there}, hp={4: 1.0}, yaw={0: 0.0})
        _, time = game.step(state, {"blue": fire})
        assert time.terminated["red"].tolist() == [False, True, False]
        return float(time.info["reward/kills"]), time.reward["red"][1]

    alone, death = paid(0, 4)
    assert alone == pytest.approx(10.0 / 3) and death == pytest.approx(-0.5)
    contested, death = paid(0, 4, 3)
    assert contested == pytest.approx(20.0 / 3) and death == pytest.approx(-0.5)


def test_components_of_blue_sum_to_its_mean_reward(game):
    state = game.start(position={3: [*zone_of(game)[:2], 1.5], 0: [*(zone_of(game)[:2] + 3.8), 2.0]})
    _, time = game.reset(jax.random.key(0), game.params)
    paid = 0.0
    for key in range(3):
        state, time = game.step(state, game.random_actions(time, key), key)
        total = sum(value for name, value in time.info.items() if name.startswith("reward/"))
        np.testing.assert_allclose(total, time.reward["blue"].mean(), atol=1e-5)
        paid += abs(float(total))
    assert paid > 0


def test_same_seed_and_actions_give_the_same_trajectory(game):
    def play():
        state, time = game.reset(jax.random.key(4), game.params)
        for key in range(12):
            state, time = game.step(state, game.random_actions(time, key), key)
        return state, time

    jax.tree.map(np.testing.assert_array_equal, play(), play())


@pytest.fixture(scope="module")
def rosters(game):
    """Three environments with maps and rosters of their own, and a decision later: a mech of each dies."""
    classes = np.int32([[HEAVY, SCOUT, LIGHT, MEDIUM, SCOUT, SCOUT], [LIGHT] * 6, [HEAVY] * 6])
    weights = np.float32([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    every = [
        dataclasses.replace(game.params, classes=own, map_weights=drawn)
        for own, drawn in zip(classes, weights, strict=True)
    ]
    starts = [game.reset(jax.random.key(i), params)[0] for i, params in enumerate(every)]
    params, start = (jax.tree.map(lambda *rows: np.stack(rows), *rows) for rows in (every, starts))
    actions = np.zeros((3, 3, 26), np.float32)
    actions[:, :, 0] = 1.0
    hp = start.battle.mechs.hp.copy()
    hp[:, 0] = 0.0
    dying = start.replace(battle=start.battle.replace(mechs=start.battle.mechs.replace(hp=hp)))
    keys = jax.random.split(jax.random.key(0), 3)
    step = jax.jit(jax.vmap(game.jitted_step))
    return start, *jax.device_get(step(keys, dying, {"blue": actions, "red": actions}, params))


@pytest.mark.thorough
def test_one_trace_plays_many_maps_and_rosters(rosters):
    start, after, time = rosters
    assert start.battle.map_index.tolist() == [0, 1, 1] == time.info["map"].tolist()
    assert (
        start.battle.mechs.hp[1].tolist() == [80.0] * 6 and start.battle.mechs.hp[2].tolist() == [200.0] * 6
    )
    speed = np.hypot(*after.battle.mechs.velocity[..., :2].reshape(-1, 2).T).reshape(3, 6)
    np.testing.assert_allclose(speed.max(1)[1:], [0.98 * 6.8, 0.98 * 2.5], rtol=1e-4)


@pytest.mark.thorough
def test_static_terrain_does_not_change(rosters):
    _, after, _ = rosters
    assert after.battle.tally.died[:, 0].all() and after.battle.overlay.gone.size == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.battle))


def test_curricula_change_settings_without_recompiling(game):
    env = game.env
    changed = env.task_params(
        settings={
            "observation": "partial",
            "time_limit": 20.0,
            "zone_seconds": "never",
            "fire_probability": [0.25, 1.0],
            "map_weights": [0.0, 2.0],
            "red": [["heavy"], ["light", "light"]],
            "reward": {"kills": {"weight": 1.0}},
        }
    )
    assert not changed.full_observation and changed.max_decisions == 80
    assert jnp.isinf(changed.zone_seconds) and changed.fire_probability.tolist() == [0.25, 1.0]
    assert changed.classes.tolist() == [HEAVY, SCOUT, LIGHT, HEAVY, LIGHT, LIGHT]
    assert changed.pack.tolist() == [0, 0, 1, 0, 1, 1]
    assert changed.reward["kills"]["weight"] == 1.0 and changed.reward["kills"]["contested"] == 2.0
    same = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (changed, game.params)]
    assert same[0] == same[1]


def test_tasks_with_another_time_limit_are_won_by_half_of_it_unless_told_otherwise(game):
    def seconds(env, **given):
        return float(env.task_params(settings=given).zone_seconds)

    assert seconds(game.env) == seconds(game.env, zone_seconds=None) == 30.0
    assert seconds(game.env, time_limit=20.0) == seconds(game.env, time_limit=20.0, zone_seconds=None) == 10.0
    assert seconds(game.env, time_limit=20.0, zone_seconds=15.0) == 15.0
    fixed = built(flat_bank(ZONES), zone_seconds=8.0)
    assert seconds(fixed, time_limit=20.0) == 8.0
    assert seconds(fixed, time_limit=20.0, zone_seconds=None) == 10.0


def test_evaluation_episodes_start_differently(game):
    check_starts_differ(game.env, game.params)


def test_evaluation_cycles_through_terrains(game):
    chosen = [game.env.evaluation_params(game.params, i).map_weights.tolist() for i in range(3)]
    assert chosen == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    only = dataclasses.replace(game.params, map_weights=jnp.array([0.0, 3.0]))
    assert game.env.evaluation_params(only, 5).map_weights.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"blue": ["tank"]}, ("env.blue", "tank", "pack5")),
        ({"size": [10, 10, 20], "bank": None, "maps": 1}, ("env.size=[10, 10, 20]",)),
        ({"size": [40, 40], "bank": None}, ("env.size=[40, 40]", "3 numbers")),
        ({"maps": 0, "bank": None}, ("env.maps=0",)),
        ({"biomes": ["moon"], "bank": None, "maps": 1}, ("env.biomes", "moon")),
        ({"observation": "all"}, ("env.observation=all", "full, partial")),
        ({"telemetry": 1}, ("env.telemetry=1", "true or false")),
        ({"time_limit": 0}, ("env.time_limit=0",)),
        ({"zone_seconds": "soon"}, ("env.zone_seconds=soon", "never")),
        ({"fire_probability": 1.5}, ("env.fire_probability=1.5",)),
        ({"fire_probability": [0.5]}, ("env.fire_probability=[0.5]", "2 numbers")),
        ({"assist": [0.3, 1.5]}, ("env.assist=1.5", "from 0 to 1")),
        ({"map_weights": [1.0]}, ("env.map_weights=[1.0]", "2 weights")),
        ({"spawn_jitter": -1}, ("env.spawn_jitter=-1",)),
        ({"pages": -1}, ("env.pages=-1",)),
    ],
)
def test_wrong_settings_are_named_in_one_line(given, words):
    with pytest.raises(ValueError) as error:
        built(**{"bank": flat_bank(ZONES)} | given)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": [60, 60, 20]}, ("env.size", "between episodes", "time_limit")),
        ({"blue": ["heavy"]}, ("env.blue=['heavy']", "1 mechs", "3")),
        ({"time_limit": 61}, ("env.time_limit=61", "60")),
        ({"assist": 0.3}, ("env.assist=0.3", "must be 0")),
        ({"reward": {"killing": {"weight": 1.0}}}, ("env.reward=killing", "kills")),
    ],
)
def test_wrong_tasks_are_named_in_one_line(game, given, words):
    with pytest.raises(ValueError) as error:
        game.env.task_params(given)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_scripts_are_found_for_a_role(game):
    env = game.env
    named = SimpleNamespace(spec=env.spec, scripts={name: name for name in env.scripts})
    assert find_script(named, "red", "heuristic") == "heuristic_red"
    assert find_script(named, "blue", "standing") == "standing_blue"
    with pytest.raises(
        ValueError,
        match="controllers.red=brave: .*learner, learner:per_agent, heuristic, standing, random, none",
    ):
        find_script(env, "red", "brave")
    assert all(find_script(env, "blue", name) for name in env.baselines)


def test_scripts_act_in_their_role_s_space(game):
    state, _ = game.reset(jax.random.key(0), game.params)
    named = itertools.product(game.env.spec.roles, ("heuristic", "standing", "random", "none"))
    played = {(role, name): find_script(game.env, role.name, name) for role, name in named}

    @jax.jit
    def decided(state):
        drawn = [
            policy.act(jax.random.key(1), policy.init(), state, game.params) for policy in played.values()
        ]
        return [
            (action, role.action.contains(action))
            for (role, _), (_, action) in zip(played, drawn, strict=True)
        ]

    for (role, name), (action, legal) in zip(played, decided(state), strict=True):
        assert action.shape == (role.size, 26) and np.all(legal)
        assert np.all(np.asarray(action) == 0) == (name == "none")


def test_configurations_build_and_take_overrides():
    def read(*overrides):
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            return build.build_run_config(compose("config", ["env.maps=2", "env.cache=null", *overrides]))

    weighty = "reward.components.kills.weight=5"
    small = read("env=echelon", "env.telemetry=true", "+controllers.red=none", weighty)
    assert small.controllers == {"blue": "learner", "red": "none"}
    assert small.env.teams == (5, 5) and small.env.default_params().reward["kills"]["weight"] == 5.0
    assert small.env.layout.size == 591 and small.env.default_params().zone_seconds == 30.0
    large = read("env=echelon_10v10", "env.telemetry=false", "env.red=squad10")
    assert large.env.teams == (10, 10) and large.env.bank.size == check_size([100, 100, 20])
    assert large.env.default_params().pack.tolist() == [0] * 15 + [1] * 5
    assert large.env.layout.size == 591 + 40 - 256
    assert large.controllers == {"blue": "learner", "red": "heuristic"}
    mixed = read("env=echelon", "env.blue={heavy: 1, scout: 2}", "env.red=[leader, [light, light]]")
    assert mixed.env.default_params().classes.tolist() == [HEAVY, SCOUT, SCOUT, MEDIUM, LIGHT, LIGHT]
    assert mixed.env.default_params().pack.tolist() == [0, 0, 0, 0, 1, 1]


def test_a_teacher_plays_without_the_handicap():
    """What `teach` does is tested with the heuristic."""
    env = built(flat_bank(ZONES), fire_probability=[0.0, 0.5])
    script, teacher = find_script(env, "blue", "heuristic"), find_teacher(env, "blue", "heuristic")
    assert teacher.act is script.teach is not script.act and teacher.init is script.init
