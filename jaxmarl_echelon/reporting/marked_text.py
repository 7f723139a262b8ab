"""Parts of documents that commands renew, between `<!-- MARK: begin -->` and `<!-- MARK: end -->`."""

from pathlib import Path


def read_marked(path: Path, mark: str) -> str:
    """Reads the text between the marks of a document.

    Raises:
      ValueError: one line, if the document does not have both marks, in order.
    """
    return _split(path, mark)[1]


def replace_marked(path: Path, mark: str, text: str) -> str:
    """Returns a document with `text`, on lines of its own, between its marks; raises as `read_marked`."""
    before, _, after = _split(path, mark)
    return f"{before}\n{text}\n{after}"


def _split(path: Path, mark: str) -> tuple[str, str, str]:
    """The document up to the first mark and with it, the text between the marks, and the rest."""
    begin, end = (f"<!-- {mark}: {place} -->" for place in ("begin", "end"))
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    middle, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path}: has no text between {begin} and {end}")
    return before + begin, middle, end + after
