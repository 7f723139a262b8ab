"""Draws the three ways through the code that `architecture.md` lists, after checking them against it.

    python docs/architecture.py            # check, and draw architecture.png
    python docs/architecture.py --check    # check only

The page is the only place where the hops are listed. Every function that it names with its file must be
defined there, and what it counts must be so.
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
    "jaxmarl_echelon": ("command lines, checkpoints, tracking", "#ebe7dd"),
}


class Hop(NamedTuple):
    """A function on a way.

    Attributes:
      name: of the function, dotted where it lies in a class or in another function.
      path: of its file, from the top of the repository.
      text: what it does.
      handed: what it hands on; None for the last.
    """

    name: str
    path: str
    text: str
    handed: str | None


class Way(NamedTuple):
    """A section of the page: its title, its hops in order, and how many hops and files it says there are."""

    title: str
    hops: tuple[Hop, ...]
    counted: tuple[int, int]


def read(page: str) -> tuple[Way, ...]:
    """The ways of a page: its sections with numbered lists.

    Raises:
      ValueError: one line, for an item or a section that does not have the form of the others.
    """
    ways = []
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        items = re.findall(r"^\d+\. .+(?:\n {2,}.+)*", body, re.MULTILINE)
        if not items:
            continue
        counted = COUNT.search(body)
        if counted is None:
            raise ValueError(f"{title}: does not say how many hops there are over how many files")
        way = Way(title, tuple(map(_hop, items)), (int(counted[1]), int(counted[2])))
        if ends := [hop.name for hop in way.hops[:-1] if hop.handed is None]:
            raise ValueError(f"{title}: {ends[0]} hands nothing on")
        ways.append(way)
    return tuple(ways)


def _hop(item: str) -> Hop:
    line = " ".join(item.split())
    found = HOP.fullmatch(line)
    if found is None:
        raise ValueError(f"{line[:60]}...: expected NUMBER. `FUNCTION` in `FILE`: TEXT. Hands on THINGS.")
    return Hop(*found.groups())


def defined(tree: ast.Module) -> set[str]:
    """Dotted names of all functions and classes of a module, nested ones too."""

    def walk(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield prefix + child.name
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return set(walk(tree, ""))


def problems(page: str, root: Path) -> list[str]:
    """What the page says that the code does not, a line each.

    Args:
      page: its text.
      root: the top of the repository.
    """
    ways, named = read(page), NAMED.findall(" ".join(page.split()))
    trees = {path: ast.parse((root / path).read_text()) for _, path in named if (root / path).is_file()}
    found = [f"{path}: no such file" for path in sorted({path for _, path in named} - set(trees))]
    known = {path: defined(tree) for path, tree in trees.items()}
    found += [
        f"{path}: defines no {name}" for name, path in named if path in known and name not in known[path]
    ]
    for way in ways:
        count = len(way.hops), len({hop.path for hop in way.hops})
        if count != way.counted:
            found.append(f"{way.title}: {count[0]} hops over {count[1]} files, not {way.counted}")
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
    """Public names that two or more modules give to functions at their top level, with the modules' paths."""
    places: dict[str, list[str]] = {}
    for path in sorted(trees):
        for node in trees[path].body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path)
    return {name: tuple(paths) for name, paths in places.items() if len(paths) > 1}


def draw(ways: tuple[Way, ...], path: Path) -> None:
    """Draws a lane per way, with a box per function and arrows that say what is handed on."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import FancyBboxPatch, Patch
    from PIL import Image

    width, box, gap, head = 3.4, 0.46, 0.52, 0.85
    rows = max(len(way.hops) for way in ways)
    height = head + rows * (box + gap) + 0.2
    figure = plt.figure(figsize=(width * len(ways), height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width * len(ways)), ylim=(0, height))
    axes.axis("off")
    for lane, way in enumerate(ways):
        left, middle = lane * width + 0.12, (lane + 0.5) * width
        title = f"{way.title}\n{way.counted[0]} hops, {way.counted[1]} files"
        axes.text(middle, height - 0.42, title, ha="center", va="center", size=11, weight="bold")
        # Lanes of fewer hops are spread over the same height.
        pitch = (rows * (box + gap) - gap - box) / (len(way.hops) - 1)
        for number, hop in enumerate(way.hops):
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
    kinds = dict.fromkeys(_colour(hop.path) for way in ways for hop in way.hops)
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
