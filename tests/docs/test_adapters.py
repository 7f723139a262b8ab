"""The examples of docs/adapters.md run, with small environments in place of theirs."""

import re

import probes
import pytest
from duels import Duel

import jaxmarl_echelon as je

SECTIONS = {
    "Gymnasium": ("gymnasium", probes.ContinuousTarget),
    "PettingZoo": ("pettingzoo", Duel),
    "Stable-Baselines3": ("stable_baselines3", probes.ContinuousTarget),
    "JaxMARL": ("jaxmarl", probes.Rivals),
}


@pytest.mark.parametrize(
    "section",
    [pytest.param(name, marks=pytest.mark.needs(package)) for name, (package, _) in SECTIONS.items()],
)
def test_an_example_runs(repository, monkeypatch, section):
    text = (repository / "docs" / "adapters.md").read_text()
    (block,) = re.findall(rf"## {section}\n\n```python\n(.*?)```", text, re.DOTALL)
    made = []

    def make(name, **settings):
        made.append(name)
        return SECTIONS[section][1]()

    monkeypatch.setattr(je, "make", make)
    block = (
        block.replace("100_000", "1")
        .replace("num_envs=128", "num_envs=4")
        .replace("n_steps=512", "n_steps=8")
    )
    block = block.replace("batch_size=2048", "batch_size=32").replace('{"defender": "learner"}', "{}")
    exec(compile(block, f"{section}.py", "exec"), {"__name__": section})
    assert len(made) == 1
