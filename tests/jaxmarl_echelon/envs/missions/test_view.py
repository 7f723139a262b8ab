"""Pictures, animations and replays of missions."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mission_games import EAST, WEST
from PIL import Image, ImageColor
from replay_pages import javascript, needs_node

from jaxmarl_echelon.envs.echelon.missions.state import PAID, VERBS
from jaxmarl_echelon.envs.echelon.missions.view.episode import FAMILY_COLOURS, STATUS_COLOURS
from jaxmarl_echelon.envs.echelon.missions.view.render import HEADER
from jaxmarl_echelon.envs.echelon.missions.view.words import order_in_words
from jaxmarl_echelon.envs.echelon.view.palette import TEAM_COLOURS
from jaxmarl_echelon.envs.echelon.view.snapshot import LENGTH_UNIT

STEPS, CHANGE = 12, 6
SEEN = 4


@pytest.fixture(scope="module")
def recorded(game):
    """An evaluation of one episode whose order for blue changes, with a found enemy and covered cells."""
    state = game.start("stage", "scout", places=(*WEST, *EAST))
    frame = jax.tree.map(np.asarray, jax.jit(game.env.viewer.snapshot)(state, game.params))
    frames = jax.tree.map(lambda x: np.stack([x] * STEPS).copy()[:, None], frame)
    frames.decision[:, 0] = np.arange(STEPS)
    frames.score[:, 0] = np.linspace([0.2, 0.1], [0.7, 0.4], STEPS)
    frames.verb[:, 0] = [VERBS.index("stage"), VERBS.index("scout")]
    frames.parameters[:, 0] = [[50, 90, 90, 50], [10, 10, 50, 50]]
    frames.verb[CHANGE:, 0, 0] = VERBS.index("assault")
    frames.zone[CHANGE:, 0, 0] = [30.0, 10.0, 4.0]
    frames.covered[3:, 0, 0, 0] = 0b110  # the second and third cell of the first row
    frames.tracks[SEEN:, 0, 2, 0] = 0b1  # the third mech has found the first
    frames.report[:, 0] = [90, 50, 10, 90]
    frames.ending[-1, 0] = 2
    frames.paid[1:, 0] = [0.02, 0.0, 0.0, 0.0, -0.01]
    frames.paid[-1, 0] = [0.0, 0.05, 0.4, 0.15, 0.0]
    length, results = np.array([STEPS - 1]), {"outcome": np.array([1]), "mission": np.array([0.7])}
    return SimpleNamespace(frames=frames, length=length, results=results | {"mission/red": np.array([0.4])})


def test_orders_are_described_in_words():
    said = order_in_words("hold", (0.5, 0.9, 0.9, 0.1), (20.2, 33.7, 7.0))
    assert said == "Hold (20, 34), radius 7: at all costs, at once, dispersed"
    assert order_in_words("scout", (0.5, 0.5, 0.5, 0.5), (1, 2, 3)).endswith("as usual")


def test_quantities_derived_from_a_recording(game, recorded):
    episode = game.env.viewer._episode(recorded, 0)
    assert episode.result == "blue succeeds (blue 0.70, red 0.40), time"
    assert episode.words[0][0].startswith("Stage (10, 20), radius 5: at all costs, at once")
    assert episode.words[0][CHANGE].startswith("Assault (30, 10), radius 4")
    assert episode.covered(2, 0).size == 0 and episode.covered(3, 0).tolist() == [[7.5, 2.5], [12.5, 2.5]]
    assert np.argwhere(episode.tracks[SEEN]).tolist() == [[2, 0]] and not episode.tracks[SEEN - 1].any()
    assert [episode.status_colour(0, mech) for mech in range(3)] == list(STATUS_COLOURS)
    said = [(t, team) for t, team, _ in episode.events]
    assert said == [(0, 0), (0, 1), (SEEN, 1), (CHANGE, 0), (STEPS - 1, -1)]
    assert [text for *_, text in episode.events][3].startswith("GO: Assault")
    assert episode.paid_in_words(0) == "paid +0.00"
    assert episode.paid_in_words(10) == "paid +0.10: shaping 67 %, reports 33 %"
    np.testing.assert_allclose(episode.paid[-1], [0.2, 0.05, 0.4, 0.15, -0.1], atol=1e-6)
    np.testing.assert_allclose(episode.shares(STEPS - 1), np.array([20, 5, 40, 15, 10]) / 90, atol=1e-6)


def test_a_snapshot_holds_the_facts_of_the_state(game):
    state = game.start("flank")
    visited = state.by_mech.visited.at[0, 1].set(np.uint32(0x80000001)).at[1, 0].set(np.uint32(2))
    timer = state.by_mech.timer.at[3, 1].set(8).at[0, 2].set(7)
    state = state.replace(by_mech=state.by_mech.replace(visited=visited, timer=timer))
    info = {f"reward/{name}": jnp.float32(index) for index, name in enumerate(PAID[:-1])}
    record = jax.jit(lambda *given: game.env.viewer.snapshot(*given[:2], SimpleNamespace(info=given[2])))
    frame = record(state, game.params, info)
    # Of twelve components two are the objective's; this reward knows no reports.
    assert frame.paid.tolist() == [66.0 - 11.0, 5.0 + 6.0, 12.0, 13.0, 0.0]
    assert frame.verb.tolist() == [VERBS.index("flank"), VERBS.index("hold")]
    bits = np.unpackbits(np.asarray(frame.covered), axis=-1, bitorder="little")
    assert np.argwhere(bits).tolist() == [[0, 1], [0, 32], [0, 63]]
    assert np.asarray(frame.tracks)[:, 0].tolist() == [0, 0, 0, 0b10]
    np.testing.assert_allclose(
        frame.position * LENGTH_UNIT, state.echelon.battle.mechs.position, atol=LENGTH_UNIT
    )


def test_picture_and_animation_show_objectives_coverage_and_status(game, recorded, tmp_path):
    game.env.viewer.picture(tmp_path / "picture.png", recorded)
    with Image.open(tmp_path / "picture.png") as image:
        assert image.width > 400
    game.env.viewer.animation(tmp_path / "episode.gif", recorded, 0)

    def pixels(moment):
        with Image.open(tmp_path / "episode.gif") as image:
            assert image.n_frames == STEPS
            image.seek(moment)
            return np.asarray(image.convert("RGB")).astype(int)

    def colours(image, x, y, reach=2):
        scale = (len(image) - HEADER) // 40
        row, column = int(HEADER + (40 - y) * scale), int(x * scale)
        part = image[row - reach : row + reach + 1, column - reach : column + reach + 1].reshape(-1, 3)
        return {tuple(colour) for colour in part.tolist()}

    first, last = pixels(0), pixels(STEPS - 1)
    blue = ImageColor.getrgb(TEAM_COLOURS[0])
    assert blue in colours(first, 15.0, 20.0) and blue not in colours(last, 15.0, 20.0)
    assert blue in colours(last, 34.0, 10.0) and blue not in colours(first, 34.0, 10.0)
    paid = [tuple(colour) for colour in last[HEADER - 4, 5:640:10].tolist()]
    shares = [paid.count(ImageColor.getrgb(colour)) / len(paid) for colour in FAMILY_COLOURS]
    np.testing.assert_allclose(shares, np.array([20, 5, 40, 15, 10]) / 90, atol=0.02)
    for (x, y), colour in zip((*WEST, *EAST), (*STATUS_COLOURS, STATUS_COLOURS[0]), strict=True):
        assert ImageColor.getrgb(colour) in colours(first, x, y)


@needs_node
def test_the_page_reads_what_was_recorded(game, recorded, tmp_path):
    game.env.viewer.replay(tmp_path / "replay.html", recorded, 0)
    page = (tmp_path / "replay.html").read_text()
    assert "coveredCells" in page and page.count("<script") == 2
    asked = {
        "words": f"[recording.wordsAt(0, 0), recording.wordsAt(0, {CHANGE}.5)]",
        "objective": f"[recording.objective(0, 0), recording.objective(0, {CHANGE})]",
        "cells": "recording.coveredCells(0, 3)",
        "none": "recording.coveredCells(1, 3)",
        "tracks": f"[recording.tracksAt({SEEN - 1}), recording.tracksAt({SEEN})]",
        "paid": f"[recording.paidUntil(10.5), recording.paidShares({STEPS - 1})]",
        "reports": "[0, 1, 2].map((mech) => recording.reportColour(mech, 0))",
    }
    pairs = ", ".join(f"{name}: {value}" for name, value in asked.items())
    found = javascript(page, f"{{{pairs}}}")
    assert found["words"][0].startswith("Stage") and found["words"][1].startswith("Assault")
    assert found["objective"] == [[10, 20, 5], [30, 10, 4]]
    assert found["cells"] == [[7.5, 2.5], [12.5, 2.5]] and found["none"] == []
    assert found["tracks"] == [[], [[2, 0]]]
    np.testing.assert_allclose(found["paid"][0], [0.2, 0, 0, 0, -0.1], atol=1e-6)
    np.testing.assert_allclose(found["paid"][1], np.array([20, 5, 40, 15, 10]) / 90, atol=1e-6)
    assert found["reports"] == list(STATUS_COLOURS)
