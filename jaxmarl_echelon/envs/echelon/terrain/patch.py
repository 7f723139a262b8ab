"""Window of a map that a brush paints on, with basic shapes."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from physics.voxels import AIR


class Patch(NamedTuple):
    """Window of a map under construction; shapes are clipped to it.

    Attributes:
      voxels: `[Z, Y, X]` uint8 materials, written in place.
      rng: random generator of the window.
    """

    voxels: np.ndarray
    rng: np.random.Generator

    @property
    def height(self) -> int:
        """Voxels along z."""
        return self.voxels.shape[0]

    @property
    def depth(self) -> int:
        """Voxels along y."""
        return self.voxels.shape[1]

    @property
    def width(self) -> int:
        """Voxels along x."""
        return self.voxels.shape[2]

    @property
    def area(self) -> int:
        """Number of columns."""
        return self.depth * self.width

    def between(self, low: int, high: int) -> int:
        """Draws an integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        """Draws True with this probability."""
        return bool(self.rng.random() < probability)

    def place(self, w: int, h: int, margin: int = 0) -> tuple[int, int]:
        """Draws the low corner (x, y) of a w x h footprint, inside the margin if it fits."""
        x, y = (
            margin + int(self.rng.integers(max(1, span - 2 * margin - size + 1)))
            for span, size in ((self.width, w), (self.depth, h))
        )
        return x, y

    def box(self, x: int, y: int, w: int, h: int, material: int, top: int, bottom: int = 0) -> None:
        """Fills w x h columns from (x, y) with a material, z from bottom to top - 1."""
        self.voxels[max(bottom, 0) : max(top, 0), max(y, 0) : max(y + h, 0), max(x, 0) : max(x + w, 0)] = (
            material
        )

    def frame(self, x: int, y: int, w: int, h: int, material: int, top: int) -> None:
        """Builds a wall, one voxel thick, along the inside of a w x h rectangle."""
        self.box(x, y, w, 1, material, top)
        self.box(x, y + h - 1, w, 1, material, top)
        self.box(x, y, 1, h, material, top)
        self.box(x + w - 1, y, 1, h, material, top)

    def worm(self, radius: int, steps: int, low: float, high: float, start: float) -> None:
        """Carves a square tunnel along a random walk from a random point.

        The height of its axis is drawn between start and high, and is kept between low and high.
        """
        side = 2 * radius + 1
        x, y = self.rng.uniform(0, (self.width, self.depth))
        z = self.rng.uniform(start, high)
        heading = self.rng.uniform(0, 2 * np.pi)
        for _ in range(steps):
            z = min(max(z, low), high)
            left, near, bottom = (round(centre) - radius for centre in (x, y, z))
            self.box(left, near, side, side, AIR, bottom + side, bottom)
            heading += self.rng.normal(0, 0.4)
            x += np.cos(heading) * radius / 2
            y += np.sin(heading) * radius / 2
            z += self.rng.normal(0, 0.1)

    def until_filled(self, share: float, tries: int = 400) -> Iterator[None]:
        """Yields until this share of the columns is filled, at most `tries` times."""
        for _ in range(tries):
            if self.voxels.any(0).mean() >= share:
                return
            yield
