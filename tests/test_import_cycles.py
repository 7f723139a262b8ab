"""No module of ours imports itself through others: a reader can start with what imports nothing."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGES = ("algos", "physics", "jaxmarl_echelon")


def modules(root: Path, package: str) -> dict[str, Path]:
    """The modules of a package by dotted name; a package's own is its `__init__`."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The known modules that a file imports anywhere: in functions and under TYPE_CHECKING too."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            source = ".".join(filter(None, [above if node.level else "", node.module or ""]))
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                if whole in known or source in known:
                    yield whole if whole in known else source


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of two or more modules that import each other, and modules that import themselves."""

    def reached(start: str) -> set[str]:
        found, waiting = set(), list(graph[start])
        while waiting:
            if (name := waiting.pop()) not in found:
                found.add(name)
                waiting += graph[name]
        return found

    reach = {name: reached(name) for name in graph}
    on_one = [name for name in graph if name in reach[name]]
    groups = {
        frozenset(other for other in on_one if other in reach[name] and name in reach[other])
        for name in on_one
    }
    return sorted(map(set, groups), key=sorted)


def import_graph(root: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Module name to the modules of these packages that it imports."""
    known = {name: path for package in packages for name, path in modules(root, package).items()}
    return {name: set(imported(name, path, known)) for name, path in known.items()}


def test_modules_import_one_way(repository):
    graph = import_graph(repository, PACKAGES)
    assert len(graph) > 100
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from own.b import x", "import own.a"),
        ("from own import b", "def f():\n    from own.a import f"),
        ("from . import b", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import f"),
    ],
)
def test_every_kind_of_circle_is_found(tmp_path, first, second):
    (tmp_path / "own").mkdir()
    for name, text in {"__init__": "", "a": first, "b": second, "c": "import own.a"}.items():
        (tmp_path / "own" / f"{name}.py").write_text(text + "\n")
    assert circles(import_graph(tmp_path, ("own",))) == [{"own.a", "own.b"}]
