"""Viewer of missions: trajectories, an animation and a replay, with orders and results."""

import textwrap
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import ImageFont

from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.echelon.battle.state import TEAMS
from jaxmarl_echelon.envs.echelon.missions.measures.facts import AREA
from jaxmarl_echelon.envs.echelon.missions.results import MISSION_ENDINGS, RED_SCORE, SCORE
from jaxmarl_echelon.envs.echelon.missions.view.episode import FAMILY_COLOURS, STATUS_COLOURS, RecordedMission
from jaxmarl_echelon.envs.echelon.missions.view.frames import REWARD_GROUPS, make_mission_snapshot
from jaxmarl_echelon.envs.echelon.view.animation import draw_fight, save_battle_gif
from jaxmarl_echelon.envs.echelon.view.palette import TEAM_COLOURS
from jaxmarl_echelon.envs.echelon.view.replay import save_replay
from jaxmarl_echelon.envs.echelon.view.viewer import BattleViewer, PanelStyle, save_picture
from jaxmarl_echelon.envs.viewing.canvas import MapCanvas
from jaxmarl_echelon.envs.viewing.panels import choose_panels

HEADER = 58
# Characters per line of captions.
_LINE = 84
# Decisions between two reports shown in a picture.
_OFTEN = 8
_INK, _TRACK = "#1c1c1c", "#8a8a8a"
_SUCCEED = {
    "both": "both succeed",
    "blue": "blue succeeds",
    "red": "red succeeds",
    "neither": "neither succeeds",
}


class MissionViewer(BattleViewer):
    """Draws evaluations of missions."""

    def __init__(self, env, outcomes: tuple[str, ...], period: float):
        """Stores the static data that recordings do not contain.

        Args:
          env: the environment.
          outcomes: names of the outcome codes.
          period: seconds per decision.
        """
        super().__init__(env.bank, env.teams, outcomes, period)
        self.snapshot = make_mission_snapshot(env.teams, env.battle_params)
        self.verbs, self.ground = env.registry.names, env.ground

    def picture_with(self, path: Path, evaluation, episode: int | None) -> None:
        """Draws the first episodes of an evaluation and the chosen one, one panel each, as a PNG."""
        number = len(evaluation.length)
        shown = {i: self._episode(evaluation, i) for i in choose_panels(number, episode)}
        success = [float(np.mean(evaluation.results[name])) for name in (SCORE, RED_SCORE)]
        means = ", ".join(f"{team} {value:.2f}" for team, value in zip(TEAMS, success, strict=True))
        style = PanelStyle(_mark_orders, _caption, _handles, columns=2, lines=4)
        save_picture(path, shown, f"{number} episodes: mean success {means}", episode, style)

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one episode of an evaluation from above, as a GIF."""
        colours = (*STATUS_COLOURS, *FAMILY_COLOURS, _TRACK)
        save_battle_gif(path, self._episode(evaluation, episode), _draw, colours, HEADER)

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one episode of an evaluation as a page with a 3-D view, for any browser."""
        shown = self._episode(evaluation, episode)
        further = {
            "words": [_changes(words) for words in shown.words],
            "cell": shown.cell,
            "cellColumns": shown.columns,
            "area": shown.area,
            "statusColours": STATUS_COLOURS,
            "families": list(REWARD_GROUPS),
            "familyColours": FAMILY_COLOURS,
        }
        script = resources.files("jaxmarl_echelon.envs.echelon.missions.view") / "missions.js"
        save_replay(path, shown, further, script.read_text(encoding="utf-8"))

    def _episode(self, evaluation, index: int) -> RecordedMission:
        frames = base.Viewer._episode(self, evaluation, index)
        return RecordedMission(
            voxels=np.asarray(self.bank.voxels.material[int(frames.map_index[0])]),
            zone=frames.zone[0, 0],
            frames=frames,
            blue=self.teams[0],
            result=self._result(evaluation, index),
            period=self.period,
            verbs=self.verbs,
            cell=self.ground.cell,
            columns=self.ground.columns,
            area=AREA,
        )

    def _result(self, evaluation, index: int) -> str:
        """Returns the outcome of an episode in words: "both succeed (blue 0.71, red 0.60), time"."""
        outcome, ending = int(evaluation.results["outcome"][index]), int(evaluation.frames.ending[-1, index])
        if outcome < 0:
            return "not over"
        values = [float(evaluation.results[name][index]) for name in (SCORE, RED_SCORE)]
        grades = ", ".join(f"{team} {value:.2f}" for team, value in zip(TEAMS, values, strict=True))
        end = f", {MISSION_ENDINGS[ending]}" if ending >= 0 else ""
        return f"{_SUCCEED[self.outcomes[outcome]]} ({grades}){end}"


def _changes(words: list[str]) -> list[tuple[int, str]]:
    """Returns the moments at which a sentence changes, with the new sentence."""
    return [(t, text) for t, text in enumerate(words) if t == 0 or text != words[t - 1]]


def _caption(episode: RecordedMission) -> str:
    alive, present = episode.alive[-1], episode.frames.present[0] > 0
    sides = [present & (episode.team == team) for team in range(len(TEAMS))]
    left = " : ".join(f"{alive[side].sum()} of {side.sum()}" for side in sides)
    seconds = episode.frames.decision[-1] * episode.period
    orders = [f"{team}: {words[0]}" for team, words in zip(TEAMS, episode.words, strict=True)]
    lines = f"{episode.result}, {seconds:.1f} s, alive {left}", *orders, episode.paid_in_words(episode.last)
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _LINE))


def _handles() -> list:
    """Returns legend entries of the marks of a mission."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    styles = {"objective": {"lw": 1.6}, "area": {"lw": 0.7, "ls": ":"}, "found": {"lw": 0.6, "color": _TRACK}}
    found = [Line2D([], [], **{"color": _INK} | style, label=name) for name, style in styles.items()]
    found.append(Patch(color=_INK, alpha=0.15, linewidth=0, label="entered"))
    for colour, name in zip(STATUS_COLOURS, ("green", "yellow", "red"), strict=True):
        found.append(Line2D([], [], color=colour, marker=".", linestyle="none", label=f"reports {name}"))
    return found


def _mark_orders(axes, episode: RecordedMission) -> None:
    """Draws objectives, areas of operations, coverage and tracks of both teams, and status reports."""
    from matplotlib.patches import Circle, Rectangle

    for team, colour in enumerate(TEAM_COLOURS):
        for x, y in episode.covered(episode.last, team):
            corner = x - episode.cell / 2, y - episode.cell / 2
            axes.add_patch(
                Rectangle(corner, episode.cell, episode.cell, color=colour, alpha=0.08, linewidth=0)
            )
        for zone in np.unique(episode.frames.zone[:, team], axis=0):
            # Dashes of red over a common objective let blue's colour through.
            style = {"color": colour, "linestyle": "--" if team else "-"}
            axes.add_patch(Circle(zone[:2], zone[2], fill=False, linewidth=1.6, **style))
            wide = zone[2] + episode.area
            axes.add_patch(Circle(zone[:2], wide, fill=False, color=colour, linewidth=0.7, linestyle=":"))
    for viewer, target in np.argwhere(episode.tracks.any(0)):
        first = int(np.argmax(episode.tracks[:, viewer, target]))
        axes.plot(*episode.position[first, [viewer, target], :2].T, color=_TRACK, linewidth=0.6, zorder=2.5)
    for moment in range(_OFTEN, episode.last + 1, _OFTEN):
        for mech in np.flatnonzero(episode.alive[moment]):
            place, colour = episode.position[moment, mech, :2], episode.status_colour(moment, mech)
            axes.plot(*place, ".", color=colour, markersize=4, markeredgewidth=0, zorder=3)


def _draw(canvas: MapCanvas, episode: RecordedMission, moment: int):
    """Draws one moment of an animation."""
    frames = episode.frames
    for team, colour in enumerate(TEAM_COLOURS):
        for middle in episode.covered(moment, team):
            canvas.box(middle, 0.12 * episode.cell, outline=colour)
        zone = frames.zone[moment, team]
        canvas.disc(zone[:2], zone[2] - 0.4 * team, outline=colour, width=3)
        canvas.disc(zone[:2], zone[2] + episode.area, outline=colour, width=1)
    for viewer, target in np.argwhere(episode.tracks[moment]):
        canvas.line(*episode.position[moment, [viewer, target]], _TRACK, 1)
    draw_fight(canvas, episode, moment)
    for mech in np.flatnonzero(episode.alive[moment]):
        canvas.disc(
            episode.position[moment, mech], 0.5, fill=episode.status_colour(moment, mech), outline=_INK
        )
    _draw_header(canvas, episode, moment)
    return canvas.image


def _draw_header(canvas: MapCanvas, episode: RecordedMission, moment: int) -> None:
    """Draws bars of success from the edges, orders in words, and the time."""
    width, font = canvas.image.width, ImageFont.load_default(size=10)
    success = episode.frames.score[moment]
    for team, colour in enumerate(TEAM_COLOURS):
        length = min(float(success[team]), 1.0) * width / 2
        edges = (0, length) if team == 0 else (width - length, width)
        if length >= 1:
            canvas.draw.rectangle((edges[0], 0, edges[1], 10), fill=colour)
        row, side = 12 + 13 * team, "la"
        text = f"{TEAMS[team]} {success[team]:.2f}: {episode.words[team][moment]}"
        canvas.draw.text((6, row), text, fill=colour, font=font, anchor=side)
    seconds = episode.frames.decision[moment] * episode.period
    canvas.draw.text((width - 6, 12), f"{seconds:.1f} s", fill=_INK, font=font, anchor="ra")
    _draw_paid(canvas, episode, moment, font)


def _draw_paid(canvas: MapCanvas, episode: RecordedMission, moment: int, font) -> None:
    """Draws blue's cumulative reward by family, and a bar of their shares."""
    left, start, paid = 6.0, 0.0, episode.paid[moment]
    texts = [f"{name} {value:+.2f}" for name, value in zip(REWARD_GROUPS, paid, strict=True)]
    said = zip([f"paid {paid.sum():+.2f}", *texts], [_INK, *FAMILY_COLOURS], strict=True)
    for text, colour in said:
        canvas.draw.text((left, 38), text, fill=colour, font=font, anchor="la")
        left += font.getlength(text) + 14
    for share, colour in zip(episode.shares(moment), FAMILY_COLOURS, strict=True):
        end = start + float(share) * canvas.image.width
        if end - start >= 1:
            canvas.draw.rectangle((start, 52, end, HEADER - 3), fill=colour)
        start = end
