"""The examples of docs/libraries.md run as they are."""

import re

import pytest

MODULES = {"JaxMARL": "jaxmarl", "brax": "brax", "Playground": "mujoco_playground", "PGX": "pgx"}


@pytest.mark.parametrize(
    "section", [pytest.param(name, marks=pytest.mark.needs(package)) for name, package in MODULES.items()]
)
def test_an_example_runs(repository, capsys, section):
    text = (repository / "docs" / "libraries.md").read_text()
    (block,) = re.findall(rf"## {section}\n\n```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, f"{section}.py", "exec"), {"__name__": section})
    said = capsys.readouterr().out
    expected = {"JaxMARL": "'won'", "brax": "100", "Playground": "100", "PGX": "True [ 1. -1.] seat_0"}
    assert expected[section] in said
