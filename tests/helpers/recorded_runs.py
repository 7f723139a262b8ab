"""Folders of made-up runs, for tests of what reads them."""

import json
import re

import yaml

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.reporting.recorded_evaluations import EvaluationSettings, write_evaluation_settings
from jaxmarl_echelon.tracking.csv_sink import CsvTable

STEPS = (0, 1000, 2000)


def write_run(folder, scores, *, env="f110", algo="ppo", seed=0, score="success", name="", **settings):
    """Writes a run with an evaluation per score: with an interval, or of the return alone (`score=None`).

    `name` makes it a member of the group `folder`.
    """
    place = folder / name
    place.mkdir(parents=True)
    choices = {"env": env, "algo": algo}
    config = {"seed": seed, "total_env_steps": STEPS[-1], "num_envs": 4, "choices": choices, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    evaluations, metrics = CsvTable(place / "eval.csv"), CsvTable(place / "metrics.csv")
    for step, value in zip(STEPS, scores, strict=False):
        row = {"avg_reward": 10.0 * value, "std_reward": 1.0, "num_episodes": 16.0}
        if score is not None:
            row |= {f"{score}_rate": value, f"{score}_low": value - 0.1, f"{score}_high": value + 0.1}
        evaluations.append(step, row)
        metrics.append(step, {"train/return": 9.0 * value, "time/train_seconds": step / 100.0})
    return place


def write_group(folder, curves, **settings):
    """Writes a vectorized group with a member per curve of scores, of seeds 0, 1, ..."""
    for seed, scores in enumerate(curves):
        write_run(folder, scores, name=f"seed_{seed}", **{"seeds": len(curves), **settings})
    return folder


def write_evaluation(place, score, *, name="latest", step=STEPS[-1], episodes=64, overrides=(), **settings):
    """Writes a checkpoint without a state, and its evaluation on fresh episodes, for a run of `write_run`.

    Its configuration is that of the run with other `settings`.
    """
    folder = place if (place / "config.yaml").is_file() else place.parent
    config = yaml.safe_load((folder / "config.yaml").read_text()) | settings
    checkpoint = place / "checkpoints" / checkpoints.checkpoint_folder_name(step)
    made = place / f"evaluation_{checkpoint.name}"
    for new in (checkpoint, made):
        new.mkdir(parents=True)
    facts = {"format": checkpoints.FORMAT, "step": step, "config": config}
    (checkpoint / "metadata.json").write_text(json.dumps(facts))
    (checkpoint.parent / name).write_text(f"{checkpoint.name}\n")
    values = {"avg_reward": 7.0 * score, "success_rate": score, "success_low": 0.0, "success_high": 1.0}
    rows = {"trained policy": {f"eval_agg/{key}": value for key, value in values.items()}}
    (made / "evaluation.json").write_text(json.dumps(rows))
    how = EvaluationSettings(
        checkpoint.name, step, episodes, list(overrides), f"{config['choices']['env']} 1"
    )
    write_evaluation_settings(made, how)


def check_loads_nothing(page):
    """Demands that a page names nothing outside of itself."""
    for reference in ("http:", "https:", " src=", " href=", "@import", "url(", "fetch("):
        assert reference not in page, reference
    assert not re.search(r"\{\{\w", page)
