"""Tracking of runs: CSV files, terminal, Weights & Biases, plots."""

from jaxmarl_echelon.tracking.base import NAMESPACES, RunInfo, Sink, Tracker

__all__ = ["NAMESPACES", "RunInfo", "Sink", "Tracker"]
