"""Files that runs stand on: found from every folder, and missed when they are no longer what they were."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from marked import mark_after
from PIL import Image

from jaxmarl_echelon import checkpoints, command_line, policies, run_loading, train
from jaxmarl_echelon.envs.drive.scenes import library
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings
from jaxmarl_echelon.training.config import build, input_files

SMALL = ("algo=ppo", "env=f110_race", "env.lidar_beams=4", "num_envs=2", "algo.horizon=8", "tracking=quiet")
HALL, MINE = "maps/hall.yaml", "maps/mine.csv"


def draw_map(folder):
    """A map of one room in `folder/maps`, with a closed line in it."""
    (folder / "maps").mkdir()
    cells = np.zeros((60, 60), np.uint8)
    cells[1:-1, 1:-1] = 254
    Image.fromarray(cells).save(folder / "maps" / "hall.png")
    (folder / HALL).write_text("image: hall.png\nresolution: 0.1\norigin: [0, 0, 0]\n")
    angle = np.linspace(0, 2 * np.pi, 50, endpoint=False)
    rows = (f"{3 + np.cos(x)},{3 + np.sin(x)}\n" for x in angle)
    (folder / MINE).write_text("".join(rows))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a map and a run on it, of which there are the settings only."""
    folder = tmp_path / "project"
    folder.mkdir()
    draw_map(folder)
    monkeypatch.chdir(folder)
    config, choices = command_line.compose_config([*SMALL, f"env.map={HALL}", f"env.centerline={MINE}"])
    config.shards = 1
    place = folder / "run" / "checkpoints" / "step_000000000016"
    place.mkdir(parents=True)
    facts = {"format": checkpoints.FORMAT, "step": 16, "config": train.read_job(config, choices).resolved}
    (place / "metadata.json").write_text(json.dumps(facts))
    return folder, place


def metadata(place):
    return checkpoints.read_metadata(place)


def test_checkpoints_hold_absolute_paths_and_digests(project):
    folder, place = project
    held = metadata(place)["config"]
    assert (held["env"]["map"], held["env"]["centerline"]) == (str(folder / HALL), str(folder / MINE))
    assert set(input_files.files_in_metadata(metadata(place))) == {str(folder / HALL), str(folder / MINE)}
    digests = input_files.files_in_metadata(metadata(place))[str(folder / HALL)]
    assert set(digests) == {"hall.yaml", "hall.png"} and all(len(one) == 64 for one in digests.values())


def test_a_run_is_read_from_every_folder_and_takes_no_other_file_of_that_name(project, monkeypatch, tmp_path):
    folder, place = project
    other = tmp_path / "other"
    other.mkdir()
    draw_map(other)
    (other / MINE).write_text("3,3\n4,3\n4,4\n3,3\n")
    monkeypatch.chdir(other)
    env = build.build_run_config(build.read_saved_config(metadata(place))).env
    assert env.maps[0].files[0] == folder / HALL and env.maps[0].centerline.source == str(folder / MINE)
    # Where the file is gone, a namesake with other contents is not taken either.
    shutil.rmtree(folder / "maps")
    with pytest.raises(ValueError, match=f"{folder / MINE}.*not a readable"):
        build.build_run_config(build.read_saved_config(metadata(place)))


def test_a_project_may_move_as_a_whole(project, monkeypatch, tmp_path):
    folder, place = project
    moved = tmp_path / "elsewhere" / "mine"
    shutil.copytree(folder, moved)
    shutil.rmtree(folder / "maps")
    monkeypatch.chdir(moved)
    saved = build.read_saved_config(metadata(place))
    assert saved.env.map == str(moved / HALL) and saved.env.centerline == str(moved / MINE)


def test_a_file_may_be_named_otherwise_when_a_run_is_resumed(project, monkeypatch):
    folder, place = project
    monkeypatch.chdir(folder / "maps")
    shutil.copytree(folder / "maps", folder / "copy")
    for name in ("hall.yaml", f"{folder}/maps/../{HALL}", "../copy/hall.yaml"):
        assert train.find_resume_point(place, [f"env.map={name}"]).config.env.map == name
    (folder / "copy" / "hall.yaml").write_text("image: hall.png\nresolution: 0.2\norigin: [0, 0, 0]\n")
    with pytest.raises(ValueError, match="a resumed run keeps its env.map="):
        train.find_resume_point(place, ["env.map=../copy/hall.yaml"])


@pytest.mark.parametrize("name", mark_after(1, ["hall.yaml", "hall.png", "mine.csv"]))
def test_every_reader_of_a_run_reports_edited_files(project, name, capsys):
    folder, place = project
    path = folder / "maps" / name
    if name == "hall.png":
        cells = np.array(Image.open(path))
        cells[30, 30] = 0
        Image.fromarray(cells).save(path)
    else:
        path.write_text("# edited\n" + path.read_text())
    for read in (
        lambda: train.resume_run(place, ["total_env_steps=32"]),
        lambda: run_loading.load_run(place, "latest"),
        lambda: run_loading.load_run(place, "latest", ["env.max_steps=10"]),
    ):
        with pytest.raises(ValueError) as caught:
            read()
        told = f"{path} has changed since {folder / 'run'} read it; the run needs the original"
        assert str(caught.value) == told
    # A policy is the same whatever the map; who names a file means it as it is now. Then arrays are missed.
    with pytest.raises(checkpoints.CheckpointError, match="damaged checkpoint"):
        policies.load_policy(place)
    assert f"{path} has changed" in capsys.readouterr().err
    with pytest.raises(checkpoints.CheckpointError, match="damaged checkpoint"):
        run_loading.load_run(place, "latest", [f"env.map={HALL}", f"env.centerline={MINE}"])


def write_run(folder, step):
    place = folder / "checkpoints" / f"step_{step:012d}"
    place.mkdir(parents=True)
    (place / "metadata.json").write_text(json.dumps({"format": checkpoints.FORMAT, "step": step}))
    link = folder / "checkpoints" / "best_eval"
    link.unlink(missing_ok=True)
    link.symlink_to(place.name)


def test_teachers_and_frozen_policies_are_files_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for step, name in enumerate(("teacher", "rival", "fixed"), 8):
        write_run(tmp_path / name, step)
    config = SimpleNamespace(
        env=SimpleNamespace(files={}, spec=SimpleNamespace(roles=[SimpleNamespace(name="red")])),
        controllers={"red": "learner", "blue": "frozen:rival@red"},
        pool=SimpleNamespace(fixed=("random", "frozen:fixed")),
        algos={"red": SimpleNamespace(files={}, teacher="teacher")},
    )
    read = input_files.hash_input_files(config)
    assert set(read) == {str(tmp_path / name) for name in ("teacher", "rival", "fixed")}
    assert str(tmp_path / "teacher") not in input_files.hash_input_files(config, learning=False)
    plain = {
        "controllers": {"blue": "frozen:rival@red"},
        "pool": {"fixed": ["random", "frozen:fixed"]},
        "algo": {"teacher": "teacher"},
        "run_name": "teacher",
    }
    held = input_files.with_absolute_paths(plain, read)
    assert held["controllers"] == {"blue": f"frozen:{tmp_path}/rival@red"}
    assert held["pool"] == {"fixed": ["random", f"frozen:{tmp_path}/fixed"]}
    assert held["algo"] == {"teacher": f"{tmp_path}/teacher"} and held["run_name"] == "teacher"
    assert input_files.same_files(held["controllers"]["blue"], "frozen:rival@red", read)
    assert not input_files.same_files(held["controllers"]["blue"], "frozen:rival@blue", read)
    assert not input_files.same_files(held["controllers"]["blue"], "frozen:teacher@red", read)
    # The run's own checkpoints hold the policies of controllers and teachers, but not those of a pool.
    write_run(tmp_path / "rival", 16)
    input_files.require_unchanged_files(
        read, input_files.hash_input_files(config), "RUN", input_files.policy_runs_in_state(config)
    )
    assert f"{tmp_path}/rival/checkpoints/step_" in capsys.readouterr().err
    write_run(tmp_path / "fixed", 16)
    with pytest.raises(checkpoints.CheckpointError, match=f"{tmp_path}/fixed/checkpoints/step_.* since RUN"):
        input_files.require_unchanged_files(
            read, input_files.hash_input_files(config), "RUN", input_files.policy_runs_in_state(config)
        )


def test_folders_of_scenes_are_files_too(tmp_path):
    for name in ("a.json", "b.json", "c.txt"):
        (tmp_path / name).write_text("{}")
    chosen = SceneSettings(scenes=str(tmp_path), eval_scenes=str(tmp_path))
    assert library.list_scene_files(chosen) == {str(tmp_path): (tmp_path / "a.json", tmp_path / "b.json")}
    assert library.list_scene_files(SceneSettings()) == {}


def test_very_many_files_have_one_digest(tmp_path):
    paths = [tmp_path / f"{number}.json" for number in range(300)]
    for path in paths:
        Path(path).write_text("{}")
    config = SimpleNamespace(
        env=SimpleNamespace(files={str(tmp_path): tuple(paths)}, spec=SimpleNamespace(roles=[])),
        controllers={},
        pool=SimpleNamespace(fixed=()),
        algos={},
    )
    before = input_files.hash_input_files(config)
    assert set(before[str(tmp_path)]) == {"300 files"}
    paths[7].write_text("[]")
    with pytest.raises(checkpoints.CheckpointError, match="300 files has changed"):
        input_files.require_unchanged_files(before, input_files.hash_input_files(config), "RUN")
