"""Numbers that scenes, banks and simulation agree on: codes of types and kinds, sizes of tables."""

VEHICLE, PEDESTRIAN, CYCLIST = range(3)
TYPES = ("vehicle", "pedestrian", "cyclist")

LANE, LINE, EDGE, BIKE_LANE, CROSSWALK = range(5)

CELL = 5.0  # m, squares of the tables that are exact
VIEW_CELL = 10.0  # m, squares of the tables of what a body sees
LANE_REACH = 4.0  # m, lanes that are farther away are not matched
VIEW_REACH = 60.0  # m
VIEW_LANES, VIEW_EDGES = 24, 32
ROUTE_POINTS = 128

LIGHTS = (
    "unknown", "stop", "caution", "go", "arrow_stop", "arrow_caution", "arrow_go", "flashing_stop",
    "flashing_caution",
)  # fmt: skip
