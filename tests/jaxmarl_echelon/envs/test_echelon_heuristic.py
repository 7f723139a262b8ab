"""The scripted opponent: where it goes, what it shoots at, how it gets free, its handicap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import flat_bank, make_battle, make_mechs, make_params, make_state

from jaxmarl_echelon.envs.echelon import commands
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    ACTIONS,
    FORWARD,
    HEAVY,
    LIGHT,
    MEDIUM,
    PRIMARY,
    SCOUT,
    SECONDARY,
    STRAFE,
    TERTIARY,
    VENT,
    VERTICAL,
    YAW_RATE,
)
from jaxmarl_echelon.envs.echelon.battle_interface import BattleInterface
from jaxmarl_echelon.envs.echelon.observing.layout import make_layout
from jaxmarl_echelon.envs.echelon.scripts.heuristic import (
    TeamTask,
    compute_team_actions,
    initial_heuristic_memory,
    make_heuristic,
)


class Stage:
    """One blue mech against one red one, or several, on flat ground with the zone at (20, 20)."""

    def __init__(self, teams=(1, 1), boxes=(), moves=True):
        simulation = BattleSimulation(bank=flat_bank(boxes=boxes), teams=teams)
        interface = BattleInterface(simulation, make_layout(max(teams)))
        self.policies = [make_heuristic(interface, side, moves=moves) for side in (0, 1)]
        self._act = [jax.jit(policy.act) for policy in self.policies]
        self._teach = [jax.jit(policy.teach) for policy in self.policies]

    def act(
        self, position, classes, side=0, key=0, memory=None, fire=1.0, contacts=None, teach=False, **mechs
    ):
        """Actions `[A, 26]` of a team, and its memory."""
        state = make_state(make_battle(make_mechs(position, classes, **mechs)))
        if contacts is not None:
            state = state.replace(contacts=jnp.asarray(contacts, jnp.int32))
        params = make_params(classes, fire_probability=[fire, fire])
        memory = self.policies[side].init() if memory is None else memory
        play = (self._teach if teach else self._act)[side]
        memory, action = play(jax.random.key(key), memory, state, params)
        return np.asarray(action), memory


@pytest.fixture(scope="module")
def duel():
    return Stage()


def near(actual, wanted):
    np.testing.assert_allclose(actual, wanted, atol=1e-5)


def test_heuristic_walks_to_the_zone_and_turns_to_the_enemy(duel):
    there = [[10, 20, 1], [10, 35, 1]]
    action, _ = duel.act(there, [SCOUT, SCOUT], yaw=[np.pi / 6, 0])
    near(action[0, [FORWARD, STRAFE]], [np.cos(np.pi / 6), -0.25 * np.sin(np.pi / 6)])
    near(action[0, YAW_RATE], 1.0)
    action, _ = duel.act(there, [SCOUT, SCOUT], yaw=[np.pi / 2 + 0.3, 0])
    near(action[0, YAW_RATE], -0.3 / (np.pi / 3))
    assert action.shape == (1, commands.ACTION_SIZE) and (np.abs(action) <= 1).all()
    assert action[0, VERTICAL] == 0 and (action[0, commands.SAY] == 0).all()


def test_heuristic_is_slow_in_the_zone_and_keeps_its_distance(duel):
    inside = [[17, 20, 1], [17, 35, 1]]
    near(duel.act(inside, [LIGHT, LIGHT])[0][0, FORWARD], 0.5)
    close = [[17, 20, 2], [17, 25, 2]]
    near(duel.act(close, [LIGHT, LIGHT], yaw=[-0.7, 0])[0][0, [FORWARD, STRAFE]], [-0.15, np.sin(0.7) / 2])
    near(duel.act(close, [HEAVY, LIGHT])[0][0, [FORWARD, STRAFE]], [0.5, 0.0])
    outside = [[5, 20, 2], [5, 25, 2]]
    near(duel.act(outside, [HEAVY, LIGHT], yaw=[0.1, 0])[0][0, [FORWARD, STRAFE]], [-0.3, -np.sin(0.1)])


def test_heuristic_without_an_enemy_faces_its_destination(duel):
    action, _ = duel.act([[10, 20, 1], [12, 20, 1]], [MEDIUM] * 2, yaw=[-0.3, 0], alive=[True, False])
    near(action[0, YAW_RATE], 0.3 / (np.pi / 3))
    assert (action[0, PRIMARY : len(ACTIONS)] == -1).all()


def triggers(stage, classes, distance, error=0.0, **changes):
    """Returns the triggers that blue pulls at an enemy along +x, with a heading off by `error`."""
    position = [[5, 5, 1.5], [5 + distance, 5, 1.5]]
    action, _ = stage.act(position, classes, yaw=[error, 0.0], **changes)
    return [trigger for trigger in (PRIMARY, SECONDARY, TERTIARY) if action[0, trigger] > 0]


@pytest.mark.parametrize(
    ("shooter", "distance", "degrees", "wanted"),
    [
        (HEAVY, 7.9, 0, [PRIMARY, SECONDARY, TERTIARY]),
        (HEAVY, 7.9, 31, [PRIMARY, SECONDARY]),
        (HEAVY, 7.9, 61, [SECONDARY]),
        (HEAVY, 7.9, 91, []),
        (HEAVY, 11.9, 0, [SECONDARY, TERTIARY]),
        (HEAVY, 12.1, 0, [TERTIARY]),
        (HEAVY, 20.1, 0, []),
        (MEDIUM, 7.9, 0, [PRIMARY, TERTIARY]),
        (MEDIUM, 11.9, 0, [TERTIARY]),
        (MEDIUM, 12.1, 0, []),
        (LIGHT, 4.4, 0, [PRIMARY, SECONDARY, TERTIARY]),
        (LIGHT, 4.6, 0, [SECONDARY, TERTIARY]),
        (LIGHT, 9.9, 0, [TERTIARY]),
        (LIGHT, 10.1, 0, []),
        (SCOUT, 9.9, 0, [PRIMARY, SECONDARY]),
        (SCOUT, 9.9, 31, [SECONDARY]),
    ],
)
def test_weapons_are_fired_within_their_range_and_arc(duel, shooter, distance, degrees, wanted):
    assert triggers(duel, [shooter, SCOUT], distance, np.radians(degrees)) == wanted


def test_only_cannons_fire_without_a_clear_line(duel):
    walled = Stage(boxes=(((8, 0, 0), (9, 40, 8)),))
    assert triggers(walled, [HEAVY, SCOUT], 7.0) == [TERTIARY]
    painted = triggers(walled, [HEAVY, SCOUT], 7.0, painted=[0, 50], painter=[-1, 0])
    assert painted == [SECONDARY, TERTIARY]
    assert triggers(walled, [LIGHT, SCOUT], 7.0) == []
    assert triggers(walled, [MEDIUM, SCOUT], 7.0) == [TERTIARY]
    assert triggers(duel, [LIGHT, SCOUT], 7.0) == [SECONDARY, TERTIARY]


def test_paint_of_the_own_pack_lets_missiles_reach_farther(duel):
    assert triggers(duel, [HEAVY, SCOUT], 30.0, painted=[0, 50], painter=[-1, 0]) == [SECONDARY]
    assert triggers(duel, [HEAVY, SCOUT], 30.0, painted=[0, 50], painter=[-1, 1]) == []
    assert triggers(duel, [HEAVY, SCOUT], 30.0, painted=[0, 0], painter=[-1, 0]) == []


def test_heat_is_vented_before_anything_is_fired(duel):
    cool, hot = 0.74 * 130, 0.76 * 130
    position = [[5, 5, 1.5], [12, 5, 1.5]]
    action, _ = duel.act(position, [HEAVY, SCOUT], heat=[cool, 0])
    assert action[0, VENT] == -1 and action[0, PRIMARY] == 1
    action, _ = duel.act(position, [HEAVY, SCOUT], heat=[hot, 0])
    assert action[0, VENT] == 1 and (action[0, [PRIMARY, SECONDARY, TERTIARY]] == -1).all()


def test_scouts_jam_while_cool_and_counter_when_hot(duel):
    position = [[5, 5, 1], [35, 35, 1]]
    assert duel.act(position, [SCOUT, SCOUT])[0][0, SECONDARY] == 0.25
    assert duel.act(position, [SCOUT, SCOUT], heat=[0.71 * 75, 0])[0][0, SECONDARY] == 0.75
    assert duel.act(position, [LIGHT, SCOUT])[0][0, SECONDARY] == -1


def test_handicap_drops_all_triggers_at_a_rate():
    stage = Stage((8, 1))
    position = [[5, 5 + 0.1 * i, 2] for i in range(8)] + [[8, 5, 2]]
    fired = []
    for key in range(40):
        action, _ = stage.act(position, [HEAVY] * 8 + [SCOUT], key=key, fire=0.3)
        assert (action[:, PRIMARY] == action[:, SECONDARY]).all()
        assert (action[:, PRIMARY] == action[:, TERTIARY]).all()
        fired.append((action[:, PRIMARY] > 0).mean())
    assert 0.22 < np.mean(fired) < 0.38
    assert duel_fires(stage, position, 1.0) == 1.0 and duel_fires(stage, position, 0.0) == 0.0
    assert duel_fires(stage, position, 0.0, teach=True) == 1.0


def duel_fires(stage, position, fire, **how):
    return stage.act(position, [HEAVY] * 8 + [SCOUT], fire=fire, **how)[0][:, PRIMARY].mean() / 2 + 0.5


def test_stuck_mechs_back_up_and_then_step_aside(duel):
    position, memory, seen = [[10, 20, 1], [10, 27, 1]], None, []
    for key in range(24):
        action, memory = duel.act(position, [MEDIUM, SCOUT], key=key, memory=memory)
        seen.append(action[0, : len(ACTIONS)])
    seen = np.array(seen)
    # The first decision cannot know; the next eleven without progress are one too many.
    near(seen[:11, FORWARD], 1.0)
    near(seen[12:15, FORWARD], -1.0)
    near(seen[15:19, FORWARD], 0.0)
    assert (np.abs(seen[15:19, STRAFE]) == 1).all() and len(set(seen[15:19, STRAFE])) == 1
    near(seen[20:, FORWARD], 1.0)
    # Meanwhile it neither turns nor shoots; before and after there is a pause.
    near(seen[[11, 19]][:, :PRIMARY], 0.0)
    near(np.delete(seen[11:20, :PRIMARY], [FORWARD, STRAFE], axis=1), 0.0)
    assert (seen[11:20, PRIMARY:] == -1).all()
    assert (seen[[10, 20], YAW_RATE] != 0).all()


def test_each_decision_with_movement_offsets_one_without(duel):
    memory, escaping = None, []
    for key in range(60):
        # Two decisions of three without progress: one more to the count each three decisions.
        position = [[5 + 0.25 * (key // 3), 20, 1], [10, 35, 1]]
        action, memory = duel.act(position, [SCOUT, SCOUT], key=key, memory=memory)
        escaping.append(action[0, FORWARD] != 1.0)
    assert np.flatnonzero(escaping)[0] == 29


def test_moving_mechs_are_not_detected_as_stuck(duel):
    memory = None
    for key in range(30):
        position = [[5 + 0.25 * key, 20, 1], [10, 35, 1]]
        action, memory = duel.act(position, [SCOUT, SCOUT], key=key, memory=memory)
        near(action[0, FORWARD], 1.0)


def test_lonely_mechs_turn_back_to_their_team():
    stage = Stage((3, 1))
    classes = [SCOUT] * 4
    # The zone's radius is 5: 9 away from it is within two radii; the others are far behind.
    lonely = [[20, 11, 1], [1, 38, 1], [1, 39, 1], [39, 1, 1]]
    action, _ = stage.act(lonely, classes)
    centroid = np.mean(np.array(lonely)[:3, :2], axis=0)
    goal = 0.5 * (centroid + 20.0) - [20, 11]
    bearing = np.arctan2(goal[1], goal[0])
    near(action[0, [FORWARD, STRAFE]], [np.cos(bearing), 0.25 * np.sin(bearing)])
    watched = [*lonely[:3], [35, 10, 1]]
    near(stage.act(watched, classes)[0][0, [FORWARD, STRAFE]], [0.0, 0.25])


def test_heuristic_aims_at_its_target_s_contact_slot(duel):
    contacts = np.array([[1, -1, -1, -1, -1], [-1, -1, 0, -1, -1]])
    position = [[10, 20, 1], [30, 20, 1]]
    action, _ = duel.act(position, [SCOUT, SCOUT], contacts=contacts)
    assert action[0, commands.TARGET].tolist() == [1, 0, 0, 0, 0]
    assert action[0, commands.SORT].tolist() == [1, 0, 0] and action[0, commands.HOSTILE_ONLY] == 1
    action, _ = duel.act(position, [SCOUT, SCOUT], side=1, contacts=contacts)
    assert action[0, commands.TARGET].tolist() == [0, 0, 1, 0, 0]


def test_red_is_blue_s_mirror_image(duel):
    position = [[10, 20, 1], [30, 20, 1]]
    blue, _ = duel.act(position, [HEAVY, HEAVY], yaw=[0.2, np.pi + 0.2])
    red, _ = duel.act(position, [HEAVY, HEAVY], side=1, yaw=[0.2, np.pi + 0.2])
    near(blue, red)


def test_standing_mechs_turn_and_shoot_without_moving():
    stage = Stage(moves=False)
    action, _ = stage.act([[5, 5, 2], [5, 12, 1]], [HEAVY, SCOUT], yaw=[np.pi / 2 + 0.2, 0])
    assert (action[0, [FORWARD, STRAFE, VERTICAL]] == 0).all()
    assert action[0, YAW_RATE] < 0 and action[0, PRIMARY] == 1


def test_standing_mechs_turn_to_no_enemy_that_they_do_not_know():
    interface = BattleInterface(BattleSimulation(bank=flat_bank(), teams=(1, 1)), make_layout(1))
    classes, own = [HEAVY, SCOUT], np.array([0])
    state = make_state(make_battle(make_mechs([[5, 5, 2], [5, 12, 1]], classes, yaw=[0.9, 0])))
    memory, params = initial_heuristic_memory(1), make_params(classes)

    @jax.jit
    def turn(known):
        task = TeamTask(zone=jnp.array([20.0, 20.0, 5.0]), fire=jnp.float32(1), known=known)
        key = jax.random.key(0)
        action = compute_team_actions(interface, own, task, key, memory, state, params, moves=False)
        return action[0, YAW_RATE]

    near(turn(jnp.zeros((1, 1), bool)), 0.0)
    near(turn(jnp.ones((1, 1), bool)), (np.pi / 2 - 0.9) / (np.pi / 3))
