"""Colours of battle graphics, and an image of the terrain from above."""

import numpy as np

TEAM_COLOURS = ("#2f6fde", "#d93636")
NEUTRAL = "#fff8e0"
WRECK = "#3a3836"
SMOKE = "#d9d9d9"

# In the order of `physics.voxels.MATERIALS`.
MATERIAL_COLOURS = np.array(
    [
        [214, 208, 196],
        [142, 146, 154],
        [232, 98, 38],
        [84, 142, 196],
        [140, 112, 84],
        [104, 94, 88],
        [206, 196, 174],
        [168, 216, 226],
        [88, 98, 120],
        [112, 162, 92],
    ],
    np.uint8,
)

# In the order of `unit_tables.WEAPONS`.
WEAPON_COLOURS = ("#ff3b6b", "#ff9a1f", "#ffd21f", "#7df9ff", "#fff3b0", "#e05cff", "#ffffff")


def column_heights(voxels: np.ndarray) -> np.ndarray:
    """Returns int `[Y, X]`: layers up to the highest cell that is not air, for `[Z, Y, X]` materials."""
    filled = voxels != 0
    return np.where(filled.any(axis=0), len(voxels) - np.argmax(filled[::-1], axis=0), 0)


def terrain_image(voxels: np.ndarray) -> np.ndarray:
    """Returns an image uint8 `[Y, X, 3]` of `[Z, Y, X]` materials from above; row 0 is y = 0.

    Higher cells are lighter, and higher cells to the upper left cast a shadow.
    """
    height = column_heights(voxels)
    top = np.take_along_axis(voxels, np.maximum(height - 1, 0)[None], axis=0)[0]
    padded = np.pad(height, 1, mode="edge")
    upper_left = padded[2:, :-2]
    light = 0.92 + 0.22 * height / len(voxels) - 0.05 * np.clip(upper_left - height, -1, 5)
    return np.clip(MATERIAL_COLOURS[top] * light[..., None], 0, 255).astype(np.uint8)
