"""Navigation graph: cells in which mechs can stand, and steps between them.

A node is a free cell for a mech's feet: the cell (x, y, z + 1) above a supporting voxel z, or the
lowest cell of a column, which rests on bedrock (z = -1). Reference: docs/reference/echelon.md 11.4.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy import ndimage, sparse
from scipy.sparse import csgraph

from physics.voxels import COLLIDES

CLEARANCE, RADIUS, STEP = 4, 1, 2
_DIAGONAL, _CLIMB = 1.414, 1.2
OTHER_LEVEL = 1000.0
LEVEL_REACH = 1.5
# A path code covers two steps of a path: at most two columns along each axis, in either direction.
WAY = 2
SPAN = 2 * WAY + 1
NO_WAY = -1
_NEIGHBOURS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]


@dataclass(frozen=True, eq=False)
class NavGraph:
    """Nodes and directed edges of one map.

    Attributes:
      feet: `[N, 3]` int32 foot cells x, y, z + 1 of the nodes, ordered by z, then y, then x.
      node_lookup: `[Z, Y, X]` int32 node of a foot cell, or -1.
      edges: `[N, N]` sparse matrix of costs; one step costs a voxel's edge, 1.414 of it diagonally, and
        1.2 times that upwards.
      voxel_size: edge of a voxel, in the unit of positions.
    """

    feet: np.ndarray
    node_lookup: np.ndarray
    edges: sparse.csr_array
    voxel_size: float = field(default=1.0)

    @property
    def positions(self) -> np.ndarray:
        """Centres `[N, 3]` of the supporting voxels' upper faces."""
        return (self.feet + np.array([0.5, 0.5, 0.0])) * self.voxel_size

    def nearest(self, position: np.ndarray) -> int:
        """Returns the node closest to a position (x, y, z) among the 3 x 3 columns around it, or -1.

        Nodes more than 1.5 voxels above or below are ranked after all others.
        """
        x, y = np.floor(np.asarray(position[:2]) / self.voxel_size).astype(int)
        around = self.node_lookup[:, max(y - 1, 0) : max(y + 2, 0), max(x - 1, 0) : max(x + 2, 0)]
        nodes = np.sort(around[around >= 0])
        if not nodes.size:
            return -1
        offset = self.positions[nodes] - np.asarray(position)
        cost = (offset**2).sum(-1) + OTHER_LEVEL * (abs(offset[:, 2]) > LEVEL_REACH * self.voxel_size)
        return int(nodes[np.argmin(cost)])

    def reachable(self, start: int) -> np.ndarray:
        """Returns bool `[N]`: the node can be reached from `start`; all False for `start` = -1."""
        found = np.zeros(len(self.feet), bool)
        if start >= 0:
            found[csgraph.breadth_first_order(self.edges, start, return_predecessors=False)] = True
        return found

    def path(self, start: int, goal: int) -> np.ndarray:
        """Returns the nodes of a cheapest path (Dijkstra), including both ends; empty without a path."""
        if min(start, goal) < 0:
            return np.zeros(0, np.int32)
        _, before = csgraph.dijkstra(self.edges, indices=start, return_predecessors=True)
        return trace_path(before, start, goal)


def path_codes(graph: NavGraph, goal: int) -> np.ndarray:
    """Computes the next two steps of the cheapest paths to a node, for all nodes at once.

    Args:
      graph: of a map `[Z, Y, X]`.
      goal: target node; -1 for none.

    Returns:
      `[Y, X, Z]` int8: for the foot cell of each node the relative column two steps ahead (or of the
      goal, if nearer), encoded as `(dy + WAY) * SPAN + dx + WAY`; `NO_WAY` elsewhere.
    """
    codes = np.full(graph.node_lookup.shape, NO_WAY, np.int8)
    if goal >= 0:
        nodes = np.arange(len(graph.feet))
        after = csgraph.dijkstra(graph.edges.T, indices=goal, return_predecessors=True)[1]
        after = np.where(after < 0, nodes, after)
        dx, dy, _ = (graph.feet[after[after]] - graph.feet).T
        x, y, z = graph.feet.T
        leads = (after != nodes) | (nodes == goal)
        codes[z, y, x] = np.where(leads, (dy + WAY) * SPAN + dx + WAY, NO_WAY)
    return np.moveaxis(codes, 0, -1)


def trace_path(before: np.ndarray, start: int, goal: int) -> np.ndarray:
    """Returns the path from start to goal in a tree of predecessors; empty if the goal is not in it."""
    nodes = [goal]
    while nodes[-1] != start:
        if before[nodes[-1]] < 0:
            return np.zeros(0, np.int32)
        nodes.append(int(before[nodes[-1]]))
    return np.array(nodes[::-1], np.int32)


def build_nav_graph(
    voxels: np.ndarray,
    *,
    clearance: int = CLEARANCE,
    radius: int = RADIUS,
    step: int = STEP,
    voxel_size: float = 1.0,
) -> NavGraph:
    """Builds the graph of a map.

    Args:
      voxels: `[Z, Y, X]` uint8 materials.
      clearance: free voxels that a node needs above its support; cells above the map are free.
      radius: number of columns on every side that must offer a standing cell at the same level.
      step: largest difference in level between neighbours.
      voxel_size: edge of a voxel, in the unit of positions.
    """
    standing = _standing(COLLIDES[voxels], clearance, radius)
    node_lookup = np.full(voxels.shape, -1, np.int32)
    z, y, x = np.nonzero(standing)
    node_lookup[z, y, x] = np.arange(len(z), dtype=np.int32)
    feet = np.stack([x, y, z], axis=-1).astype(np.int32)
    return NavGraph(feet, node_lookup, _edges(feet, node_lookup, step, voxel_size), voxel_size)


def _standing(solid: np.ndarray, clearance: int, radius: int) -> np.ndarray:
    """Returns bool `[Z, Y, X]`: a foot cell with free cells above and level ground around."""
    floor = np.concatenate([np.ones_like(solid[:1]), solid[:-1]])
    blocked = solid.copy()
    for up in range(1, min(clearance, len(solid))):
        blocked[:-up] |= solid[up:]
    side = 2 * radius + 1
    return ndimage.minimum_filter(floor & ~blocked, size=(1, side, side), mode="constant", cval=False)


def _edges(feet: np.ndarray, node_lookup: np.ndarray, step: int, voxel_size: float) -> sparse.csr_array:
    """Returns costs of steps to the eight neighbours within `step` levels; diagonals need both sides free."""
    padded = np.pad(node_lookup, ((step, step), (1, 1), (1, 1)), constant_values=-1)
    x, y, z = (feet + np.array([1, 1, step], np.int32)).T
    rises = np.arange(-step, step + 1)
    beside = {(dy, dx): padded[z, y + dy, x + dx] >= 0 for dy, dx in _NEIGHBOURS}
    rows, columns, costs = [], [], []
    for dy, dx in _NEIGHBOURS:
        target = padded[z + rises[:, None], y + dy, x + dx]
        linked = target >= 0
        length = voxel_size
        if dy and dx:
            linked &= beside[dy, 0] & beside[0, dx]
            length *= _DIAGONAL
        rise, node = np.nonzero(linked)
        rows.append(node)
        columns.append(target[rise, node])
        costs.append(np.where(rises[rise] > 0, _CLIMB * length, length))
    entries = np.concatenate(costs), (np.concatenate(rows), np.concatenate(columns))
    return sparse.csr_array(entries, shape=(len(feet), len(feet)))
