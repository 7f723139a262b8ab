"""Colours of the pictures of driving."""

from jaxmarl_echelon.envs.drive.codes import BIKE_LANE, CROSSWALK, EDGE, LANE, LINE
from jaxmarl_echelon.envs.drive.view.frames import COLLISION, OFFROAD, SCORED, UNFINISHED
from jaxmarl_echelon.palette import GOLD, GREEN, SKY, WINE

PAPER, INK = "#f7f6f2", "#22262b"
SCRIPTED = "#9aa0a6"
OUTCOME_COLOURS = {
    SCORED: GREEN,
    COLLISION: WINE,
    OFFROAD: GOLD,
    UNFINISHED: SKY,
}
OUTCOME_MARKS = {SCORED: "*", COLLISION: "X", OFFROAD: "P", UNFINISHED: "s"}
ROAD_COLOURS = {
    LANE: "#cfd4da",
    BIKE_LANE: "#c3dfc8",
    LINE: "#b9b39a",
    EDGE: "#343a40",
    CROSSWALK: "#a5b4c8",
}
ROAD_WIDTHS = {LANE: 1, BIKE_LANE: 1, LINE: 1, EDGE: 2, CROSSWALK: 1}
