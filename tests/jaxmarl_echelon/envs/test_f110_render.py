"""Pictures of F110 episodes."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image, ImageColor
from replay_pages import check_self_contained, embedded, javascript, needs_node, play_page

from jaxmarl_echelon.envs.f110.race import RACE_OUTCOMES
from jaxmarl_echelon.envs.f110.results import OUTCOMES, SELF_CRASH, TARGET_CRASH
from jaxmarl_echelon.envs.f110.view.frames import CarFrame, take_car_snapshot
from jaxmarl_echelon.envs.f110.view.style import OUTCOME_COLOURS, OUTCOME_MARKS
from jaxmarl_echelon.envs.f110.view.viewer import F110Viewer
from jaxmarl_echelon.envs.viewing.pages import decode_array
from jaxmarl_echelon.palette import ATTACKER
from physics.occupancy import load_map

STEPS, EPISODES, BEAMS = 60, 2, 12


@pytest.fixture(scope="module")
def recorded():
    """Two made-up episodes on line2 as an evaluation records them; the second one is shorter."""
    time = np.arange(STEPS)[:, None, None]
    lane = np.array([-1.0, -0.4])[None, :, None]
    start = np.array([-45.5, -46.8])[None, None, :]
    pose = np.stack(np.broadcast_arrays(start + 0.05 * time, lane, 0.1 * np.sin(time)), axis=-1)
    frames = CarFrame(
        pose=pose.astype(np.float32),
        steer=np.zeros((STEPS, EPISODES, 2), np.float32),
        progress=np.tile(0.05 * np.arange(STEPS, dtype=np.float32)[:, None, None], (1, EPISODES, 2)),
        scan=np.full((STEPS, EPISODES, BEAMS), 1.5, np.float16),
        size=np.tile(np.float32([0.32, 0.225]), (STEPS, EPISODES, 1)),
        map_index=np.zeros((STEPS, EPISODES), np.int32),
        step=np.tile(2 * np.arange(STEPS)[:, None], (1, EPISODES)),
    )
    return SimpleNamespace(
        frames=frames,
        length=np.array([STEPS - 1, 30]),
        results={"outcome": np.array([TARGET_CRASH, SELF_CRASH])},
    )


LIDAR = SimpleNamespace(angles=np.linspace(-2.35, 2.35, BEAMS))
# A lap of one metre, so that a drive of three has some.
SIMULATION = SimpleNamespace(lidar=LIDAR, dt=0.01, bank=SimpleNamespace(centerline_length=np.ones(1)))


@pytest.fixture(scope="module")
def viewer():
    return F110Viewer([load_map("line2")], OUTCOMES, SIMULATION, ("attacker", "defender"))


def colours_of(image):
    pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    return np.unique(pixels, axis=0)


def test_picture_shows_every_outcome_in_its_colour(tmp_path, viewer, recorded):
    path = tmp_path / "picture.png"
    viewer.picture(path, recorded)
    shown = colours_of(Image.open(path)).astype(int)
    for name in ("target_crash", "self_crash"):
        wanted = np.array(ImageColor.getrgb(OUTCOME_COLOURS[name]))
        assert np.abs(shown - wanted).sum(1).min() < 12, name
    for name in ("timeout", "target_finish"):
        wanted = np.array(ImageColor.getrgb(OUTCOME_COLOURS[name]))
        assert np.abs(shown - wanted).sum(1).min() > 12, name


def drawn(monkeypatch, viewer, recorded, episode):
    """The figure that a viewer draws."""
    found = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: found.append(figure))
    viewer.picture_with("unused.png", recorded, episode)
    return found[0]


def test_pictures_tell_roles_and_the_ends_of_episodes(monkeypatch, viewer, recorded):
    figure = drawn(monkeypatch, viewer, recorded, 1)
    assert figure.get_figwidth() * figure.dpi == 1000
    entries = [text.get_text() for text in figure.legends[0].texts]
    assert entries == ["attacker", "defender", "target crash", "self crash"]
    faces = [patch.get_facecolor() for patch in figure.legends[0].get_patches()]
    assert faces[0] == to_rgba(ATTACKER) and faces[1] == to_rgba("white")
    titles = [axes.title for axes in figure.axes[:2]]
    assert [title.get_text() for title in titles] == [
        "episode 0: target crash, 1.2 s",
        "episode 1: self crash, 0.6 s",
    ]
    assert [title.get_bbox_patch() is not None for title in titles] == [False, True]


def test_races_show_laps_and_the_speed_along_the_line(monkeypatch, recorded):
    raced = SimpleNamespace(**vars(recorded) | {"results": {"outcome": np.array([0, 1])}})
    race = F110Viewer([load_map("line2")], RACE_OUTCOMES, SIMULATION)
    figure = drawn(monkeypatch, race, raced, 0)
    first, bar = figure.axes[0], figure.axes[-1]
    assert first.title.get_text() == f"episode 0: {RACE_OUTCOMES[0]}, 1.2 s, 2 laps\nlaps of each car: 2, 2"
    (line,) = first.collections
    assert len(line.get_segments()) == STEPS - 1
    assert bar.get_ylabel() == "speed of car 0 [m/s]" and bar.get_ylim()[1] < 4.0


def test_outcomes_have_colours_of_their_own():
    assert set(OUTCOMES) == set(OUTCOME_COLOURS) <= set(OUTCOME_MARKS)
    assert len({OUTCOME_COLOURS[name] for name in OUTCOMES}) == len(OUTCOMES)


def test_animation_has_a_frame_per_decision_and_ends_with_the_outcome(tmp_path, viewer, recorded):
    path = tmp_path / "episode.gif"
    viewer.animation(path, recorded, 1)
    with Image.open(path) as image:
        assert image.n_frames == 31
        image.seek(0)
        first = image.convert("RGB").getpixel((700, 3))
        image.seek(30)
        last = image.convert("RGB").getpixel((700, 3))
    wanted = np.array(ImageColor.getrgb(OUTCOME_COLOURS["self_crash"]))
    assert np.abs(np.array(last) - wanted).sum() < 60
    assert np.abs(np.array(first) - wanted).sum() > 60
    assert path.stat().st_size < 5_000_000


@pytest.mark.thorough
def test_long_animation_is_thinned_out(tmp_path, viewer, recorded):
    long = jax.tree.map(lambda x: np.repeat(x, 12, axis=0), recorded.frames)
    many = SimpleNamespace(
        frames=long, length=np.array([719, 719]), results={"outcome": np.array([TARGET_CRASH, -1])}
    )
    path = tmp_path / "long.gif"
    viewer.animation(path, many, 1)
    with Image.open(path) as image:
        assert image.n_frames <= 182
    assert path.stat().st_size < 5_000_000


def test_snapshot_is_pure_and_small():
    cars = SimpleNamespace(state=jnp.arange(14.0).reshape(2, 7), scan=jnp.ones((2, BEAMS)))
    track = SimpleNamespace(progress=jnp.array([1.5, 2.5]))
    state = SimpleNamespace(cars=cars, track=track, map_index=jnp.int32(0), step=jnp.int32(4))
    params = SimpleNamespace(car=SimpleNamespace(length=jnp.float32(0.3), width=jnp.float32(0.2)))
    frame = take_car_snapshot(state, params)
    np.testing.assert_array_equal(frame.pose, [[0, 1, 4], [7, 8, 11]])
    np.testing.assert_array_equal(frame.steer, [2, 9])
    assert frame.scan.shape == (BEAMS,)


@pytest.fixture(scope="module")
def page(viewer, recorded, tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "replay.html"
    viewer.replay(path, recorded, 1)
    return path.read_text()


def test_a_page_contains_the_recording_and_the_walls(page, recorded):
    check_self_contained(page)
    data = embedded(page)
    arrays = {name: decode_array(coded) for name, coded in data["arrays"].items()}
    np.testing.assert_array_equal(arrays["pose"], recorded.frames.pose[:31, 1])
    np.testing.assert_array_equal(arrays["scan"], np.float32(recorded.frames.scan[:31, 1]))
    assert data["events"] == [[30, 0, "self_crash"]] and data["period"] == pytest.approx(0.02)
    rows, columns = data["cells"]
    walls = np.unpackbits(arrays["walls"], count=rows * columns, bitorder="little").reshape(rows, columns)
    share = (recorded.frames.pose[0, 1, 0, :2] - data["low"]) / (np.array(data["high"]) - data["low"])
    row, column = int(share[1] * rows), int(share[0] * columns)
    assert walls[row, column] == 0 and walls.any()


@needs_node
def test_the_page_plays(page, tmp_path):
    assert javascript(page, "[recording.clock(30), recording.speed(3, 0)]") == [
        "0.60 s",
        pytest.approx(2.5, abs=0.1),
    ]
    texts = play_page(page, tmp_path)
    assert texts["clock"].endswith(" s") and "message" not in texts
