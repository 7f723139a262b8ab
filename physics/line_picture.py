"""Pictures of derived centrelines that were refused."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from physics.gridmap import OccupancyMap

_SIZE = 1000
_WALL, _FREE, _UNSEEN = (0, 0, 0), (255, 255, 255), (170, 170, 170)
_GOOD, _BAD, _OPEN = (0, 90, 200), (210, 0, 0), (240, 150, 60)
_LEGEND = (
    (_WALL, "wall"),
    (_UNSEEN, "seen by no scan"),
    (_GOOD, "derived line, between two walls"),
    (_BAD, "derived line, not between two walls or unseen"),
    (_OPEN, "view to a side that ends at no wall"),
)


def draw_refused_line(grid: OccupancyMap) -> Image.Image:
    """Draws a map with its refused centreline (`grid.refused_line`): points between walls, and open views."""
    height, width = grid.occupied.shape
    scale = _SIZE / max(height, width)
    picture = _draw_cells(grid).resize(
        (round(scale * width), round(scale * height)), Image.Resampling.NEAREST
    )
    page = Image.new("RGB", (max(picture.width, 400), picture.height + 14 * len(_LEGEND) + 30), _FREE)
    page.paste(picture)
    pen, doubt = ImageDraw.Draw(page), grid.refused_line

    def at(xy: np.ndarray) -> list[tuple[float, float]]:
        x, y, yaw = grid.origin
        along = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        col, row = ((xy - [x, y]) @ along / grid.resolution).T
        return list(zip(scale * col, scale * (height - row), strict=True))

    places = at(doubt.line.points)
    for side in (0, 1):
        for start, end, walled in zip(places, at(doubt.ends[:, side]), doubt.walled[:, side], strict=True):
            if not walled:
                pen.line([start, end], fill=_OPEN)
    good = doubt.seen & doubt.walled.all(axis=1)
    for start, end, fine in zip(places, places[1:] + places[:1], good, strict=True):
        pen.line([start, end], fill=_GOOD if fine else _BAD, width=3)
    pen.text((4, picture.height + 4), f"{grid.name}: {doubt.reason}", fill=_WALL)
    for number, (colour, text) in enumerate(_LEGEND):
        top = picture.height + 22 + 14 * number
        pen.rectangle([4, top, 24, top + 8], fill=colour, outline=_WALL)
        pen.text((30, top - 2), text, fill=_WALL)
    return page


def save_refused_line(grid: OccupancyMap) -> Path:
    """Saves the picture as `NAME_line.png` in the working folder, or in the folder for temporary files."""
    picture = draw_refused_line(grid)
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        try:
            picture.save(folder / f"{grid.name}_line.png")
            return folder / f"{grid.name}_line.png"
        except OSError:
            continue
    raise ValueError(f"map={grid.name}: {grid.refused_line.reason}; no picture of it could be written")


def _draw_cells(grid: OccupancyMap) -> Image.Image:
    seen = np.ones_like(grid.occupied) if grid.seen is None else grid.seen
    cells = np.where(grid.occupied[..., None], _WALL, np.where(seen[..., None], _FREE, _UNSEEN))
    return Image.fromarray(cells[::-1].astype(np.uint8))
