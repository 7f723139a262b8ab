"""The picture of a run's learning curve, and the tracking sink that keeps it up to date."""

from pathlib import Path

from jaxmarl_echelon.reporting.paced_sink import PacedSink
from jaxmarl_echelon.reporting.recorded_runs import EVALUATIONS, read_run
from jaxmarl_echelon.tracking.csv_sink import METRICS

LEARNING_CURVE = "learning_curve.png"


def draw_learning_curve(folder: Path) -> None:
    """Draws `learning_curve.png` into the folder of a run that goes on or has ended."""
    # Importing matplotlib takes as long as importing jax, and not every process draws.
    from jaxmarl_echelon.tracking import plots

    score = read_run(folder).score.low.removesuffix("_low") or None
    fresh = folder / f".{LEARNING_CURVE}"
    plots.learning_curve(fresh, folder / METRICS, folder / EVALUATIONS, score=score)
    fresh.replace(folder / LEARNING_CURVE)


class LearningCurveSink(PacedSink):
    """Draws `learning_curve.png` again after evaluations; the run draws the last one itself.

    Args:
      now: a monotonic clock in seconds.
    """

    def rewrite(self, folder: Path, *, running: bool) -> None:
        """See `PacedSink`."""
        del running
        draw_learning_curve(folder)
