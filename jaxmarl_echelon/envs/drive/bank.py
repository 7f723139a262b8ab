"""Banks of scenes: the arrays of roads, recordings and tables that compiled programs read."""

import jax
from flax import struct


class SceneBank(struct.PyTreeNode):
    """S scenes padded to a common size; one scene, without the axis S, has the same type (`scene_at`).

    Units are m, s and rad; coordinates are relative to each scene's mean position. Ids count within a scene,
    are int16, and -1 stands for none. Slots 0..A-1 of the bodies are learners, slots A..N-1 scripted. Padding
    is zero, and -1 for ids. docs/reference/drive.md 4.

    Attributes:
      recording: `[S, T, N, 4]` float32 x, y, heading in [-pi, pi), signed speed; zeros where not recorded. A
        standing body (nearer to its goal than `env.min_goal_distance`) has one pose throughout, the first one
        from `env.init_step` on.
      recorded: `[S, T, N]` bool, whether the body is present at the sample.
      size: `[S, N, 2]` float32 length and width.
      type: `[S, N]` int8 of `codes.VEHICLE`, `codes.PEDESTRIAN`, `codes.CYCLIST`.
      learner: `[S, A]` bool, slots filled by a learner; all of these are recorded at `env.init_step`.
      driven: `[S, N]` bool, bodies with a route, which `env.others` may drive; the others always replay their
        recording. Learners have routes as well.
      predict: `[S, N]` bool, bodies that a benchmark asks to be predicted; all False if it names none.
      goal: `[S, N, 2]` float32.
      route: `[S, N, R, 4]` float32 x, y, heading (unwrapped: interpolate it linearly), speed limit, at equal
        distances along the route from where the body is first recorded; zeros for bodies without a route.
        Beyond its last point a route continues straight.
      route_spacing: `[S, N]` float32 distance of neighbouring points of `route`, 0 without one. A body whose
        centre is at arc s is between point floor(s / spacing) and the next.
      gate_arc: `[S, N, G]` float32 arcs along `route` of the lines at which the body's front waits,
        ascending; inf for padding.
      gate_end: `[S, N, G]` float32 arcs that the rear has passed once the junction is left; inf for padding.
      gate_junction: `[S, N, G]` int16 junction behind the gate.
      gate_stop: `[S, N, G]` bool, whether the gate has a stop sign.
      gate_main: `[S, N, G]` bool, whether the route through the gate has priority over routes without
        priority.
      gate_light: `[S, N, G]` int16 light at the gate.
      junction: `[S, J, 3]` float32 centre x, y and radius.
      conflict: `[S, N, N]` bool, whether the routes of two bodies meet or cross within a junction.
      light: `[S, T, K]` int8 state, an index of `LIGHTS`.
      light_lane: `[S, K]` int16 lane that a light controls.
      light_point: `[S, K, 2]` float32 point at which that lane's traffic waits.
      segment: `[S, M, 4]` float32 x0, y0, x1, y1. A lane's segments are consecutive; the drivable side of a
        road edge is on its left.
      segment_kind: `[S, M]` int8 of `LANE`, `LINE`, `EDGE`, `BIKE_LANE`, `CROSSWALK`; -1 for padding.
      segment_lane: `[S, M]` int16 lane of a segment.
      segment_arc: `[S, M]` float32 arc along its lane at which a segment starts.
      whole: `[S, W, 4]` float32 uncut segments of lanes, lines and edges in the order of the file.
      whole_kind: `[S, W]` int8 their kinds; -1 for padding.
      lane_next: `[S, L, Q]` int16 successors.
      lane_first, lane_last: `[S, L]` int16 segments.
      lane_length: `[S, L]` float32; 0 for padding.
      lane_limit: `[S, L]` float32 speed limit; 0 if unknown, and for padding.
      near_edges: `[S, Y, X, E]` int16 all road edges within half the longest diagonal of the scene's bodies
        of each square of `CELL`, ascending.
      near_lanes: `[S, Y, X, F]` int16 all lane segments, bike lanes included, within `LANE_REACH` of each
        such square.
      view_edges: `[S, Y2, X2, 32]` int16 the road edges nearest to the centre of each square of `VIEW_CELL`,
        nearest first, up to `VIEW_REACH`.
      view_lanes: `[S, Y2, X2, 24]` int16 likewise the lane segments, without bike lanes.
      nearest_edges: `[S, Y, X, E]` int16 all road edges that may be nearest to a corner of a body in each
        square of `CELL`, ascending; None unless requested.
      spiral: `[S, Y, X, 202]` int16 the uncut segments that PufferDrive shows to a body in each square of
        `CELL`, in its order, between two empty places; None unless requested.
      spiral_row: `[S, W + 1, 7]` float32 features of uncut segments, see `features.puffer_table`, and of an
        empty place; None unless requested.
      origin: `[S, 2]` float32 corner of cell [0, 0] of both kinds of squares.
      cells: `[S, 2]` int32 number of columns and rows of squares of `CELL` in the scene; indices are clipped
        to these, those of `VIEW_CELL` to half of them, rounded up. With clipped indices, look-ups outside the
        squares are exact too, except in `nearest_edges`.
      sign: `[S, P, 2]` float32 stop signs; nan for padding.
      kind: `[S]` int32 index into the kinds that `Scenes` names.
    """

    recording: jax.Array
    recorded: jax.Array
    size: jax.Array
    type: jax.Array
    learner: jax.Array
    driven: jax.Array
    predict: jax.Array
    goal: jax.Array
    route: jax.Array
    route_spacing: jax.Array
    gate_arc: jax.Array
    gate_end: jax.Array
    gate_junction: jax.Array
    gate_stop: jax.Array
    gate_main: jax.Array
    gate_light: jax.Array
    junction: jax.Array
    conflict: jax.Array
    light: jax.Array
    light_lane: jax.Array
    light_point: jax.Array
    segment: jax.Array
    segment_kind: jax.Array
    segment_lane: jax.Array
    segment_arc: jax.Array
    whole: jax.Array
    whole_kind: jax.Array
    lane_next: jax.Array
    lane_first: jax.Array
    lane_last: jax.Array
    lane_length: jax.Array
    lane_limit: jax.Array
    near_edges: jax.Array
    near_lanes: jax.Array
    view_edges: jax.Array
    view_lanes: jax.Array
    origin: jax.Array
    cells: jax.Array
    sign: jax.Array
    kind: jax.Array
    nearest_edges: jax.Array | None = None
    spiral: jax.Array | None = None
    spiral_row: jax.Array | None = None


@jax.jit
def scene_at(bank: SceneBank, index: jax.Array | int) -> SceneBank:
    """Returns one scene of a bank: every array without its axis S.

    Gathers all arrays: for pictures and tests.
    """
    return jax.tree.map(lambda leaf: leaf[index], bank)
