"""The benchmark of missions scores every variant in its own environment."""

from types import SimpleNamespace

import numpy as np
import pytest
from scripts import load_script


@pytest.fixture(scope="module")
def learning(repository):
    return load_script(repository / "benchmarks" / "mission_learning.py")


def test_every_variant_plays_in_its_own_environment(learning, monkeypatch, tmp_path):
    """Two seeds of each of two variants; a policy's score is the number of the program that plays it."""
    members = [tmp_path / f"{variant}_seed_{seed}" for variant in ("baseline", "hard") for seed in (0, 1)]
    programs = [
        SimpleNamespace(number=number, world=None, init_policy=lambda key: key) for number in (1.0, 2.0)
    ]

    def load_members(folders, name):
        assert (list(folders), name) == (members, "latest")
        for place in range(4):
            config = SimpleNamespace(seed=place % 2)
            yield SimpleNamespace(program=programs[place // 2], config=config, state=np.zeros(1))

    made = []

    def make_player(program, episodes):
        made.append((program.number, episodes))
        return lambda number, state, seed: ({"mission": program.number + 10 * number + 100 * seed}, None)

    monkeypatch.setattr(learning.run_loading, "load_members", load_members)
    monkeypatch.setattr(learning.checkpoints, "find_checkpoint", lambda member, name: member / name)
    monkeypatch.setattr(learning.checkpoints, "restore_state", lambda folder, like: like)
    monkeypatch.setattr(learning, "make_player", make_player)
    scores, reports = learning.play_all(members, 8)
    found = {key: [one["mission"] for one in rows] for key, rows in scores.items()}
    assert made == [(1.0, 8), (2.0, 8)]
    for name in ("latest", "best_eval"):
        assert found["baseline", name] == [1.0, 101.0] and found["hard", name] == [2.0, 102.0]
        assert len(reports["hard", name]) == 2
    assert found["untrained", ""] == [1.0, 101.0] and found["script: heuristic", ""] == [11.0, 111.0]
