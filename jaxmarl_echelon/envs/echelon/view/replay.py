"""One episode of a battle as a page with a 3-D view: one file, no network, any browser with WebGL 2."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    CHASSIS,
    FLAMER,
    LASER,
    SMOKE,
    SMOKE_LIFE,
    WEAPON,
    WEAPONS,
)
from jaxmarl_echelon.envs.echelon.view.palette import (
    MATERIAL_COLOURS,
    NEUTRAL,
    TEAM_COLOURS,
    WEAPON_COLOURS,
    WRECK,
)
from jaxmarl_echelon.envs.echelon.view.recorded_battle import Episode
from jaxmarl_echelon.envs.echelon.view.snapshot import LENGTH_UNIT, STATUS, YAW_UNIT
from jaxmarl_echelon.envs.pages import encode, write_page
from physics.voxels import AIR, DIRT, FOLIAGE, GLASS, LAVA, MATERIALS, WATER

SCRIPTS = ("math", "camera", "recording", "terrain", "scene", "overlay", "panel", "main")

# What mechs walk through is drawn as floor; opacity is out of 255.
_GROUND = (LAVA, WATER, DIRT)
_OPACITY = {GLASS: 90, FOLIAGE: 170}
_BEAM_WIDTHS = {LASER: 0.16, FLAMER: 0.5}


def save_replay(
    path: str | Path, episode: Episode, further: Mapping = MappingProxyType({}), script: str = ""
) -> None:
    """Writes an episode as a page in which it can be played, turned and followed.

    Args:
      path: file to write.
      episode: what to show.
      further: what the recording holds besides, for `script`.
      script: JavaScript after the page's own.
    """
    recording = {
        "period": episode.period,
        "zone": np.asarray(episode.zone, float).tolist(),
        "holders": episode.holders.tolist(),
        "beams": episode.beams,
        "events": episode.events,
        **_terrain(episode.voxels),
        **_roster(episode),
        **_constants(),
        "frames": {
            f.name: encode(getattr(episode.frames, f.name)) for f in dataclasses.fields(episode.frames)
        },
        **further,
    }
    write_page(path, f"Echelon: {episode.result}", recording, __package__, SCRIPTS, script)


def _terrain(voxels: np.ndarray) -> dict:
    return {
        "size": voxels.shape[::-1],
        "voxels": encode(voxels.astype(np.uint8)),
        "air": AIR,
        "ground": _GROUND,
        "materials": MATERIAL_COLOURS.tolist(),
        "alpha": [_OPACITY.get(material, 255) for material in range(len(MATERIALS))],
    }


def _roster(episode: Episode) -> dict:
    return {
        "blue": episode.blue,
        "names": episode.names,
        "short": episode.short_names,
        "sizes": CHASSIS.size[episode.frames.classes[0]].astype(float).round(3).tolist(),
        "scoreGoal": episode.score_goal,
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
