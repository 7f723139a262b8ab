"""Figures with a panel per episode, 1,000 pixels wide, and their legends."""

from typing import TYPE_CHECKING

from jaxmarl_echelon.palette import GOLD

# Matplotlib is imported only where something is drawn, so that training starts without it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 6
# Width of all panels and height of a title's line, inches; pixels per inch.
WIDTH, LINE, DPI = 10.0, 0.16, 100
TEXT_SIZE = 8.0


def choose_panels(count: int, chosen: int | None = None) -> list[int]:
    """Returns the indices of the episodes that get panels: the first ones, and in any case `chosen`."""
    shown = list(range(min(count, MOST_PANELS)))
    return shown if chosen is None or chosen in shown else [*shown[:-1], chosen]


def make_panels(
    count: int, ratio: float, title: str, *, columns: int = 3, lines: int = 1, overview: float = 0.0
) -> "tuple[Figure, Axes | None, list[Axes]]":
    """Returns a figure, axes across its top if `overview`, and a panel for each of `count` episodes.

    Args:
      count: at least 1.
      ratio: height of a panel over its width, without its title.
      title: headline.
      columns: most panels in a row.
      lines: of the panels' titles.
      overview: height of the axes across the top, inches; 0 for none.
    """
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    height = ratio * min(WIDTH / columns, WIDTH / 2) + LINE * (lines + 1)
    heights = [*([overview + 0.5] if overview else []), *rows * [height]]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.8), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    first = len(heights) - rows
    panels = [figure.add_subplot(grid[first + i // columns, i % columns]) for i in range(count)]
    figure.suptitle(title, fontsize=11)
    return figure, figure.add_subplot(grid[0, :]) if overview else None, panels


def title_panel(axes: "Axes", text: str, *, chosen: bool = False) -> None:
    """Writes the title of a panel, on a coloured ground for the episode that was chosen."""
    ground = {"facecolor": GOLD, "alpha": 0.35, "edgecolor": "none", "pad": 2.0}
    axes.set_title(text, fontsize=TEXT_SIZE, bbox=ground if chosen else None)


def add_legend(figure: "Figure", handles: list, columns: int) -> None:
    """Draws a legend below all panels, in rows of at most `columns` entries."""
    columns = min(len(handles), columns)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
