"""Panels of the dashboard: from a `RunView` and a size to Rich renderables."""

from jaxmarl_echelon.tracking.panels.layout import frame
from jaxmarl_echelon.tracking.panels.parts import outcome_colour, share

__all__ = ["frame", "outcome_colour", "share"]
