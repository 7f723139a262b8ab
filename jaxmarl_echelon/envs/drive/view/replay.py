"""One episode as a page to scrub: one file, no network, any browser. Source: spec drive 6."""

from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.drive.codes import EDGE
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import COMPACT
from jaxmarl_echelon.envs.drive.state import DT
from jaxmarl_echelon.envs.drive.view.frames import Episode
from jaxmarl_echelon.envs.drive.view.palette import (
    INK,
    OUTCOME_COLOURS,
    PAPER,
    ROAD_COLOURS,
    ROAD_WIDTHS,
    SCRIPTED,
)
from jaxmarl_echelon.envs.drive.view.picture import caption
from jaxmarl_echelon.envs.drive.view.road_drawing import extent
from jaxmarl_echelon.envs.pages import encode, write_page

SCRIPTS = ("recording", "scene", "panel", "main")


def save_replay(path: str | Path, episode: Episode) -> None:
    """Writes an episode as a page in which it can be played, and learners followed.

    What a learner sees is drawn back into the world from its observation.
    """
    scene, states = episode.scene, episode.states
    there = scene.segment_kind >= 0
    low, high = extent(scene)
    recording = {
        "caption": f"{episode.kind}: {caption(episode)}",
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
            "segment": encode(scene.segment[there].astype(np.float32)),
            "segment_kind": encode(scene.segment_kind[there].astype(np.int8)),
            "size": encode(scene.size.astype(np.float32)),
            "pose": encode(episode.pose.astype(np.float32)),
            "speed": encode(states.motion.speed.astype(np.float32)),
            "present": encode(states.present.astype(np.uint8)),
            "alive": encode(states.alive.astype(np.uint8)),
            "ghost": encode(states.ghost.astype(np.uint8)),
            "colliding": encode(states.condition.colliding.astype(np.uint8)),
            "offroad": encode(states.condition.offroad.astype(np.uint8)),
            "goal": encode(states.goal.astype(np.float32)),
            "earned": encode(np.stack(list(states.earned.values()), axis=-1).astype(np.float32)),
            "seen": encode(episode.observations.astype(np.float32)),
        },
        "view": _view(episode),
    }
    write_page(path, f"Driving: {episode.kind}", recording, __package__, SCRIPTS)


def _view(episode: Episode) -> dict:
    """Where in an observation the page finds what a learner sees, and by which factors it is scaled."""
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
