"""Learning results of mission runs: success by verb, phases over time, reward ablations, report calibration.

    python benchmarks/mission_learning.py --train [--seeds 5] [--steps 327680] [--output FOLDER]
    python benchmarks/mission_learning.py RUN [--episodes 192] [--pictures docs/NAME]

The arms are the curriculum `missions4`; the same with shared rewards alone (no difference rewards);
constant weights and the terminal reward alone, both without phases of difficulty. All seeds of all arms are
one program; afterwards they are scored. Every arm has the same seeds, so differences are paired. RUN is the
folder of this or another group (`seeds`, optionally with `variants`). The last and the best policies of all
members, the untrained ones and blue's scripts play the same fresh deterministic episodes, on held-out
terrains. Means over several seeds have Student's 95 % interval.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from jaxmarl_echelon import checkpoints, run_loading
from jaxmarl_echelon.envs.echelon.missions import calibration
from jaxmarl_echelon.envs.echelon.missions.measures.facts import AREA
from jaxmarl_echelon.tracking.statistics import student_interval
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.random_streams import Stream, run_key, stream_key
from jaxmarl_echelon.training.host.group_members import BASELINE
from jaxmarl_echelon.training.program.program import Program

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import EngFormatter

HARD = {"difficulty": [0.5, 1.0], "exams": 0.25}
WITHOUT_PHASES = [
    {"name": "mechanics", "criteria": {"survival": 0.6, "attempt": 0.7}} | HARD,
    {"name": "objective", "criteria": {"completed": 0.5, "efficiency": 0.4}} | HARD,
    {"name": "execution", "criteria": {"win": 0.6, "variance": 0.2}} | HARD,
    {"name": "terminal", "criteria": {}} | HARD,
]
ARMS = {
    "terminal": {
        "curriculum.schedule": "terminal",
        "curriculum.credit": 0.0,
        "curriculum.calibration": 0.0,
        "curriculum.phases": WITHOUT_PHASES,
    },
    "constant": {"curriculum.schedule": "constant", "curriculum.phases": WITHOUT_PHASES},
    "shared": {"curriculum.credit": 0.0},
}
TRAINING = (
    "+algo=ppo",
    "env=echelon_missions_small",
    "env.mission=[assault,hold,scout]",
    "curriculum=missions4",
)
CHECKPOINTS = ("latest", "best_eval")
SCRIPTS = ("heuristic", "standing", "random", "none")
COLUMNS = ("survival", "efficiency", "captured", "detected", "covered")
BINS = np.linspace(0.0, 1.0, 11)
COLOURS = ("#3b6fb6", "#c8553d", "#4a8f5c", "#8a6bb1", "#c99a2e", "#666666")


class Reports(NamedTuple):
    """One frame of blue's mechs, arrays `[A]`: status reports and the facts they are judged by."""

    status: jax.Array
    distance: jax.Array
    near: jax.Array
    calm: jax.Array
    alive: jax.Array
    running: jax.Array


def frame_of(env):
    """Records `Reports` from `(env_state, params, time)`, for `program.evaluate`."""
    blue = env.teams[0]

    def record(state, _params, time):
        reports, mechs = state.report, state.echelon.battle.mechs
        distance = reports.distance[:blue, -1]
        order = jnp.where(state.echelon.decision >= state.scenario.orders.go[0], 1, 0)
        alive = mechs.alive[:blue] & state.scenario.present[:blue]
        return Reports(
            reports.status[:blue, -1],
            distance,
            distance < state.scenario.orders.radius[0, order] + AREA,
            reports.calm[:blue],
            alive,
            jnp.broadcast_to(~time.over, alive.shape),
        )

    return record


def reliability(frames: Reports) -> tuple[np.ndarray, np.ndarray]:
    """Pairs reports with their authors' outcomes 20 decisions later, as `calibration.advance` does."""
    frames = jax.tree.map(np.asarray, frames)
    early, late = (Reports(*(x[part] for x in frames)) for part in (slice(1, -20), slice(21, None)))
    closer = early.distance - late.distance >= calibration.ADVANCE
    found = calibration.report_outcome(late.alive, late.calm < calibration.TROUBLE, closer | late.near)
    # Those still pending at the end are not scored, but for those of the dead.
    judged = early.alive & (frames.running[20:-1] | ~late.alive)
    return early.status[judged], np.asarray(found)[judged]


def scores_of(results, verbs: tuple[str, ...]) -> dict[str, float]:
    """Averages success and completed missions, in total and by verb, and other results."""
    task, mission = np.asarray(results["task"]), np.asarray(results["mission"])
    found = {"mission": mission.mean(), "completed": (mission >= 0.5).mean()}
    for index, name in enumerate(verbs):
        own = task == index
        if own.any():
            found |= {
                f"mission/{name}": mission[own].mean(),
                f"completed/{name}": (mission[own] >= 0.5).mean(),
            }
    found["worst_decile"] = np.sort(mission)[: -(-mission.size // 10)].mean()
    found |= {name: np.asarray(results[name]).mean() for name in COLUMNS}
    return {name: float(value) for name, value in found.items()}


def train(folder: Path, seeds: int, steps: int) -> Path:
    """Trains all arms over the same seeds in one program; returns the group's folder."""
    arms = json.dumps(ARMS).replace('"', "")
    sizes = f"seeds={seeds}", f"total_env_steps={steps}"
    command = [sys.executable, "-m", "jaxmarl_echelon.train", *TRAINING, *sizes, f"variants={arms}"]
    subprocess.run([*command, "tracking=quiet", "run_name=arms", f"output_dir={folder}"], check=True)
    return folder / "echelon_missions_small" / "ppo" / "arms"


def variant_of(member: Path) -> str:
    """Returns the variant in a member's folder name; "all" without variants."""
    variant, mark, _ = member.name.rpartition("_seed_")
    return variant if mark else "all"


def make_player(program: Program, episodes: int) -> Callable:
    """Returns `(number, state, seed) -> (scores, reports)` of a policy (0) or of script `number - 1`."""
    verbs, world = program.env.registry.names, program.world

    @jax.jit
    def play(number, state, key):
        def seats(parts):
            scripts = [
                controllers.make_script_controller(controllers.find_script(parts.env, program.role, one))
                for one in SCRIPTS
            ]
            acting = program.controllers(parts)
            return acting | {
                program.role: controllers.switch_controller([acting[program.role], *scripts], number)
            }

        return program.evaluate_with_controllers(
            seats, state.policies, state, key, record=frame_of(program.env), episodes=episodes, world=world
        )

    def played(number, state, seed):
        result = jax.device_get(play(jnp.int32(number), state, stream_key(seed, Stream.FINAL)))
        return scores_of(result.results, verbs), reliability(result.frames)

    return played


def play_all(members: list[Path], episodes: int) -> tuple[dict, dict]:
    """Returns the members' scores by variant and checkpoint (or by script), and the members' reports.

    Every variant plays in its own environment, with one compiled program for its seeds; untrained policies
    and scripts play in that of the first one.
    """
    scores, reports, seeds, first, program = {}, {}, set(), None, None
    for member, run in zip(members, run_loading.load_members(members, CHECKPOINTS[0]), strict=True):
        if run.program is not program:
            program, played = run.program, make_player(run.program, episodes)
            first = (program, played) if first is None else first
        seeds.add(run.config.seed)
        variant = variant_of(member)
        for name in CHECKPOINTS:
            folder = checkpoints.find_checkpoint(member, name)
            state = checkpoints.restore_state(folder, jax.eval_shape(lambda run=run: run.state))
            score, pairs = played(0, state, run.config.seed)
            scores.setdefault((variant, name), []).append(score)
            reports.setdefault((variant, name), []).append(pairs)
            print(member.name, name, f"mission {score['mission']:.3f}", flush=True)
    program, played = first
    fresh = jax.jit(program.init_policy)
    for seed in sorted(seeds):
        state = fresh(run_key(seed))
        scores.setdefault(("untrained", ""), []).append(played(0, state, seed)[0])
        for number, name in enumerate(SCRIPTS, 1):
            scores.setdefault((f"script: {name}", ""), []).append(played(number, state, seed)[0])
    return scores, reports


def shown(values: list[float]) -> str:
    """Formats a mean with its interval over seeds."""
    values = [value for value in values if np.isfinite(value)]
    if not values:
        return ""
    if len(values) < 2 or np.ptp(values) == 0:
        return f"{np.mean(values):.2f}"
    low, high = student_interval(values)
    return f"{np.mean(values):.2f} [{low:.2f}, {high:.2f}]"


def markdown(scores: dict) -> str:
    """Formats a table with one row per variant and checkpoint."""
    names = list(next(iter(scores.values()))[0])
    rows = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for (variant, checkpoint), found in scores.items():
        cells = [shown([one[name] for one in found]) for name in names]
        rows.append(f"| {variant} {checkpoint} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def paired(scores: dict, reference: str = BASELINE) -> str:
    """Formats a table of differences from the reference arm; of several seeds with Student's interval."""
    rows = ["| minus the curriculum | mission | completed |", "|---|---|---|"]
    for (variant, checkpoint), found in scores.items():
        own = scores.get((reference, checkpoint), ())
        if not own or variant == reference:
            continue
        cells = []
        for name in ("mission", "completed"):
            differences = [one[name] - other[name] for one, other in zip(found, own, strict=True)]
            ends = student_interval(differences) if len(differences) > 1 else ()
            told = f" [{', '.join(f'{end:+.3f}' for end in ends)}]" if ends else ""
            cells.append(f"{np.mean(differences):+.3f}{told}")
        rows.append(f"| {variant} {checkpoint} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def brier(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, list[float]]:
    """Returns mean squared errors by seed: of the reports, of the mean outcome, and their covariation."""
    found = {"reports": [], "best constant": [], "always yellow": [], "correlation": []}
    for status, outcome in pairs:
        found["reports"].append(float(np.mean((status - outcome) ** 2)))
        found["best constant"].append(float(np.var(outcome)))
        found["always yellow"].append(float(np.mean((0.5 - outcome) ** 2)))
        varies = status.std() > 1e-6 and outcome.std() > 1e-6
        found["correlation"].append(float(np.corrcoef(status, outcome)[0, 1]) if varies else 0.0)
    return found


def phase_picture(path: Path, members: list[Path]) -> None:
    """Draws the phase and the rolling success of all members against decisions."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4), layout="constrained")
    variants = list(dict.fromkeys(map(variant_of, members)))
    for member in members:
        variant = variant_of(member)
        table = np.genfromtxt(member / "metrics.csv", delimiter=",", names=True, deletechars="", dtype=float)
        colour, first = COLOURS[variants.index(variant) % len(COLOURS)], member.name.endswith("_0")
        label = variant if first else None
        shift = 0.06 * (variants.index(variant) - (len(variants) - 1) / 2)
        left.plot(
            table["step"], table["curriculum/current_stage"] + 1 + shift, color=colour, lw=1, label=label
        )
        right.plot(table["step"], table["train/mission_rate"], color=colour, lw=1, label=label)
    left.set(xlabel="decisions", ylabel="phase", yticks=[1, 2, 3, 4])
    right.set(xlabel="decisions", ylabel="success in training (rolling)")
    for axis in (left, right):
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)


def reliability_picture(path: Path, reports: dict) -> None:
    """Draws mean outcome against report, by variant; the diagonal is perfect calibration."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.4), layout="constrained")
    left.plot([0, 1], [0, 1], color="#bbbbbb", lw=1)
    last = {variant: pairs for (variant, name), pairs in reports.items() if name == CHECKPOINTS[0]}
    for index, (variant, pairs) in enumerate(last.items()):
        status, outcome = (np.concatenate(column) for column in zip(*pairs, strict=True))
        bin_of = np.clip(np.digitize(status, BINS) - 1, 0, BINS.size - 2)
        counts = np.bincount(bin_of, minlength=BINS.size - 1)
        means = np.bincount(bin_of, outcome, BINS.size - 1) / np.maximum(counts, 1)
        centres, enough = (BINS[1:] + BINS[:-1]) / 2, counts >= 30
        left.plot(centres[enough], means[enough], "o-", ms=3, lw=1, color=COLOURS[index], label=variant)
        right.plot(centres, counts / counts.sum(), lw=1, color=COLOURS[index], label=variant)
    left.set(xlabel="reported status", ylabel="mean outcome 5 s later", xlim=(0, 1), ylim=(0, 1))
    right.set(xlabel="reported status", ylabel="share of the reports")
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Scores, prints and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="folder of a group of runs")
    parser.add_argument("--train", action="store_true", help="train the arms and score them")
    parser.add_argument("--output", type=Path, default=Path("outputs"), help="folder for what --train writes")
    parser.add_argument("--seeds", type=int, default=5, help="of every arm")
    parser.add_argument("--steps", type=int, default=327_680, help="decisions of a run")
    parser.add_argument("--episodes", type=int, default=192)
    parser.add_argument("--pictures", type=Path, help="beginning of the pictures' names (default: in RUN)")
    given = parser.parse_args()
    if (given.run is None) != given.train:
        parser.error("either RUN or --train")
    run = train(given.output, given.seeds, given.steps) if given.train else given.run
    members = sorted(path for path in run.glob("*seed_*") if path.is_dir())
    if not members:
        parser.error(f"{run}: no folders of members, such as seed_0")
    stem = str(given.pictures or run / "missions")
    phase_picture(Path(f"{stem}_phases.png"), members)
    scores, reports = play_all(members, given.episodes)
    print(markdown(scores))
    print(paired(scores))
    reliability_picture(Path(f"{stem}_reports.png"), reports)
    honesty = {" ".join(key): brier(pairs) for key, pairs in reports.items()}
    for name, found in honesty.items():
        print(name, {key: shown(values) for key, values in found.items()})
    saved = {"scores": {" ".join(key): value for key, value in scores.items()}, "reports": honesty}
    (run / "mission_learning.json").write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
