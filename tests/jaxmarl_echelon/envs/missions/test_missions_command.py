"""Missions as they are typed: a verb of one's own, and what the command line says to what cannot be."""

import json
import re
import sys

import jax
import numpy as np
import pytest

from jaxmarl_echelon import command_line, train
from jaxmarl_echelon.command_line import compose_config, normalize_overrides, parse_override_value
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS
from jaxmarl_echelon.training.config import build

RUN = ("env=echelon_missions_small", "env.maps=2", "env.terrain=urban", "curriculum=missions4")


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """The settings of a run whose terrains are kept, and a place in a wall of one of them."""
    settings = [*RUN, f"env.cache={tmp_path_factory.mktemp('terrains')}"]
    bank = build.build_run_config(compose_config(settings)[0]).env.bank
    low = np.asarray(bank.voxels.solid)[:, 8:32, 8:32] & 1  # the lowest layer
    y, x = np.argwhere(low.any(0))[0] + 8
    return settings, f"env.objective=[{x}.5,{y}.5]"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mission=charge", ("env.mission=charge", "assault", "platoon_recon")),
        ("env.risk=1.5", ("env.risk=1.5", "from 0 to 1")),
        ("env.mission=hold env.enemy_count=0", ("env.enemy_count=0", "hold needs at least one enemy")),
        ("wall", ("env.objective=", "inside a wall of terrain")),
        ("env.friendly_count=4", ("env.friendly_count=4", "env.blue has only 3 mechs")),
    ],
)
def test_wrong_missions_are_one_line_and_write_nothing(monkeypatch, capsys, tmp_path, chosen, given, words):
    settings, wall = chosen
    monkeypatch.chdir(tmp_path)
    arguments = (wall if given == "wall" else given).split()
    monkeypatch.setattr(sys, "argv", ["train", *settings, *arguments])
    # What is not refused would train: it must not come so far.
    monkeypatch.setattr(train, "execute_job", None)
    with pytest.raises(SystemExit) as ended:
        command_line.run_guarded(train.main)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1
    assert all(word in said for word in words), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mission", ["scout", "mixed", "[assault,hold]", "{scout: 2, hold: 1}"])
def test_the_mission_option_needs_no_group_prefix(mission):
    short, full = (
        normalize_overrides(["env=echelon_missions", f"{key}={mission}"])
        for key in ("mission", "env.mission")
    )
    assert short == full
    assert compose_config(short)[0].env.mission == parse_override_value(f"mission={mission}")


def test_other_environments_reject_the_mission_option():
    with pytest.raises(command_line.UsageError, match=r"^env\.mission=scout: unknown key"):
        compose_config(normalize_overrides(["env=echelon", "mission=scout"]))


def test_a_user_s_verb_is_one_file_and_a_yaml(monkeypatch, tmp_path, repository, chosen):
    """The documentation's example: its success function, gates, training scenarios and name."""
    blocks = re.findall(r"```python\n(.*?)```", (repository / "docs" / "echelon.md").read_text(), re.DOTALL)
    (verb,) = [block for block in blocks if "RAID = Verb(" in block]
    (tmp_path / "my_verbs.py").write_text(verb)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "env").mkdir()
    own = {"defaults": ["echelon_missions_small", "_self_"], "mission": "raid"}
    own |= {"verbs": ["hold", "scout", "my_verbs:RAID"]}
    (tmp_path / "env" / "raid.yaml").write_text(json.dumps(own))
    given = ["env=raid", "reward=echelon_missions", *chosen[0][1:]]
    run = build.build_run_config(compose_config(given, Sources(folder=tmp_path))[0])
    params, env = run.env.default_params(), run.env
    assert env.registry.names == ("hold", "scout", "raid") and env.spec.tasks == env.registry.names
    np.testing.assert_array_equal(params.levers.mission, [0, 0, 1])
    np.testing.assert_allclose(params.levers.strength[2], [[0.3, 0.6], [0.5, 1.0]])
    gates = dict(zip(COMPONENTS, params.gates[2].tolist(), strict=True))
    assert (gates["damage_dealt"], gates["survival"], gates["detection"]) == (1.0, 0.5, 0.0)
    curriculum = run.curriculum(env)
    drawn = curriculum.draw(jax.random.key(0), curriculum.init()).params
    np.testing.assert_array_equal(drawn.levers.mission, [0, 0, 1])
