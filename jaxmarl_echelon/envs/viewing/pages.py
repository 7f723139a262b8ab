"""Self-contained HTML pages that play recorded episodes; they need no network."""

import base64
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

_SCRIPTS = ("recording", "controls", "player", "flat")


@dataclass(frozen=True)
class PageParts:
    """Parts of a page that an environment contributes.

    Attributes:
      package: dotted name; its folder `page` holds the scripts and, optionally, `style.css`.
      scripts: names of scripts, in the order in which they run; they define the classes `Recording` and
        `View` (see `page/player.js`).
      stage: HTML of the area in which `View` draws.
      controls: HTML of further controls.
      panel: HTML of the side panel above the events.
      help: HTML text on the use of the page.
    """

    package: str
    scripts: tuple[str, ...]
    stage: str = '<canvas id="scene"></canvas>'
    controls: str = ""
    panel: str = ""
    help: str = ""


def encode_array(array: np.ndarray) -> dict:
    """Encodes an array for JSON: dtype, shape and little-endian bytes in base64."""
    array = np.asarray(array)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": array.dtype.name, "shape": array.shape, "data": base64.b64encode(data).decode()}


def decode_array(coded: dict) -> np.ndarray:
    """Decodes the result of `encode_array`."""
    data = np.frombuffer(base64.b64decode(coded["data"]), np.dtype(coded["dtype"]).newbyteorder("<"))
    return data.reshape(coded["shape"]).astype(coded["dtype"])


def write_page(path: str | Path, title: str, recording: Mapping, parts: PageParts, further: str = "") -> None:
    """Writes a page that plays a recording.

    Args:
      path: file to write.
      title: of the page.
      recording: the page's data, serialisable as JSON.
      parts: the environment's parts.
      further: JavaScript that is loaded after the environment's scripts.
    """
    kit, own = (resources.files(package) / "page" for package in (__package__, parts.package))
    scripts = [(kit / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    scripts += [(own / f"{name}.js").read_text(encoding="utf-8") for name in parts.scripts]
    styles = [
        style.read_text(encoding="utf-8")
        for style in (kit / "style.css", own / "style.css")
        if style.is_file()
    ]
    # An unescaped "<" could close the HTML element around the text.
    text = json.dumps(recording, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    texts = {
        "title": html.escape(title),
        "style": "\n".join(styles),
        "stage": parts.stage,
        "controls": parts.controls,
        "panel": parts.panel,
        "help": parts.help,
        "scripts": "\n".join([*scripts, *filter(None, [further])]),
        "recording": text,
    }
    page = (kit / "replay.html").read_text(encoding="utf-8")
    for name, part in texts.items():
        page = page.replace("{{" + name + "}}", part)
    Path(path).write_text(page, encoding="utf-8")
