"""Charts and tables of one run: learning curves, curriculum, outcomes, rewards, losses."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxmarl_echelon.reporting.charts import Line, draw_chart, draw_shares, thin_curve
from jaxmarl_echelon.reporting.pages import write_table
from jaxmarl_echelon.reporting.recorded_runs import (
    RecordedRun,
    last_row,
    measure_label,
)
from jaxmarl_echelon.tracking.csv_sink import METRICS, read_texts
from jaxmarl_echelon.tracking.formats import format_count, format_finite, format_percent
from jaxmarl_echelon.tracking.run_tables import RETURN, Columns, Measured, find_phase_changes, find_scores
from jaxmarl_echelon.tracking.statistics import half_width, student_interval
from jaxmarl_echelon.tracking.view import loss_rank

MOST_CHARTS = 9
MOST_LINES = 8
# Components of the return that are smaller by this factor than the largest get a chart of their own.
_DWARFED = 10.0
# Columns of evaluations that are no measures of their own.
_KNOWN = ("step", "num_episodes", "quarantined", "phase_success_rate")
# Names in training of columns of evaluations that differ.
_IN_TRAINING = {RETURN: "return", "avg_episode_length": "episode_length"}
STREAK = "eval_success_streak"
_COMPONENTS, _OUTCOMES = "reward_components/", "outcome/"
# Numbers of a staged curriculum that are fixed or shown otherwise.
_CURRICULUM = (
    "avg_reward",
    "current_stage",
    "phase_idx",
    "stage",
    "total_",
    "criteria",
    "patience",
    "progress",
)


def chart_learning_curves(run: RecordedRun, members: Sequence[RecordedRun]) -> list[str]:
    """Draws score, return and the environment's measures over steps.

    A run shows training and evaluations with their intervals, a group each variant's mean over seeds with
    its interval, and every seed faintly.
    """
    score = run.score
    shown = [score] if score.column == RETURN else [score, Measured(RETURN)]
    names = find_measures(run, score, {} if members else run.metrics)
    measures = [Measured(name) for name in names]
    draw = chart_members if members else chart_measure
    return [draw(run, members, one) for one in (*shown, *measures[:MOST_CHARTS])]


def find_measures(run: RecordedRun, score: Measured, metrics: Columns) -> list[str]:
    """Lists measures that change, in training or evaluations: rates first, then short names, none twice."""
    found: dict[bytes, str] = {}
    ends = {end for one in find_scores(run.evaluations) for end in (one.low, one.high)}
    for name in sorted(run.evaluations, key=lambda name: (not name.endswith("_rate"), len(name))):
        if name not in ends and _is_measure(name, score) and _varies(run.evaluations, metrics, name):
            found.setdefault(run.evaluations[name].tobytes(), name)
    return list(found.values())


def _is_measure(name: str, score: Measured) -> bool:
    return "/" not in name and name not in (*_KNOWN, *score) and not name.startswith(("std_", RETURN))


def _varies(evaluations: Columns, metrics: Columns, name: str) -> bool:
    """Whether a measure changes, in evaluations or in training; known once, whether it is other than 0."""
    columns = [evaluations[name], metrics.get(f"train/{name}", np.empty(0))]
    return any(np.nan_to_num(column).any() and _changes(column) for column in columns)


def chart_measure(run: RecordedRun, members: Sequence[RecordedRun], measured: Measured) -> str:
    """Draws one measure of a run without `members`."""
    del members
    lines, evaluations = [], run.evaluations
    trained = run.metrics.get(f"train/{_IN_TRAINING.get(measured.column, measured.column)}")
    if trained is not None:
        lines.append(Line("training", *thin_curve(run.steps, trained), colour=None))
    elif measured.column == RETURN:
        # Of several learners, each has a return of its own.
        learners = select_columns(run.metrics, "train/return/")
        lines += [
            Line(f"training, {role}", *thin_curve(run.steps, column), colour=number)
            for number, (role, column) in enumerate(learners.items(), 1)
        ]
    if measured.column in evaluations:
        ends = _interval(evaluations, measured)
        lines.append(
            Line("evaluation", evaluations["step"], evaluations[measured.column], *ends, style="dots")
        )
    return _chart(run, measured, lines)


def chart_members(run: RecordedRun, members: Sequence[RecordedRun], measured: Measured) -> str:
    """Draws a measure of the members of a group; intervals are those of `eval.csv`, else over seeds.

    The members of one population have none.
    """
    lines, variants = [], dict.fromkeys(member.variant for member in members)
    for number, variant in enumerate(variants):
        mine = [one.evaluations for one in members if one.variant == variant]
        mine = [table for table in mine if measured.column in table]
        if not mine:
            continue
        steps = np.unique(np.concatenate([table["step"] for table in mine]))
        curves = np.stack([align_column(table, measured.column, steps) for table in mine])
        rows = len(steps)
        lines += [Line("", steps, curve, colour=number, style="faint") for curve in curves]
        mean, low, high = _mean_over_seeds(curves, bounded=bool(measured.low))
        if any(one.in_one_population for one in members):
            low, high = None, None
        elif measured.low and len(variants) == 1 and np.array_equal(run.evaluations["step"][:rows], steps):
            # Over all episodes, too, so that it keeps some width where all seeds score the same.
            low, high = (run.evaluations[end][:rows] for end in (measured.low, measured.high))
        name = variant or f"mean of {len(mine)} seeds"
        lines.append(Line(name, steps, mean, low, high, number, "dots"))
    return _chart(run, measured, lines)


def align_column(table: Columns, column: str, steps: np.ndarray) -> np.ndarray:
    """Returns a column of evaluations at these steps; NaN where there is none, as after divergence."""
    found = np.full(len(steps), np.nan)
    found[np.searchsorted(steps, table["step"])] = table[column]
    return found


def _chart(run: RecordedRun, measured: Measured, lines: Sequence[Line]) -> str:
    marks = [(one.step, str(one.after), one.after < one.before) for one in find_phase_changes(run.metrics)]
    scored = {"bounds": (-0.02, 1.02), "percent": True} if measured.low else {}
    return draw_chart(measure_label(measured), lines, marks=marks, **scored)


def _mean_over_seeds(curves: np.ndarray, *, bounded: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means of curves `[seeds, n]`, and the ends of their intervals, in [0, 1] if `bounded`.

    Seeds that are not finite (all episodes quarantined) are left out; there is no interval of a single one.
    """
    known = [column[np.isfinite(column)].tolist() for column in curves.T]
    mean = np.array([np.mean(values) if values else math.nan for values in known])
    ends = [student_interval(values) if len(values) > 1 else (math.nan, math.nan) for values in known]
    low, high = np.array(ends).reshape(-1, 2).T
    return (mean, np.maximum(low, 0.0), np.minimum(high, 1.0)) if bounded else (mean, low, high)


def _interval(evaluations: Columns, measured: Measured) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Ends of a measure's interval; of the return, those of a mean of independent episodes."""
    if measured.low:
        return evaluations[measured.low], evaluations[measured.high]
    if measured.column != RETURN or "std_reward" not in evaluations:
        return None, None
    number = np.where(evaluations["num_episodes"] > 1.0, evaluations["num_episodes"], np.nan)
    half = half_width(evaluations["std_reward"] * np.sqrt(number / (number - 1.0)), number)
    return evaluations[RETURN] - half, evaluations[RETURN] + half


def chart_curriculum(run: RecordedRun) -> list[str]:
    """Draws the phase over steps and the curriculum's numbers that change, and lists the phases entered."""
    metrics, charts = run.metrics, []
    steps, stages = run.steps, metrics.get("curriculum/current_stage")
    if stages is not None and np.unique(stages[np.isfinite(stages)]).size > 1:
        charts.append(draw_chart("phase", [Line("", steps, stages, style="step")]))
    drawn = [] if stages is None else [stages]
    for name, column in select_columns(metrics, "curriculum/").items():
        if name.startswith(_CURRICULUM) or "/" in name or (name == STREAK and not _is_gated(metrics)):
            continue
        known = column[np.isfinite(column)]
        # Some numbers have several names.
        if not _changes(column) or any(np.array_equal(column, one, equal_nan=True) for one in drawn):
            continue
        drawn.append(column)
        percent = name.endswith(("_rate", "success")) and 0.0 <= known.min() <= known.max() <= 1.0
        charts.append(_course(name, steps, column, colour=0, percent=percent))
    return charts[:MOST_CHARTS]


def _is_gated(metrics: Columns) -> bool:
    """Whether a phase of the curriculum asks for evaluations; runs made before counted them in any case."""
    needed = metrics.get("curriculum/criteria_eval_required_runs", np.empty(0))
    return bool(np.nan_to_num(needed).any())


def list_phases(run: RecordedRun) -> str:
    """Lists the phases that a curriculum entered, with steps, names and the success that led there."""
    changes = find_phase_changes(run.metrics)
    if not changes:
        return ""
    steps, rates = run.steps, run.metrics.get("curriculum/decided_success", ())
    names = dict(zip(steps, read_texts(run.folder / METRICS, "curriculum/phase_name"), strict=False))
    success = dict(zip(steps, rates, strict=False))
    rows = [
        [
            format_count(one.step),
            f"{one.before} to {one.after}",
            names.get(one.step, ""),
            format_percent(success.get(one.step, math.nan)),
        ]
        for one in changes
    ]
    return write_table(["step", "phase", "name", "success before"], rows)


def chart_outcomes(run: RecordedRun) -> list[str]:
    """Draws the shares of the outcomes of evaluations and of training, and lists the last ones."""
    tables = {
        "evaluations": (run.evaluations.get("step", np.empty(0)), select_columns(run.evaluations, _OUTCOMES)),
        "training": (run.steps, select_columns(run.metrics, f"train/{_OUTCOMES}")),
    }
    charts = []
    names = sorted(
        {name for _, shares in tables.values() for name, share in shares.items() if np.nansum(share) > 0}
    )
    colours = {name: number for number, name in enumerate(names)}
    for title, (steps, shares) in tables.items():
        occurred = {name: share for name, share in shares.items() if np.nansum(share) > 0}
        thinned = {name: thin_curve(steps, share) for name, share in occurred.items()}
        if len({len(x) for x, _ in thinned.values()}) == 1:
            x = next(iter(thinned.values()))[0]
            heights = {name: y for name, (_, y) in thinned.items()}
            charts.append(draw_shares(f"outcomes of {title}", x, heights, colours))
    return charts


def chart_rewards(run: RecordedRun) -> list[str]:
    """Draws the largest components of the return in training; much smaller ones have their own chart."""
    found = select_columns(run.metrics, f"train/{_COMPONENTS}")
    found = {name: column for name, column in found.items() if "/" not in name and np.isfinite(column).any()}
    sizes = {name: float(np.nanmax(np.abs(column))) for name, column in found.items()}
    paid = sorted((name for name in found if sizes[name] > 0.0), key=lambda name: -sizes[name])[:MOST_LINES]
    lines = {name: Line(name, *thin_curve(run.steps, found[name]), colour=i) for i, name in enumerate(paid)}
    small = [name for name in paid if sizes[name] < sizes[paid[0]] / _DWARFED]
    large = [name for name in paid if name not in small]
    return [
        draw_chart("components of the return, in training", [lines[name] for name in large]),
        draw_chart("its smaller components", [lines[name] for name in small]),
    ]


def list_rewards(run: RecordedRun) -> str:
    """Lists the components of the return per episode of the last evaluation, the largest first."""
    last = last_row(select_columns(run.evaluations, _COMPONENTS))
    ranked = sorted(last.items(), key=lambda item: -abs(item[1]))
    rows = [[name, format_finite(value)] for name, value in ranked if "/" not in name]
    return write_table(["component", "per episode, last evaluation"], rows)


def chart_losses(run: RecordedRun) -> list[str]:
    """Draws the losses of the learners that change, and the speed of training."""
    names = [name for name, column in run.metrics.items() if name.startswith("losses/") and _changes(column)]
    names.sort(key=loss_rank)
    shown = [*names[:MOST_CHARTS], *({"time/steps_per_second"} & run.metrics.keys())]
    return [_course(name.partition("/")[2], run.steps, run.metrics[name], colour=7) for name in shown]


def _course(name: str, steps: np.ndarray, column: np.ndarray, *, colour: int, percent: bool = False) -> str:
    """Draws a single column over steps."""
    line = Line("", *thin_curve(steps, column), colour=colour)
    return draw_chart(name.replace("_", " "), [line], percent=percent)


def _changes(column: np.ndarray) -> bool:
    known = column[np.isfinite(column)]
    return known.size == 1 or (known.size > 1 and float(np.ptp(known)) > 0.0)


def list_groups(run: RecordedRun) -> str:
    """Lists results of the last evaluation that are reported by label, such as the score by spawn point."""
    components = select_columns(run.evaluations, _COMPONENTS)
    plain = {f"{_COMPONENTS}{name}" for name in components if "/" not in name}
    rows = [
        [name.replace("/", ": ", 1), format_finite(value)]
        for name, value in last_row(run.evaluations).items()
        if "/" in name and not name.startswith(_OUTCOMES) and name not in plain
    ]
    return write_table(["result", "last evaluation"], rows)


def list_members(members: Sequence[RecordedRun]) -> str:
    """Lists a group's members with the scores of their last and of their highest evaluation.

    Marked are those that have diverged, and those with an earlier last evaluation, as pruned trials have.
    """
    rows, ends = [], [last_row(member.evaluations).get("step", 0.0) for member in members]
    for member, end in zip(members, ends, strict=True):
        measured = member.score
        column = member.evaluations.get(measured.column, np.empty(0))
        told = format_score(measured)
        known = column[np.isfinite(column)]
        best = float(known.max()) if known.size else math.nan
        last = last_row(member.evaluations).get(measured.column, math.nan)
        mark = (
            " (diverged)" if member.diverged else f" (until {format_count(end)})" if end < max(ends) else ""
        )
        rows.append([f"{member.folder.name}{mark}", str(member.seed), told(last), told(best)])
    if not rows:
        return ""
    label = measure_label(members[0].score)
    return write_table(["member", "seed", f"{label}, last evaluation", "highest"], rows)


def format_score(measured: Measured) -> Callable[[float], str]:
    """Returns the function that formats a measure: a percentage for scores in [0, 1]."""
    return format_percent if measured.low else format_finite


def select_columns(columns: Columns, prefix: str) -> dict[str, np.ndarray]:
    """Selects columns whose names start with `prefix`, which is removed."""
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
