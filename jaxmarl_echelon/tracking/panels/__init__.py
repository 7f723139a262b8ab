"""The dashboard's picture: a run's view and a size in, Rich renderables out."""

from jaxmarl_echelon.tracking.panels.layout import frame
from jaxmarl_echelon.tracking.panels.parts import outcome_colour, share

__all__ = ["frame", "outcome_colour", "share"]
