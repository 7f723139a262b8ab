"""Where a run's numbers go: files, the terminal, Weights & Biases, plots."""

from jaxmarl_echelon.tracking.base import NAMESPACES, RunInfo, Sink, Tracker

__all__ = ["NAMESPACES", "RunInfo", "Sink", "Tracker"]
