"""Animation of one battle from above, as a GIF."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, TEAMS
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CHASSIS, WEAPON, WEAPONS
from jaxmarl_echelon.envs.echelon.view.palette import (
    NEUTRAL,
    SMOKE,
    TEAM_COLOURS,
    WEAPON_COLOURS,
    WRECK,
    terrain_image,
)
from jaxmarl_echelon.envs.echelon.view.recorded_battle import RecordedBattle
from jaxmarl_echelon.envs.echelon.view.snapshot import LENGTH_UNIT, YAW_UNIT, BattleFrame
from jaxmarl_echelon.envs.viewing.canvas import MapCanvas
from jaxmarl_echelon.envs.viewing.gif import make_palette, save_gif

HEADER = 40
_SIDE = 640
_MOST_FRAMES = 160
_TERRAIN_COLOURS = 64
_INK, _PAPER, _GOOD, _HOT = "#1c1c1c", "#f4f2ec", "#37b24d", "#f76707"
_SPLASH = float(WEAPON.splash_radius[WEAPONS.index("smoke")])


def save_battle_gif(
    path: str | Path,
    episode: RecordedBattle,
    draw: Callable | None = None,
    colours: Sequence[str] = (),
    header: int = HEADER,
) -> None:
    """Writes an animation of an episode as a GIF below 5 MB.

    Args:
      path: file to write.
      episode: the recorded episode.
      draw: `(canvas, episode, moment) -> image`, draws one moment; by default the battle for the zone.
      colours: additional colours that `draw` uses.
      header: pixels above the map.
    """
    draw = draw or _draw
    rows = episode.voxels.shape[1]
    background = _background(episode.voxels, header)
    palette = _palette(background, colours)
    scale = (background.height - header) // rows

    def draw_all(moments) -> list[Image.Image]:
        canvases = (MapCanvas(background.copy(), scale, (0.0, rows), (0, header)) for _ in moments)
        images = (draw(canvas, episode, moment) for canvas, moment in zip(canvases, moments, strict=True))
        return [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]

    def durations(moments) -> np.ndarray:
        return np.clip(600 * np.diff(moments) * episode.period, 40, 400)

    stride = max(1, -(-episode.last // _MOST_FRAMES))
    save_gif(path, episode.last, draw_all, durations, stride=stride, hold=2500)


def _background(voxels: np.ndarray, header: int) -> Image.Image:
    rows, columns = voxels.shape[1:]
    scale = max(2, _SIDE // max(rows, columns))
    ground = Image.fromarray(terrain_image(voxels)[::-1]).quantize(_TERRAIN_COLOURS).convert("RGB")
    image = Image.new("RGB", (columns * scale, rows * scale + header), _PAPER)
    image.paste(ground.resize((columns * scale, rows * scale), Image.Resampling.NEAREST), (0, header))
    return image


def _palette(background: Image.Image, further: Sequence[str]) -> Image.Image:
    """Returns a palette with the terrain's colours and all colours drawn on it."""
    marks = (*TEAM_COLOURS, *WEAPON_COLOURS, NEUTRAL, SMOKE, WRECK, _INK, _PAPER, _GOOD, _HOT, *further)
    ground = [colour for _, colour in background.getcolors(256)]
    return make_palette(list(dict.fromkeys([ImageColor.getrgb(mark) for mark in marks] + ground)))


def _draw(canvas: MapCanvas, episode: RecordedBattle, moment: int) -> Image.Image:
    owner = episode.holders[moment]
    colour = NEUTRAL if owner == NO_MECH else TEAM_COLOURS[owner]
    canvas.disc(episode.zone[:2], episode.zone[2], outline=colour, width=4)
    draw_fight(canvas, episode, moment)
    _draw_header(canvas, episode, moment)
    return canvas.image


def draw_fight(canvas: MapCanvas, episode: RecordedBattle, moment: int) -> None:
    """Draws mechs, smoke and shots at a moment."""
    now = jax.tree.map(partial(np.take, indices=moment, axis=0), episode.frames)
    _draw_mechs(canvas, episode, moment, now)
    _draw_smoke(canvas, now)
    for _, weapon, shooter, target in (beam for beam in episode.beams if beam[0] == moment):
        start, end = episode.position[moment, [shooter, target]]
        canvas.line(start, end, WEAPON_COLOURS[weapon])
    _draw_projectiles(canvas, episode.frames, moment)


def _draw_mechs(canvas: MapCanvas, episode: RecordedBattle, moment: int, now: BattleFrame) -> None:
    present, alive = episode.alive[[0, moment]]
    for mech in sorted(np.flatnonzero(present), key=lambda mech: alive[mech]):
        position, half = episode.position[moment, mech], CHASSIS.size[now.classes[mech], 0] / 2
        colour = TEAM_COLOURS[episode.team[mech]]
        if not alive[mech]:
            canvas.box(position, half, fill=WRECK, outline=colour)
            continue
        if episode.team[mech] == 0:
            canvas.box(position, half, fill=colour, outline=_INK)
        else:
            canvas.box(position, half, fill=_PAPER, outline=colour, width=3)
        yaw = now.yaw[mech] * YAW_UNIT
        nose = position[:2] + 1.5 * half * np.array([np.cos(yaw), np.sin(yaw)])
        canvas.line(position, nose, _PAPER if episode.team[mech] == 0 else colour)
        _draw_bars(canvas, position, half, int(now.hp[mech]), int(now.heat[mech]))


def _draw_bars(canvas: MapCanvas, position, half: float, hp: int, heat: int) -> None:
    x, y = canvas.pixel(position)
    reach, top = max(8, half * canvas.scale), y - half * canvas.scale - 8
    for row, (percent, colour) in enumerate(((hp, _GOOD), (min(heat, 100), _HOT))):
        low = top + 3 * row
        canvas.draw.rectangle((x - reach, low, x + reach, low + 2), fill=_INK)
        if percent:
            canvas.draw.rectangle(
                (x - reach, low, x - reach + 2 * reach * percent / 100, low + 2), fill=colour
            )


def _draw_smoke(canvas: MapCanvas, now: BattleFrame) -> None:
    """Draws clouds as stipple, so that their contents stay visible."""
    clouds = now.smoke[now.smoke_left > 0] * LENGTH_UNIT
    if not len(clouds):
        return
    mask = Image.new("1", canvas.image.size)
    stencil = ImageDraw.Draw(mask)
    for cloud in clouds:
        x, y = canvas.pixel(cloud)
        reach = _SPLASH * canvas.scale
        stencil.ellipse((x - reach, y - reach, x + reach, y + reach), fill=1)
    rows, columns = np.indices(mask.size[::-1])
    dots = (rows + columns) % 2 == 0
    canvas.image.paste(SMOKE, mask=Image.fromarray(np.asarray(mask) & dots))


def _draw_projectiles(canvas: MapCanvas, frames: BattleFrame, moment: int) -> None:
    kinds, before = frames.projectile_kind[moment], frames.projectile_kind[max(moment - 1, 0)]
    for mech, place in np.argwhere(kinds != NO_MECH):
        kind = kinds[mech, place]
        way = frames.projectile[: moment + 1, mech, place] * LENGTH_UNIT
        if before[mech, place] == kind:
            canvas.line(way[-2:][0], way[-1], WEAPON_COLOURS[kind], 1)
        canvas.disc(way[-1], 3 / canvas.scale, fill=WEAPON_COLOURS[kind], outline=_INK)


def _draw_header(canvas: MapCanvas, episode: RecordedBattle, moment: int) -> None:
    """Draws score bars from the edges towards the middle, numbers of living mechs, and the time."""
    width, font = canvas.image.width, ImageFont.load_default(size=15)
    score, alive = episode.frames.score[moment], episode.alive[moment]
    for team, colour in enumerate(TEAM_COLOURS):
        length = min(score[team] / episode.score_goal, 1.0) * width / 2
        edges = (0, length) if team == 0 else (width - length, width)
        if length >= 1:
            canvas.draw.rectangle((edges[0], 0, edges[1], 12), fill=colour)
    canvas.draw.line((width / 2, 0, width / 2, 12), fill=_INK)
    left = [alive[episode.team == team].sum() for team in range(len(TEAMS))]
    seconds = episode.frames.decision[moment] * episode.period
    ending = episode.result if moment == episode.last else ""
    texts = (
        (8, "la", f"{left[0]} alive   {score[0]:.1f} s", TEAM_COLOURS[0]),
        (width - 8, "ra", f"{score[1]:.1f} s   {left[1]} alive", TEAM_COLOURS[1]),
        (width / 2, "ma", f"t = {seconds:.1f} s   {ending}".rstrip(), _INK),
    )
    for x, anchor, text, colour in texts:
        canvas.draw.text((x, 17), text, fill=colour, font=font, anchor=anchor)
