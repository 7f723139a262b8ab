"""Networks without junctions: straight, curve, merge. Reference: docs/reference/drive.md 12.2."""

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.generated.network import (
    BROKEN_WHITE,
    FREEWAY,
    YIELD,
    NetworkLane,
    RoadNetwork,
    add_road_section,
)
from jaxmarl_echelon.envs.drive.scenes.generated.shapes import (
    join_curves,
    make_arc,
    make_bezier,
    make_line,
    unit_vector,
)
from physics.polylines import offset_polyline

ORIGIN = np.zeros(2)
WIDTHS = 3.2, 3.9


def _draw_directions(rng: np.random.Generator, lanes: int) -> dict:
    """Draws the numbers of forward and backward lanes and the gap between the directions."""
    if rng.random() < 0.35:
        return {"forward": lanes, "backward": 0, "gap": 0.0}
    backward = lanes // 2
    gap = rng.uniform(1.5, 4.0) if lanes > 2 and rng.random() < 0.4 else 0.0
    return {"forward": lanes - backward, "backward": backward, "gap": gap}


def make_straight_road(rng: np.random.Generator) -> RoadNetwork:
    """2 to 4 lanes, one- or two-way, 160 to 240 m, 12 to 25 m/s."""
    network = RoadNetwork()
    reference = make_line(ORIGIN, 0.0, rng.uniform(160, 240))
    lanes = _draw_directions(rng, int(rng.integers(2, 5)))
    add_road_section(network, reference, width=rng.uniform(*WIDTHS), limit=rng.uniform(12, 25), **lanes)
    return network


def make_curved_road(rng: np.random.Generator) -> RoadNetwork:
    """2 to 4 lanes that bend by 30 to 150 degrees on a radius of 25 to 120 m, between straight ends."""
    network = RoadNetwork()
    radius, turn = rng.uniform(25, 120), np.deg2rad(rng.uniform(30, 150)) * rng.choice([-1, 1])
    ends = rng.uniform(35, 80, 2)
    first = make_line(ORIGIN, 0.0, ends[0])
    bend = make_arc(first[-1], 0.0, radius, turn)
    reference = join_curves(first, bend, make_line(bend[-1], turn, ends[1]))
    lanes = _draw_directions(rng, int(rng.integers(2, 5)))
    limit = min(25.0, max(8.0, np.sqrt(rng.uniform(2.0, 3.5) * radius)))
    add_road_section(network, reference, width=rng.uniform(*WIDTHS), limit=limit, **lanes)
    return network


def make_merge(rng: np.random.Generator) -> RoadNetwork:
    """A ramp at 8 to 15 degrees with an acceleration lane of 60 to 100 m into two lanes at 18 to 28 m/s."""
    network = RoadNetwork(element=FREEWAY)
    width, limit = rng.uniform(3.4, 3.9), rng.uniform(18, 28)
    before, after, taper = rng.uniform(60, 80), rng.uniform(90, 120), 40.0
    along = rng.uniform(60, 100)
    total = before + along + taper + after
    left, right, extra = (-width * (nth + 0.5) for nth in range(3))
    joint = np.array([before + along + taper, right])
    parallel = make_line(np.array([before, extra]), 0.0, along)
    angle = np.deg2rad(rng.uniform(8, 15))
    bend = make_arc(parallel[0], np.pi, 150.0, angle)
    ramp = join_curves(make_line(bend[-1], np.pi + angle, rng.uniform(40, 60))[::-1], bend[::-1], parallel)
    taper_lane = make_bezier(parallel[-1], 0.0, joint, 0.0)
    network.lanes = [
        NetworkLane(make_line(np.array([0.0, left]), 0.0, total), width, limit),
        NetworkLane(make_line(np.array([0.0, right]), 0.0, joint[0]), width, limit),
        NetworkLane(make_line(joint, 0.0, after), width, limit),
        NetworkLane(ramp, width, rng.uniform(0.7, 0.9) * limit, YIELD),
        NetworkLane(taper_lane, width, limit, inside=True),
    ]
    network.lines.append((BROKEN_WHITE, make_line(np.array([0.0, -width]), 0.0, total)))
    network.lines.append((BROKEN_WHITE, offset_polyline(parallel, width / 2)))
    network.junctions.append((*(joint - 0.5 * taper * unit_vector(0.0)), 0.5 * taper + 2.0))
    return network
