"""Derived centrelines of maps without a file, and centreline files under common names."""

import json

import numpy as np
import pytest
from PIL import Image

from physics.derived_line import examine_centerline
from physics.line_picture import save_refused_line
from physics.medial_loop import wall_off_unseen
from physics.occupancy import load_map, read_map

WALL, FLOOR = 0, 254
# The corridor's middle, and half the size of its outer wall in metres.
CORNERS = np.array([[5.0, 3.0], [-5.0, 3.0], [-5.0, -3.0], [5.0, -3.0]])
HALF = np.array([6.0, 4.0])


def building(outside, door=15, shade=FLOOR, cut=200):
    """A corridor of 2 m around a block, with a door in the outer wall; nothing from column `cut` on."""
    cells = np.full((200, 200), outside, np.uint8)
    for top, left, bottom, right, value in [
        (58, 38, 142, 162, WALL),
        (60, 40, 140, 160, shade),
        (80, 60, 120, 140, WALL),
        (82, 62, 118, 138, outside),
        (95, 36, 95 + door, 40, shade),
        (0, cut, 200, 200, outside),
    ]:
        cells[top:bottom, left:right] = value
    return cells


def write(folder, cells, name="hall", **keys):
    Image.fromarray(cells).save(folder / f"{name}.pgm")
    data = {"image": f"{name}.pgm", "resolution": 0.1, "origin": [-10.0, -10.0, 0.0], **keys}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(data))
    return path


def loop(shrink=1.0):
    ends = np.roll(CORNERS, -1, axis=0)
    share = np.linspace(0.0, 1.0, 40, endpoint=False)[:, None]
    return shrink * np.concatenate([a + share * (b - a) for a, b in zip(CORNERS, ends, strict=True)])


def write_line(path, points):
    path.write_text("".join(f"{x},{y}\n" for x, y in points))


# Map savers write a grey for what was never seen, and thresholds by which it may well be free.
@pytest.mark.parametrize(("grey", "free"), [(205, 0.196), (216, 0.196), (205, 0.25), (128, 0.196)])
def test_an_open_door_does_not_let_the_line_out_of_the_building(tmp_path, grey, free):
    grid = load_map(write(tmp_path, building(grey), free_thresh=free, occupied_thresh=0.65))
    assert grid.centerline is not None
    assert (np.abs(grid.centerline.points) < HALF).all()
    np.testing.assert_allclose(grid.centerline.length, 29.9, atol=1.0)
    assert examine_centerline(grid, grid.centerline) is None
    # The widths end where nothing was seen, too: cars start within them.
    assert np.maximum(grid.centerline.left, grid.centerline.right).max() < 2.5
    assert not grid.occupied[0, 0]
    shut = read_map(tmp_path / "hall.yaml", unknown="occupied")
    assert shut.occupied[0, 0] and not shut.occupied[100, 37]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (building(FLOOR), "no wall was seen to the right"),
        (building(205, cut=100), "lies in cells that no scan has seen"),
    ],
)
def test_a_line_without_walls_on_both_sides_is_refused_with_a_picture(tmp_path, monkeypatch, cells, reason):
    monkeypatch.chdir(tmp_path)
    grid = load_map(write(tmp_path, cells))
    assert grid.centerline is None and reason in grid.refused_line.reason
    assert reason in grid.describe()
    picture = save_refused_line(grid)
    assert picture == tmp_path / "hall_line.png"
    with Image.open(picture) as image:
        colours = {colour for _, colour in image.crop((0, 0, 1000, 1000)).getcolors(1 << 20)}
    # Walls, and a line no part of which is believed.
    assert {(0, 0, 0), (210, 0, 0)} <= colours and (0, 90, 200) not in colours


def test_specks_that_no_scan_has_seen_do_not_bend_the_line(tmp_path):
    cells = building(205, door=0)
    plain = load_map(write(tmp_path, cells)).centerline
    cells[np.random.default_rng(0).random(cells.shape) < 0.01] = 205
    line = load_map(write(tmp_path, cells, "specks")).centerline
    gap = np.linalg.norm(line.points[:, None] - plain.points, axis=-1).min(axis=1)
    assert gap.max() < 0.2


def test_greys_between_wall_and_floor_are_not_walls(tmp_path):
    cells = building(WALL, door=0)
    plain = load_map(write(tmp_path, cells)).centerline
    # As along the walls of a picture that was scaled.
    cells[60, 40:160] = cells[60:140, 40] = 150
    grid = load_map(write(tmp_path, cells, "scaled"))
    assert not grid.seen.all()
    np.testing.assert_array_equal(wall_off_unseen(grid).occupied, grid.occupied)
    np.testing.assert_array_equal(grid.centerline.points, plain.points)


@pytest.mark.parametrize(
    "name", ["hall_wp.csv", "centerline.csv", "waypoints.csv", "raceline.csv", "traj_race_cl.csv"]
)
def test_centreline_files_are_found_under_common_names(tmp_path, name):
    path = write(tmp_path, building(205))
    write_line(tmp_path / name, loop())
    grid = load_map(path)
    np.testing.assert_allclose(grid.centerline.points, loop(), atol=1e-9)
    assert grid.centerline.source == str(tmp_path / name)
    assert grid.files == (path, tmp_path / "hall.pgm", tmp_path / name)


def test_a_centreline_file_without_a_map_name_is_used_only_if_it_fits(tmp_path):
    path = write(tmp_path, building(205))
    write_line(tmp_path / "centerline.csv", loop(shrink=2.5))
    write_line(tmp_path / "raceline.csv", loop() + 0.1)
    grid = load_map(path)
    assert grid.centerline.source == str(tmp_path / "raceline.csv")
    (tmp_path / "raceline.csv").unlink()
    grid = load_map(path)
    assert grid.centerline.source == "derived from the free space"
    assert grid.describe().endswith("; ignores centerline.csv in its folder, which does not fit its walls")
    # A file that names the map, or is named by the settings, goes first.
    write_line(tmp_path / "hall_centerline.csv", loop())
    assert load_map(path).centerline.source == str(tmp_path / "hall_centerline.csv")


def test_waypoints_of_the_forzaeth_stack_are_read(tmp_path):
    path = write(tmp_path, building(205))

    def waypoints(points):
        rows = [{"x_m": x, "y_m": y, "d_left": 1.1, "d_right": 0.9, "psi_rad": 0.0} for x, y in points]
        return {"header": {"frame_id": "map"}, "wpnts": rows}

    held = {"map_info_str": {"data": "lap"}, "global_traj_wpnts_iqp": waypoints(loop() + 0.1)}
    (tmp_path / "global_waypoints.json").write_text(json.dumps(held))
    np.testing.assert_allclose(load_map(path).centerline.points, loop() + 0.1)
    held["centerline_waypoints"] = waypoints(loop())
    (tmp_path / "global_waypoints.json").write_text(json.dumps(held))
    line = load_map(path).centerline
    np.testing.assert_allclose(line.points, loop())
    np.testing.assert_allclose(line.left, 1.1)
    np.testing.assert_allclose(line.right, 0.9)
    for text in ("[]", "{}", '{"centerline_waypoints": {"wpnts": [{"x_m": "a"}]}}', "{"):
        (tmp_path / "global_waypoints.json").write_text(text)
        with pytest.raises(ValueError, match="has no waypoints") as error:
            load_map(path)
        assert "global_waypoints.json" in str(error.value) and "\n" not in str(error.value)
