"""Pictures, animations and replays of mech battles."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageColor
from replay_pages import check_self_contained, embedded, javascript, needs_node

from jaxmarl_echelon import evaluate
from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    AUTOCANNON,
    HEAVY,
    LASER,
    MISSILE,
    PAINTER,
    SCOUT,
    WEAPONS,
)
from jaxmarl_echelon.envs.echelon.results import ZONE
from jaxmarl_echelon.envs.echelon.view import palette, snapshot
from jaxmarl_echelon.envs.echelon.view.animation import HEADER
from jaxmarl_echelon.envs.echelon.view.recorded_battle import RecordedBattle
from jaxmarl_echelon.envs.echelon.view.snapshot import LENGTH_UNIT, STATUS_FLAGS, YAW_UNIT, BattleFrame
from jaxmarl_echelon.envs.echelon.view.viewer import BattleViewer
from jaxmarl_echelon.envs.viewing.pages import decode_array
from physics.voxels import DIRT, GLASS, LAVA, MAX_SIDE, SOLID

ROWS, COLUMNS, LAYERS = 30, 40, 8
STEPS, EPISODES, MECHS, BLUE = 24, 2, 4, 2
OUTCOMES = ("blue_win", "red_win", "draw")
ALIVE, HIT = 1 << STATUS_FLAGS.index("alive"), 1 << STATUS_FLAGS.index("hit")
DEATH = 12
MOST_MAPS = 2**16  # the largest number that env.maps accepts


def made_up_state(mechs=MECHS):
    """Returns the parts of a state that `take_battle_snapshot` reads, as namespaces."""
    count = jnp.arange(mechs)
    none = jnp.zeros(mechs, jnp.int32)
    bodies = SimpleNamespace(
        position=jnp.stack([1.3 + count, 99.7 - count, 1.5 + 0 * count], axis=-1),
        yaw=jnp.linspace(-3.0, 9.0, mechs),
        hp=jnp.full(mechs, 200.0).at[1].set(0.25).at[2].set(-3.0),
        leg_hp=jnp.full(mechs, 50.0).at[3].set(0.0),
        heat=jnp.full(mechs, 65.0).at[1].set(131.0).at[3].set(1e4),
        fallen=none.at[0].set(5),
        suppressed=none.at[1].set(2),
        painted=none.at[2].set(9),
        painter=none.at[2].set(1) - jnp.where(count == 2, 0, 1),
        ecm=count == 0,
        eccm=count == 3,
        alive=count != 2,
    )
    battle = SimpleNamespace(
        mechs=bodies,
        projectiles=SimpleNamespace(
            position=jnp.full((mechs, 4, 3), 12.34), kind=jnp.full((mechs, 4), -1).at[0, 1].set(MISSILE)
        ),
        smoke=SimpleNamespace(position=jnp.full((mechs, 3, 3), 7.0), left=none[:, None].repeat(3, 1) + 200),
        map_index=jnp.int32(1),
        tally=SimpleNamespace(
            shots=jnp.zeros((mechs, len(WEAPONS)), jnp.int32).at[0, MISSILE].set(1).at[0, LASER].set(2),
            hit=count == 1,
            kills=none.at[0].set(1),
            dealt=jnp.full(mechs, 12.6),
        ),
    )
    state = SimpleNamespace(
        battle=battle, decision=jnp.int32(3), ending=jnp.int32(-1), score=jnp.array([1.25, 0.0])
    )
    params = SimpleNamespace(
        classes=jnp.full(mechs, HEAVY), pack=count // 2, zone_seconds=jnp.float32(jnp.inf)
    )
    return state, params


def test_a_snapshot_stores_all_fields():
    state, params = made_up_state()
    frame = jax.tree.map(np.asarray, snapshot.take_battle_snapshot(state, params))
    np.testing.assert_allclose(
        frame.position * LENGTH_UNIT, state.battle.mechs.position, atol=0.5 * LENGTH_UNIT + 1e-5
    )
    turn = np.exp(1j * (frame.yaw * YAW_UNIT - np.asarray(state.battle.mechs.yaw)))
    np.testing.assert_allclose(np.angle(turn), 0.0, atol=0.5 * YAW_UNIT + 1e-5)
    assert frame.hp.tolist() == [100, 1, 0, 100]
    assert frame.heat.tolist() == [50, 101, 50, 255]
    expected = {
        "alive": [0, 1, 3],
        "fallen": [0],
        "shutdown": [1, 3],
        "legged": [3],
        "painted": [2],
        "suppressed": [1],
        "ecm": [0],
        "eccm": [3],
        "hit": [1],
    }
    assert {
        name: np.flatnonzero(snapshot.has_status(frame, name)).tolist() for name in STATUS_FLAGS
    } == expected
    assert frame.shots.tolist() == [1 << LASER | 1 << MISSILE, 0, 0, 0]
    assert frame.projectile_kind[0].tolist() == [-1, MISSILE, -1, -1]
    assert frame.painter.tolist() == [-1, -1, 1, -1]
    assert frame.dealt.tolist() == [13] * 4
    assert frame.smoke_left.min() == 200


def test_a_snapshot_holds_places_on_the_largest_map_and_indices_of_the_largest_bank():
    state, params = made_up_state()
    state.battle.mechs.position = jnp.full((MECHS, 3), MAX_SIDE - 0.6)
    state.battle.map_index = jnp.int32(MOST_MAPS - 1)
    frame = jax.tree.map(np.asarray, snapshot.take_battle_snapshot(state, params))
    np.testing.assert_allclose(frame.position * LENGTH_UNIT, MAX_SIDE - 0.6, atol=0.5 * LENGTH_UNIT)
    assert frame.map_index == MOST_MAPS - 1


def test_snapshots_are_small_and_pure():
    frame = jax.jit(lambda: snapshot.take_battle_snapshot(*made_up_state(20)))()
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(frame)) < 1500


def blank_frames(steps=STEPS, mechs=MECHS) -> BattleFrame:
    """Frames `[T, ...]` of living mechs that stand apart and do nothing."""

    def zeros(dtype, *shape):
        return np.zeros((steps, *shape), dtype)

    corners = np.array([[5, 6, 2], [10, 6, 0.9], [30, 22, 2], [34, 10, 0.9]]) / LENGTH_UNIT
    return BattleFrame(
        position=np.tile(corners.astype(np.int16), (steps, 1, 1)),
        yaw=zeros(np.uint8, mechs),
        hp=zeros(np.uint8, mechs) + np.uint8(100),
        heat=zeros(np.uint8, mechs),
        status=zeros(np.uint16, mechs) + np.uint16(ALIVE),
        classes=zeros(np.uint8, mechs) + np.array([HEAVY, SCOUT, HEAVY, SCOUT], np.uint8),
        pack=zeros(np.uint8, mechs),
        shots=zeros(np.uint8, mechs),
        painter=zeros(np.int8, mechs) - np.int8(1),
        kills=zeros(np.uint8, mechs),
        dealt=zeros(np.uint16, mechs),
        projectile=zeros(np.int16, mechs, 4, 3),
        projectile_kind=zeros(np.int8, mechs, 4) - np.int8(1),
        smoke=zeros(np.int16, mechs, 3, 3),
        smoke_left=zeros(np.uint8, mechs, 3),
        score=zeros(np.float32, 2),
        zone_seconds=zeros(np.float32) + np.float32(60),
        map_index=zeros(np.int32),
        decision=np.arange(steps, dtype=np.int16),
        ending=zeros(np.int8) - np.int8(1),
    )


def eventful_frames() -> BattleFrame:
    """Red 1 dies at frame 12 by blue 0; red, then blue holds the zone; a missile flies; there is smoke."""
    frames = blank_frames()
    frames.status[DEATH:, 3] = 0
    frames.kills[DEATH, 0] = 1
    frames.ending[-1] = ZONE
    frames.score[5:, 1] = 0.25
    frames.score[10:, 0] = 0.25 * np.arange(STEPS - 10)
    frames.projectile_kind[4:8, 2, 0] = MISSILE
    frames.projectile[4:8, 2, 0] = np.array([[28 - 3 * i, 20, 4] for i in range(4)]) / LENGTH_UNIT
    frames.smoke_left[15:, 1, 2] = 100
    frames.smoke[15:, 1, 2] = np.array([20, 25, 1]) / LENGTH_UNIT
    return frames


def episode_of(frames: BattleFrame) -> RecordedBattle:
    return RecordedBattle(np.zeros((1, 1, 1), np.uint8), np.array([0, 0, 1]), frames, BLUE, "blue win", 0.25)


@pytest.fixture(scope="module")
def voxels():
    grid = np.zeros((LAYERS, ROWS, COLUMNS), np.uint8)
    grid[0] = DIRT
    grid[:5, 2:4, 18:30] = SOLID
    grid[0, 26:29, 2:8] = LAVA
    grid[:2, 15, 15] = GLASS
    return grid


@pytest.fixture(scope="module")
def viewer(voxels):
    bank = SimpleNamespace(voxels=SimpleNamespace(material=voxels[None]), zone=np.array([[20.0, 15.0, 5.0]]))
    return BattleViewer(bank, (BLUE, MECHS - BLUE), OUTCOMES)


@pytest.fixture(scope="module")
def recorded():
    """Two episodes as an evaluation records them; the second one is shorter and cut by the limit."""
    frames = jax.tree.map(lambda x: np.stack([x] * EPISODES, axis=1), eventful_frames())
    return SimpleNamespace(
        frames=frames, length=np.array([STEPS - 1, 10]), results={"outcome": np.array([0, -1])}
    )


def test_quantities_derived_from_a_recording():
    episode = episode_of(eventful_frames())
    assert np.argwhere(episode.deaths).tolist() == [[DEATH, 3]]
    assert episode.short_names == ["B0", "B1", "R0", "R1"]
    assert episode.holders[[4, 5, 6, 10, 11, STEPS - 1]].tolist() == [-1, 1, -1, -1, 0, 0]
    assert episode.events == [
        (5, 1, "red holds the zone"),
        (11, 0, "blue holds the zone"),
        (DEATH, 0, "red 1 scout destroyed by blue 0 heavy"),
        (STEPS - 1, -1, "blue win"),
    ]


def test_of_mechs_that_die_together_each_has_one_of_the_killers():
    frames = blank_frames()
    frames.status[DEATH:, 2:] = 0
    frames.kills[DEATH, :2] = 1
    killers = "blue 0 heavy or blue 1 scout"
    assert [text for *_, text in episode_of(frames).events[:-1]] == [
        f"red 0 heavy destroyed by {killers}",
        f"red 1 scout destroyed by {killers}",
    ]


def test_beams_go_to_the_nearest_enemy_that_was_hit_within_reach():
    frames = blank_frames(steps=1)
    frames.position[0] = np.array([[10, 10, 2], [11, 12, 1], [15, 10, 2], [13, 10, 1]]) / LENGTH_UNIT
    frames.shots[0, 0] = 1 << LASER | 1 << AUTOCANNON
    assert episode_of(frames).beams == []
    frames.status[0, 1:3] |= HIT
    assert episode_of(frames).beams == [(0, LASER, 0, 2)]
    frames.status[0, 3] |= HIT
    assert episode_of(frames).beams == [(0, LASER, 0, 3)]
    frames.yaw[0, 0] = 128
    assert episode_of(frames).beams == []
    frames.shots[0] = [0, 1 << PAINTER, 0, 0]
    frames.status[0, 2] |= 1 << STATUS_FLAGS.index("painted")
    frames.painter[0, 2] = 1
    assert episode_of(frames).beams == [(0, PAINTER, 1, 2)]


def test_terrain_from_above_shows_the_highest_material(voxels):
    image = palette.terrain_image(voxels).astype(int)
    assert image.shape == (ROWS, COLUMNS, 3)
    assert palette.column_heights(voxels)[[3, 27, 10], [20, 3, 10]].tolist() == [5, 1, 1]
    red, green, blue = image[27, 3]
    assert red > 2 * green > 2 * blue
    assert np.ptp(image[3, 20]) < 30 < np.ptp(image[10, 10])
    # Light comes from the upper left, where y is higher and x lower.
    assert image[1, 25].sum() < image[10, 10].sum() == image[4, 17].sum()


def test_picture_and_animation_are_drawn(viewer, recorded, tmp_path):
    viewer.picture(tmp_path / "picture.png", recorded)
    with Image.open(tmp_path / "picture.png") as image:
        assert image.width > image.height > 400
    viewer.animation(tmp_path / "episode.gif", recorded, 0)
    assert (tmp_path / "episode.gif").stat().st_size < 1_000_000
    with Image.open(tmp_path / "episode.gif") as image:
        assert image.n_frames == STEPS
    viewer.animation(tmp_path / "short.gif", recorded, 1)
    with Image.open(tmp_path / "short.gif") as image:
        assert image.n_frames == 11


def test_the_picture_shows_mechs_at_their_positions(viewer, recorded, tmp_path):
    viewer.animation(tmp_path / "episode.gif", recorded, 0)

    def pixels(moment):
        with Image.open(tmp_path / "episode.gif") as image:
            image.seek(moment)
            return np.asarray(image.convert("RGB")).astype(int)

    def colour(image, x, y):
        return image[int(HEADER + (ROWS - y) * scale), int(x * scale)]

    scale = (len(pixels(0)) - HEADER) // ROWS
    blue, red, wreck = (np.array(ImageColor.getrgb(c)) for c in (*palette.TEAM_COLOURS, palette.WRECK))
    first, last = pixels(0), pixels(STEPS - 1)
    np.testing.assert_array_equal(colour(first, 4, 5), blue)
    # Blue's mechs are filled, red's are outlined.
    for x, y in ((30, 21), (33.7, 9.8)):
        row, column = int(HEADER + (ROWS - y) * scale), int(x * scale)
        around = first[row - 2 * scale : row + 2 * scale, column - 2 * scale : column + 2 * scale]
        shares = [(np.abs(around - tone).sum(-1) == 0).mean() for tone in (red, (244, 242, 236))]
        assert colour(first, x, y).min() > 230 and min(shares) > 0.02
    np.testing.assert_array_equal(colour(last, 33.7, 9.8), wreck)
    # All look along +x: the tick leaves the box on that side only.
    assert colour(first, 7.2, 6).min() > 230
    assert colour(first, 2.8, 6).max() < 230
    # The zone's edge turns from nobody's to blue's.
    np.testing.assert_array_equal(colour(first, 24.9, 15), ImageColor.getrgb(palette.NEUTRAL))
    np.testing.assert_array_equal(colour(last, 24.9, 15), blue)


@pytest.fixture(scope="module")
def page(viewer, recorded, tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "replay.html"
    viewer.replay(path, recorded, 0)
    return path.read_text()


def test_the_page_loads_no_other_resources(page):
    assert len(page) < 200_000
    check_self_contained(page)
    assert "<title>Echelon: blue win by zone</title>" in page


def test_the_page_contains_the_recording(page, voxels, recorded):
    data = embedded(page)
    for field in dataclasses.fields(BattleFrame):
        original = getattr(recorded.frames, field.name)[:, 0]
        decoded = decode_array(data["frames"][field.name])
        assert decoded.dtype == original.dtype
        np.testing.assert_array_equal(decoded, original)
    np.testing.assert_array_equal(decode_array(data["voxels"]), voxels)
    assert data["size"] == [COLUMNS, ROWS, LAYERS]
    assert data["names"] == ["blue 0 heavy", "blue 1 scout", "red 0 heavy", "red 1 scout"]
    assert [text for *_, text in data["events"]][-1] == "blue win by zone"
    assert data["scoreGoal"] == 60


def test_names_cannot_close_the_data_element(viewer, recorded, tmp_path):
    odd = BattleViewer(viewer.bank, viewer.teams, ("</script><b>", "red_win"))
    odd.replay(tmp_path / "odd.html", recorded, 0)
    text = (tmp_path / "odd.html").read_text()
    assert "</script><b>" not in text
    assert embedded(text)["events"][-1][-1] == "</script><b> by zone"


@needs_node
def test_javascript_reads_the_recording(page, recorded):
    frames = jax.tree.map(lambda x: x[:, 0], recorded.frames)
    got = javascript(
        page,
        "{ position: recording.mech(2, 7).position, died: recording.died.map(String),"
        " dead: recording.mech(3, 20.5).alive, dying: recording.mech(3, 11.5).alive,"
        " flying: [3.5, 4.5, 7.2, 7.9, 9].map((t) => recording.projectiles(t).map((p) => p.end)),"
        " smoke: recording.smoke(15.5), deeds: recording.deeds(0, 12), living: recording.living(1, 12),"
        " fired: recording.beamsAt(3.2).length, half: mixAngle(6.2, 0.1, 0.5) }",
    )
    np.testing.assert_allclose(got["position"], frames.position[7, 2] * LENGTH_UNIT)
    assert got["died"] == ["Infinity"] * 3 + [str(DEATH)]
    assert (got["dead"], got["dying"]) == (False, True)
    # From the shooter at (30, 22, 2) to the first place, onwards, and gone half a decision after the last.
    assert got["flying"] == [[[29, 21, 3]], [[26.5, 20, 4]], [[19, 20, 4]], [], []]
    assert got["smoke"] == [{"center": [20, 25, 1], "left": 0.5}]
    assert got["deeds"] == {"kills": 1, "dealt": 0}
    assert (got["living"], got["fired"]) == (1, 0)
    assert got["half"] == pytest.approx((6.2 + 0.1 + 2 * np.pi) / 2)


@needs_node
def test_the_camera_shows_what_it_looks_at(page):
    got = javascript(
        page,
        """(() => {
          const camera = new Camera([40, 30, 8]);
          const screen = (point) => project(camera.matrix(2), point, 800, 400);
          const before = screen(camera.target);
          const beside = (way) => screen(add(camera.target, way));
          const [right, up, north] = [[1, 0, 0], [0, 0, 1], [0, 1, 0]].map(beside);
          const behind = screen(add(camera.eye(), subtract(camera.eye(), camera.target)));
          const held = camera.target;
          camera.pan(30, -20, 400);
          return { before, right, up, north, behind, panned: screen(held), distance: camera.distance };
        })()""",
    )
    assert (got["before"]["x"], got["before"]["y"]) == pytest.approx((400, 200), abs=1e-3)
    assert got["before"]["depth"] == pytest.approx(got["distance"], rel=1e-5)
    # The camera stands in the south: x goes right, z and y go up the screen. A pinhole has 200 / tan(0.4).
    assert got["right"]["x"] - 400 == pytest.approx(200 / np.tan(0.4) / got["distance"], rel=1e-4)
    assert got["up"]["y"] < 200 and got["north"]["y"] < 200
    assert got["up"]["x"] == pytest.approx(400, abs=1e-3)
    assert got["behind"] is None
    # What is dragged stays under the pointer, but for perspective.
    assert got["panned"]["x"] == pytest.approx(430, abs=2)
    assert got["panned"]["y"] == pytest.approx(180, abs=2)


@needs_node
def test_only_faces_that_can_be_seen_are_drawn(page):
    got = javascript(
        page,
        """(() => {
          const faces = (cells, cut) => {
            const voxels = new Uint8Array(27);
            for (const [x, y, z, material] of cells) voxels[9 * z + 3 * y + x] = material;
            return terrainMesh({ ...recording, size: [3, 3, 3], voxels }, cut).indices.length / 6;
          };
          const [solid, water, dirt, glass] = [1, 3, 6, 7];
          return {
            alone: faces([[1, 1, 1, solid]], 3),
            low: faces([[1, 1, 0, solid]], 3),
            pair: faces([[1, 1, 1, solid], [2, 1, 1, solid]], 3),
            window: faces([[1, 1, 1, solid], [2, 1, 1, glass]], 3),
            dirt: faces([[1, 1, 0, dirt]], 3),
            pool: faces([[1, 1, 0, dirt], [1, 1, 1, water]], 3),
            cut: faces([[1, 1, 0, solid], [1, 1, 1, solid]], 1),
          };
        })()""",
    )
    assert got == {"alone": 6, "low": 5, "pair": 10, "window": 11, "dirt": 1, "pool": 1, "cut": 5}


@needs_node
def test_boxes_and_bars_are_placed(page):
    got = javascript(
        page,
        """(() => {
          const row = (m, p, r) => m[r] * p[0] + m[4 + r] * p[1] + m[8 + r] * p[2] + m[12 + r];
          const corner = (m, p) => [0, 1, 2].map((r) => row(m, p, r));
          const bar = along([1, 2, 3], [1, 2, 7], 0.5);
          return {
            nose: corner(place([10, 20, 3], [4, 2, 1], Math.PI / 2), [0.5, 0, 0]),
            start: corner(bar, [-0.5, 0, 0]), end: corner(bar, [0.5, 0, 0]), side: corner(bar, [0, 0.5, 0.5]),
          };
        })()""",
    )
    np.testing.assert_allclose(got["nose"], [10, 22, 3], atol=1e-6)
    np.testing.assert_allclose(got["start"], [1, 2, 3], atol=1e-6)
    np.testing.assert_allclose(got["end"], [1, 2, 7], atol=1e-6)
    assert np.linalg.norm(np.array(got["side"]) - [1, 2, 5]) == pytest.approx(0.25 * np.sqrt(2), rel=1e-5)


@pytest.mark.parametrize("methods", [("picture", "animation"), ("picture", "animation", "replay")])
def test_evaluate_writes_all_outputs_of_a_viewer(methods, tmp_path):
    written = []
    draw = {name: lambda self, path, *_, name=name: written.append((name, path.name)) for name in methods}
    viewer = type("Drawing", (base.Viewer,), draw | {"snapshot": None})()
    console = SimpleNamespace(print=lambda *_: None)
    evaluate.show_episodes(viewer, jnp.zeros(1), tmp_path, 3, console)
    files = {"picture": "trajectories.png", "animation": "episode_3.gif", "replay": "replay.html"}
    assert written == [(name, files[name]) for name in methods]
