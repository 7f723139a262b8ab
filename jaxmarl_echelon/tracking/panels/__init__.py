"""Panels of the dashboard: functions of a `RunView` and a size that return Rich renderables."""

from jaxmarl_echelon.tracking.panels.layout import compose_dashboard
from jaxmarl_echelon.tracking.panels.parts import colour_share, outcome_colour

__all__ = ["colour_share", "compose_dashboard", "outcome_colour"]
