import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics import tracks
from physics.centerline import centerline_from_points, read_centerline, resample_centerline
from physics.gridmap import OccupancyMap
from physics.occupancy import line2, map_bank
from physics.tracks import frenet_near, generate_track

frenet, cartesian, arc_difference = map(jax.jit, (tracks.frenet, tracks.cartesian, tracks.arc_difference))


def circle(radius=5.0, count=400, clockwise=False):
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False) * (-1 if clockwise else 1)
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def bank_of(*lines, spacing=0.25):
    grid = np.zeros((200, 200), bool)
    return map_bank(
        [OccupancyMap("m", grid, 0.1, (-10.0, -10.0, 0.0), line) for line in lines], spacing=spacing
    )


def wrapped(angle):
    return (np.asarray(angle) + np.pi) % (2 * np.pi) - np.pi


@pytest.fixture(scope="module")
def bank():
    forward = generate_track(4)
    line = forward.centerline
    backward = OccupancyMap(
        "back", forward.occupied, 0.05, forward.origin, centerline_from_points(line.points[::-1], closed=True)
    )
    return map_bank([forward, backward, line2()], spacing=0.1)


def test_header_layout_drops_incomplete_rows_and_ignores_theta(tmp_path):
    rows = ["x,y,theta,velocity"] + [f"{x},{y},9.9," for x, y in circle()] + ["nan,1,0,", ",,,"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    line = read_centerline(tmp_path / "a.csv")
    np.testing.assert_allclose(line.points, circle())
    assert line.closed and line.left is None and line.right is None
    np.testing.assert_allclose(line.length, 10 * np.pi, rtol=1e-4)
    np.testing.assert_allclose(
        wrapped(line.heading - np.linspace(0, 2 * np.pi, 400, endpoint=False)), np.pi / 2
    )


def test_width_layout_tells_right_from_left(tmp_path):
    rows = ["# x_m, y_m, w_tr_right_m, w_tr_left_m"] + [f"{0.3 * i}, 1.0, 0.9, 1.2" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    line = read_centerline(tmp_path / "a.csv")
    assert not line.closed and line.length == pytest.approx(5.7)
    np.testing.assert_allclose(line.right, 0.9)
    np.testing.assert_allclose(line.left, 1.2)
    np.testing.assert_allclose(line.heading, 0)


RACELINE = ["# abc", "# def", "# s_m; x_m; y_m; psi_rad; kappa_radpm; vx_mps; ax_mps2"]


@pytest.mark.parametrize("separator", ["; ", ", "])
@pytest.mark.parametrize("header", [RACELINE, []])
def test_raceline_layout_with_and_without_names(tmp_path, header, separator):
    rows = header + [f"{i}; {x}; {y}; 3; 0.1; 8.0; 0.0" for i, (x, y) in enumerate(circle(clockwise=True))]
    (tmp_path / "a.csv").write_text("\n".join(rows).replace("; ", separator))
    line = read_centerline(tmp_path / "a.csv")
    np.testing.assert_allclose(line.points, circle(clockwise=True))
    assert line.closed and wrapped(line.heading[0]) == pytest.approx(-np.pi / 2)


def test_a_repeated_first_point_closes_the_line():
    points = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 3.0], [0.0, 0.0]])
    line = centerline_from_points(points, left=np.arange(5.0), right=np.arange(5.0))
    assert line.closed and line.length == 12 and len(line.x) == 3
    np.testing.assert_array_equal(line.left, [0, 1, 3])
    np.testing.assert_array_equal(line.s, [0, 4, 7])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "not a readable"),
        ("", "0 rows"),
        ("x,y\n1,2\n", "1 rows"),
        ("x,y\n1,2\n3,up\n", "line 3"),
        ("a,b\n1,2\n", "a,b"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path, text, words):
    if text is not None:
        (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError) as error:
        read_centerline(tmp_path / "a.csv")
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("closed", [True, False])
def test_resampling_gives_equal_chords_on_the_line(closed):
    rng = np.random.default_rng(0)
    angle = np.sort(rng.uniform(0, 2 * np.pi, 60))
    points = np.stack(
        [(4 + np.sin(3 * angle)) * np.cos(angle), (4 + np.cos(2 * angle)) * np.sin(angle)], axis=-1
    )
    line = centerline_from_points(points, closed=closed, left=np.full(60, 1.0), right=np.full(60, 2.0))
    made = resample_centerline(line, 101)
    ends = np.append(made.points, made.points[:1], axis=0) if closed else made.points
    chords = np.linalg.norm(np.diff(ends, axis=0), axis=1)
    assert len(chords) == (101 if closed else 100)
    np.testing.assert_allclose(chords, made.length / len(chords), rtol=1e-6)
    np.testing.assert_allclose(made.length, line.length, rtol=0.02)
    assert made.length <= line.length + 1e-9
    if not closed:
        np.testing.assert_allclose(made.points[[0, -1]], points[[0, -1]], atol=1e-6)
    np.testing.assert_allclose(made.right, 2.0)


def test_bank_holds_equally_spaced_points_with_widths(bank):
    assert bank.centerline.shape[0] == 3 and bank.closed.tolist() == [True, True, False]
    assert bank.has_centerline.all()
    for m in range(3):
        points = np.asarray(bank.centerline[m])
        spacing = np.diff(points[:, 3])
        np.testing.assert_allclose(spacing, spacing.mean(), atol=2e-5)
        assert spacing.max() <= 0.1 + 1e-5
        np.testing.assert_allclose(np.linalg.norm(np.diff(points[:, :2], axis=0), axis=1), spacing, atol=2e-5)
    np.testing.assert_allclose(bank.half_width[0].min(), 1.0, atol=1e-3)
    # Measured from the walls on the way back, where left and right change sides.
    mirrored = np.roll(bank.half_width[0, ::-1, ::-1], 1, axis=0)
    np.testing.assert_allclose(bank.half_width[1], mirrored, atol=0.15)


def test_a_circle_gives_textbook_coordinates():
    bank = bank_of(centerline_from_points(circle(count=20_000), closed=True), spacing=0.02)
    angle = np.linspace(0.1, 6.1, 30)
    for radius in (4.0, 5.0, 5.8):
        xy = jnp.asarray(radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1))
        s, d, heading, index = frenet(bank, 0, xy)
        np.testing.assert_allclose(s, 5 * angle, atol=5e-3)
        np.testing.assert_allclose(d, 5 - radius, atol=5e-3)
        np.testing.assert_allclose(wrapped(heading - angle - np.pi / 2), 0, atol=5e-3)
        assert index.dtype == jnp.int32
        within = s - bank.centerline[0, index, 3]
        assert (within > -1e-4).all() and (within < 0.02 + 1e-4).all()


def test_projection_is_onto_segments_and_not_onto_points():
    points = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 3.0], [0.0, 3.0]])
    bank = bank_of(centerline_from_points(points, closed=True), spacing=4.0)
    assert bank.centerline.shape[1] == 4
    s, d, heading, index = frenet(bank, 0, jnp.array([[1.3, 0.4], [2.5, 1.7], [0.7, 3.2], [-0.1, 0.6]]))
    np.testing.assert_allclose(s, [1.3, 4.7, 8.3, 11.4], rtol=1e-6)
    np.testing.assert_allclose(d, [0.4, 0.5, -0.2, -0.1], atol=1e-6)
    np.testing.assert_array_equal(index, [0, 1, 2, 3])
    np.testing.assert_allclose(heading[0], -np.pi / 4 + 1.3 / 3 * np.pi / 2, rtol=1e-5)


@pytest.mark.parametrize("m", [0, 1, 2])
def test_round_trip_from_road_coordinates_and_back(bank, m):
    rng = np.random.default_rng(m)
    length = float(bank.centerline_length[m])
    s = jnp.asarray(rng.uniform(0.01, length - 0.01, 500), jnp.float32)
    d = jnp.asarray(rng.uniform(-0.9, 0.9, 500), jnp.float32)
    pose = cartesian(bank, m, s, d)
    s_back, d_back, heading, _index = frenet(bank, m, pose[:, :2])
    # Between neighbouring normals lies a wedge of at most bend times offset.
    wedge = np.abs(d) * 0.1
    assert (np.abs(s_back - s) < wedge + 1e-3).all()
    assert (np.abs(d_back - d) < 0.01).all()
    assert np.median(np.abs(s_back - s)) < 1e-3
    np.testing.assert_allclose(wrapped(heading - pose[:, 2]), 0, atol=0.1)
    again = cartesian(bank, m, s_back, d_back)
    assert (np.linalg.norm(again[:, :2] - pose[:, :2], axis=-1) < wedge + 1e-3).all()


def test_left_is_positive_in_both_directions(bank):
    s = jnp.linspace(1.0, 50.0, 40)
    for m in range(2):
        pose = cartesian(bank, m, s, 0.0)
        left = pose[:, :2] + 0.5 * jnp.stack([-jnp.sin(pose[:, 2]), jnp.cos(pose[:, 2])], axis=-1)
        np.testing.assert_allclose(frenet(bank, m, left)[1], 0.5, atol=0.01)
        np.testing.assert_allclose(cartesian(bank, m, s, 0.5)[:, :2], left, atol=0.05)
    points = cartesian(bank, 0, s, 0.3)[:, :2]
    there, back = frenet(bank, 0, points), frenet(bank, 1, points)
    np.testing.assert_allclose(there[1], -back[1], atol=0.01)
    np.testing.assert_allclose(wrapped(there[2] - back[2] - np.pi), 0, atol=0.05)


def test_a_lap_wraps_in_both_directions(bank):
    for m in range(2):
        length = float(bank.centerline_length[m])
        for s in (0.05, 1.0, length / 2, length - 0.03):
            here = cartesian(bank, m, jnp.float32(s), jnp.float32(0.2))
            for laps in (-2, -1, 1):
                np.testing.assert_allclose(cartesian(bank, m, s + laps * length, 0.2), here, atol=2e-3)
        positions = jnp.linspace(0.0, 3 * length, 1500)
        s = frenet(bank, m, cartesian(bank, m, positions, jnp.zeros(1500))[:, :2])[0]
        assert (s >= 0).all() and (s < length).all()
        moved = arc_difference(bank, m, s[:-1], s[1:])
        np.testing.assert_allclose(moved, 3 * length / 1499, atol=5e-3)
        np.testing.assert_allclose(arc_difference(bank, m, s[1:], s[:-1]), -moved, atol=1e-4)
    assert arc_difference(bank, 2, jnp.float32(90.0), jnp.float32(2.0)) == -88.0


def test_an_open_line_ends_where_it_ends(bank):
    length = float(bank.centerline_length[2])
    start, end = cartesian(bank, 2, jnp.array([-5.0, length + 5.0]), jnp.array([0.1, -0.1]))
    np.testing.assert_allclose(start, [-50.6, -0.624998, 0], atol=1e-4)
    np.testing.assert_allclose(end, [48.0, -0.824998, 0], atol=1e-4)
    s, d, _heading, index = frenet(bank, 2, jnp.array([[-55.0, 0.0], [49.0, -1.0]]))
    np.testing.assert_allclose(s, [0, length], atol=1e-4)
    np.testing.assert_allclose(d, [0.724998, -0.275002], atol=1e-5)
    np.testing.assert_array_equal(index, [0, bank.centerline.shape[1] - 2])


@jax.jit
def followed(bank, m, start, points):
    """Results of the local search for each point, starting from the previous result."""

    def follow(index, point):
        found = frenet_near(bank, m, point, index, window=6)
        return found[3], found

    return jax.lax.scan(follow, start, points)[1]


def test_the_local_search_follows_a_moving_point_around_the_lap(bank):
    rng = np.random.default_rng(0)
    for m in range(3):
        s = np.linspace(0.0, 1.5 * float(bank.centerline_length[m]), 600, dtype=np.float32)
        xy = cartesian(bank, m, s, rng.uniform(-0.5, 0.5, 600).astype(np.float32))[:, :2]
        local = followed(bank, m, frenet(bank, m, xy[0])[3], xy)
        # At a point shared by two segments either may be named.
        for near, full in zip(local[:3], frenet(bank, m, xy)[:3], strict=True):
            np.testing.assert_allclose(near, full, atol=2e-5)


def test_projections_batch_over_maps(bank):
    key_point, key_map = jax.random.split(jax.random.key(0))
    xy = jax.random.uniform(key_point, (64, 2), minval=-8.0, maxval=8.0)
    maps = jax.random.randint(key_map, (64,), 0, 3)
    whole = frenet(bank, maps, xy)
    mapped = jax.jit(jax.vmap(frenet, (None, 0, 0)))(bank, maps, xy)
    local = jax.jit(frenet_near, static_argnums=4)
    near = jax.jit(jax.vmap(lambda m, p, i: local(bank, m, p, i, 4)))(maps, xy, whole[3])
    direct = local(bank, maps, xy, whole[3], 4)
    for results in zip(whole, mapped, near, direct, strict=True):
        for other in results[1:]:
            np.testing.assert_allclose(results[0], other, atol=1e-4)
    poses = cartesian(bank, maps, whole[0], whole[1])
    one_by_one = jax.jit(jax.vmap(cartesian, (None, 0, 0, 0)))(bank, maps, *whole[:2])
    np.testing.assert_allclose(one_by_one, poses, atol=1e-5)


def test_a_map_without_a_centreline_gives_finite_zeros():
    grid = OccupancyMap("plain", np.zeros((20, 20), bool), 0.1, (0.0, 0.0, 0.0))
    bank = map_bank([grid])
    assert not bank.has_centerline[0] and bank.centerline_length[0] == 0
    s, d, heading, index = frenet(bank, 0, jnp.array([1.0, 1.0]))
    assert s == 0 and d == 0 and index == 0 and heading == 0
    assert np.isfinite(cartesian(bank, 0, jnp.float32(1.0), jnp.float32(0.0))).all()


def test_a_line_run_backwards_is_the_same_line_the_other_way():
    side = np.arange(400.0)
    line = centerline_from_points(circle(), closed=True, left=1 + side, right=500 + side)
    back = line.backwards()
    assert (line.course, back.course) == ("counter-clockwise", "clockwise")
    assert line.area == pytest.approx(25 * np.pi, rel=1e-3) and back.area == pytest.approx(-line.area)
    assert back.length == pytest.approx(line.length) and back.source.endswith("reversed")
    np.testing.assert_allclose(back.points[0], line.points[0])
    np.testing.assert_allclose(back.points[1], line.points[-1])
    np.testing.assert_allclose(wrapped(back.heading[0] - line.heading[0] - np.pi), 0, atol=1e-9)
    # What was on the left is on the right.
    np.testing.assert_array_equal(back.left[[0, 1]], line.right[[0, -1]])
    np.testing.assert_array_equal(back.right[[0, 1]], line.left[[0, -1]])
    far = centerline_from_points(line.points + 1e6, closed=True)
    assert far.area == pytest.approx(line.area, rel=1e-3)

    straight = centerline_from_points(
        np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), closed=False
    ).backwards()
    np.testing.assert_array_equal(straight.x, [3, 1, 0])
    assert straight.course == "open, (3.0, 0.0) to (0.0, 0.0)"


def test_a_first_point_repeated_up_to_rounding_leaves_no_kink_at_the_seam():
    exact = circle(count=100)
    points = np.concatenate([exact, exact[:1] + [[1e-4, -2e-4]]])
    line = centerline_from_points(points, left=np.arange(101.0))
    assert line.closed and len(line.x) == 100 and line.left[-1] == 99
    np.testing.assert_allclose(line.heading, centerline_from_points(exact, closed=True).heading, atol=1e-9)
    # Small steps that go somewhere stay: a recording slows down in corners.
    corner = np.stack([4 + 0.002 * np.arange(200), 0.002 * np.arange(200)], axis=-1)
    slow = centerline_from_points(np.concatenate([[[i, 0.0] for i in range(4)], corner]), closed=False)
    np.testing.assert_allclose(np.ptp(slow.y), np.ptp(corner[:, 1]), atol=0.01)


def test_a_byte_order_mark_hides_no_column_names(tmp_path):
    rows = ["y,x"] + [f"{y},{x}" for x, y in circle()]
    (tmp_path / "a.csv").write_text("\n".join(rows), encoding="utf-8-sig")
    np.testing.assert_allclose(read_centerline(tmp_path / "a.csv").points, circle())
