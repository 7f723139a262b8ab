"""Nodes and paths of the navigation graph: counts and lengths that can be computed by hand."""

import numpy as np
import pytest

from jaxmarl_echelon.envs.echelon.terrain.layout import generate_map
from jaxmarl_echelon.envs.echelon.terrain.navigation import build_nav_graph
from physics.voxels import AIR, DIRT, FOLIAGE, SOLID, WATER


def ground(width: int, depth: int, height: int = 10, material: int = DIRT) -> np.ndarray:
    voxels = np.zeros((height, depth, width), np.uint8)
    voxels[0] = material
    return voxels


def degree(graph, x: int, y: int, z: int) -> int:
    node = graph.node_lookup[z, y, x]
    return graph.edges.indptr[node + 1] - graph.edges.indptr[node]


def cost(graph, start: tuple[int, int, int], goal: tuple[int, int, int]) -> float:
    (x0, y0, z0), (x1, y1, z1) = start, goal
    return graph.edges[graph.node_lookup[z0, y0, x0], graph.node_lookup[z1, y1, x1]]


def test_mechs_walk_through_dirt_on_bedrock():
    graph = build_nav_graph(ground(10, 10), radius=0, voxel_size=5.0)
    assert len(graph.feet) == 100
    assert degree(graph, 5, 5, 0) == 8 and degree(graph, 0, 5, 0) == 5 and degree(graph, 0, 0, 0) == 3
    assert np.array_equal(graph.positions[graph.node_lookup[0, 5, 5]], [27.5, 27.5, 0.0])


@pytest.mark.parametrize(("radius", "nodes", "edges"), [(0, 100, 684), (1, 64, 420)])
def test_numbers_of_nodes_and_edges_on_a_solid_floor(radius, nodes, edges):
    graph = build_nav_graph(ground(10, 10, material=SOLID), radius=radius)
    assert (len(graph.feet), graph.edges.nnz) == (nodes, edges)
    assert set(graph.feet[:, 2]) == {1}


@pytest.mark.parametrize(("clearance", "below"), [(2, 400), (3, 300)])
def test_room_under_a_platform_depends_on_the_clearance(clearance, below):
    voxels = ground(20, 20, material=SOLID)
    voxels[3, 5:15, 5:15] = SOLID
    levels = build_nav_graph(voxels, clearance=clearance, radius=0).feet[:, 2]
    assert np.bincount(levels).tolist() == [0, below, 0, 0, 100]


def test_cells_above_the_map_are_free_but_the_highest_layer_supports_no_node():
    voxels = np.zeros((6, 5, 5), np.uint8)
    voxels[4, 2, 1:3] = SOLID
    voxels[5, 2, 2] = SOLID
    standing = build_nav_graph(voxels, radius=0).node_lookup >= 0
    assert standing[5, 2, 1] and standing[1:].sum() == 1
    assert standing[0].all()


def test_leaves_and_water_do_not_stop_a_walker():
    voxels = ground(7, 7)
    voxels[0, 3, 3] = WATER
    voxels[1:4, 2, 2] = FOLIAGE
    assert len(build_nav_graph(voxels).feet) == 25


@pytest.mark.parametrize("rise", [1, 2, 3])
def test_steps_of_two_are_linked_both_ways_and_climbing_costs_more(rise):
    voxels = ground(6, 6)
    voxels[:rise, :, 3:] = SOLID
    graph = build_nav_graph(voxels, radius=0)
    up, down = ((2, 2, 0), (3, 2, rise)), ((3, 2, rise), (2, 2, 0))
    if rise == 3:
        assert cost(graph, *up) == cost(graph, *down) == 0
        assert not graph.reachable(graph.node_lookup[0, 2, 2])[graph.node_lookup[3, 2, 3]]
    else:
        assert cost(graph, *up) == pytest.approx(1.2) and cost(graph, *down) == pytest.approx(1.0)
        assert graph.reachable(graph.node_lookup[0, 2, 2]).all()


def test_diagonals_cost_their_length_and_cut_no_corner():
    voxels = ground(3, 3)
    voxels[:4, 0, 1] = SOLID
    graph = build_nav_graph(voxels, radius=0, voxel_size=2.0)
    assert cost(graph, (0, 1, 0), (1, 2, 0)) == pytest.approx(2.828)
    assert cost(graph, (0, 0, 0), (1, 1, 0)) == 0 and cost(graph, (1, 1, 0), (0, 0, 0)) == 0


def test_path_along_a_strip_has_every_cell_and_a_wall_across_ends_it():
    voxels = ground(10, 1)
    graph = build_nav_graph(voxels, radius=0)
    path = graph.path(graph.node_lookup[0, 0, 0], graph.node_lookup[0, 0, 9])
    assert graph.feet[path].tolist() == [[x, 0, 0] for x in range(10)]
    voxels[:6, 0, 5] = SOLID
    graph = build_nav_graph(voxels, radius=0)
    assert graph.path(graph.node_lookup[0, 0, 0], graph.node_lookup[0, 0, 9]).size == 0
    assert graph.path(-1, 0).size == 0


def test_path_goes_around_a_wall_the_shorter_way():
    voxels = ground(9, 9)
    voxels[:6, 0:7, 4] = SOLID
    graph = build_nav_graph(voxels, radius=0)
    start, goal = graph.node_lookup[0, 4, 2], graph.node_lookup[0, 4, 6]
    path = graph.path(start, goal)
    assert (path[0], path[-1]) == (start, goal)
    assert graph.feet[path][:, 1].max() == 7
    steps = graph.edges[path[:-1], path[1:]]
    # Three down and one diagonal to each side of the gap, and across it.
    assert (steps > 0).all() and steps.sum() == pytest.approx(2 * (2 + 1.414) + 2)


def test_nearest_node_is_in_a_neighbouring_column_on_the_same_level():
    voxels = ground(9, 9)
    voxels[5, 3:6, 3:6] = SOLID
    graph = build_nav_graph(voxels, radius=0)
    assert graph.feet[graph.nearest((4.4, 4.6, 0.0))].tolist() == [4, 4, 0]
    assert graph.feet[graph.nearest((4.4, 4.6, 5.2))].tolist() == [4, 4, 6]
    assert graph.feet[graph.nearest((2.9, 4.6, 4.4))].tolist() == [3, 4, 6]
    walled = np.full((6, 9, 9), SOLID, np.uint8)
    walled[:, 8, 8] = AIR
    graph = build_nav_graph(walled, radius=0)
    assert graph.nearest((1.5, 1.5, 0.0)) == -1
    assert graph.nearest((7.2, 7.2, 0.0)) == graph.node_lookup[0, 8, 8]
    assert not graph.reachable(-1).any()


def test_lookup_and_feet_are_each_others_inverse():
    graph = build_nav_graph(generate_map(3, (40, 40, 20)).voxels)
    x, y, z = graph.feet.T
    assert np.array_equal(graph.node_lookup[z, y, x], np.arange(len(graph.feet)))
    assert (graph.node_lookup >= 0).sum() == len(graph.feet)
