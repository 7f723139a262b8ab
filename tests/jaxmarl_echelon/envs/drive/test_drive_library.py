"""Scenes of runs: generated, loaded, hand-made; cached, summarised, drawn. docs/reference/drive.md 2."""

import json
import subprocess
import sys

import numpy as np
import pytest
from drive_generated import scenes as generated

from jaxmarl_echelon.envs.drive.bank import scene_at
from jaxmarl_echelon.envs.drive.make import describe_unreachable_goals, make
from jaxmarl_echelon.envs.drive.rewards import make_reward
from jaxmarl_echelon.envs.drive.scenes import __main__ as command
from jaxmarl_echelon.envs.drive.scenes import library, scene_jobs
from jaxmarl_echelon.envs.drive.scenes.files.export import write_scene
from jaxmarl_echelon.envs.drive.scenes.generated.sanity import SCENES
from jaxmarl_echelon.envs.drive.scenes.library import interleave_kinds, load_scenes
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings

SMALL = {"maps": 2, "eval_maps": 1, "kinds": {"straight": 1.0, "curve": 1.0}}


def _same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name == "sign")
        for name in vars(one)
        if name != "spiral"
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    return load_scenes(SceneSettings(**SMALL, cache=str(folder))), folder


def test_kinds_follow_their_weights_in_an_order_independent_of_the_count():
    weights = {"a": 2.0, "b": 1.0, "c": 0.0}
    order = interleave_kinds(weights, 30)
    assert order.count("a") == 20 and order.count("b") == 10
    assert interleave_kinds(weights, 7) == order[:7]


def test_held_out_scenes_follow_training_scenes(small):
    found, _ = small
    assert found.train == 2 and found.held_out == (2, 1)
    assert found.names == ("straight-0-0", "curve-0-1", "straight-0-1000000")
    assert [found.kinds[nth] for nth in found.bank.kind] == ["straight", "curve", "straight"]
    assert found.bank.recording.shape[0] == 3 and found.bank.segment.shape[1] % 64 == 0


def test_more_maps_keep_existing_scenes(small):
    found, _ = small
    more = load_scenes(SceneSettings(**{**SMALL, "maps": 3}, cache=None))
    assert more.names == (*found.names[:2], "straight-0-2", found.names[2])


def test_banks_are_cached_by_their_inputs(small, monkeypatch):
    found, folder = small
    monkeypatch.setattr(scene_jobs, "build_generated_scene", None)
    assert _same(load_scenes(SceneSettings(**SMALL, cache=str(folder))).bank, found.bank)
    (kept,) = folder.iterdir()
    monkeypatch.undo()
    kept.write_bytes(kept.read_bytes()[:1000])
    assert _same(load_scenes(SceneSettings(**SMALL, cache=str(folder))).bank, found.bank)
    with np.load(kept, allow_pickle=False) as stored:
        assert "recording" in stored.files


def test_processes_do_not_change_the_bank(small):
    found, _ = small
    assert _same(load_scenes(SceneSettings(**SMALL, cache=None), workers=2).bank, found.bank)


@pytest.fixture(scope="module")
def by_hand():
    return load_scenes(SceneSettings(scenes="sanity", cache=None))


@pytest.mark.parametrize("name", SCENES)
def test_sanity_scenes_have_learners_that_are_not_at_their_goals(by_hand, name):
    bank = scene_at(by_hand.bank, by_hand.names.index(name))
    expected = {"two_agents": 2, "crossing": 4}
    assert bank.learner.sum() == expected.get(name, 1)
    away = np.hypot(*(bank.goal - bank.recording[0, :, :2])[:16][bank.learner].T)
    assert (away >= 10.0 - 1e-4).all()


def test_all_sanity_scenes_are_kinds_of_one_bank_and_evaluated_one_by_one(by_hand):
    assert by_hand.names == by_hand.kinds == tuple(SCENES) and by_hand.held_out == (0, len(SCENES))
    alone = load_scenes(SceneSettings(scenes="sanity:turn", cache=None))
    together = scene_at(by_hand.bank, by_hand.names.index("turn"))
    assert np.array_equal(scene_at(alone.bank, 0).recording, together.recording)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenes")
    for nth in range(9):
        write_scene(generated("curve")[nth % 3], path / f"{nth}.json")
    return path


def test_every_eighth_file_is_held_out(folder):
    found = load_scenes(SceneSettings(scenes=str(folder), cache=None))
    assert found.train == 8 and found.held_out == (8, 1)
    assert found.bank.recording.shape[2] == 64
    assert found.lines[0].startswith("scenes: 8 for training, 1 held out; learners per scene")


def test_evaluation_scenes_can_have_their_own_folder(folder, tmp_path):
    write_scene(generated("tee")[0], tmp_path / "held.json")
    found = load_scenes(SceneSettings(scenes=str(folder), eval_scenes=str(tmp_path), cache=None))
    assert found.train == 9 and found.held_out == (9, 1) and found.kinds == ("curve", "tee")


def test_loaded_scenes_equal_those_they_were_written_from(folder):
    loaded = load_scenes(SceneSettings(scenes=str(folder), bodies=32, cache=None))
    arrays, _ = scene_jobs.build_scene(generated("curve")[0], SceneSettings().casting, 8192)
    whole = library._together([(arrays, {})])[0]
    for name in ("recording", "recorded", "goal", "route", "learner", "driven", "size", "origin"):
        np.testing.assert_array_equal(getattr(loaded.bank, name)[0], whole[name][0], err_msg=name)


def test_bad_files_are_skipped_only_if_asked(folder, tmp_path):
    good = (folder / "0.json").read_text()
    (tmp_path / "b.json").write_text(good)
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "c.json").write_text(json.dumps({"objects": [], "roads": []}))
    with pytest.raises(ValueError, match=r"^env.scenes: a.json: not JSON \(line 1, column 2\)$"):
        load_scenes(SceneSettings(scenes=str(tmp_path), cache=None))
    found = load_scenes(SceneSettings(scenes=str(tmp_path), skip_bad=True, cache=None))
    assert found.train == 1 and sum("json" in line for line in found.lines) == 2


def test_skipped_files_are_reported_apart_from_the_summary(folder, tmp_path):
    (tmp_path / "b.json").write_text((folder / "0.json").read_text())
    (tmp_path / "a.json").write_text("{")
    found = load_scenes(SceneSettings(scenes=str(tmp_path), skip_bad=True, cache=None))
    env = make(make_reward(), scenes=found)
    assert env.describe() == found.lines[:1] and env.left_out() == found.lines[1:]
    assert env.left_out()[-1].startswith("env.scenes: a.json: not JSON")


def test_unreachable_goals_are_reported(by_hand):
    bank = by_hand.bank
    assert describe_unreachable_goals(bank, 0, 200) == ()
    (line,) = describe_unreachable_goals(bank, 0, 90)
    assert line.startswith("scenes: goals of 1 of 14 learners are out of reach in 90 steps: up to 150 m away")


def test_episode_length_affects_only_loaded_scenes(folder):
    casting = SceneSettings(scenes=str(folder), init_step=10, steps=40).casting
    assert casting.last == 50 and SceneSettings(steps=40).casting.last == 90


@pytest.mark.parametrize(
    "given, line",
    [
        (
            {"scenes": "/no/such"},
            "env.scenes=/no/such: no such folder; allowed: generated, sanity, sanity:NAME, a folder",
        ),
        ({"scenes": "sanity:x"}, "env.scenes=sanity:x: unknown; allowed: straight, reverse"),
        ({"kinds": {"x": 1}}, "env.kinds=x: unknown; allowed: straight, curve"),
        ({"kinds": {"tee": 0}}, "env.kinds={'tee': 0}: one weight must be positive"),
        ({"agents": 8, "bodies": 4}, "env.bodies=4: must be at least env.agents=8"),
        ({"goal_sample": [60, 91]}, "env.goal_sample=91.0: must be a whole number from"),
        (
            {"control": "all_of_them"},
            "env.control=all_of_them: unknown; allowed: vehicles, agents, sdc, all",
        ),
        ({"max_segments": 10, "maps": 1, "eval_maps": 0}, " segments, env.max_segments=10"),
    ],
)
def test_invalid_scene_settings_raise_a_one_line_error(given, line):
    with pytest.raises(ValueError) as caught:
        load_scenes(SceneSettings(**{"cache": None, **given}))
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_without_scenes_or_learners_is_an_error(folder, tmp_path):
    with pytest.raises(ValueError, match=rf"^env.scenes={tmp_path}: contains no .json file$"):
        load_scenes(SceneSettings(scenes=str(tmp_path), cache=None))
    whole = json.loads((folder / "0.json").read_text())
    for one in whole["objects"]:
        one["mark_as_expert"] = True
    (tmp_path / "a.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=r"no learner in any of 1 scenes \(control=vehicles\)"):
        load_scenes(SceneSettings(scenes=str(tmp_path), cache=None))


def test_a_folder_without_learners_is_not_replaced_by_the_other_one(folder, tmp_path):
    whole = json.loads((folder / "0.json").read_text())
    for one in whole["objects"]:
        one["mark_as_expert"] = True
    (tmp_path / "a.json").write_text(json.dumps(whole))
    for key, other in (("scenes", "eval_scenes"), ("eval_scenes", "scenes")):
        given = {key: str(tmp_path), other: str(folder)}
        with pytest.raises(
            ValueError, match=rf"^env.{key}={tmp_path}: no learner in any of 1 scenes \(control"
        ):
            load_scenes(SceneSettings(**given, cache=None))


def test_the_command_draws_and_summarises_a_folder(tmp_path, capsys):
    write_scene(generated("tee")[0], tmp_path / "one.json")
    command.main([str(tmp_path), "--out", str(tmp_path / "pictures")])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("scenes: 1 for training") and "learners" in said[1]
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_the_command_exports_what_it_generates(tmp_path):
    command.main(["--maps", "1", "--kind", "curve", "--export", str(tmp_path)])
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["jaxmarl_echelon"]["kind"] == "curve"


def test_the_command_exits_with_2_and_one_line(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    ended = subprocess.run(
        [sys.executable, "-m", "jaxmarl_echelon.envs.drive.scenes", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr == "env.scenes: a.json: the file: must be an object\n"
