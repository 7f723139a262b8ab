"""One episode of a battle as a page with a 3-D view: one file, no network, any browser with WebGL 2."""

import base64
import dataclasses
import html
import json
from importlib import resources
from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.echelon.frames import (
    LENGTH_UNIT,
    STATUS,
    YAW_UNIT,
    Frame,
    beams,
    events,
    holders,
    names,
)
from jaxmarl_echelon.envs.echelon.palette import (
    MATERIAL_COLOURS,
    NEUTRAL,
    TEAM_COLOURS,
    WEAPON_COLOURS,
    WRECK,
)
from jaxmarl_echelon.envs.echelon.tables import CHASSIS, FLAMER, LASER, SMOKE, SMOKE_LIFE, WEAPON, WEAPONS
from physics.voxels import AIR, DIRT, FOLIAGE, GLASS, LAVA, MATERIALS, WATER

SCRIPTS = ("math", "camera", "recording", "terrain", "scene", "overlay", "panel", "main")

# What mechs walk through is drawn as floor; opacity is out of 255.
_GROUND = (LAVA, WATER, DIRT)
_OPACITY = {GLASS: 90, FOLIAGE: 170}
_BEAM_WIDTHS = {LASER: 0.16, FLAMER: 0.5}


def save_replay(
    path: str | Path,
    voxels: np.ndarray,
    zone: np.ndarray,
    frames: Frame,
    blue: int,
    outcome: str,
    period: float,
) -> None:
    """Writes an episode as a page in which it can be played, turned and followed.

    Args:
      path: file to write.
      voxels: `[Z, Y, X]` materials.
      zone: x, y and radius of the capture zone.
      frames: the episode's frames, `[T, ...]`.
      blue: number of mechs of blue.
      outcome: how it ended.
      period: seconds per decision.
    """
    recording = {
        "period": period,
        "zone": np.asarray(zone, float).tolist(),
        "holders": holders(frames).tolist(),
        "beams": beams(frames, blue),
        "events": events(frames, blue, outcome),
        **_terrain(voxels),
        **_roster(frames, blue),
        **_constants(),
        "frames": {f.name: encode(getattr(frames, f.name)) for f in dataclasses.fields(Frame)},
    }
    # A "<" could end the element that the text stands in.
    text = json.dumps(recording, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": html.escape(f"Echelon: {outcome}"),
        "style": _asset("style.css"),
        "scripts": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
        "recording": text,
    }
    page = _asset("replay.html")
    for name, part in parts.items():
        page = page.replace("{{" + name + "}}", part)
    Path(path).write_text(page, encoding="utf-8")


def encode(array: np.ndarray) -> dict:
    """An array as JSON: dtype, shape and the bytes in base64, lowest byte first."""
    array = np.asarray(array)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": array.dtype.name, "shape": array.shape, "data": base64.b64encode(data).decode()}


def decode(coded: dict) -> np.ndarray:
    """The array that `encode` was given."""
    data = np.frombuffer(base64.b64decode(coded["data"]), np.dtype(coded["dtype"]).newbyteorder("<"))
    return data.reshape(coded["shape"]).astype(coded["dtype"])


def _terrain(voxels: np.ndarray) -> dict:
    return {
        "size": voxels.shape[::-1],
        "voxels": encode(voxels.astype(np.uint8)),
        "air": AIR,
        "ground": _GROUND,
        "materials": MATERIAL_COLOURS.tolist(),
        "alpha": [_OPACITY.get(material, 255) for material in range(len(MATERIALS))],
    }


def _roster(frames: Frame, blue: int) -> dict:
    final = float(np.max(frames.score[-1]))
    goal = float(frames.zone_seconds[-1])
    return {
        "blue": blue,
        "names": names(frames, blue),
        "short": [
            f"{'BR'[mech >= blue]}{mech - blue * (mech >= blue)}" for mech in range(frames.yaw.shape[1])
        ],
        "sizes": CHASSIS.size[frames.classes[0]].astype(float).round(3).tolist(),
        "scoreGoal": goal if np.isfinite(goal) else max(final, 60.0),
    }


def _constants() -> dict:
    return {
        "lengthUnit": LENGTH_UNIT,
        "yawUnit": YAW_UNIT,
        "status": STATUS,
        "teams": TEAM_COLOURS,
        "weapons": WEAPON_COLOURS,
        "beamWidths": [_BEAM_WIDTHS.get(weapon, 0.08) for weapon in range(len(WEAPONS))],
        "neutralColour": NEUTRAL,
        "wreckColour": WRECK,
        "smokeLife": SMOKE_LIFE,
        "smokeRadius": float(WEAPON.splash_radius[SMOKE]),
    }


def _asset(name: str) -> str:
    return (resources.files("jaxmarl_echelon.envs.echelon") / "page" / name).read_text(encoding="utf-8")
