"""Reads and runs HTML pages of recorded episodes, with node in the place of a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

# Stands for a browser: every element is a thing that takes all calls; three frames are drawn.
_STUB = """
const nothing = new Proxy(function () {}, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => 1 : nothing),
  set: () => true,
  apply: () => nothing,
});
const texts = {};
const record = (id) => new Proxy(function () {}, {
  get: (_, name) => nothing[name],
  set: (_, name, value) => { if (name === "textContent") texts[id] = value; return true; },
});
const text = require("fs").readFileSync(0, "utf8");
const recorded = text.match(/type="application\\/json">([^]*?)<\\/script>/)[1];
const elements = {};
const find = (id) => (id === "recording" ? { textContent: recorded } : (elements[id] ??= record(id)));
globalThis.document = { getElementById: find, createElement: () => nothing, querySelector: () => nothing };
globalThis.window = { addEventListener: () => {} };
let frames = 0;
globalThis.requestAnimationFrame = (draw) => { if (frames++ < 3) draw(1e6 * frames); };
"""


def embedded(page: str) -> dict:
    """Returns the recording in a page."""
    return json.loads(
        re.search(r'<script id="recording" type="application/json">(.*?)</script>', page, re.S)[1]
    )


def _scripts(page: str) -> str:
    return re.search(r'<script>\n"use strict";(.*?)</script>', page, re.S)[1]


def javascript(page: str, code: str):
    """Evaluates JavaScript with a page's scripts and its `recording`; returns the value, by JSON."""
    scripts = _scripts(page).rsplit("start(new Recording", 1)[0]
    start = f"const recording = new Recording({json.dumps(embedded(page))});"
    program = f'"use strict";\n{scripts}\n{start}\nconsole.log(JSON.stringify({code}));'
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def play_page(page: str, folder: Path) -> dict[str, str]:
    """Draws three frames of a page; returns the texts of its elements by id."""
    program = folder / "run.js"
    program.write_text(f"{_STUB}\n{_scripts(page)}\nconsole.log(JSON.stringify(texts));")
    done = subprocess.run(["node", program], input=page, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_self_contained(page: str) -> None:
    """Demands that a page has one recording and loads nothing."""
    for reference in ("http:", "https:", "src=", "href=", "@import", "url(", "fetch(", "{{"):
        assert reference not in page.replace("{{$", ""), reference
    assert page.count("<script") == page.count("</script>") == 2
