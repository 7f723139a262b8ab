"""Reference of the Python API: one page per package, from docstrings."""

from pathlib import Path

import jaxmarl_echelon

# Page -> its title, and the files whose docstrings it shows.
PACKAGES = {
    "environments": (
        "Environments",
        [
            f"jaxmarl_echelon/envs/{name}.py"
            for name in ("base", "spaces", "results", "rewards", "settings", "episodes", "check_env", "trees")
        ],
    ),
    "policies": (
        "Policies and exports",
        ["jaxmarl_echelon/policies.py", "jaxmarl_echelon/exporting/**/*.py"],
    ),
    "curricula": ("Curricula", ["jaxmarl_echelon/curricula/**/*.py"]),
    "selfplay": ("Self-play", ["jaxmarl_echelon/selfplay/**/*.py"]),
    "on_policy": ("On-policy algorithms", ["algos/types.py", "algos/on_policy/**/*.py"]),
    "off_policy": ("Off-policy algorithms", ["algos/off_policy/**/*.py"]),
    "nets": ("Networks", ["algos/nets/**/*.py"]),
    "optim": ("Optimisers", ["algos/optim/**/*.py"]),
    "physics": ("Physics", ["physics/**/*.py"]),
}
MEMBERS = "   :members:\n"


def generate_pages(root: Path) -> dict[str, str]:
    """Returns the pages by path.

    Args:
      root: of the repository.
    """
    pages = {f"api/{name}.rst": format_package(root, *package) for name, package in PACKAGES.items()}
    front = format_front_door()
    names = "\n".join(f"   {name}" for name in ["jaxmarl_echelon", *PACKAGES])
    pages["api/index.rst"] = f"{_heading('Python API', '=')}\n.. toctree::\n   :maxdepth: 1\n\n{names}\n"
    pages["api/jaxmarl_echelon.rst"] = front
    return pages


def format_front_door() -> str:
    """Formats the page of `import jaxmarl_echelon as je`."""
    lines = [
        _heading("jaxmarl_echelon", "="),
        "`import jaxmarl_echelon as je` loads each name when it is used.\n",
    ]
    lines.append(".. py:module:: jaxmarl_echelon\n")
    for name in jaxmarl_echelon.__all__:
        is_class = isinstance(getattr(jaxmarl_echelon, name), type)
        members = "   :members:\n   :special-members: __call__\n" if is_class else ""
        lines.append(f".. auto{'class' if is_class else 'function'}:: jaxmarl_echelon.{name}\n{members}")
    return "\n".join(lines)


def format_package(root: Path, title: str, patterns: list[str]) -> str:
    """Formats a page with a section per module."""
    files = sorted({file for pattern in patterns for file in root.glob(pattern)})
    parts = [_heading(title, "=")]
    for file in files:
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        if file.name != "__init__.py":
            parts.append(f"{_heading(name, '-')}\n.. automodule:: {name}\n{MEMBERS}")
    return "\n".join(parts)


def _heading(title: str, line: str) -> str:
    return f"{title}\n{line * len(title)}\n"
