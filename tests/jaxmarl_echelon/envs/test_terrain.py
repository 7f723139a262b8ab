"""Generated maps: what all of them hold, their statistics, and the banks that keep them."""

import jax
import numpy as np
import pytest
from scipy.sparse import csgraph

from jaxmarl_echelon.envs.echelon.terrain import bank as banks
from jaxmarl_echelon.envs.echelon.terrain import layout as layouts
from jaxmarl_echelon.envs.echelon.terrain import zones
from jaxmarl_echelon.envs.echelon.terrain.bank import cache_folder, stack_maps, terrain_bank
from jaxmarl_echelon.envs.echelon.terrain.biomes import BIOMES, paint_biome
from jaxmarl_echelon.envs.echelon.terrain.layout import TRANSFORMS, generate_map, make_flat_map, make_map
from jaxmarl_echelon.envs.echelon.terrain.navigation import build_nav_graph
from physics.voxels import AIR, COLLIDES, DIRT, FOLIAGE, GLASS, LAVA, OPAQUE, REINFORCED, SOLID, SOLID_DEBRIS

SIZES = [(40, 40, 20), (60, 60, 20), (100, 100, 20), (30, 70, 12), (20, 20, 10), (21, 33, 6), (20, 60, 32)]
SMALL = (20, 20, 10)

# On 50 x 50 x 20 patches, means of 20 seeds: share of columns with a collider below z = 4, share of opaque
# cells below z = 4, nodes per column; measured with the original's generator.
STATISTICS = {
    "urban_residential": (0.378, 0.282, 0.442),
    "industrial_refinery": (0.265, 0.254, 0.519),
    "civic_government": (0.276, 0.222, 0.675),
    "forest_park": (0.250, 0.269, 0.365),
    "barrens": (0.169, 0.066, 0.565),
    "arcology_spire": (0.126, 0.102, 0.944),
    "sunken_canal": (0.066, 0.066, 0.825),
    "geo_front": (0.679, 0.631, 1.225),
    "glass_desert": (0.137, 0.000, 0.686),
    "command_outpost": (0.101, 0.052, 0.754),
    "dense_jungle": (0.139, 0.346, 0.238),
    "mining_pit": (0.982, 0.927, 0.466),
    "volcanic_ridge": (0.160, 0.154, 0.845),
    "hydroponic_lab": (0.166, 0.016, 0.828),
    "server_farm": (0.092, 0.092, 0.575),
    "orbital_relay": (0.082, 0.082, 0.783),
}


def same(first, second) -> bool:
    return jax.tree.all(
        jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), first, second)
    )


def squares(layout, team_size=10):
    side = zones.spawn_side(layout.size, team_size)
    for corner in layout.corners:
        x, y = zones.spawn_square(corner, layout.size, side)
        yield slice(y, y + side), slice(x, x + side)


@pytest.mark.parametrize("biome", BIOMES)
def test_patches_of_a_biome_have_the_statistics_of_the_original(biome):
    rows = []
    for seed in range(20):
        voxels = np.zeros((20, 50, 50), np.uint8)
        paint_biome(biome, voxels, np.random.default_rng(seed))
        low = voxels[:4]
        rows.append(
            (COLLIDES[low].any(0).mean(), OPAQUE[low].mean(), len(build_nav_graph(voxels).feet) / 2500)
        )
    # Both sides are means of 20 draws; the floor is for what the brushes leave open.
    error = np.sqrt(2 / 20) * np.std(rows, axis=0)
    assert np.all(abs(np.mean(rows, 0) - STATISTICS[biome]) <= np.maximum(2.5 * error, [0.005, 0.005, 0.012]))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_map_has_ground_free_corners_and_a_zone_within_reach(size):
    for seed in range(6):
        layout = generate_map(seed, size)
        assert layout.size == size and layout.voxels.shape == size[::-1] and layout.voxels.dtype == np.uint8
        assert not (layout.voxels[0] == AIR).any()
        assert layout.corners[0] + layout.corners[1] == 3
        assert len(set(layout.biomes)) == 4 and layout.transform in TRANSFORMS
        for rows, columns in squares(layout):
            assert (layout.voxels[1:, rows, columns] == AIR).all()
            assert (layout.voxels[0, rows, columns] == DIRT).all()
        x, y, radius = layout.zone
        assert 3.75 <= radius <= 11.25
        assert radius + 2 <= x <= size[0] - radius - 2 and radius + 2 <= y <= size[1] - radius - 2
        ys, xs = np.mgrid[: size[1], : size[0]] + 0.5
        inside = np.hypot(xs - x, ys - y) < radius
        assert not COLLIDES[layout.voxels[:, inside]].any()
        graph = build_nav_graph(layout.voxels)
        goal = graph.nearest((x, y, 0.0))
        for corner in layout.corners:
            start = graph.nearest(zones.spawn_anchor(corner, size, zones.spawn_side(size, 10)) + (0.0,))
            reached = graph.reachable(start)
            assert reached[goal]
            columns = np.zeros_like(layout.reachable)
            columns[tuple(graph.feet[reached][:, 1::-1].T)] = True
            assert np.array_equal(columns & layout.reachable, columns)


@pytest.mark.parametrize("size", [(60, 60, 20), (100, 100, 20), (100, 80, 20)])
def test_zone_lies_outside_the_corners_of_both_teams(size):
    """On 60x60 there is room for that in the quadrants of neither team only; elsewhere in all four."""
    quadrants = set()
    for seed in range(12):
        layout = generate_map(seed, size)
        x, y, radius = layout.zone
        quadrant = 2 * (y > size[1] / 2) + (x > size[0] / 2)
        roomy = size[0] > 60 or quadrant not in layout.corners
        for rows, columns in squares(layout):
            gap = np.hypot(x - np.clip(x, columns.start, columns.stop), y - np.clip(y, rows.start, rows.stop))
            assert gap >= radius or not roomy
        quadrants.add((x > size[0] / 2, y > size[1] / 2))
    assert len(quadrants) >= 2


def test_zones_of_small_maps_lie_in_any_quadrant_alike():
    """If both corners leave no room, a team may start close to the zone: half of the zones are at home."""
    size, at_home, inside, quadrants = (40, 40, 20), 0, 0, set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        corners = [zones.spawn_square(corner, size, 25) for corner in (0, 3)]
        x, y, radius = zones.draw_zone(rng, np.zeros(size[::-1], np.uint8), corners, 25)
        assert min(x, y, 40 - x, 40 - y) >= radius + 2 - 1e-6
        quadrants.add((x > 20, y > 20))
        at_home += (x < 20) == (y < 20)
        gaps = [np.hypot(*(np.array([x, y]) - np.clip([x, y], c, np.array(c) + 25))) for c in corners]
        inside += min(gaps) <= radius
    assert abs(at_home - 20) <= 9  # 3 standard deviations
    assert at_home <= inside < 40 and len(quadrants) == 4


def test_same_seed_gives_the_same_bits_and_another_seed_another_map():
    first, again, other = (generate_map(seed, (40, 40, 20)) for seed in (5, 5, 6))
    assert first.voxels.tobytes() == again.voxels.tobytes() and first.zone == again.zone
    assert (first.corners, first.biomes, first.transform) == (again.corners, again.biomes, again.transform)
    assert first.voxels.tobytes() != other.voxels.tobytes()


def test_all_corners_transforms_and_biomes_are_drawn():
    drawn = [generate_map(seed, SMALL) for seed in range(60)]
    assert {layout.corners[0] for layout in drawn} == set(range(4))
    assert {layout.transform for layout in drawn} == set(TRANSFORMS)
    assert {biome for layout in drawn for biome in layout.biomes} == set(BIOMES)


def test_biomes_are_listed_by_corner_after_mirroring():
    """Lava only comes with volcanic_ridge here, so it must lie in the quadrant of that name."""
    names = ["volcanic_ridge", "barrens", "dense_jungle", "server_farm"]
    found = 0
    for seed in range(12):
        layout = generate_map(seed, (60, 60, 20), biomes=names)
        ys, xs = np.nonzero((layout.voxels == LAVA).any(0))
        quadrant = layout.biomes.index("volcanic_ridge")
        # The border between the quadrants may lie 6 voxels off the middle.
        x, y = xs - 30, ys - 30
        assert np.all(x >= -6 if quadrant % 2 else x < 6) and np.all(y >= -6 if quadrant // 2 else y < 6)
        found += len(xs) > 0
    assert found >= 6


def test_drawing_from_one_biome_paints_it_everywhere():
    layout = generate_map(0, (60, 60, 20), biomes=["dense_jungle"])
    assert layout.biomes == ("dense_jungle",) * 4
    assert set(np.unique(layout.voxels)) == {AIR, SOLID, DIRT, FOLIAGE}


def test_zone_of_a_tenth_voxel_clears_one_column_of_what_collides():
    voxels = np.zeros((10, 10, 10), np.uint8)
    voxels[:3, 5, 5] = GLASS, FOLIAGE, REINFORCED
    voxels[1, 5, 6] = SOLID
    assert zones.clear_zone(voxels, (5.5, 5.5, 0.1)) == 2
    assert voxels[:3, 5, 5].tolist() == [AIR, FOLIAGE, AIR]
    assert voxels[1, 5, 6] == SOLID


def test_walled_in_teams_get_a_lane_to_the_zone():
    voxels = np.full((12, 60, 60), SOLID, np.uint8)
    voxels[:, :15, :15] = voxels[:, 45:, 45:] = voxels[:, 10:20, 40:50] = AIR
    untouched = voxels[4:].copy()
    reachable, repairs = layouts._connect(voxels, [(7, 7), (53, 53)], (45.0, 15.0, 4.0))
    assert repairs == 2
    assert reachable[7, 7] and reachable[53, 53] and reachable[15, 45]
    assert np.array_equal(voxels[4:], untouched)


@pytest.mark.parametrize(
    ("size", "team_size", "part"),
    [
        ((10, 40, 20), 10, "at least 20 along x"),
        ((20, 18, 20), 10, "no room"),
        ((20, 20, 20), 20, "no room"),
        ((40, 40, 33), 10, "between 6 and 32 voxels along z"),
        ((40, 40, 5), 10, "between 6 and 32 voxels along z"),
        ((40.5, 40, 20), 10, "whole numbers"),
        (("x", 40, 20), 10, "whole numbers"),
        ((40, 40), 10, "three whole numbers"),
    ],
)
def test_impossible_sizes_are_refused_in_one_line(size, team_size, part):
    with pytest.raises(ValueError, match="^env.size=") as refusal:
        generate_map(0, size, team_size=team_size)
    assert part in str(refusal.value) and "\n" not in str(refusal.value)


def test_unknown_biomes_and_materials_are_named():
    with pytest.raises(ValueError, match="^env.biomes=swamp: unknown; allowed: urban_residential, "):
        generate_map(0, SMALL, biomes=["barrens", "swamp"])
    with pytest.raises(ValueError, match=r"^env.biomes=\[\]: "):
        terrain_bank([0], SMALL, biomes=[], cache=None)
    with pytest.raises(ValueError, match="^voxels: unknown material 10; allowed: 0 to 9 "):
        make_map(np.full((10, 20, 20), 10), (10, 10, 4))


def test_maps_made_by_hand_are_not_changed():
    voxels = np.zeros((10, 40, 60), np.uint8)
    voxels[:8, :, 30] = SOLID
    layout = make_map(voxels, (50, 20, 5), corners=(0, 1))
    assert np.array_equal(layout.voxels, voxels) and layout.voxels is not voxels
    assert (layout.zone, layout.corners, layout.seed) == ((50.0, 20.0, 5.0), (0, 1), -1)
    assert layout.reachable[1:-1, 1:29].all() and layout.reachable[1:-1, 32:59].all()
    assert not layout.reachable[:, 29:32].any()
    assert not make_map(voxels, (50, 20, 5), corners=(0, 2)).reachable[:, 29:].any()
    for zone, corners in (((58, 20, 5), (0, 3)), ((30, 20, 0), (0, 3)), ((30, 20, 5), (3, 3))):
        with pytest.raises(ValueError, match="^(zone|corners)="):
            make_map(voxels, zone, corners)


def test_flat_map_is_dirt_with_the_zone_in_the_middle():
    layout = make_flat_map((40, 30, 20))
    assert layout.zone == (20.0, 15.0, 7.5)
    assert (layout.voxels[0] == DIRT).all() and not layout.voxels[1:].any()
    assert make_flat_map(SMALL, zone=(8, 9, 2)).zone == (8.0, 9.0, 2.0)


def test_bank_holds_what_sensors_see_of_each_map():
    first, second = make_flat_map((40, 40, 20)), make_flat_map((40, 40, 20), zone=(9, 31, 5), corners=(1, 2))
    first.voxels[3, 0, 39] = SOLID
    first.voxels[4, 39, 1] = SOLID_DEBRIS
    first.voxels[1, 20, 20] = GLASS
    bank = stack_maps([first, second])
    assert bank.size == (40, 40, 20) and bank.seeds == (-1, -1)
    assert np.array_equal(bank.voxels.material[0], first.voxels)
    assert np.argwhere(np.asarray(bank.occupancy)).tolist() == [[0, 0, 39]]
    assert np.argwhere(np.asarray(bank.telemetry)).tolist() == [[0, 0, 15], [0, 15, 0]]
    assert bank.telemetry.shape == (2, 16, 16) and bank.telemetry.dtype == np.float32
    assert bank.zone.tolist() == [[20, 20, 7.5], [9, 31, 5]] and bank.corners.tolist() == [[0, 3], [1, 2]]
    assert bank.reachable.shape == (2, 40, 40)


@pytest.mark.parametrize("side", [16, 20, 47])
def test_blocks_of_telemetry_cover_every_column_once(side):
    columns = np.zeros((side * side, side, side), bool)
    columns.reshape(side * side, -1)[np.arange(side * side), np.arange(side * side)] = True
    assert (banks._blocks(columns).sum((1, 2)) == 1).all()


@pytest.mark.thorough
def test_bank_is_the_same_from_one_process_or_two_and_from_the_file(tmp_path):
    seeds = (3, 1, 4, 1, 5)
    alone = terrain_bank(seeds, SMALL, cache=None, workers=1)
    assert same(alone, terrain_bank(seeds, SMALL, cache=tmp_path, workers=2))
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_mtime_ns
    loaded = terrain_bank(seeds, SMALL, cache=tmp_path)
    assert same(alone, loaded) and loaded.seeds == seeds
    assert kept.stat().st_mtime_ns == written
    assert np.array_equal(alone.voxels.material[1], generate_map(1, SMALL).voxels)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:200], lambda data: b"", lambda data: data[:300] + b"?" * 40 + data[340:]]
)
def test_damaged_cache_file_is_regenerated(tmp_path, damage):
    bank = terrain_bank([0, 1], SMALL, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert same(bank, terrain_bank([0, 1], SMALL, cache=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [kept.name] and len(kept.read_bytes()) == len(whole)


def test_different_banks_have_different_cache_files(tmp_path):
    for changes in ({}, {"seeds": [1]}, {"size": (20, 22, 10)}, {"biomes": ["barrens"]}, {"team_size": 5}):
        terrain_bank(**({"seeds": [0], "size": SMALL} | changes), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_unwritable_cache_folder_only_warns(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="terrain is not cached in"):
        bank = terrain_bank([0], SMALL, cache=tmp_path / "file" / "folder")
    assert bank.zone.shape == (1, 3)


def test_banks_are_kept_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "jaxmarl_echelon" / "terrain"
    terrain_bank([0], SMALL)
    assert len(list(cache_folder().iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/nowhere")
    assert str(cache_folder()) == "/nowhere/.cache/jaxmarl_echelon/terrain"


@pytest.mark.parametrize(
    "arguments", [{"seeds": []}, {"seeds": [2, -1]}, {"workers": 0}, {"size": (10, 10, 10)}]
)
def test_impossible_banks_are_refused_in_one_line(arguments):
    with pytest.raises(ValueError) as refusal:
        terrain_bank(**({"seeds": [0], "size": SMALL, "cache": None} | arguments))
    assert "=" in str(refusal.value) and "\n" not in str(refusal.value)


def full_map_statistics(side: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Means, and their standard errors, of nodes, colliding cells, edges per node, share of nodes beside the
    first one in its component; asserts what holds for each map."""
    rows = []
    for seed in range(seeds):
        layout = generate_map(seed, (side, side, 20))
        graph = build_nav_graph(layout.voxels)
        _, part = csgraph.connected_components(graph.edges, directed=False)
        assert (graph.node_lookup >= 0).sum(0).max() <= 3
        assert layout.repairs == 0
        nodes = len(graph.feet)
        rows.append(
            (nodes, COLLIDES[layout.voxels].mean(), graph.edges.nnz / nodes, (part == part[0]).mean())
        )
    return np.mean(rows, 0), np.std(rows, axis=0) / np.sqrt(seeds)


FULL_MAPS = {40: (1329, 0.022, 7.4, 0.90), 60: (2842, 0.049, 7.2, 0.76)}


@pytest.mark.parametrize("side", FULL_MAPS)
def test_full_maps_have_the_statistics_of_the_original(side):
    mean, error = full_map_statistics(side, 40)
    # Both are means of 40 draws; edges per node are only known as 7.2 to 7.4 for both sizes.
    tolerance = 2.5 * np.sqrt(2) * error + [0, 0, 0.05, 0]
    assert np.all(abs(mean - FULL_MAPS[side]) <= tolerance), (mean, tolerance)


def test_large_maps_have_the_statistics_of_the_original():
    mean, error = full_map_statistics(100, 40)
    assert np.all(abs(mean[:2] - [7861, 0.066]) <= 2.5 * np.sqrt(2) * error[:2]), mean
