"""Brushes of natural biomes: forests, canals, ridges and pits.

Sizes follow the original generator; open details are chosen to match its statistics of blocked and
opaque cells. Reference: docs/reference/echelon.md 11.2.
"""

import numpy as np

from jaxmarl_echelon.envs.echelon.terrain.patch import Patch
from physics.voxels import AIR, FOLIAGE, GLASS, LAVA, SOLID, WATER


def _canopy(patch: Patch, x: int, y: int, w: int, h: int, top: int, bottom: int) -> None:
    """Fills the free cells of a box with foliage."""
    low_x, low_y = max(x, 0), max(y, 0)
    window = patch.voxels[bottom:top, low_y : max(y + h, 0), low_x : max(x + w, 0)]
    window[window == AIR] = FOLIAGE


def _rocks(patch: Patch, count: int, smallest: int, largest: int, low: int, high: int) -> None:
    for _ in range(count):
        w, h = patch.between(smallest, largest), patch.between(smallest, largest)
        patch.box(*patch.place(w, h), w, h, SOLID, patch.between(low, high))


def forest_park(patch: Patch) -> None:
    """Paints trees with crowns above head height, and rocks."""
    for _ in range(int(0.05 * patch.area)):
        side, top = patch.between(1, 2), patch.between(3, 7)
        x, y = patch.place(side, side)
        patch.box(x, y, side, side, SOLID, top)
        if top > 3:
            _canopy(patch, x - 1, y - 1, side + 2, side + 2, 5, 3)
    _rocks(patch, int(0.01 * patch.area), 3, 5, 2, 3)


def barrens(patch: Patch) -> None:
    """Paints low rocks only."""
    _rocks(patch, int(0.02 * patch.area), 2, 4, 1, 2)


def dense_jungle(patch: Patch) -> None:
    """Paints thin trunks under a closed canopy, which blocks sight but not movement."""
    for _ in range(int(0.15 * patch.area)):
        x, y = patch.place(1, 1)
        patch.box(x, y, 1, 1, SOLID, patch.between(4, 7))
        _canopy(patch, x - 2, y - 2, 5, 5, 6, 3)


def sunken_canal(patch: Patch) -> None:
    """Paints a channel of water through the middle, warehouses along it and bridges over it."""
    breadth = patch.between(8, 13)
    start = (patch.width - breadth) // 2
    patch.box(start, 0, breadth, patch.depth, WATER, 1)
    for _ in range(patch.between(10, 19)):
        x, y = patch.place(4, 4)
        if x + 4 <= start or x >= start + breadth:
            patch.box(x, y, 4, 4, SOLID, patch.between(4, 9))
    for _ in range(patch.between(2, 3)):
        _, y = patch.place(4, 4)
        level = patch.between(4, 7)
        patch.box(start - 2, y, breadth + 4, 4, SOLID, level + 1, level)


def geo_front(patch: Patch) -> None:
    """Paints rock with two wide crossing tunnels, winding tunnels, and pools of lava."""
    top = patch.between(min(10, patch.height - 3), patch.height - 3)
    patch.box(0, 0, patch.width, patch.depth, SOLID, top)
    patch.box(0, patch.depth // 2 - 3, patch.width, 7, AIR, 6)
    patch.box(patch.width // 2 - 3, 0, 7, patch.depth, AIR, 6)
    for _ in range(patch.between(5, 9)):
        patch.worm(2, 40, 2, max(2, top - 3.5), 1)
    for _ in range(patch.between(3, 5)):
        patch.box(*patch.place(4, 4), 4, 4, LAVA, 1)


def glass_desert(patch: Patch) -> None:
    """Paints pillars and sills of glass, which block movement and shots but not sight."""
    for _ in range(patch.between(10, 19)):
        w, h = patch.between(2, 5), patch.between(2, 5)
        patch.box(*patch.place(w, h), w, h, GLASS, patch.between(5, 11))
    for _ in range(patch.between(5, 9)):
        w, h = patch.between(3, 7), patch.between(3, 7)
        patch.box(*patch.place(w, h), w, h, GLASS, 1)


def mining_pit(patch: Patch) -> None:
    """Paints a terraced pit with a ramp from its floor to the rim."""
    x, y = patch.width // 2, patch.depth // 2
    ys, xs = np.ogrid[: patch.depth, : patch.width]
    inset = np.minimum(np.minimum(xs, patch.width - 1 - xs), np.minimum(ys, patch.depth - 1 - ys))
    rim = min(10, patch.height - 3)
    tops = np.maximum(1, rim - 2 * (inset // 4))
    tops[np.maximum(abs(xs - x), abs(ys - y)) <= 4] = 0
    on_ramp = (abs(2 * (ys - y) + 1) <= 4) & (xs >= x - 4)
    tops = np.where(on_ramp, np.clip((xs - x + 7) // 3, 1, rim), tops)
    patch.voxels[np.arange(patch.height)[:, None, None] < tops] = SOLID


def volcanic_ridge(patch: Patch) -> None:
    """Paints a ridge across the patch, and streams of lava that undercut it."""
    upright = patch.chance(0.5)
    voxels = patch.voxels if upright else patch.voxels.swapaxes(1, 2)
    turned = Patch(voxels, patch.rng)
    x = (turned.width - 8) // 2
    turned.box(x, 0, 8, turned.depth, SOLID, 4)
    for _ in range(patch.between(2, 3)):
        _, y = turned.place(12, 3)
        turned.box(x - 2, y, 12, 3, LAVA, 1)
