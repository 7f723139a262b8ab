"""docs/f110.md says what the code and the configurations say."""

import re

import numpy as np
import pytest
import yaml

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.f110.results import OUTCOMES
from jaxmarl_echelon.envs.f110.starts.spawns import BUILT_IN


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "f110.md").read_text()


@pytest.fixture(scope="module")
def env():
    return je.make("f110")


def read_table(page, heading):
    """Cells of the first table below a heading, by row, without its head."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def format_phase(phase, common):
    """Row of a phase: its settings over those that all phases share."""
    settings = common["settings"] | phase["settings"]
    ftg = common["settings"]["ftg"] | phase["settings"].get("ftg", {})
    speed, spawns = settings["spawn_speed"], settings["spawns"]
    return [
        f"`{phase['name']}`",
        str(settings["lock_steps"]),
        f"{speed:g}" if isinstance(speed, float) else f"{speed[0]:g} to {speed[1]:g}",
        f"`{spawns}`" if isinstance(spawns, str) else ", ".join(f"`{name}`" for name in spawns),
        f"{ftg['steering_gain']:g}",
        f"{ftg['bubble_radius']:g}",
        ftg["target_mode"],
    ]


def test_phases_are_those_of_the_curriculum(page, repository):
    curriculum = yaml.safe_load((repository / "conf" / "curriculum" / "phased26.yaml").read_text())
    expected = [format_phase(phase, curriculum["common"]) for phase in curriculum["phases"]]
    assert len(expected) == 26
    assert read_table(page, "The 26 phases") == expected


def test_observations_are_those_of_the_layout(page, env):
    described = {}
    name = None
    for part, numbers, _, unit, scale, interval in read_table(page, "Observation"):
        name = part.strip("`") or name
        first, *last = re.findall(r"\d+", numbers)
        many = int((last or [first])[0]) - int(first) + 1
        units = unit.split(", ") * (many if "," not in unit else 1)
        described.setdefault(name, []).extend(
            (int(first) + n, units[n], float(scale), interval) for n in range(many)
        )
    for name, part in env.parts["attacker"].items():
        size = part.where.stop - part.where.start
        rows = described.pop(name)
        assert [row[0] for row in rows] == list(range(part.where.start, part.where.stop))
        assert [row[1] for row in rows] == list(part.units * (size // len(part.units)))
        np.testing.assert_allclose([row[2] for row in rows], part.scales * (size // len(part.scales)))
    assert described == {}
    space = env.spec.role("attacker").observation
    assert space.shape == (119,) and "the 119 numbers" in page


def test_outcomes_spawn_points_and_rewards_are_all_named(page, env):
    assert {row[0].strip("`") for row in read_table(page, "Outcomes")} == set(OUTCOMES)
    named = {name for row in read_table(page, "Rewards") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == set(env.reward.names)
    sets = {name.strip("`"): [] for *_, name in read_table(page, "Rewards") if name}
    for names, _, group in read_table(page, "Rewards"):
        if group:
            sets[group.strip("`")] += re.findall(r"`(\w+)`", names)
    assert set(sets) == {"approach", "forcing", "penalties"}
    scripts = {
        name for row in read_table(page, "Roles and opponents") for name in re.findall(r"`(\w+)`", row[0])
    }
    assert {"ftg", "standing", "straight", "random", "gaussian"} <= scripts
    assert set(BUILT_IN) == set(env.spec.tasks)
