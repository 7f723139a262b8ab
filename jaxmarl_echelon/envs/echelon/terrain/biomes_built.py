"""Brushes of built biomes: towns, industry, camps and laboratories.

Sizes follow the original generator; open details are chosen to match its statistics of blocked and
opaque cells. Reference: docs/reference/echelon.md 11.2.
"""

import numpy as np

from jaxmarl_echelon.envs.echelon.terrain.patch import Patch
from physics.voxels import AIR, FOLIAGE, GLASS, REINFORCED, SOLID


def urban_residential(patch: Patch) -> None:
    """Paints blocks of houses around courtyards with a glass floor."""
    for _ in patch.until_filled(0.368):
        w, h, top = patch.between(6, 10), patch.between(6, 10), patch.between(4, 8)
        x, y = (corner // 2 * 2 for corner in patch.place(w, h))
        patch.box(x, y, w, h, SOLID, top)
        patch.box(x + 2, y + 2, w - 4, h - 4, AIR, top)
        patch.box(x + 2, y + 2, w - 4, h - 4, GLASS, 1)


def industrial_refinery(patch: Patch) -> None:
    """Paints tanks and stacks, with pipes between them."""
    for _ in patch.until_filled(0.26):
        w, h = patch.between(3, 6), patch.between(3, 6)
        patch.box(*patch.place(w, h), w, h, SOLID, patch.between(4, 11))
        if patch.chance(0.3):
            w, h = patch.between(8, 15), patch.between(1, 2)
            w, h = (w, h) if patch.chance(0.5) else (h, w)
            patch.box(*patch.place(1, 1), w, h, SOLID, patch.between(2, 4))


def civic_government(patch: Patch) -> None:
    """Paints large halls inside a low wall with a wide gate on each side."""
    built = 0
    while built < 0.2 * patch.area:
        w, h = patch.between(8, 15), patch.between(8, 15)
        patch.box(*patch.place(w, h), w, h, SOLID, patch.between(6, 9))
        built += w * h
    yard = patch.voxels[0, 2:-2, 2:-2]
    ys, xs = np.ogrid[: yard.shape[0], : yard.shape[1]]
    from_end = [np.minimum(index, span - 1 - index) for index, span in ((ys, len(yard)), (xs, yard.shape[1]))]
    wall = (np.minimum(*from_end) < 3) & (
        np.maximum(from_end[0] / len(yard), from_end[1] / yard.shape[1]) < 0.21
    )
    yard[wall & (yard == AIR)] = SOLID


def arcology_spire(patch: Patch) -> None:
    """Paints a central tower, platforms with stairs around it, and tunnels."""
    w, h = patch.width // 3, patch.depth // 3
    patch.box(w, h, w, h, SOLID, patch.height - 2)
    levels = [level for level in (5, 10, 15) if level <= patch.height - 5] or [patch.height - 3]
    stacked = np.zeros((patch.depth, patch.width), int)
    for _ in range(patch.between(4, 7)):
        side, level = patch.between(8, 12), int(patch.rng.choice(levels))
        x, y = patch.place(side, side)
        below = stacked[y : y + side, x : x + side]
        if below.max() < 2:
            below += 1
            patch.box(x, y, side, side, SOLID, level + 1, level)
            _stairs(patch, x, y, side, level)
    for _ in range(patch.between(2, 3)):
        patch.worm(2, 60, 2, patch.height - 4, 2)


def _stairs(patch: Patch, x: int, y: int, side: int, level: int) -> None:
    """Paints steps along one edge of a platform down to the ground, within the patch."""
    beside = y - 3 if y >= 3 else y + side
    for step in range(level):
        at = x + step if 2 * x + side < patch.width else x + side - 1 - step
        patch.box(at, beside, 1, 3, SOLID, level - step, level - step - 1)


def command_outpost(patch: Patch) -> None:
    """Paints a bunker with a solid core and a doorway, inside a fence."""
    x, y = (patch.width - 12) // 2, (patch.depth - 12) // 2
    patch.frame(x - 8, y - 8, 28, 28, REINFORCED, 1)
    patch.box(x, y, 12, 12, REINFORCED, 6)
    patch.box(x + 2, y + 2, 8, 8, AIR, 5, 1)
    patch.box(x + 4, y + 4, 4, 4, SOLID, 5, 1)
    patch.box(x + 4, y, 4, 3, AIR, 4, 1)


def hydroponic_lab(patch: Patch) -> None:
    """Paints greenhouses: glass blocks with reinforced corners and rows of plants."""
    for _ in range(patch.between(2, 3)):
        w, h, top = patch.between(10, 15), patch.between(10, 15), patch.between(5, 7)
        x, y = patch.place(w, h)
        patch.box(x, y, w, h, GLASS, top)
        for row in range(1, h - 1, 2):
            patch.box(x + 2, y + row, w - 4, 1, FOLIAGE, 2, 1)
        for i in (x, x + w - 1):
            for j in (y, y + h - 1):
                patch.box(i, j, 1, 1, REINFORCED, top)


def server_farm(patch: Patch) -> None:
    """Paints racks on a lattice under glass cable bridges."""
    top = min(12, patch.height - 1)
    for y in range(1, patch.depth - 5, 5):
        for x in range(1, patch.width - 5, 5):
            if patch.chance(0.7):
                patch.box(x, y, 2, 2, REINFORCED, min(patch.between(6, 11), top))
        patch.box(0, y, patch.width, 1, GLASS, top + 1, top)


def orbital_relay(patch: Patch) -> None:
    """Paints a ring-shaped wall, spanned by bridges."""
    x, y, radius = (patch.width - 1) / 2, (patch.depth - 1) / 2, patch.between(8, 11)
    ys, xs = np.ogrid[: patch.depth, : patch.width]
    distance = np.hypot(xs - x, ys - y)
    patch.voxels[: patch.between(8, 14), (radius < distance) & (distance <= radius + 3)] = REINFORCED
    for _ in range(patch.between(2, 3)):
        level, along = patch.between(10, 14), patch.between(-radius, radius - 3)
        length = 2 * radius + 1
        start = int(x) - radius, int(y) - radius
        if patch.chance(0.5):
            patch.box(start[0], int(y) + along, length, 2, SOLID, level + 1, level)
        else:
            patch.box(int(x) + along, start[1], 2, length, SOLID, level + 1, level)
