"""Self-contained HTML pages: style, facts, tables, charts. They load nothing."""

import html
from collections.abc import Sequence
from functools import cache
from importlib import resources

# Reloads a page of a running run, but not while its replay is in use.
RELOAD_SECONDS = 30
_RELOAD = f"""<script>
setInterval(() => {{
  if (document.activeElement.tagName !== "IFRAME") location.reload();
}}, {1000 * RELOAD_SECONDS});
</script>"""


@cache
def page_style() -> str:
    """The style of all pages, with a light and a dark scheme."""
    return (resources.files("jaxmarl_echelon.reporting") / "style.css").read_text(encoding="utf-8")


def compose_page(title: str, parts: Sequence[str], *, reloads: bool = False) -> str:
    """Composes a page of parts in HTML; one that `reloads` reads itself again every 30 seconds."""
    script = _RELOAD if reloads else ""
    body = "\n".join(part for part in parts if part)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{page_style()}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
{body}
{script}
</body>
</html>
"""


def list_facts(facts: Sequence[tuple[str, str]]) -> str:
    """Lays out names and values as tiles."""
    tiles = (f"<div>{html.escape(name)}<b>{html.escape(value)}</b></div>" for name, value in facts)
    return f'<div class="facts">{"".join(tiles)}</div>'


def lay_out_section(title: str, charts: Sequence[str] = (), *parts: str) -> str:
    """Puts charts, side by side, and then other parts under a headline; empty without any."""
    drawn, found = "".join(charts), "".join(parts)
    if not drawn and not found:
        return ""
    inside = f'<div class="charts">{drawn}</div>' if drawn else ""
    return f"<h2>{html.escape(title)}</h2>\n{inside}{found}"


def write_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", left: bool = False
) -> str:
    """Writes a table of texts; `left` aligns all columns to the left and wraps them. Empty without rows."""
    if not rows:
        return ""
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    lines = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    kind = "table left" if left else "table"
    return f'<div class="{kind}"><table>{title}{"".join(lines)}</table></div>'


def fold_part(summary: str, inside: str) -> str:
    """Hides HTML behind a line that opens it; empty if there is none."""
    return f"<details><summary>{html.escape(summary)}</summary>{inside}</details>" if inside else ""


def embed_page(page: str, title: str) -> str:
    """Embeds a whole self-contained page, with its own style and scripts, in a frame."""
    return f'<iframe loading="lazy" title="{html.escape(title)}" srcdoc="{html.escape(page)}"></iframe>'


def write_paragraph(text: str, kind: str = "note") -> str:
    """Writes a paragraph of a class of the style."""
    return f'<p class="{kind}">{html.escape(text)}</p>'
