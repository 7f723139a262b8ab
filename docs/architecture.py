"""Draws the four paths through the code that `architecture.md` lists, after checking the lists.

    python docs/architecture.py            # check, and draw architecture.png
    python docs/architecture.py --check    # check only

The page is the only place where the hops are listed. Every function that it names with its file must be
defined there, and its counts of hops and files must be right.
"""

import argparse
import ast
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = "docs/architecture.md"
NAMED = re.compile(r"`([\w.]+)` in `([\w/]+\.py)`")
HOP = re.compile(r"\d+\. `([\w.]+)` in `([\w/]+\.py)`: (.+?)(?: Hands on (.+))?\.")
COUNT = re.compile(r"(\d+) hops over (\d+) files")
SHARED = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
COLOURS = {
    "algos": ("learning", "#dcebdc"),
    "jaxmarl_echelon/training": ("training", "#dde6f3"),
    "jaxmarl_echelon/envs": ("environments", "#f7e6d0"),
    "jaxmarl_echelon/curricula": ("curricula", "#f3dce6"),
    "jaxmarl_echelon/selfplay": ("self-play", "#e6dcf3"),
    "jaxmarl_echelon": ("command lines, checkpoints, tracking", "#ebe7dd"),
}


class Hop(NamedTuple):
    """A function on a path.

    Attributes:
      name: of the function, dotted where it lies in a class or in another function.
      path: of its file, from the top of the repository.
      text: description of the function.
      handed: data that it hands on; None for the last.
    """

    name: str
    path: str
    text: str
    handed: str | None


class Route(NamedTuple):
    """A section of the page: its title, its hops in order, and its numbers of hops and files."""

    title: str
    hops: tuple[Hop, ...]
    counted: tuple[int, int]


def read(page: str) -> tuple[Route, ...]:
    """Reads the paths of a page: its sections with numbered lists.

    Raises:
      ValueError: one line, for an item or a section of another form.
    """
    routes = []
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        items = re.findall(r"^\d+\. .+(?:\n {2,}.+)*", body, re.MULTILINE)
        if not items:
            continue
        counted = COUNT.search(body)
        if counted is None:
            raise ValueError(f"{title}: the numbers of hops and files are missing")
        route = Route(title, tuple(map(_hop, items)), (int(counted[1]), int(counted[2])))
        if ends := [hop.name for hop in route.hops[:-1] if hop.handed is None]:
            raise ValueError(f"{title}: {ends[0]} hands nothing on")
        routes.append(route)
    return tuple(routes)


def _hop(item: str) -> Hop:
    line = " ".join(item.split())
    found = HOP.fullmatch(line)
    if found is None:
        raise ValueError(f"{line[:60]}...: expected NUMBER. `FUNCTION` in `FILE`: TEXT. Hands on THINGS.")
    return Hop(*found.groups())


def defined(tree: ast.Module) -> set[str]:
    """Dotted names of all functions and classes of a module, including nested ones."""

    def walk(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield prefix + child.name
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return set(walk(tree, ""))


def problems(page: str, root: Path) -> list[str]:
    """Statements of the page that the code contradicts, one line each.

    Args:
      page: its text.
      root: the top of the repository.
    """
    routes, named = read(page), NAMED.findall(" ".join(page.split()))
    trees = {path: ast.parse((root / path).read_text()) for _, path in named if (root / path).is_file()}
    found = [f"{path}: no such file" for path in sorted({path for _, path in named} - set(trees))]
    known = {path: defined(tree) for path, tree in trees.items()}
    found += [
        f"{path}: defines no {name}" for name, path in named if path in known and name not in known[path]
    ]
    for route in routes:
        count = len(route.hops), len({hop.path for hop in route.hops})
        if count != route.counted:
            found.append(f"{route.title}: {count[0]} hops over {count[1]} files, not {route.counted}")
    listed = {name: tuple(re.findall(r"`([\w/]+\.py)`", files)) for name, files in SHARED.findall(page)}
    shared = shared_names(trees)
    for name in sorted(listed.keys() | shared.keys()):
        if listed.get(name) != shared.get(name):
            files = ", ".join(f"`{path}`" for path in shared.get(name, ()))
            found.append(
                f"names that occur twice: expected {f'| `{name}` | {files} |' if files else f'no {name}'}"
            )
    return found


def shared_names(trees: dict[str, ast.Module]) -> dict[str, tuple[str, ...]]:
    """Public names of top-level functions that two or more modules share, with the modules' paths."""
    places: dict[str, list[str]] = {}
    for path in sorted(trees):
        for node in trees[path].body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path)
    return {name: tuple(paths) for name, paths in places.items() if len(paths) > 1}


def draw(routes: tuple[Route, ...], path: Path) -> None:
    """Draws a lane per path, with a box per function and arrows labelled with the data handed on."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import FancyBboxPatch, Patch
    from PIL import Image

    width, box, gap, head = 3.4, 0.46, 0.52, 0.85
    rows = max(len(route.hops) for route in routes)
    height = head + rows * (box + gap) + 0.2
    figure = plt.figure(figsize=(width * len(routes), height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width * len(routes)), ylim=(0, height))
    axes.axis("off")
    for lane, route in enumerate(routes):
        left, middle = lane * width + 0.12, (lane + 0.5) * width
        title = f"{route.title}\n{route.counted[0]} hops, {route.counted[1]} files"
        axes.text(middle, height - 0.42, title, ha="center", va="center", size=11, weight="bold")
        # Lanes with fewer hops are spread over the same height.
        pitch = (rows * (box + gap) - gap - box) / (len(route.hops) - 1)
        for number, hop in enumerate(route.hops):
            top = height - head - number * pitch
            shape = FancyBboxPatch(
                (left, top - box),
                width - 0.24,
                box,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=_colour(hop.path)[1],
                edgecolor="#555555",
                linewidth=0.8,
            )
            axes.add_patch(shape)
            axes.text(left + 0.1, top - 0.16, hop.name, size=10, weight="bold", va="center")
            axes.text(left + 0.1, top - 0.34, hop.path, size=8, va="center", color="#333333")
            if hop.handed is None:
                continue
            start, end = top - box, top - pitch
            axes.annotate("", (left + 0.2, end), (left + 0.2, start), arrowprops={"arrowstyle": "-|>"})
            # Axes stay on one line.
            handed = re.sub(r"\[.*?\]", lambda axes: axes[0].replace(" ", "\N{NO-BREAK SPACE}"), hop.handed)
            label = textwrap.fill(handed.replace("`", ""), 44)
            axes.text(left + 0.34, (start + end) / 2, label, size=8.5, style="italic", va="center")
    kinds = dict.fromkeys(_colour(hop.path) for route in routes for hop in route.hops)
    handles = [Patch(facecolor=colour, edgecolor="#555555", label=label) for label, colour in kinds]
    axes.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=8.5)
    with io.BytesIO() as drawn:
        figure.savefig(drawn, dpi=130)
        # Few colours make a third of the size.
        Image.open(drawn).convert("RGB").quantize(48, dither=Image.Dither.NONE).save(path, optimize=True)


def _colour(path: str) -> tuple[str, str]:
    return next(kind for prefix, kind in COLOURS.items() if path.startswith(prefix))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only check")
    arguments = parser.parse_args()
    root = HERE.parent
    page = (root / PAGE).read_text()
    if found := problems(page, root):
        sys.exit("\n".join(f"{PAGE}: {line}" for line in found))
    if not arguments.check:
        draw(read(page), HERE / "architecture.png")


if __name__ == "__main__":
    main()
