"""Help in finding the way: what mechs are led to, how far, and that it leads them to the zone."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import chassis_of, flat_bank, make_mechs

from jaxmarl_echelon.envs.echelon import assistance
from jaxmarl_echelon.envs.echelon.battle.unit_tables import FORWARD, SCOUT, STRAFE
from jaxmarl_echelon.envs.echelon.make import make
from jaxmarl_echelon.envs.echelon.rewards import make_battle_reward
from jaxmarl_echelon.envs.echelon.terrain.bank import add_path_codes
from jaxmarl_echelon.envs.echelon.terrain.navigation import build_nav_graph

# A wall from the map's edge to its middle, and a roof that no path leads from.
WALL, ROOF = ((19, 0, 0), (21, 20, 12)), ((4, 24, 0), (13, 33, 4))
ON_ROOF = [8.5, 28.5, 4.9]
ZONE = (32.0, 8.0, 4.0)


@pytest.fixture(scope="module")
def bank():
    return add_path_codes(flat_bank([ZONE], boxes=(WALL, ROOF)))


def test_waypoints_are_two_steps_along_a_cheapest_path(bank):
    graph = build_nav_graph(np.asarray(bank.voxels.material[0]))
    goal = graph.nearest((*ZONE[:2], 0.0))
    ground = np.flatnonzero(graph.feet[:, 2] == 0)
    nodes = np.append(np.random.default_rng(0).choice(ground, 30, replace=False), goal)
    mechs = make_mechs(graph.positions[nodes] + [0.2, -0.3, 0.9], [SCOUT] * len(nodes))
    before = jnp.full((len(nodes), 2), assistance.NOWHERE)
    chassis = chassis_of([SCOUT] * len(nodes))
    found = jax.jit(assistance.refresh_waypoints)(bank, jnp.int32(0), mechs, chassis, before)

    def cost(path):
        return sum(graph.edges[a, b] for a, b in itertools.pairwise(path))

    for node, point in zip(nodes, np.asarray(found), strict=True):
        path = graph.path(node, goal)
        way = np.flatnonzero((graph.positions[:, :2] == point).all(1))
        via = min(cost(graph.path(node, n)) + cost(graph.path(n, goal)) for n in way)
        assert via == pytest.approx(cost(path), abs=1e-6)
        assert min(len(graph.path(node, n)) for n in way) == min(3, len(path))


def test_mechs_without_a_path_keep_their_waypoint(bank):
    places = [[5.5, 5.5, 0.9], [5.5, 5.5, 0.9], [5.5, 5.5, 0.9], ON_ROOF]
    mechs = make_mechs(places, [SCOUT] * 4, alive=[True, False, True, True], heat=[0, 0, 99, 0])
    before = jnp.full((4, 2), 7.0)
    found = jax.jit(assistance.refresh_waypoints)(bank, jnp.int32(0), mechs, chassis_of([SCOUT] * 4), before)
    found = np.asarray(found)
    assert (found[0] != 7.0).any() and (found[1:] == 7.0).all()


def test_throttles_are_blended_with_the_direction_of_the_waypoint():
    mechs = make_mechs(
        [[10, 10, 0.9]] * 6,
        [SCOUT] * 6,
        yaw=[0, np.pi / 2, 0, 0, 0, 0],
        alive=[True, True, True, False, True, True],
        heat=[0, 0, 0, 0, 99, 0],
    )
    given = jnp.tile(jnp.linspace(-1.0, 1.0, 9), (6, 1)).at[:, FORWARD].set(1.0).at[:, STRAFE].set(-0.5)
    points = jnp.array([[13, 14], [10, 14], [10.5, 10.5], [13, 14], [13, 14], [assistance.NOWHERE] * 2])
    share = jnp.full(6, 0.3)
    found = jax.jit(assistance.blend_throttles)(
        given, mechs, chassis_of([SCOUT] * 6), points.astype(jnp.float32), share
    )
    wanted = given.at[0, FORWARD].set(0.7 + 0.3 * 0.6).at[0, STRAFE].set(-0.35 + 0.3 * 0.8)
    wanted = wanted.at[1, FORWARD].set(1.0).at[1, STRAFE].set(-0.35)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.thorough
def test_an_assisted_team_reaches_the_zone_around_a_wall_and_the_other_does_not(bank):
    env = make(
        make_battle_reward(),
        blue=["scout"],
        red=["scout"],
        pages=0,
        bank=bank.replace(ways=None),
        assist=[1.0, 0.0],
        zone_seconds=0.5,
        telemetry=False,
    )
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    params = env.default_params()
    state, time = reset(jax.random.key(0), params)
    first, nothing = state.battle.mechs.position, {team: jnp.zeros((1, 26)) for team in ("blue", "red")}
    points = []
    while not time.over:
        state, time = step(jax.random.key(1), state, nothing, params)
        points.append(np.asarray(state.waypoint[0]))
    assert env.spec.outcomes[time.info["outcome"]] == "blue_win"
    assert env.endings[time.info["ending"]] == "zone"
    np.testing.assert_array_equal(state.battle.mechs.position[1, :2], first[1, :2])
    changes = np.flatnonzero(np.any(np.diff(points, axis=0) != 0, axis=1)) + 1
    assert len(changes) > 3 and (changes % assistance.REFRESH == 0).all()
