"""Builds the documents as a site: collects and generates pages, then calls Sphinx.

    python docs/site/build.py            # into docs/_build/html; warnings end it with status 1

Pages are the Markdown files and notebooks of the repository at their own places, so that their links work
there as well as on GitHub. The contents follow docs/index.md. Generated are the settings, from `conf/`, a
page per environment, the help of the commands, and the reference of the Python API.
"""

import os
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "docs" / "_build"
sys.path[:0] = [str(HERE), str(ROOT)]

import api_pages  # noqa: E402
import command_pages  # noqa: E402
import setting_pages  # noqa: E402

PAGES = ("*.md", "docs/*.md", "docs/reference/*.md", "notebooks/*.ipynb", "examples/*/*.md")
FRONT = "README.md"
LINK = re.compile(r"\]\(([^()\s#:]+)(#[^()\s]*)?\)")
TABLE_LINK = re.compile(r"\[[^]]+\]\(([^()#:]+)\)")


def find_pages() -> list[Path]:
    """Lists the pages of the repository, relative to its root."""
    return sorted(page.relative_to(ROOT) for pattern in PAGES for page in ROOT.glob(pattern))


def collect_pages() -> dict[Path, bytes]:
    """Returns the files of the site that the repository has: pages, and files that they link to."""
    pages = find_pages()
    collected = {page: (ROOT / page).read_bytes() for page in pages if page.suffix != ".md"}
    for page in (page for page in pages if page.suffix == ".md"):
        text = (ROOT / page).read_text()
        for link, _ in LINK.findall(text):
            target = Path(os.path.normpath(page.parent / link))
            if target not in pages and (ROOT / target).is_file():
                collected[target] = (ROOT / target).read_bytes()
        place = Path("index.md") if str(page) == FRONT else page
        collected[place] = LINK.sub(lambda link, page=page: _to_front(link, page), text).encode()
    return collected


def _to_front(link: re.Match, page: Path) -> str:
    """Rewrites a link to the README, which is the site's front page."""
    target = Path(os.path.normpath(page.parent / link[1]))
    return link[0] if str(target) != FRONT else link[0].replace(FRONT, "index.md")


def read_contents() -> dict[str, list[str]]:
    """Reads the sections of docs/index.md, with the pages in the first columns of their tables."""
    contents = {"Start": ["docs/index.md"]}
    for section in (ROOT / "docs" / "index.md").read_text().split("\n## ")[1:]:
        cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| [")]
        links = [os.path.normpath(Path("docs") / link) for cell in cells for link in TABLE_LINK.findall(cell)]
        contents[section.partition("\n")[0]] = links
    return contents


def format_contents(generated: dict[str, list[str]]) -> str:
    """Formats the site's contents, as tables of contents that only the side bar shows.

    Args:
      generated: further pages of the sections.
    """
    contents = read_contents()
    if strangers := set(generated) - set(contents):
        raise ValueError(f"docs/index.md: no section {', '.join(strangers)}")
    blocks = []
    for name, links in contents.items():
        pages = "\n".join(f"/{Path(link).with_suffix('')}" for link in [*links, *generated.get(name, [])])
        if pages:
            blocks.append(f"```{{toctree}}\n:hidden:\n:caption: {name}\n\n{pages}\n```")
    return "\n\n".join(blocks)


def write_changed(files: dict[Path, bytes], folder: Path) -> None:
    """Writes the files that changed and removes others, so that a second build reads only what changed."""
    for path, content in files.items():
        target = folder / path
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder) not in files:
            path.unlink()


def main() -> int:
    """Builds the site; returns Sphinx's exit status."""
    from sphinx.cmd.build import main as build_site

    files = collect_pages()
    settings = setting_pages.generate_pages(ROOT / "conf", ROOT / "docs")
    api = api_pages.generate_pages(ROOT)
    commands = command_pages.generate_pages()
    for page, text in (settings | api | commands).items():
        files[Path(page)] = text.encode()
    for picture in (ROOT / "docs" / "pictures").glob("*"):
        files[picture.relative_to(ROOT)] = picture.read_bytes()
    contents = format_contents(
        {
            "Guides": [str(page) for page in find_pages() if page.parts[0] == "examples"],
            "Environments": ["environments/index.md"],
            "Reference": ["api/index.rst", "settings/index.md", "commands.md"],
        }
    )
    files[Path("index.md")] += f"\n\n{contents}\n".encode()
    write_changed(files, BUILD / "source")
    shutil.rmtree(BUILD / "html" / "_downloads", ignore_errors=True)
    return build_site(
        [
            "-W",
            "-n",
            "--keep-going",
            "-q",
            "-c",
            str(ROOT / "docs"),
            str(BUILD / "source"),
            str(BUILD / "html"),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
