"""Self-contained HTML pages of recorded episodes: arrays as JSON, and templates with placeholders."""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np


def encode_array(array: np.ndarray) -> dict:
    """Encodes an array for JSON: dtype, shape and little-endian bytes in base64."""
    array = np.asarray(array)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": array.dtype.name, "shape": array.shape, "data": base64.b64encode(data).decode()}


def decode_array(coded: dict) -> np.ndarray:
    """Decodes the result of `encode_array`."""
    data = np.frombuffer(base64.b64decode(coded["data"]), np.dtype(coded["dtype"]).newbyteorder("<"))
    return data.reshape(coded["shape"]).astype(coded["dtype"])


def write_page(
    path: str | Path, title: str, recording: Mapping, package: str, scripts: Sequence[str], further: str = ""
) -> None:
    """Fills the template `page/replay.html` of a package.

    Args:
      path: file to write.
      title: of the page.
      recording: the page's data, serialisable as JSON.
      package: dotted name; its folder `page` holds the template, `style.css` and the scripts.
      scripts: names of scripts, in the order in which they run.
      further: JavaScript appended to them.
    """

    def asset(name: str) -> str:
        return (resources.files(package) / "page" / name).read_text(encoding="utf-8")

    # An unescaped "<" could close the HTML element around the text.
    text = json.dumps(recording, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": html.escape(title),
        "style": asset("style.css"),
        "scripts": "\n".join([*(asset(f"{name}.js") for name in scripts), *filter(None, [further])]),
        "recording": text,
    }
    page = asset("replay.html")
    for name, part in parts.items():
        page = page.replace("{{" + name + "}}", part)
    Path(path).write_text(page, encoding="utf-8")
