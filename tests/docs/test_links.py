"""Links between the pages resolve, and every page of docs/ is reachable from docs/index.md."""

import json
import re
from pathlib import Path

import pytest
from documented import find_pages

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
EXTERNAL = ("http://", "https://", "mailto:")


def prose(path):
    """Text of a page, or of a notebook's Markdown cells, without fenced blocks."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return FENCE.sub("", text)


def links(text):
    """Relative links of a page, inline code excluded."""
    return [link for link in LINK.findall(CODE.sub("", text)) if not link.startswith(EXTERNAL)]


def anchors(text):
    """Anchors that GitHub gives to the headings of a page."""
    found = set()
    for heading in HEADING.findall(text):
        heading = LINK.sub(lambda link: link[0][link[0].index("[") + 1 : link[0].rindex("](")], heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(next(name for name in _numbered(anchor) if name not in found))
    return found


def _numbered(anchor):
    yield anchor
    number = 1
    while True:
        yield f"{anchor}-{number}"
        number += 1


def pages(root):
    """All pages and notebooks of the repository, generated folders excluded."""
    return [*find_pages(root), *sorted(root.glob("notebooks/*.ipynb"))]


def broken(page, root):
    """Links of a page to files that do not exist, or to headings that their page does not have."""
    problems = []
    for link in links(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            problems.append(f"{page.relative_to(root)}: {link}: file not found")
        elif anchor and anchor not in anchors(prose(target)):
            problems.append(f"{page.relative_to(root)}: {link}: heading not found")
    return problems


def test_links_and_anchors_resolve(repository):
    assert [line for page in pages(repository) for line in broken(page, repository)] == []


def test_every_page_of_docs_is_reachable_from_the_index(repository):
    index = repository / "docs" / "index.md"
    seen, pending = {index}, [index]
    while pending:
        page = pending.pop()
        for link in links(prose(page)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in seen:
                seen.add(target)
                pending.append(target)
    assert {page for page in find_pages(repository) if page.parent != repository} - seen == set()


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("other.md", None),
        ("other.md#two-words-a-b", None),
        ("other.md#two-words-a-b-1", None),
        ("#here", None),
        ("absent.md", "page.md: absent.md: file not found"),
        ("other.md#three", "page.md: other.md#three: heading not found"),
        ("other.md#commented", "page.md: other.md#commented: heading not found"),
    ],
)
def test_a_broken_link_is_reported(tmp_path, link, problem):
    (tmp_path / "page.md").write_text(f"# Here\n\nSee [a `page`]({link}) and `[code](absent.md)`.\n")
    (tmp_path / "other.md").write_text(
        "# Two words: `a`, [b](page.md)\n\n```bash\n# commented\n```\n\n## Two words: a, b\n"
    )
    assert broken(Path(tmp_path / "page.md"), tmp_path) == ([] if problem is None else [problem])
