"""Pictures, animations and pages of driving."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drive_runs import programs, scripted
from matplotlib import patches
from matplotlib.patches import Circle
from PIL import Image, ImageColor
from replay_pages import check_self_contained, embedded, needs_node, play_page

from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.view import viewer as view
from jaxmarl_echelon.envs.drive.view.frames import COLLISION, OFFROAD, SCORED
from jaxmarl_echelon.envs.drive.view.palette import OUTCOME_COLOURS
from jaxmarl_echelon.envs.viewing.canvas import MapCanvas
from jaxmarl_echelon.envs.viewing.pages import decode_array
from jaxmarl_echelon.training.program.evaluation import Evaluation

RADIUS = 3.0


@pytest.fixture(scope="module")
def recorded():
    """Two recorded episodes: one with goals, one that leaves the road."""
    shared = programs()
    snapshot, wide = shared.env.viewer.snapshot, {"goal_radius": RADIUS}
    params = shared.in_scene(2, **wide)
    plays = [
        shared.play(scripted(shared.env, "idle"), 2, **wide),
        shared.play(np.full(4, 51, np.int32), 0, **wide),
    ]
    frames = [
        jax.tree.map(lambda *x: np.stack(x), *(snapshot(state, params, None) for state in states))
        for states, _ in plays
    ]
    last = [times[-1] for _, times in plays]
    results = {
        name: np.stack([np.asarray(time.info[name]) for time in last])
        for name in ("score", "collision", "offroad", "dnf")
    }
    return Evaluation(
        quarantined=np.zeros(2, bool),
        present={"vehicle": np.ones((2, 4), bool)},
        episode_return={"vehicle": np.zeros((2, 4))},
        length=np.array([90, 90]),
        results=results,
        frames=jax.tree.map(lambda *x: jnp.stack(x, axis=1), *frames),
    )


@pytest.fixture(scope="module")
def viewer():
    """The viewer of the small scenes."""
    return programs().env.viewer


def test_a_picture_colours_outcomes(recorded, viewer, tmp_path):
    viewer.picture(tmp_path / "picture.png", recorded)
    with Image.open(tmp_path / "picture.png") as image:
        assert min(image.size) > 400
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    colours = {tuple(pixel) for pixel in pixels[::3]}
    assert ImageColor.getrgb(OUTCOME_COLOURS[SCORED]) in colours
    episodes = [viewer._episode(recorded, index) for index in range(2)]
    assert SCORED in episodes[0].outcome
    assert {OFFROAD, COLLISION} & set(episodes[1].outcome)


@pytest.mark.parametrize(
    "quarantined,headline",
    [
        ([False, False], "2 episodes: score 0.50, collision 0.25, offroad 0.50, dnf 0.00"),
        ([False, True], "1 episodes: score 1.00, collision 0.00, offroad 0.00, dnf 0.00"),
        ([True, True], "0 episodes"),
    ],
)
def test_the_headline_leaves_out_quarantined_episodes_as_tables_do(
    recorded, viewer, tmp_path, monkeypatch, quarantined, headline
):
    told = []
    monkeypatch.setattr(view, "save_drive_picture", lambda _path, _shown, title, _chosen: told.append(title))
    viewer.picture(tmp_path / "picture.png", recorded.replace(quarantined=np.array(quarantined)))
    assert told == [headline]


def test_circles_have_the_radius_of_goals(recorded, viewer, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        patches, "Circle", lambda at, radius, **how: drawn.append(radius) or Circle(at, radius, **how)
    )
    monkeypatch.setattr(MapCanvas, "disc", lambda self, at, radius, **how: drawn.append(radius))
    viewer.picture(tmp_path / "picture.png", recorded)
    assert drawn == [RADIUS] * 8
    viewer.animation(tmp_path / "episode.gif", recorded, 0)
    viewer.replay(tmp_path / "replay.html", recorded, 0)
    radius = decode_array(embedded((tmp_path / "replay.html").read_text())["arrays"]["goal_radius"])
    assert len(drawn) > 8 and {*drawn, *radius.ravel()} == {RADIUS}


def test_an_animation_has_a_frame_per_decision_and_is_small(recorded, viewer, tmp_path):
    path = tmp_path / "episode.gif"
    viewer.animation(path, recorded, 0)
    with Image.open(path) as image:
        assert image.n_frames == 91 and image.info["duration"] == 100
    assert path.stat().st_size < 5_000_000


def test_a_page_draws_observations_at_their_positions(recorded, viewer, tmp_path):
    viewer.replay(tmp_path / "replay.html", recorded, 0)
    page = (tmp_path / "replay.html").read_text()
    recording = embedded(page)
    check_self_contained(page)
    arrays = {name: decode_array(coded) for name, coded in recording["arrays"].items()}
    block = recording["view"]["blocks"]["partners"]
    rows, fields = block["shape"]
    first = arrays["seen"][0, 0, block["start"] : block["start"] + rows * fields].reshape(rows, fields)[0]
    x, y, heading = arrays["pose"][0, 0]
    ahead, left = first[:2] * recording["view"]["position"]
    world = [
        x + ahead * np.cos(heading) - left * np.sin(heading),
        y + ahead * np.sin(heading) + left * np.cos(heading),
    ]
    away = np.hypot(*(arrays["pose"][0, 1:, :2] - world).T)
    assert away.min() < 1e-3 and recording["view"]["position"] == features.POSITION_SCALE
    assert any(what == "goal" for _, _, what in recording["events"])
    earned = arrays["earned"][..., recording["components"].index("goal")]
    assert earned.sum() == 4, "four first goals"


@needs_node
def test_the_scripts_of_the_page_run(recorded, viewer, tmp_path):
    viewer.replay(tmp_path / "replay.html", recorded, 1)
    texts = play_page((tmp_path / "replay.html").read_text(), tmp_path)
    assert texts["caption"].endswith(embedded((tmp_path / "replay.html").read_text())["caption"])
    assert texts["clock"].endswith(" s") and "message" not in texts
