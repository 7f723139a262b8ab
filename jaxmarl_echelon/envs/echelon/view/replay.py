"""Replay of one battle as an HTML page with a 3-D view: one file, no network, WebGL 2."""

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
from jaxmarl_echelon.envs.echelon.view.recorded_battle import RecordedBattle
from jaxmarl_echelon.envs.echelon.view.snapshot import LENGTH_UNIT, STATUS_FLAGS, YAW_UNIT
from jaxmarl_echelon.envs.viewing.pages import PageParts, encode_array, write_page
from physics.voxels import AIR, DIRT, FOLIAGE, GLASS, LAVA, MATERIALS, WATER

PAGE = PageParts(
    __package__,
    ("math", "camera", "recording", "terrain", "scene", "overlay", "panel", "view"),
    stage="""  <canvas id="scene"></canvas>
  <canvas id="overlay"></canvas>
  <header>
    <div class="score"><div id="score-blue"></div><div id="score-red"></div></div>
    <p id="headline"></p>
  </header>""",
    controls='<label>cut at <input id="cut" type="range" min="1" step="1"></label>',
    panel="""  <section id="units"><div id="units-blue"></div><div id="units-red"></div></section>
  <p class="help">Bars: hit points and heat. ✕: a kill. Number: damage done to enemies.</p>""",
    help="""Drag: turn. Shift or right button: move. Wheel: zoom. Click a unit: follow it; Esc: stop
    following. "Cut at" hides the terrain above a height.""",
)

# Materials that mechs can walk through are drawn as floor; opacity is out of 255.
_GROUND = (LAVA, WATER, DIRT)
_OPACITY = {GLASS: 90, FOLIAGE: 170}
_BEAM_WIDTHS = {LASER: 0.16, FLAMER: 0.5}


def save_replay(
    path: str | Path, episode: RecordedBattle, further: Mapping = MappingProxyType({}), script: str = ""
) -> None:
    """Writes an episode as an HTML page with playback, camera control and follow mode.

    Args:
      path: file to write.
      episode: the recorded episode.
      further: additional entries of the recording, for `script`.
      script: JavaScript that is loaded after the page's own.
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
            f.name: encode_array(getattr(episode.frames, f.name)) for f in dataclasses.fields(episode.frames)
        },
        **further,
    }
    write_page(path, f"Echelon: {episode.result}", recording, PAGE, script)


def _terrain(voxels: np.ndarray) -> dict:
    return {
        "size": voxels.shape[::-1],
        "voxels": encode_array(voxels.astype(np.uint8)),
        "air": AIR,
        "ground": _GROUND,
        "materials": MATERIAL_COLOURS.tolist(),
        "alpha": [_OPACITY.get(material, 255) for material in range(len(MATERIALS))],
    }


def _roster(episode: RecordedBattle) -> dict:
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
        "status": STATUS_FLAGS,
        "teams": TEAM_COLOURS,
        "weapons": WEAPON_COLOURS,
        "beamWidths": [_BEAM_WIDTHS.get(weapon, 0.08) for weapon in range(len(WEAPONS))],
        "neutralColour": NEUTRAL,
        "wreckColour": WRECK,
        "smokeLife": SMOKE_LIFE,
        "smokeRadius": float(WEAPON.splash_radius[SMOKE]),
    }
