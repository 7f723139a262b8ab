"""Writes one episode as an interactive page: one file, without network access, for any browser."""

from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.drive.codes import EDGE
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import COMPACT
from jaxmarl_echelon.envs.drive.state import DT
from jaxmarl_echelon.envs.drive.view.frames import DriveEpisode
from jaxmarl_echelon.envs.drive.view.palette import (
    INK,
    OUTCOME_COLOURS,
    PAPER,
    ROAD_COLOURS,
    ROAD_WIDTHS,
    SCRIPTED,
)
from jaxmarl_echelon.envs.drive.view.picture import describe_outcomes
from jaxmarl_echelon.envs.drive.view.road_drawing import scene_extent
from jaxmarl_echelon.envs.viewing.pages import PageParts, encode_array, write_page

PAGE = PageParts(
    __package__,
    ("recording", "scene", "panel"),
    controls='<label><input id="seen" type="checkbox" checked> observation of the followed learner</label>',
    panel="""  <h1 id="caption"></h1>
  <div id="learners"></div>
  <div id="followed"></div>""",
    help="""Wheel: zoom. Drag: move. Click a body or a row: follow it; Esc: stop following. Outlined bodies
    are ghosts. Purple is drawn from the observation alone.""",
)


def save_drive_replay(path: str | Path, episode: DriveEpisode) -> None:
    """Writes an episode as a page with playback, in which single learners can be followed.

    The page draws a learner's observation back into the world.
    """
    scene, states = episode.scene, episode.states
    there = scene.segment_kind >= 0
    low, high = scene_extent(scene)
    recording = {
        "caption": f"{episode.kind}: {describe_outcomes(episode)}",
        "period": DT,
        "agents": episode.agents,
        "learners": episode.learners.tolist(),
        "outcomes": episode.outcome,
        "events": episode.events,
        "low": low.tolist(),
        "high": high.tolist(),
        "edge": EDGE,
        "colours": {
            "paper": PAPER,
            "ink": INK,
            "scripted": SCRIPTED,
            "outcomes": OUTCOME_COLOURS,
            "roads": {str(kind): colour for kind, colour in ROAD_COLOURS.items()},
            "widths": {str(kind): width for kind, width in ROAD_WIDTHS.items()},
        },
        "components": list(states.earned),
        "arrays": {
            "segment": encode_array(scene.segment[there].astype(np.float32)),
            "segment_kind": encode_array(scene.segment_kind[there].astype(np.int8)),
            "size": encode_array(scene.size.astype(np.float32)),
            "pose": encode_array(episode.pose.astype(np.float32)),
            "speed": encode_array(states.motion.speed.astype(np.float32)),
            "present": encode_array(states.present.astype(np.uint8)),
            "alive": encode_array(states.alive.astype(np.uint8)),
            "ghost": encode_array(states.ghost.astype(np.uint8)),
            "colliding": encode_array(states.condition.colliding.astype(np.uint8)),
            "offroad": encode_array(states.condition.offroad.astype(np.uint8)),
            "goal": encode_array(states.goal.astype(np.float32)),
            "goal_radius": encode_array(episode.radius.astype(np.float32)),
            "earned": encode_array(np.stack(list(states.earned.values()), axis=-1).astype(np.float32)),
            "seen": encode_array(episode.observations.astype(np.float32)),
        },
        "view": _view(episode),
    }
    write_page(path, f"Driving: {episode.kind}", recording, PAGE)


def _view(episode: DriveEpisode) -> dict:
    """Positions and scales of the observed features, from which the page draws observations."""
    compact = episode.view.layout == COMPACT
    blocks = {
        block.name: {"start": block.start, "shape": block.shape, "fields": block.fields}
        for block in episode.view.blocks
    }
    return {
        "blocks": blocks,
        "position": features.POSITION_SCALE if compact else 1 / features.PUFFER_POSITION,
        "half": features.HALF_SCALE if compact else features.PUFFER_HALF,
        "length": features.LENGTH_SCALE if compact else features.PUFFER_LENGTH,
        "width": features.WIDTH_SCALE if compact else features.PUFFER_WIDTH,
        "goal": features.GOAL_SCALE if compact else 1 / features.PUFFER_GOAL,
    }
