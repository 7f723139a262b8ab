"""Colours of the pictures of driving."""

from jaxmarl_echelon.envs.drive.codes import BIKE_LANE, CROSSWALK, EDGE, LANE, LINE
from jaxmarl_echelon.envs.drive.view.frames import COLLISION, OFFROAD, SCORED, UNFINISHED

PAPER, INK = "#f7f6f2", "#22262b"
SCRIPTED = "#9aa0a6"
OUTCOME_COLOURS = {
    SCORED: "#2f9e44",
    COLLISION: "#e03131",
    OFFROAD: "#f08c00",
    UNFINISHED: "#1c7ed6",
}
ROAD_COLOURS = {
    LANE: "#cfd4da",
    BIKE_LANE: "#c3dfc8",
    LINE: "#b9b39a",
    EDGE: "#343a40",
    CROSSWALK: "#a5b4c8",
}
ROAD_WIDTHS = {LANE: 1, BIKE_LANE: 1, LINE: 1, EDGE: 2, CROSSWALK: 1}
