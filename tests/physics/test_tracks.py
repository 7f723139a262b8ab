import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from physics.gridmap import OccupancyMap
from physics.occupancy import line2, load_map
from physics.tracks import derive_centerline, generate_track

F1TENTH_TURNING_RADIUS = 0.3302 / np.tan(0.4189)
EIGHT = np.ones((3, 3))

# Tracks that several tests look at and none changes.
track = functools.cache(generate_track)


def circumradius(points):
    """Smallest radius of the circles through consecutive points of a closed curve."""
    a, b, c = np.roll(points, 1, axis=0), points, np.roll(points, -1, axis=0)
    u, v, w = b - a, c - b, c - a
    area = np.abs(u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0])
    product = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1) * np.linalg.norm(w, axis=1)
    return (product / np.maximum(2 * area, 1e-12)).min()


def winding_number(points, centre):
    angle = np.arctan2(*(points - centre).T[::-1])
    return np.round(np.sum(np.diff(np.unwrap(np.append(angle, angle[0])))) / (2 * np.pi))


def assert_drivable_ring(grid, width, min_radius):
    occupied, line = grid.occupied, grid.centerline
    assert ndimage.label(~occupied)[1] == 1
    walls, count = ndimage.label(occupied, structure=EIGHT)
    assert count == 2
    assert occupied[0].all() and occupied[-1].all() and occupied[:, 0].all() and occupied[:, -1].all()
    island = np.argwhere(walls == (1 if walls[0, 0] == 2 else 2))
    assert winding_number(line.points, grid.world(*island[len(island) // 2])) == 1
    assert min(line.left.min(), line.right.min()) >= width / 2 - 1e-9
    assert grid.distance(line.points).min() >= width / 2 - grid.resolution
    assert circumradius(line.points) > max(min_radius, width / 2, F1TENTH_TURNING_RADIUS)
    # A corridor that touched itself would have less area than its strip.
    area = (~occupied).sum() * grid.resolution**2
    strip = np.sum((line.left + line.right) * line.length / len(line.x))
    np.testing.assert_allclose(area, strip, rtol=0.02)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_every_seed_gives_one_closed_drivable_corridor(first):
    for seed in range(first, first + 10):
        grid = track(seed)
        assert_drivable_ring(grid, width=2.0, min_radius=1.2)
        np.testing.assert_allclose(grid.centerline.length, 60.0, rtol=1e-3)


@pytest.mark.parametrize(
    "shape",
    [
        {"length": 150.0, "corners": 25},
        {"length": 20.0, "width": 1.0, "min_radius": 0.9},
        {"width": 3.0, "width_variation": 0.0, "resolution": 0.1},
        {"roughness": 0.95, "corners": 20},
        {"roughness": 0.0},
        {"corners": 3},
        {"width_variation": 1.0, "width": 1.2},
    ],
)
def test_shape_arguments_are_kept(shape):
    for seed in range(2):
        grid = generate_track(seed, **shape)
        assert grid.resolution == shape.get("resolution", 0.05)
        assert_drivable_ring(grid, shape.get("width", 2.0), shape.get("min_radius", 1.2))
        np.testing.assert_allclose(grid.centerline.length, shape.get("length", 60.0), rtol=2e-3)
        widest = (grid.centerline.left + grid.centerline.right).max() / shape.get("width", 2.0)
        np.testing.assert_allclose(widest, 1 + shape.get("width_variation", 0.3), rtol=1e-6)


def test_rougher_tracks_bend_more():
    lines = [
        generate_track(1, roughness=roughness, resolution=0.1).centerline for roughness in (0.0, 0.3, 0.7)
    ]
    turning = [np.abs(np.diff(np.unwrap(line.heading))).sum() for line in lines]
    np.testing.assert_allclose(turning[0], 2 * np.pi, rtol=0.02)
    assert turning[0] < turning[1] < turning[2]


def test_a_seed_always_gives_the_same_track_and_another_one_does_not():
    first, again, other = load_map("track:7"), track(7), track(8)
    assert first.name == "track:7" and first.origin == again.origin
    np.testing.assert_array_equal(first.occupied, again.occupied)
    np.testing.assert_array_equal(first.centerline.points, again.centerline.points)
    assert first.occupied.shape != other.occupied.shape or (first.occupied != other.occupied).any()


def test_sixty_seeds_give_sixty_tracks():
    tracks = [track(seed) for seed in range(60)]
    assert len({grid.occupied.tobytes() for grid in tracks}) == 60
    assert len({grid.centerline.points.tobytes() for grid in tracks}) == 60


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"length": 8.0}, "length=8.0"),
        ({"length": float("inf")}, "length=inf"),
        ({"width": 0.2}, "width=0.2"),
        ({"width_variation": -0.1}, "width_variation=-0.1"),
        ({"roughness": 1.0}, "roughness=1.0"),
        ({"corners": 2}, "corners=2"),
        ({"min_radius": 0.5}, "min_radius=0.5"),
        ({"resolution": 0.0}, "resolution=0.0"),
    ],
)
def test_impossible_shapes_are_refused_in_one_line(changes, words):
    with pytest.raises(ValueError) as error:
        generate_track(**{"seed": 0, **changes})
    assert words in str(error.value) and "\n" not in str(error.value)


def without_centerline(grid):
    return OccupancyMap(grid.name, grid.occupied, grid.resolution, grid.origin)


@pytest.mark.parametrize("seed", [0, 4, 14])
def test_derived_loop_follows_the_true_centreline(seed):
    grid = track(seed)
    line = derive_centerline(without_centerline(grid))
    assert line.closed
    gap = np.linalg.norm(line.points[:, None] - grid.centerline.points, axis=-1).min(axis=1)
    assert gap.max() < 0.3 and gap.mean() < 0.15
    np.testing.assert_allclose(line.length, grid.centerline.length, rtol=0.03)
    signed_area = np.sum(line.x * np.roll(line.y, -1) - line.y * np.roll(line.x, -1)) / 2
    assert signed_area > 0
    assert np.linalg.norm(np.diff(line.points, axis=0), axis=1).max() < 0.25


def test_derived_loop_survives_rotation_thin_walls_and_coarse_search():
    grid = track(4)
    walls = grid.occupied & ndimage.binary_dilation(~grid.occupied, EIGHT, iterations=2)
    thin = OccupancyMap("thin", np.pad(walls, 40), 0.05, (3.0, -2.0, 0.6))
    plain = derive_centerline(without_centerline(grid))
    line = derive_centerline(thin)
    cos, sin = np.cos(0.6), np.sin(0.6)
    shifted = plain.points - np.array(grid.origin[:2]) + 40 * 0.05
    expected = np.array([3.0, -2.0]) + shifted @ np.array([[cos, sin], [-sin, cos]])
    gap = np.linalg.norm(line.points[:, None] - expected, axis=-1).min(axis=1)
    assert gap.max() < 0.1
    coarse = derive_centerline(without_centerline(grid), max_cells=10_000)
    gap = np.linalg.norm(coarse.points[:, None] - plain.points, axis=-1).min(axis=1)
    assert gap.max() < 0.3


def test_maps_without_a_loop_have_no_derived_centreline():
    assert derive_centerline(without_centerline(line2())) is None
    assert derive_centerline(OccupancyMap("open", np.zeros((50, 80), bool), 0.1, (0.0, 0.0, 0.0))) is None
    specks = np.random.default_rng(0).random((100, 100)) < 0.01
    assert derive_centerline(OccupancyMap("specks", specks, 0.05, (0.0, 0.0, 0.0))) is None
    blocked = track(0).occupied.copy()
    blocked[blocked.shape[0] // 2, : blocked.shape[1] // 2] = True
    assert derive_centerline(OccupancyMap("blocked", blocked, 0.05, (0.0, 0.0, 0.0))) is None


def write_track(folder: Path, grid: OccupancyMap, name: str = "oval") -> Path:
    Image.fromarray(np.where(grid.occupied[::-1], 0, 255).astype(np.uint8)).save(folder / f"{name}.png")
    path = folder / f"{name}.yaml"
    path.write_text(
        f"image: {name}.png\nresolution: {grid.resolution}\norigin: {[float(v) for v in grid.origin]}\n"
    )
    return path


def test_centreline_files_take_precedence_over_derived_lines(tmp_path):
    grid = track(3)
    path = write_track(tmp_path, grid)
    loaded = load_map(path)
    np.testing.assert_array_equal(loaded.occupied, grid.occupied)
    np.testing.assert_allclose(loaded.centerline.length, grid.centerline.length, rtol=0.03)
    for shrink, suffix in [(1.0, "raceline"), (0.999, "waypoints"), (0.998, "centerline")]:
        points = grid.centerline.points * shrink
        rows = "\n".join(f"0;{x};{y};9;0;0;0" if suffix == "raceline" else f"{x},{y}" for x, y in points)
        (tmp_path / f"oval_{suffix}.csv").write_text(rows)
        loaded = load_map(path)
        np.testing.assert_allclose(loaded.centerline.points, points, atol=1e-12)
        assert loaded.centerline.closed
        np.testing.assert_allclose(loaded.centerline.left, grid.centerline.left, atol=0.2)
    explicit = load_map(path, centerline=tmp_path / "oval_raceline.csv")
    np.testing.assert_allclose(explicit.centerline.points, grid.centerline.points, atol=1e-12)
    (tmp_path / "far.csv").write_text("".join(f"{x},{y}\n" for x, y in grid.centerline.points + 100))
    with pytest.raises(ValueError, match="lie in walls"):
        load_map(path, centerline=tmp_path / "far.csv")


def write_rows(
    path: Path, points, columns="{x}, {y}, 1.0, 1.0", header="# x_m, y_m, w_tr_right_m, w_tr_left_m"
):
    rows = [columns.format(s=0.1 * i, x=x, y=y) for i, (x, y) in enumerate(points)]
    path.write_text("\n".join([header, *rows]))


@pytest.mark.parametrize("name", ["Monza_map", "Monza"])
def test_lines_are_found_with_and_without_map_in_their_names(tmp_path, name):
    grid = track(3)
    path = write_track(tmp_path, grid, name)
    clockwise = grid.centerline.points[::-1]
    other = {"Monza_map": "Monza", "Monza": "Monza_map"}[name]
    assert load_map(path).centerline.course == "counter-clockwise"
    raceline = "# one\n# two\n# s_m; x_m; y_m; psi_rad; kappa_radpm; vx_mps; ax_mps2"
    write_rows(tmp_path / f"{other}_raceline.csv", clockwise, "{s}; {x}; {y}; 0; 0; 8; 0", raceline)
    found = [load_map(path)]
    write_rows(tmp_path / f"{other}_centerline.csv", clockwise * 0.999)
    found.append(load_map(path))
    # The map's own name goes before the other one, whatever the kind of line.
    write_rows(tmp_path / f"{name}_raceline.csv", clockwise * 0.998, "{s}; {x}; {y}; 0; 0; 8; 0", raceline)
    found.append(load_map(path))
    sources = [f"{other}_raceline.csv", f"{other}_centerline.csv", f"{name}_raceline.csv"]
    for loaded, source, shrink in zip(found, sources, (1.0, 0.999, 0.998), strict=True):
        line = loaded.centerline
        np.testing.assert_allclose(line.points, clockwise * shrink, atol=1e-12)
        told = f"map {name}: clockwise, {line.length:.1f} m, {tmp_path / source}"
        assert line.course == "clockwise" and loaded.describe() == told


def test_descriptions_name_the_source_of_the_centreline(tmp_path):
    grid = track(3)
    derived = load_map(write_track(tmp_path, grid)).describe()
    assert derived.startswith("map oval: counter-clockwise, ") and derived.endswith(
        "derived from the free space"
    )
    assert grid.describe() == "map track:3: counter-clockwise, 60.0 m, generated"
    assert line2().describe() == "map line2: open, (-50.6, -0.7) to (48.0, -0.7), 98.6 m, built in"
    walled = dataclasses.replace(grid, occupied=grid.occupied | (np.arange(grid.occupied.shape[1]) < 60))
    share = np.mean(walled.distance(grid.centerline.points) == 0)
    assert 0 < share < 0.3 and walled.describe().endswith(
        f", generated, {100 * share:.1f} % of its points in walls"
    )
    bare = OccupancyMap("hall", np.zeros((9, 9), bool), 1.0, (0.0, 0.0, 0.0))
    assert bare.describe() == "map hall: no centreline"


def test_both_file_formats_of_spielberg_run_clockwise(maps_folder):
    path = maps_folder / "spielberg" / "Spielberg.yaml"
    for line in (None, path.with_name("Spielberg_raceline.csv")):
        assert load_map(path, centerline=line).centerline.course == "clockwise"
