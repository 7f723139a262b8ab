"""Scores of checkpoints on fresh episodes, in the files that `python -m jaxmarl_echelon.evaluate` writes."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.reporting.recorded_runs import RecordedRun
from jaxmarl_echelon.tracking.run_tables import Columns

SCORES = "evaluation.json"
SETTINGS = "evaluation_settings.json"
# The actor whose scores are those of the checkpoint.
TRAINED = "trained policy"
NAMESPACE = "eval_agg/"


class EvaluationSettings(NamedTuple):
    """Settings of an evaluation.

    Attributes:
      checkpoint: name of the checkpoint's folder.
      step: environment steps after which it was saved.
      episodes: episodes that were played.
      overrides: `KEY=VALUE`, in which the evaluation differs from the run.
      environment: name and version of the environment that was played.
      state: `checkpoints.state_digest` of the checkpoint; empty in files of older versions.
    """

    checkpoint: str
    step: int
    episodes: int
    overrides: list[str]
    environment: str
    state: str = ""


class RecordedEvaluation(NamedTuple):
    """An evaluation of the policy in a checkpoint.

    Attributes:
      file: `evaluation.json`.
      settings: how it was made.
      config: the configuration that the checkpoint was trained with, as plain data; a member has its own.
      columns: the trained policy's values as a table of one row, with the names of `eval.csv`.
    """

    file: Path
    settings: EvaluationSettings
    config: dict[str, Any]
    columns: Columns


def evaluation_folder(checkpoint: Path) -> Path:
    """Returns the folder in which a checkpoint is evaluated, in that of its run."""
    return checkpoint.parent.parent / f"evaluation_{checkpoint.name}"


def write_evaluation_settings(folder: Path, settings: EvaluationSettings) -> None:
    """Writes `evaluation_settings.json` into the folder of `evaluation.json`."""
    (folder / SETTINGS).write_text(json.dumps(settings._asdict(), indent=2) + "\n", encoding="utf-8")


def read_evaluation(run: RecordedRun, name: str) -> RecordedEvaluation:
    """Reads the evaluation of a run's checkpoint.

    Args:
      run: a run, or a member of a group.
      name: of the checkpoint, such as `latest`.

    Raises:
      ValueError: one line, if there is no such checkpoint, or no evaluation of it with its settings: a run
        that was resumed from an earlier checkpoint may have another policy at the same step.
    """
    checkpoint = checkpoints.find_checkpoint(run.folder, name)
    folder = evaluation_folder(checkpoint)
    missing = next((file for file in (SCORES, SETTINGS) if not (folder / file).is_file()), None)
    command = f"python -m jaxmarl_echelon.evaluate {run.config_file.parent} --checkpoint {name}"
    if missing is not None:
        raise ValueError(
            f"{run.folder}: no {folder.name}/{missing} of its {name}; it is written by {command}"
        )
    said = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    settings = EvaluationSettings(**{key: said[key] for key in EvaluationSettings._fields if key in said})
    if settings.state not in ("", checkpoints.state_digest(checkpoint)):
        raise ValueError(f"{folder / SCORES}: is of an earlier checkpoint of this step; renewed by {command}")
    values = json.loads((folder / SCORES).read_text(encoding="utf-8"))[TRAINED]
    columns = {key.removeprefix(NAMESPACE): np.array([value]) for key, value in values.items()}
    config = checkpoints.read_metadata(checkpoint)["config"]
    return RecordedEvaluation(
        folder / SCORES, settings, config, {"step": np.array([settings.step])} | columns
    )
