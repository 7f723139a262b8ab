"""Codes of types and kinds, and sizes of tables, shared by scenes, banks and simulation."""

VEHICLE, PEDESTRIAN, CYCLIST = range(3)
TYPES = ("vehicle", "pedestrian", "cyclist")

LANE, LINE, EDGE, BIKE_LANE, CROSSWALK = range(5)

CELL = 5.0  # m, side of the squares of the exact tables
VIEW_CELL = 10.0  # m, side of the squares of the view tables
LANE_REACH = 4.0  # m, largest distance of a matched lane
VIEW_REACH = 60.0  # m
VIEW_LANES, VIEW_EDGES = 24, 32
ROUTE_POINTS = 128

LIGHTS = (
    "unknown", "stop", "caution", "go", "arrow_stop", "arrow_caution", "arrow_go", "flashing_stop",
    "flashing_caution",
)  # fmt: skip
