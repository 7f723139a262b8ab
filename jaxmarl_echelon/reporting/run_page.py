"""The page `report.html` of a run: curves, curriculum, outcomes, rewards, ratings, replay, configuration."""

import html
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from jaxmarl_echelon.reporting import pages, run_charts
from jaxmarl_echelon.reporting.changed_settings import ChangedSetting, find_changed_settings
from jaxmarl_echelon.reporting.pool_charts import chart_ratings, list_ratings
from jaxmarl_echelon.reporting.recorded_runs import (
    RecordedRun,
    find_members,
    last_finite,
    last_row,
    measure_label,
    read_member,
    read_run,
)
from jaxmarl_echelon.tracking.csv_sink import METRICS, CsvSink, read_texts
from jaxmarl_echelon.tracking.formats import format_clock, format_count
from jaxmarl_echelon.tracking.run_tables import read_pool_rows

REPORT = "report.html"
REPLAY = "replay.html"
_SUMMARY = "summary.json"
# An evaluation whose episodes were all quarantined.
UNSCORED = "no score"
UNFINISHED = "unfinished"
OVER_VARIANTS = (
    "Scores above, and charts whose legend names no variant, "
    "are means over the members of all {count} variants that were still evaluated."
)


def write_report(
    folder: Path, *, running: bool = False, changed: Sequence[ChangedSetting] | None = None
) -> Path:
    """Writes `report.html` into a run's folder, from its files; returns its path.

    Args:
      folder: of a run, a group or a member.
      running: whether the run goes on, so that the page reads itself again.
      changed: the settings that differ from the defaults, to save the time of finding them.

    Raises:
      ValueError: one line, for a folder that is not one of a run, or a run without evaluations.
    """
    run = read_run(folder)
    if not len(run.evaluations.get("step", ())):
        raise ValueError(f"{folder}: no evaluations: eval.csv is missing or empty")
    members = [read_member(member, run.config) for member in find_members(folder)]
    changed = find_changed_settings(run.config) if changed is None else changed
    page = compose_run_page(run, members, changed, running=running)
    fresh = folder / f".{REPORT}.tmp"
    fresh.write_text(page, encoding="utf-8")
    fresh.replace(folder / REPORT)
    return folder / REPORT


def compose_run_page(
    run: RecordedRun, members: Sequence[RecordedRun], changed: Sequence[ChangedSetting], *, running: bool
) -> str:
    """Composes the page of a run, or of a group with its members."""
    pool = read_pool_rows(run.folder / CsvSink.FILES["entries"])
    section = pages.lay_out_section
    changes = pages.write_table(["setting", "default", "this run"], changed, left=True)
    changes = changes or pages.write_paragraph("All settings have their defaults.")
    config = html.escape(run.config_file.read_text(encoding="utf-8"))
    parts = [
        pages.write_paragraph(_written_at(running)),
        pages.list_facts(list_run_facts(run, members, running=running)),
        _note_variants(members),
        section("Learning curves", run_charts.chart_learning_curves(run, members)),
        section("Members", (), run_charts.list_members(members)),
        section(
            "Curriculum",
            run_charts.chart_curriculum(run),
            pages.fold_part("phases entered", run_charts.list_phases(run)),
        ),
        section("Outcomes", run_charts.chart_outcomes(run)),
        section(
            "Reward components",
            run_charts.chart_rewards(run),
            pages.fold_part("last evaluation", run_charts.list_rewards(run)),
        ),
        section("Opponent pool", [chart_ratings(pool)], pages.fold_part("entries", list_ratings(pool))),
        pages.fold_part("results by label", run_charts.list_groups(run)),
        section("Replay", (), embed_replay(run.folder)),
        section("Losses and speed", run_charts.chart_losses(run)),
        section("Configuration", (), changes),
        pages.fold_part("whole configuration", f'<div class="table"><pre>{config}</pre></div>'),
    ]
    return pages.compose_page(run.title, parts, reloads=running)


def _written_at(running: bool) -> str:
    now = f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    return f"{now} Reloads every {pages.RELOAD_SECONDS} s while the run goes on." if running else now


def _note_variants(members: Sequence[RecordedRun]) -> str:
    """Says what is a mean over different methods; empty with fewer than two variants."""
    count = len({member.variant for member in members})
    return pages.write_paragraph(OVER_VARIANTS.format(count=count)) if count > 1 else ""


def list_run_facts(
    run: RecordedRun, members: Sequence[RecordedRun], *, running: bool
) -> list[tuple[str, str]]:
    """Lists a run's status, progress, speed and scores, as names and texts."""
    measured, evaluations, metrics = run.score, run.evaluations, run.metrics
    told: Callable[[float], str] = run_charts.format_score(measured)
    column, newest = evaluations[measured.column], last_row(evaluations)
    last = told(newest[measured.column]) if measured.column in newest else UNSCORED
    if {measured.column, measured.low, measured.high} <= newest.keys():
        # A group of several variants has no interval.
        last += f" [{100.0 * newest[measured.low]:.1f}, {100.0 * newest[measured.high]:.1f}]"
    steps = max(metrics.get("step", np.zeros(1))[-1], evaluations["step"][-1])
    label, total = measure_label(measured), int(run.config.get("total_env_steps") or 0)
    seeds = ", ".join(str(one) for one in dict.fromkeys(member.seed for member in members or [run]))
    best = np.nanmax(column) if np.isfinite(column).any() else float("nan")
    # The summary of a group is that of its other members, too.
    ended = "diverged" if run.diverged and not members else read_status(run.folder, steps)
    facts = [
        ("status", "running" if running else ended),
        ("environment steps", f"{format_count(steps)} of {format_count(max(total, steps))}"),
        ("seed" if "," not in seeds else "seeds", seeds),
        (f"{label}, last evaluation", last),
        (f"{label}, highest", told(float(best))),
        ("time of training", format_clock(last_finite(metrics.get("time/train_seconds", [])))),
        ("time of compiling", format_clock(last_finite(metrics.get("time/compile_seconds", [])))),
        ("phase", _phase(run)),
        ("steps per second", format_count(last_finite(metrics.get("time/steps_per_second", [])))),
    ]
    return [(name, value) for name, value in facts if value != "-"]


def _phase(run: RecordedRun) -> str:
    """Number and name of a curriculum's phase; `-` without one."""
    number = last_finite(run.metrics.get("curriculum/current_stage", []))
    names = read_texts(run.folder / METRICS, "curriculum/phase_name") if np.isfinite(number) else []
    return f"{number:.0f} {next(filter(None, reversed(names)), '')}" if names else "-"


def read_status(folder: Path, step: float) -> str:
    """Reads the status of a run of so many steps from its summary; "unfinished" without one.

    A summary of fewer steps was written before the run continued, and did not end.
    """
    for place in (folder, folder.parent):
        if (place / _SUMMARY).is_file():
            found = json.loads((place / _SUMMARY).read_text(encoding="utf-8"))
            ended = found.get("env_steps", step) >= step
            return str(found.get("status", UNFINISHED)) if ended else UNFINISHED
    return UNFINISHED


def find_replay(folder: Path) -> Path | None:
    """Finds the newest replay of a run: its own, or one that `evaluate` wrote; None without one."""
    places = (folder / REPLAY, *folder.glob(f"evaluation_*/{REPLAY}"))
    found = [path for path in places if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def embed_replay(folder: Path) -> str:
    """Embeds the newest replay of a run; empty without one."""
    found = find_replay(folder)
    return (
        "" if found is None else pages.embed_page(found.read_text(encoding="utf-8"), "replay of an episode")
    )
