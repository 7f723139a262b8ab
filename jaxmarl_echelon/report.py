"""`python -m jaxmarl_echelon.report RUN`: writes `report.html` and `learning_curve.png` of a run.

Adds the replay of an episode. The run may still be going on.
"""

import argparse
from pathlib import Path

from jaxmarl_echelon import actor_scores, checkpoints, command_line, run_loading
from jaxmarl_echelon.reporting.learning_curve import draw_learning_curve
from jaxmarl_echelon.reporting.recorded_runs import find_members, read_run
from jaxmarl_echelon.reporting.run_page import REPLAY, find_replay, write_report
from jaxmarl_echelon.training.program.evaluation import whole_seat_rounds

# Episodes that are played to choose one for the replay.
EPISODES = 8


def parse_report_arguments() -> argparse.Namespace:
    """Reads the command line."""
    program = command_line.invoked_command("jaxmarl_echelon.report", "jaxmarl-report")
    parser = command_line.Parser(prog=program, description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder, a vectorized group, or one of its members")
    parser.add_argument("--checkpoint", default="best_eval", help="whose policy plays (default: best_eval)")
    parser.add_argument(
        "--replay",
        choices=("auto", "play", "none"),
        default="auto",
        help="play: play an episode for it; auto: only if there is no replay yet; none: keep what there is",
    )
    return parser.parse_args()


def main() -> None:
    """Writes a run's report by the command line."""
    command_line.use_compilation_cache()
    arguments = parse_report_arguments()
    folder = read_run(arguments.run).folder
    missing = arguments.replay == "auto" and find_replay(folder) is None
    if arguments.replay == "play" or missing:
        try:
            play_replay(folder, arguments.checkpoint, folder / REPLAY)
        except ValueError as error:
            print(f"no replay: {error}")
    print(f"report: {write_report(folder)}")
    draw_learning_curve(folder)


def play_replay(folder: Path, checkpoint: str, path: Path) -> None:
    """Plays final episodes of a run's checkpoint, and writes the replay of the most successful one.

    Args:
      folder: of a run or a member, or of a group, whose first member with this checkpoint plays.
      checkpoint: name of the checkpoint.
      path: the page to write.

    Raises:
      ValueError: one line, for a checkpoint that cannot be loaded, or an environment without a viewer.
    """
    players = [one for one in find_members(folder) if checkpoints.has_checkpoint(one, checkpoint)]
    player = players[0] if players else folder
    _, _, config, program, state = run_loading.load_run(str(player), checkpoint)
    viewer = program.env.viewer
    if viewer is None:
        raise ValueError(f"{program.env.spec.name} has no viewer")
    recorded = actor_scores.record_episodes(program, config, state, whole_seat_rounds(program.env, EPISODES))
    viewer.replay(path, recorded, actor_scores.select_episode(program, recorded))


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
