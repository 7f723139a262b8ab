"""The `puffer` layout against a plain loop like the original engine. docs/reference/drive.md 4.4, 10.3."""

import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drive_runs import drive, programs
from drive_scenes import FOLLOWING, MIXED, bank_of, scene

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.make import CHUNK, choose_chunk_share
from jaxmarl_echelon.envs.drive.observing.layout import ObservationConfig
from jaxmarl_echelon.envs.drive.observing.observe import (
    VisibleBodies,
    _spiral,
    observe_learners,
    select_bodies_by_slot,
    select_nearest_bodies,
)
from jaxmarl_echelon.envs.drive.observing.spiral import spiral_order, spiral_rows, spiral_tables
from jaxmarl_echelon.envs.drive.scenes.arrays import build_scene_arrays, stack_scenes
from jaxmarl_echelon.envs.drive.scenes.files.reading import read_scene_file
from jaxmarl_echelon.envs.drive.scenes.learners import SlotSettings
from jaxmarl_echelon.envs.drive.scenes.raw_scene import RawScene, Road
from jaxmarl_echelon.envs.drive.state import DriveState
from physics.bicycle import Motion
from physics.polylines import thin_polyline

CELL, ROWS = 5.0, 200
OWN_SCENES = "JAXMARL_DRIVE_SCENES"
CODES = {"lane": 0.0, "road_line": 1.0, "road_edge": 2.0}


def town(roads: int) -> tuple[Road, ...]:
    """Roads of all kinds in a mixed order: long and short pieces, bike lanes, repeated points, crosswalks."""
    rng = np.random.default_rng(0)
    kinds = [("lane", 2), ("lane", 3), ("road_line", 6), ("road_edge", 15), ("crosswalk", 18)]
    found = []
    for number in range(roads):
        kind, element = kinds[rng.integers(len(kinds))]
        steps = rng.normal(0, rng.choice([1.0, 4.0, 15.0]), (rng.integers(3, 30), 2))
        steps[rng.random(len(steps)) < 0.1] = 0.0
        found.append(Road(kind, element, number, rng.uniform(-40, 40, 2) + np.cumsum(steps, axis=0)))
    return tuple(found)


def original(roads, x: float, y: float, heading: float) -> np.ndarray:
    """Rows `[200, 7]` that the original engine writes for a body, segment by segment, cell by cell."""
    pieces = []
    for road in roads:
        points = road.points[thin_polyline(road.points)].astype(np.float32)
        if road.kind in CODES:
            pieces += [(*points[nth], *points[nth + 1], CODES[road.kind]) for nth in range(len(points) - 1)]
    corners = np.array(pieces)[:, :4].reshape(-1, 2)
    low, cells = corners.min(0), np.ceil((corners.max(0) - corners.min(0)) / CELL)

    def cell_of(px, py):
        place = int((px - low[0]) / CELL), int((py - low[1]) / CELL)
        inside = 0 <= place[0] < cells[0] and 0 <= place[1] < cells[1]
        return place if inside else None

    filed: dict = {}
    for one in pieces:
        filed.setdefault(cell_of((one[0] + one[2]) / 2, (one[1] + one[3]) / 2), []).append(one)
    rows, place = np.zeros((ROWS, 7)), cell_of(x, y)
    if place is None:
        return rows
    shown = []
    column, row, step, along = *place, 1, (1, 0)
    spiral = [place]
    while len(spiral) < 41 * 41:  # a larger square than is shown: the rest is too far away
        for _ in range(2):
            for _ in range(step):
                column, row = column + along[0], row + along[1]
                spiral.append((column, row))
            along = (-along[1], along[0])
        step += 1
    for cell in spiral:
        if max(abs(cell[0] - place[0]), abs(cell[1] - place[1])) <= 10:
            shown += filed.get(cell, [])
    cos, sin = np.cos(heading), np.sin(heading)
    for nth, (x0, y0, x1, y1, code) in enumerate(shown[:ROWS]):
        dx, dy = (x0 + x1) / 2 - x, (y0 + y1) / 2 - y
        length = np.hypot(x1 - x0, y1 - y0)
        ux, uy = ((x1 - x0) / length, (y1 - y0) / length) if length else (0.0, 0.0)
        rows[nth] = (
            (dx * cos + dy * sin) / 50, (dy * cos - dx * sin) / 50, length / 2 / 100, 0.001,
            ux * cos + uy * sin, uy * cos - ux * sin, code,
        )  # fmt: skip
    return rows


def with_tables(given: RawScene) -> SceneBank:
    """A bank of one scene, with the tables of the original's roads."""
    arrays = stack_scenes([build_scene_arrays(given, SlotSettings(4, 8))[0]])
    segment, kind = arrays["whole"], arrays["whole_kind"]
    tables = spiral_tables(segment, kind, arrays["origin"], arrays["cells"], arrays["near_lanes"].shape[1:3])
    arrays |= {"kind": np.zeros(1, int), "spiral": tables, "spiral_row": spiral_rows(segment, kind)}
    return SceneBank(**{name: jnp.asarray(array) for name, array in arrays.items()})


def shown_and_wanted(bank: SceneBank, given: RawScene, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows `[K, 200, 7]` of roads at poses `[K, 3]` relative to the scene's middle: ours, and a loop's."""
    pose = pose.astype(np.float32)
    found = _spiral(bank, 0, Motion(*map(jnp.asarray, pose.T), jnp.zeros(len(pose))))
    roads = [replace(road, points=road.points - given.middle) for road in given.roads]
    return np.asarray(found), np.stack([original(roads, *one) for one in pose])


def test_puffer_roads_equal_a_loop_like_the_original():
    given = replace(scene(), roads=town(100))
    bank = with_tables(given)
    low, cells = np.asarray(bank.origin[0]), np.asarray(bank.cells[0])
    rng = np.random.default_rng(1)
    place = rng.uniform(low - 10, low + cells * CELL + 10, (60, 2))
    place[:20] = rng.uniform(-20, 20, (20, 2))
    ends = np.asarray(bank.whole[0])[np.asarray(bank.whole_kind[0]) >= 0].reshape(-1, 2)
    lowest = ends[ends[:, 1].argmin()]
    # The first row reaches one cell beyond its border.
    place[20], place[21] = lowest - [0, 2], lowest - [0, 6]
    found, wanted = shown_and_wanted(bank, given, np.column_stack([place, rng.normal(size=60)]))
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    shown = (wanted[..., 3] > 0).sum(1)
    assert shown[20] > 0 and shown[21] == 0 and (shown == ROWS).sum() > 5 and (shown < ROWS).sum() > 5
    assert (wanted[..., 2] > 0.1).any(), "segments of more than 20 m are shown whole"


@pytest.mark.skipif(OWN_SCENES not in os.environ, reason=f"{OWN_SCENES} names no folder of scenes")
def test_puffer_roads_of_real_scenes_equal_a_loop():
    """Compares at recorded poses, every tenth sample of up to 30 bodies per file."""
    for path in sorted(Path(os.environ[OWN_SCENES]).rglob("*.json")):
        given = read_scene_file(path)
        pose = np.dstack([given.position - given.middle, given.heading])[:30, ::10]
        found, wanted = shown_and_wanted(with_tables(given), given, pose[given.valid[:30, ::10]])
        np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=path.name)
        assert (wanted[..., 3] > 0).any()


def test_the_spiral_begins_to_the_right_and_turns_to_the_left():
    rank = spiral_order()
    first = [
        (10, 10),
        (10, 11),
        (11, 11),
        (11, 10),
        (11, 9),
        (10, 9),
        (9, 9),
        (9, 10),
        (9, 11),
        (9, 12),
        (10, 12),
    ]
    assert [rank[place] for place in first] == list(range(11)) and len(np.unique(rank)) == 441


def seen_by(count: int, agents: int, seed: int = 0) -> tuple[VisibleBodies, Motion]:
    """Bodies on a small grid, so that many are equally near, and the learners' motion."""
    rng = np.random.default_rng(seed)
    x, y = map(jnp.asarray, rng.integers(-4, 5, (2, count)).astype(np.float32))
    ghost = rng.random(agents) < 0.3
    shown = (rng.random(count) < 0.8) & ~np.append(ghost, np.zeros(count - agents, bool))
    sight = VisibleBodies(0, x, y, jnp.asarray(shown), jnp.asarray(ghost), None, 0)
    return sight, Motion(x[:agents], y[:agents], jnp.zeros(agents), jnp.zeros(agents))


@pytest.mark.parametrize("count, rows", [(8, 12), (40, 12), (70, 63)])
def test_selected_bodies_equal_those_of_a_loop(count, rows):
    sight, own = seen_by(count, 6)
    places = np.stack([sight.x, sight.y], axis=1)
    for choose, far in ((select_nearest_bodies, True), (select_bodies_by_slot, False)):
        index, there = map(np.asarray, choose(sight, own, jnp.arange(6), rows, 4.0))
        for me in range(6):
            away = ((places - places[me]) ** 2).sum(1)
            seen = [b for b in range(count) if b != me and sight.shown[b] and not sight.ghost[me]]
            seen = [b for b in seen if away[b] <= 16]
            wanted = (sorted(seen, key=lambda b: (away[b], b)) if far else seen)[:rows]
            assert index[me][there[me]].tolist() == wanted and there[me].tolist() == [
                nth < len(wanted) for nth in range(rows)
            ]


def beginnings() -> DriveState:
    """States of the small scenes, of which one has two learners for four slots."""
    return jax.tree.map(lambda *x: jnp.stack(x), *(programs().reset(nth)[0] for nth in range(3)))


@pytest.mark.parametrize("layout", ["compact", "puffer"])
def test_observations_do_not_depend_on_chunks(layout):
    bank = drive(layout=layout).bank

    def show(share):
        view = ObservationConfig(layout=layout, share=share)
        return jax.jit(jax.vmap(lambda state: observe_learners(view, bank, state, 90)))(beginnings())

    shown = [show(share) for share in (None, 0.4)]
    np.testing.assert_allclose(shown[1], shown[0], atol=1e-6)
    assert (np.abs(shown[0]).sum(-1) > 0).sum() == 10


@pytest.mark.thorough
def test_road_conditions_do_not_depend_on_chunks():
    states, simulation = beginnings(), programs().env.simulation

    def found(share):
        looked = replace(simulation, share=share)
        return jax.vmap(lambda s: looked.condition(s.scene, s.motion, s.present, s.alive))(states)

    whole, some = found(None), found(0.4)
    whole = jax.tree.map(lambda x: jnp.where(states.alive, x, 0), whole)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), some, whole)


def test_empty_slots_and_long_rows_are_computed_in_chunks():
    full, sparse = bank_of(scene(MIXED)), bank_of(scene(FOLLOWING))
    assert choose_chunk_share(full, "compact") is None
    assert choose_chunk_share(full, "puffer") == choose_chunk_share(sparse, "compact") == CHUNK
