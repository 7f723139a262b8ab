import jax
import numpy as np
import pytest
import yaml
from PIL import Image

from physics.gridmap import OccupancyMap, distance_field, wall_distance
from physics.occupancy import distance_at, line2, load_map, map_bank, read_map, world_to_cell

GREY = np.array([[0, 100, 205, 255], [255, 255, 254, 10], [255, 89, 90, 255]], np.uint8)
HEADER = {"image": "map.png", "resolution": 0.1, "origin": [1.0, -2.0, 0.0], "negate": 0}
THRESHOLDS = {"occupied_thresh": 0.65, "free_thresh": 0.196}


def write_map(folder, pixels=GREY, mode=None, file="map.png", **changes):
    picture = Image.fromarray(pixels) if mode is None else Image.fromarray(pixels).convert(mode)
    picture.save(folder / file)
    data = {**HEADER, **THRESHOLDS, "image": file, **changes}
    path = folder / "map.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in data.items() if value is not None}))
    return path


def write_mode(folder, pixels, mode, **changes):
    path = write_map(folder, pixels, **changes)
    path.write_text(f"{path.read_text()}mode: {mode}\n")
    return path


def random_grid(seed, shape=(17, 23), density=0.1, **changes):
    occupied = np.random.default_rng(seed).random(shape) < density
    return OccupancyMap("random", occupied, **{"resolution": 0.1, "origin": (-1.0, 0.5, 0.0), **changes})


@pytest.mark.parametrize("file", ["map.png", "map.pgm"])
def test_thresholds_split_occupied_unknown_and_free(tmp_path, file):
    grid = read_map(write_map(tmp_path, file=file))
    expected = np.array([[1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]], bool)
    np.testing.assert_array_equal(grid.occupied, expected[::-1])
    assert grid.resolution == 0.1 and grid.origin == (1.0, -2.0, 0.0) and grid.name == "map"
    strict = read_map(tmp_path / "map.yaml", unknown="occupied")
    np.testing.assert_array_equal(strict.occupied, ((255 - GREY) / 255 >= 0.196)[::-1])
    assert strict.occupied[2, 2] and not strict.occupied[2, 3]


def test_thresholds_come_from_the_file(tmp_path):
    grid = read_map(write_map(tmp_path, occupied_thresh=0.6))
    np.testing.assert_array_equal(grid.occupied, (GREY <= 101)[::-1])


def test_negate_swaps_black_and_white(tmp_path):
    grid = read_map(write_map(tmp_path, negate=1))
    np.testing.assert_array_equal(grid.occupied, (GREY / 255 > 0.65)[::-1])


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L"])
def test_grey_is_the_same_in_every_colour_mode(tmp_path, mode):
    grid = read_map(write_map(tmp_path, mode=mode))
    np.testing.assert_array_equal(grid.occupied, ((255 - GREY) / 255 > 0.65)[::-1])


def test_colours_count_by_luminance_and_what_is_transparent_is_unknown(tmp_path):
    colours = np.array([[[255, 0, 0, 255], [0, 255, 0, 0], [0, 0, 255, 255], [0, 0, 0, 0]]], np.uint8)
    grid = read_map(write_map(tmp_path, pixels=colours))
    # Luminance 76, 150, 29, 0 of 255.
    np.testing.assert_array_equal(grid.occupied, [[True, False, True, False]])
    np.testing.assert_array_equal(grid.seen, [[True, False, True, False]])


def test_every_mode_of_map_server_is_obeyed(tmp_path):
    # Of 255: a wall, two probabilities between the thresholds, unknown to map savers, the floor.
    grey = np.array([[0, 100, 150, 205, 254]], np.uint8)
    scale = read_map(write_mode(tmp_path, grey, "scale"))
    np.testing.assert_array_equal(scale.occupied, [[1, 0, 0, 0, 0]])
    assert scale.seen.all()
    trinary = read_map(write_mode(tmp_path, grey, "trinary"))
    np.testing.assert_array_equal(trinary.occupied, [[1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(trinary.seen, [[1, 0, 0, 0, 1]])
    # Percent: free, just below and above the threshold, occupied; above 100 unknown.
    percent = np.array([[0, 65, 66, 100, 101, 255]], np.uint8)
    raw = read_map(write_mode(tmp_path, percent, "raw"))
    np.testing.assert_array_equal(raw.occupied, [[0, 0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(raw.seen, [[1, 1, 1, 1, 0, 0]])
    strict = read_map(tmp_path / "map.yaml", unknown="occupied")
    np.testing.assert_array_equal(strict.occupied, [[0, 0, 1, 1, 1, 1]])
    np.testing.assert_array_equal(
        read_map(write_mode(tmp_path, 255 - percent, "raw", negate=1)).occupied, raw.occupied
    )


@pytest.mark.parametrize("changes", [{"occupied_thresh": 0.065, "free_thresh": 0.25}, {"free_thresh": 0.7}])
def test_thresholds_out_of_order_leave_nothing_unknown(tmp_path, changes):
    grid = read_map(write_map(tmp_path, **changes))
    taken = changes.get("occupied_thresh", 0.65)
    np.testing.assert_array_equal(grid.occupied, (taken < (255 - GREY) / 255)[::-1])


def test_a_threshold_that_a_mode_does_not_use_is_not_refused(tmp_path):
    grid = read_map(write_mode(tmp_path, GREY, "scale", free_thresh=7))
    np.testing.assert_array_equal(grid.occupied, ((255 - GREY) / 255 > 0.65)[::-1])


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(ValueError, match="mode=rwa; must be trinary, scale, raw"):
        read_map(write_mode(tmp_path, GREY, "rwa"))


def test_unknown_yaml_keys_are_listed_in_the_notes(tmp_path):
    path = write_map(tmp_path, negat=1, finish_line=[0, 1])
    assert read_map(path).describe().endswith("; ignores finish_line, negat of its yaml file")


def test_sixteen_bit_images_use_their_whole_range(tmp_path):
    grid = read_map(write_map(tmp_path, pixels=GREY.astype(np.uint16) * 257))
    np.testing.assert_array_equal(grid.occupied, ((255 - GREY) / 255 > 0.65)[::-1])


def test_spawn_points_come_from_the_annotations(tmp_path):
    points = [{"name": "a", "pose": [1, 2, 0.5]}, {"name": "b", "pose": [0, -1, 0]}]
    grid = read_map(write_map(tmp_path, annotations={"spawn_points": points, "finish_line": {}}))
    assert dict(grid.spawns) == {"a": (1.0, 2.0, 0.5), "b": (0.0, -1.0, 0.0)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resolution": 0}, "resolution=0.0"),
        ({"resolution": -0.05}, "resolution=-0.05"),
        ({"resolution": "fine"}, "resolution=fine"),
        ({"origin": [0, 0]}, "three finite numbers"),
        ({"origin": [0, float("nan"), 0]}, "three finite numbers"),
        ({"origin": "here"}, "three finite numbers"),
        ({"origin": None}, "lacks origin"),
        ({"image": None, "resolution": None}, "lacks image, resolution"),
        ({"image": "absent.png"}, "absent.png"),
        ({"image": "map.yaml"}, "not a readable png"),
        ({"negate": 2}, "negate=2"),
        ({"free_thresh": 1.7}, "free_thresh=1.7"),
        ({"occupied_thresh": -0.1, "free_thresh": -0.2}, "occupied_thresh=-0.1; must lie in [0, 1]"),
        ({"occupied_thresh": "x"}, "occupied_thresh=x"),
        ({"annotations": {"spawn_points": [{"name": "a"}]}}, "spawn_points"),
        ({"annotations": {"spawn_points": [{"name": "a", "pose": [1, 2]}]}}, "'a'"),
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path, changes, words):
    path = write_map(tmp_path, **changes)
    with pytest.raises(ValueError) as error:
        load_map(path)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_truncated_and_fully_occupied_images_are_refused(tmp_path):
    path = write_map(tmp_path, pixels=np.zeros((4, 4), np.uint8))
    with pytest.raises(ValueError, match="every cell"):
        load_map(path)
    (tmp_path / "map.png").write_bytes((tmp_path / "map.png").read_bytes()[:40])
    with pytest.raises(ValueError, match="not a readable png"):
        load_map(path)


def test_specs_that_name_no_map_are_refused(tmp_path):
    for spec, words in [
        ("nowhere.yaml", "no such file"),
        ("", "line2"),
        ("track:-1", "non-negative integer"),
        ("track:x", "non-negative integer"),
    ]:
        with pytest.raises(ValueError, match=words):
            load_map(spec)
    for text, words in [("- 1\n- 2\n", "not a mapping"), ("a: [", "not readable as yaml")]:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ValueError, match=words):
            load_map(tmp_path / "bad.yaml")
    with pytest.raises(ValueError, match="'free' or 'occupied'"):
        load_map(write_map(tmp_path), unknown="maybe")


@pytest.mark.parametrize("seed", range(5))
def test_distance_field_equals_brute_force(seed):
    grid = random_grid(seed, density=[0.0, 0.02, 0.1, 0.5, 0.9][seed])
    ringed = np.pad(grid.occupied, 1, constant_values=True)
    walls = np.argwhere(ringed)
    cells = np.argwhere(np.ones_like(grid.occupied)) + 1
    nearest = np.sqrt(((cells[:, None] - walls) ** 2).sum(-1).min(-1)).reshape(grid.occupied.shape)
    np.testing.assert_allclose(distance_field(grid.occupied, 0.1), 0.1 * nearest, rtol=0, atol=1e-14)
    assert (grid.field[grid.occupied] == 0).all() and (grid.field[~grid.occupied] >= 0.1 - 1e-15).all()


cell_at, wall_at = jax.jit(world_to_cell), jax.jit(distance_at)


def test_lookup_honours_position_rotation_and_padding():
    maps = [
        random_grid(0, origin=(3.0, -2.0, 0.7), resolution=0.05),
        random_grid(1, shape=(31, 12), origin=(-1.0, 4.0, -2.4)),
    ]
    bank = map_bank(maps)
    assert bank.field.shape == (2, 5, 4, 8, 8) and bank.names == ("random", "random")
    for m, grid in enumerate(maps):
        rows, cols = np.indices(grid.occupied.shape)
        shift = np.random.default_rng(m).uniform(-0.45, 0.45, (2, *rows.shape))
        xy = np.float32(grid.world(rows + shift[0], cols + shift[1]))
        row, col, inside = jax.device_get(cell_at(bank, m, xy))
        distance = wall_at(bank, m, xy)
        np.testing.assert_array_equal(row, rows + 1)
        np.testing.assert_array_equal(col, cols + 1)
        assert inside.all()
        np.testing.assert_allclose(distance, grid.field, rtol=1e-6)
        tiles = np.asarray(bank.field)[m]
        np.testing.assert_array_equal(tiles[row // 8, col // 8, row % 8, col % 8], distance)
        # The bank's own resolution and origin describe the same placement, ring included.
        yaw, (x, y) = grid.origin[2], np.asarray(bank.origin[m, :2])
        along = (np.cos(yaw) * (xy[..., 0] - x) + np.sin(yaw) * (xy[..., 1] - y)) / grid.resolution
        np.testing.assert_array_equal(np.floor(along), cols + 1)


def test_rotation_turns_the_image_counter_clockwise():
    occupied = np.zeros((4, 9), bool)
    occupied[1, 7] = True
    bank = map_bank([OccupancyMap("m", occupied, 1.0, (10.0, 20.0, np.pi / 2))])
    # Seven and a half cells along the image's x axis, which points along the world's y axis.
    assert wall_at(bank, 0, np.float32([10 - 1.5, 20 + 7.5])) == 0
    assert wall_at(bank, 0, np.float32([10 - 1.5, 20 + 6.5])) == 1
    assert not cell_at(bank, 0, np.float32([10 + 0.5, 20 + 7.5]))[2]


def test_everything_outside_the_image_is_occupied():
    grids = [random_grid(0, density=0.0), random_grid(1, shape=(9, 40), density=0.0)]
    bank = map_bank(grids)
    for m, grid in enumerate(grids):
        height, width = (edge * grid.resolution for edge in grid.occupied.shape)
        x, y, _ = grid.origin
        eps = 1e-4
        outside = [(-eps, eps), (eps, -eps), (width + eps, eps), (eps, height + eps), (1e6, 0.0), (-1e9, 1e9)]
        xy = np.float32(outside) + np.float32([x, y])
        assert (wall_at(bank, m, xy) == 0).all() and not np.any(cell_at(bank, m, xy)[2])
        corners = np.float32(
            [(eps, eps), (width - eps, eps), (eps, height - eps), (width - eps, height - eps)]
        )
        np.testing.assert_allclose(wall_at(bank, m, corners + np.float32([x, y])), 0.1, rtol=1e-6)
    assert np.isfinite(wall_at(bank, 0, np.float32([np.nan, np.inf])))


def test_lookup_batches_over_maps_and_points():
    bank = map_bank([random_grid(seed) for seed in range(3)])
    rng = np.random.default_rng(0)
    xy, index = rng.uniform(-1.5, 2.5, (50, 2)).astype(np.float32), rng.integers(0, 3, 50)
    one_by_one = [wall_at(bank, int(m), point) for m, point in zip(index, xy, strict=True)]
    np.testing.assert_array_equal(wall_at(bank, index, xy), one_by_one)
    np.testing.assert_array_equal(jax.jit(jax.vmap(distance_at, (None, 0, 0)))(bank, index, xy), one_by_one)
    with pytest.raises(ValueError, match="at least one map"):
        map_bank([])


def sphere_trace(distance, pose, beams, fov=4.7, max_range=30.0):
    table = np.linspace(0, 2 * np.pi, 2000)
    per_radian = 2000 / (2 * np.pi)
    index = per_radian * (pose[2] - fov / 2) + np.arange(beams) * per_radian * fov / (beams - 1)
    ranges = []
    for angle in table[np.mod(index, 2000).astype(int)]:
        point = np.array(pose[:2])
        step = total = distance(point)
        while step > 1e-4 and total <= max_range:
            point = point + step * np.array([np.cos(angle), np.sin(angle)])
            step = distance(point)
            total += step
        ranges.append(min(total, max_range))
    return np.array(ranges)


# Measured with the original simulator on the original map.
LINE2_SCAN = [
    1.9, 1.75, 1.65, 1.55, 1.5, 1.45, 1.4, 1.35, 1.35, 1.35, 1.35, 1.4, 1.4, 1.45, 1.5, 1.6, 1.7, 1.8, 1.95,
    2.2, 2.45, 2.85, 3.45, 4.4, 6.1, 10.1, 30, 29, 9.7, 5.85, 4.25, 3.3, 2.75, 2.35, 2.1, 1.9, 1.75,
    1.6, 1.5, 1.45, 1.4, 1.35, 1.35, 1.3, 1.3, 1.3, 1.3, 1.35, 1.35, 1.4, 1.5, 1.55, 1.7, 1.8,
]  # fmt: skip


def test_line2_gives_the_original_scans():
    grid = line2()
    scan = sphere_trace(grid.distance, (-46.769, -0.7, 0.0), 54)
    np.testing.assert_array_equal(scan.astype(np.float32), np.float32(LINE2_SCAN))
    for pose, least, where, mean in [
        ((-45.569, -1.0, 0.2), 1.05, 5, 3.248148),
        ((-45.569, -0.4, -0.2), 1.0, 44, 3.262963),
    ]:
        scan = sphere_trace(grid.distance, pose, 54)
        assert scan.argmin() == where
        np.testing.assert_allclose([scan.min(), scan.mean()], [least, mean], rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        sphere_trace(grid.distance, (-46.769, -0.7, 0.0), 108).mean(), 3.178704, atol=1e-6
    )


def test_line2_is_the_original_box_without_its_surroundings():
    grid = line2()
    canvas = OccupancyMap("canvas", np.zeros((2000, 2000), bool), 0.05, (-51.224998, -51.224998, 0.0))
    canvas.occupied[980:1040, 7:1993] = grid.occupied
    assert canvas.occupied.sum() == 16408
    free = canvas.world(*np.argwhere(~grid.occupied).T + np.array([[980], [7]]))
    np.testing.assert_allclose(free.min(axis=0) - 0.025, [-50.625, -2.025], atol=1e-5)
    np.testing.assert_allclose(free.max(axis=0) + 0.025, [48.175, 0.575], atol=1e-5)
    points = np.random.default_rng(0).uniform([-50.6, -2.0], [48.1, 0.5], (2000, 2))
    np.testing.assert_array_equal(grid.distance(points), canvas.distance(points))
    line = grid.centerline
    assert not line.closed and (grid.distance(line.points) > 0).all()
    np.testing.assert_allclose(line.heading, 0, atol=1e-12)
    np.testing.assert_allclose(line.left, 1.3, atol=0.051)
    np.testing.assert_allclose(line.right, 1.3, atol=0.051)
    assert grid.spawns["spawn_1"] == (-48.2499, -0.724998, 0.0) and len(grid.spawns) == 6


def test_the_bank_of_line2_gives_the_original_scan_in_double_precision():
    with jax.enable_x64(True):
        bank = map_bank([line2()])
        scan = sphere_trace(lambda xy: float(wall_at(bank, 0, xy)), (-46.769, -0.7, 0.0), 14)
    np.testing.assert_allclose(scan, sphere_trace(line2().distance, (-46.769, -0.7, 0.0), 14), atol=2e-5)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(bank)) < 600_000


def test_wall_distance_looks_along_the_given_angle():
    occupied = np.zeros((40, 60), bool)
    grid = OccupancyMap("empty", occupied, 0.1, (0.0, 0.0, 0.0))
    xy = np.tile([[1.0, 1.5]], (4, 1))
    found = wall_distance(grid, xy, np.array([0.0, np.pi / 2, np.pi, -np.pi / 2]))
    np.testing.assert_allclose(found, [5.0, 2.5, 1.0, 1.5], atol=0.11)
    np.testing.assert_allclose(wall_distance(grid, xy, np.zeros(4), limit=2.0), 2.0)
