"""Colours stay apart for people with red-green colour blindness."""

import itertools
import re
from importlib import resources

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from jaxmarl_echelon import palette
from jaxmarl_echelon.envs.drive.view import palette as drive
from jaxmarl_echelon.envs.echelon.missions.view.episode import FAMILY_COLOURS, STATUS_COLOURS
from jaxmarl_echelon.envs.echelon.view.palette import TEAM_COLOURS
from jaxmarl_echelon.envs.f110.view import style
from jaxmarl_echelon.tracking import plots, pool_plot

NORMAL = np.eye(3)
# Machado, Oliveira and Fernandes 2009, table 1: what eyes without cones for green see, in linear RGB.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
# Linear RGB to CIE XYZ, and the white point D65.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
LEAST = 12.0

PALETTES = {
    "series": (*palette.SERIES, palette.NEUTRAL),
    "roles": (palette.ATTACKER, palette.DEFENDER, palette.NEUTRAL),
    "outcomes of chases": (*style.OUTCOME_COLOURS.values(), palette.NEUTRAL),
    "roles and outcomes": (palette.ATTACKER, palette.DEFENDER, *style.RACE_COLOURS.values()),
    "outcomes of drives": (*drive.OUTCOME_COLOURS.values(), drive.SCRIPTED),
    "teams": TEAM_COLOURS,
    "reports": STATUS_COLOURS,
    "families": FAMILY_COLOURS,
    "learning curve": (plots.TRAINING, plots.EVALUATION, plots.PHASE),
    "ratings": (pool_plot.LEARNER, pool_plot.SNAPSHOT, pool_plot.FIXED),
    **{name: [to_hex(matplotlib.colormaps[name](x)) for x in (0.0, 0.25, 0.5, 0.75, 1.0)]
       for name in (palette.RISING, palette.DIVERGING)},
}  # fmt: skip


def page_palettes():
    """The colours of charts in pages, light and dark."""
    text = (resources.files("jaxmarl_echelon.reporting") / "style.css").read_text()
    found = re.findall(r"--c\d: (#\w{6})", text)
    return {"light pages": found[:8], "dark pages": found[8:]}


def lab(colour, seen):
    """CIELAB of a colour as it is seen."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    share = XYZ @ np.clip(seen @ linear, 0.0, 1.0) / WHITE
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", [NORMAL, DEUTERANOPIA], ids=["normal", "deuteranopia"])
@pytest.mark.parametrize(("name", "colours"), [*(PALETTES | page_palettes()).items()])
def test_colours_stay_apart(name, colours, seen):
    assert len(colours) > 1
    distance = {
        (one, other): float(np.linalg.norm(lab(one, seen) - lab(other, seen)))
        for one, other in itertools.combinations(colours, 2)
    }
    closest = min(distance, key=distance.get)
    assert distance[closest] >= LEAST, (name, closest)


def test_the_measure_knows_that_red_and_green_look_alike():
    far, near = (
        np.linalg.norm(lab("#2ca02c", seen) - lab("#d62728", seen)) for seen in (NORMAL, DEUTERANOPIA)
    )
    assert far > 100 > 12 > near
    np.testing.assert_allclose(lab("#ffffff", NORMAL), [100, 0, 0], atol=0.1)
    np.testing.assert_allclose(lab("#ff0000", NORMAL), [53.2, 80.1, 67.2], atol=0.1)


def test_text_is_read_on_every_colour():
    assert palette.contrast_text("#ffffff") == "#000000" and palette.contrast_text("#332288") == "#ffffff"
