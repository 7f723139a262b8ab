"""Panels of the dashboard: functions of a `RunView` and a size that return Rich renderables."""

from jaxmarl_echelon.tracking.panels.layout import frame
from jaxmarl_echelon.tracking.panels.parts import outcome_colour, share

__all__ = ["frame", "outcome_colour", "share"]
