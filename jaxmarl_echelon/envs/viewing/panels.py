"""Figures with a panel per episode, and their legends."""

from typing import TYPE_CHECKING

# Matplotlib is imported only where something is drawn, so that training starts without it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 6
_COLUMNS = 3


def make_panels(count: int, size: tuple[float, float], title: str) -> "tuple[Figure, list[Axes], int]":
    """Returns a figure, its panels for `count` episodes, and the number of columns.

    Args:
      count: at least 1.
      size: width and height of a panel, inches.
      title: headline.
    """
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.8), dpi=100, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.axis("off")
    figure.suptitle(title)
    return figure, list(grid[:count]), columns


def add_legend(figure: "Figure", handles: list, columns: int) -> None:
    """Draws a legend below all panels, in rows of at most `columns` entries."""
    columns = min(len(handles), columns)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
