"""Brushes for what people built: towns, works, camps and laboratories.

Sizes follow spec section 1.2; what it leaves open is chosen so that its statistics hold.
"""

import numpy as np

from jaxmarl_echelon.envs.echelon.terrain.patch import Patch
from physics.voxels import AIR, FOLIAGE, GLASS, REINFORCED, SOLID


def urban_residential(patch: Patch) -> None:
    """Blocks of houses around courtyards with a glass floor."""
    for _ in patch.until_filled(0.35):
        w, h, top = patch.between(6, 10), patch.between(6, 10), patch.between(4, 8)
        x, y = (corner // 2 * 2 for corner in patch.place(w, h))
        patch.box(x, y, w, h, SOLID, top)
        patch.box(x + 2, y + 2, w - 4, h - 4, AIR, top)
        patch.box(x + 2, y + 2, w - 4, h - 4, GLASS, 1)


def industrial_refinery(patch: Patch) -> None:
    """Tanks and stacks, with pipes between them."""
    for _ in patch.until_filled(0.25):
        w, h = patch.between(3, 5), patch.between(3, 6)
        patch.box(*patch.place(w, h), w, h, SOLID, patch.between(4, 11))
        if patch.chance(0.3):
            w, h = patch.between(8, 15), patch.between(1, 2)
            w, h = (w, h) if patch.chance(0.5) else (h, w)
            patch.box(*patch.place(w, h), w, h, SOLID, patch.between(2, 4))


def civic_government(patch: Patch) -> None:
    """Large halls behind a low wall."""
    for _ in patch.until_filled(0.2):
        w, h = patch.between(8, 15), patch.between(8, 15)
        patch.box(*patch.place(w, h), w, h, SOLID, patch.between(6, 9))
    # The wall only fills gaps: where it meets a hall, the hall stays.
    wall = Patch(np.zeros_like(patch.voxels[:1]), patch.rng)
    wall.frame(2, 2, patch.width - 4, patch.depth - 4, SOLID, 1)
    patch.voxels[:1] = np.maximum(patch.voxels[:1], wall.voxels)


def arcology_spire(patch: Patch) -> None:
    """One tower that carries most of a city, terraces around it and tunnels through it."""
    w, h = patch.width // 3, patch.depth // 3
    patch.box(w, h, w, h, SOLID, patch.height - 2)
    for _ in range(patch.between(4, 7)):
        side, level = patch.between(8, 12), int(patch.rng.choice([5, 10, 15]))
        x, y = patch.place(side, side)
        patch.box(x, y, side, side, SOLID, level + 1, level)
        for step in range(level):
            patch.box(x + step, y - 3, 1, 3, SOLID, level - step, level - step - 1)
    for _ in range(patch.between(2, 3)):
        patch.worm(2, 60, 2, patch.height - 4)


def command_outpost(patch: Patch) -> None:
    """A bunker with a solid core and a doorway, inside a fence."""
    x, y = (patch.width - 12) // 2, (patch.depth - 12) // 2
    patch.frame(x - 8, y - 8, 28, 28, REINFORCED, 1)
    patch.box(x, y, 12, 12, REINFORCED, 6)
    patch.box(x + 1, y + 1, 10, 10, AIR, 5, 1)
    patch.box(x + 3, y + 3, 6, 6, SOLID, 5, 1)
    patch.box(x + 4, y, 4, 3, AIR, 4, 1)


def hydroponic_lab(patch: Patch) -> None:
    """Greenhouses: glass blocks on reinforced corners, with rows of plants."""
    for _ in range(patch.between(2, 3)):
        w, h, top = patch.between(10, 15), patch.between(10, 15), patch.between(5, 7)
        x, y = patch.place(w, h)
        patch.box(x, y, w, h, GLASS, top)
        for row in range(2, h - 2, 3):
            patch.box(x + 2, y + row, w - 4, 1, FOLIAGE, 2, 1)
        for i in (x, x + w - 1):
            for j in (y, y + h - 1):
                patch.box(i, j, 1, 1, REINFORCED, top)


def server_farm(patch: Patch) -> None:
    """Racks on a lattice under glass cable bridges."""
    top = min(12, patch.height - 1)
    for y in range(2, patch.depth - 4, 5):
        for x in range(2, patch.width - 4, 5):
            if patch.chance(0.7):
                patch.box(x, y, 2, 2, REINFORCED, min(patch.between(6, 11), top))
        patch.box(0, y, patch.width, 1, GLASS, top + 1, top)


def orbital_relay(patch: Patch) -> None:
    """A round dish wall, spanned by bridges."""
    x, y, radius = (patch.width - 1) / 2, (patch.depth - 1) / 2, patch.between(8, 11)
    ys, xs = np.ogrid[: patch.depth, : patch.width]
    distance = np.hypot(xs - x, ys - y)
    patch.voxels[: patch.between(8, 14), np.abs(distance - radius) <= 1.7] = REINFORCED
    for _ in range(patch.between(2, 3)):
        level, along = patch.between(10, 14), patch.between(-radius, radius - 3)
        length = 2 * radius + 1
        start = int(x) - radius, int(y) - radius
        if patch.chance(0.5):
            patch.box(start[0], int(y) + along, length, 3, SOLID, level + 1, level)
        else:
            patch.box(int(x) + along, start[1], 3, length, SOLID, level + 1, level)
