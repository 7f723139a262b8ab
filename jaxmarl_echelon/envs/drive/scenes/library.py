"""Scenes of a run: generates or reads them and builds one bank, training scenes first.

Reference: docs/reference/drive.md 2.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.scenes import cache, scene_jobs
from jaxmarl_echelon.envs.drive.scenes.arrays import ARRAYS, VERSION, Arrays, stack_scenes
from jaxmarl_echelon.envs.drive.scenes.generated import generate, sanity
from jaxmarl_echelon.envs.drive.scenes.scene_jobs import Built
from jaxmarl_echelon.envs.drive.scenes.settings import ALL_SANITY, GENERATED, SANITY, SceneSettings
from jaxmarl_echelon.envs.workers import run_jobs

HELD_OUT = 1_000_000  # first index of held-out generated scenes
EVERY = 8  # every eighth file is held out
_PER_WORKER = 8


@dataclass(frozen=True)
class Scenes:
    """Scenes of a run.

    Attributes:
      bank: all scenes, NumPy arrays; the first `train` are for training, the others are held out. If none is
        held out, evaluation uses the training scenes.
      names: of the scenes.
      kinds: names of kinds, by the bank's index.
      offsets: `[S, 2]` float64, subtracted from the coordinates.
      train: number of training scenes.
      held_out: index of the first evaluation scene, and the number of evaluation scenes.
      lines: a summary for users, then lines about skipped files and bodies.
    """

    bank: SceneBank
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    offsets: np.ndarray
    train: int
    held_out: tuple[int, int]
    lines: tuple[str, ...]


def load_scenes(chosen: SceneSettings, *, workers: int | None = None, progress: bool = True) -> Scenes:
    """Generates or reads the scenes of a run.

    Raises:
      ValueError: one line, which names the file and the fault, or the setting.
    """
    if chosen.is_folder:
        return _loaded(chosen, workers=workers, progress=progress)
    how = {"workers": workers, "progress": progress}
    if chosen.scenes == GENERATED:
        return _generated(chosen, **how)
    names = list(sanity.SCENES) if chosen.scenes == ALL_SANITY else [chosen.scenes.removeprefix(SANITY)]
    built = [
        scene_jobs.build_scene(sanity.make_sanity_scene(name), chosen.casting, chosen.max_segments)
        for name in names
    ]
    return _assembled(built, len(built), ())


def _generated(chosen: SceneSettings, *, workers: int | None, progress: bool) -> Scenes:
    kinds = interleave_kinds(chosen.kinds, max(chosen.maps, chosen.eval_maps))
    indices = [*range(chosen.maps), *range(HELD_OUT, HELD_OUT + chosen.eval_maps)]
    common = chosen.casting, chosen.goal_sample, chosen.max_segments
    jobs = [(chosen.map_seed, index, kinds[index % HELD_OUT], *common) for index in indices]

    def make() -> cache.CachedScenes:
        built = run_jobs(
            scene_jobs.build_generated_scene,
            jobs,
            label="scenes",
            per_worker=_PER_WORKER,
            workers=workers,
            progress=progress,
        )
        return _together(built)

    content = [VERSION, generate.VERSION, [[*job[:3], vars(job[3]), *job[4:]] for job in jobs]]
    return _finished(*cache.load_or_make(chosen.cache, content, make), chosen.maps, ())


def _loaded(chosen: SceneSettings, *, workers: int | None, progress: bool) -> Scenes:
    paths = _files("scenes", chosen.scenes)
    if chosen.eval_scenes is not None:
        apart, held_out = paths, _files("eval_scenes", chosen.eval_scenes)
    else:
        held_out = paths[EVERY - 1 :: EVERY]
        apart = [path for path in paths if path not in held_out]
    common = chosen.casting, chosen.max_segments
    jobs = [(str(path), *common) for path in (*apart, *held_out)]

    def make() -> cache.CachedScenes:
        how = {"per_worker": _PER_WORKER, "workers": workers, "progress": progress}
        found = run_jobs(scene_jobs.build_scene_from_file, jobs, label="scenes", **how)
        faults = {job[0]: one for job, one in zip(jobs, found, strict=True) if isinstance(one, ValueError)}
        if faults and not chosen.skip_bad:
            raise faults[min(faults, key=lambda path: Path(path).name)]
        usable = [one if isinstance(one, tuple) and one[1]["learners"] else None for one in found]
        train = sum(one is not None for one in usable[: len(apart)])
        if not any(usable):
            _refuse_without_learners("scenes", chosen, len(paths))
        if chosen.eval_scenes is not None and train in (0, sum(one is not None for one in usable)):
            # Scenes of the other folder must not stand in silently.
            named = ("eval_scenes", held_out) if train else ("scenes", apart)
            _refuse_without_learners(named[0], chosen, len(named[1]))
        arrays, facts = _together([one for one in usable if one is not None])
        empty = sum(isinstance(one, tuple) and not one[1]["learners"] for one in found)
        lines = [str(fault) for _, fault in sorted(faults.items())]
        lines += [f"scenes: skipped {empty} without a learner"] if empty else []
        return arrays, {**facts, "train": train, "lines": lines}

    content = [
        VERSION,
        [[scene_jobs.digest_file(job[0]), Path(job[0]).name, vars(job[1]), job[2]] for job in jobs],
    ]
    content += [len(apart), chosen.skip_bad]
    arrays, facts = cache.load_or_make(chosen.cache, content, make)
    return _finished(arrays, facts, facts["train"] or len(facts["scenes"]), tuple(facts["lines"]))


def _refuse_without_learners(key: str, chosen: SceneSettings, count: int) -> NoReturn:
    raise ValueError(
        f"env.{key}={getattr(chosen, key)}: no learner in any of {count} scenes (control={chosen.control})"
    )


def list_scene_files(chosen: SceneSettings) -> dict[str, tuple[Path, ...]]:
    """Returns the files of each folder that the settings name; empty for generated scenes."""
    if not chosen.is_folder:
        return {}
    named = {"scenes": chosen.scenes, "eval_scenes": chosen.eval_scenes}
    return {folder: tuple(_files(key, folder)) for key, folder in named.items() if folder is not None}


def _files(key: str, folder: str) -> list[Path]:
    if not Path(folder).is_dir():
        raise ValueError(
            f"env.{key}={folder}: no such folder; allowed: {GENERATED}, {ALL_SANITY}, {SANITY}NAME, a folder"
        )
    paths = sorted(Path(folder).glob("*.json"), key=lambda path: path.name)
    if not paths:
        raise ValueError(f"env.{key}={folder}: contains no .json file")
    return paths


def interleave_kinds(weights: dict[str, float], count: int) -> list[str]:
    """Returns `count` kinds in proportion to their weights; a larger count only appends kinds."""
    total = sum(weights.values())
    given = dict.fromkeys(weights, 0)
    order = []
    for nth in range(1, count + 1):
        kind = max(weights, key=lambda one: nth * weights[one] / total - given[one])
        given[kind] += 1
        order.append(kind)
    return order


def _together(built: list[Built]) -> cache.CachedScenes:
    return stack_scenes([arrays for arrays, _ in built]), {"scenes": [facts for _, facts in built]}


def _assembled(built: list[Built], train: int, lines: tuple[str, ...]) -> Scenes:
    return _finished(*_together(built), train, lines)


def _finished(arrays: Arrays, facts: dict, train: int, lines: tuple[str, ...]) -> Scenes:
    about = facts["scenes"]
    kinds = tuple(dict.fromkeys(one["kind"] for one in about))
    bank = SceneBank(
        **{name: arrays[name] for name in ARRAYS},
        kind=np.array([kinds.index(one["kind"]) for one in about], np.int32),
    )
    held_out = (train, len(about) - train) if len(about) > train else (0, train)
    return Scenes(
        bank,
        tuple(one["name"] for one in about),
        kinds,
        np.array([one["offset"] for one in about]),
        train,
        held_out,
        (_summary(about, train, arrays), *_left_out(about), *lines),
    )


def _summary(about: list[dict], train: int, arrays: Arrays) -> str:
    learners = sorted(one["learners"] for one in about)
    segments = max(one["segments"] for one in about)
    size = sum(array.nbytes for array in arrays.values()) / 1e6
    return (
        f"scenes: {train} for training, {len(about) - train} held out; learners per scene {learners[0]} to "
        f"{learners[-1]}, median {learners[len(learners) // 2]}; at most {segments} segments; {size:.1f} MB"
    )


def _left_out(about: list[dict]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for one in about:
        for what, count in one["notes"].items():
            counts[what] = counts.get(what, 0) + count
    return tuple(f"scenes: skipped or fixed: {count} {what}" for what, count in counts.items())
