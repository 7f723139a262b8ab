"""docs/f110.md says what the code and the configurations say."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from documented import python_blocks

from jaxmarl_echelon import command_line
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.envs.f110.observing.observe import ObservationScales, gaplock_parts
from jaxmarl_echelon.envs.f110.results import OUTCOMES
from jaxmarl_echelon.training.config.build import build_run_config


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "f110.md").read_text()


def test_a_component_of_ones_own_is_paid_in_episodes(page, tmp_path, monkeypatch):
    """As the page has it: a module, a file, and an environment with the reward that it names."""
    (tmp_path / "reward").mkdir()
    (tmp_path / "calm.py").write_text(python_blocks(page)[0])
    settings = re.search(r"```yaml\n(_target_: calm.*?)```", page, re.DOTALL)[1]
    (tmp_path / "reward" / "calm.yaml").write_text(settings)
    monkeypatch.syspath_prepend(tmp_path)
    typed = ["+algo=ppo", "env=f110", "reward=calm", "env.lidar_beams=8", "tuning=none"]
    config, _ = command_line.compose_config(command_line.normalize_overrides(typed), Sources(tmp_path))
    reward = build_run_config(config).env.reward
    step = SimpleNamespace(ego_velocity=np.array([3.0, 0.0, -1.0]), outcome=-1)
    value, _ = reward.catalogue.components["calm"].value(reward.params()["calm"], step, None)
    assert reward.names == ("terminal", "calm") and value == pytest.approx(0.02 * np.exp(-1.0))


@pytest.fixture(scope="module")
def conf(repository):
    """Reads a file of the configuration."""
    return lambda name: yaml.safe_load((repository / "conf" / f"{name}.yaml").read_text())


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


def test_phases_are_those_of_the_curriculum(page, conf):
    curriculum = conf("curriculum/phased26")
    expected = [format_phase(phase, curriculum["common"]) for phase in curriculum["phases"]]
    assert len(expected) == 26
    assert read_table(page, "The 26 phases") == expected


def test_observations_are_those_of_the_layout(page, conf):
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
    settings = conf("env/f110")
    scales = ObservationScales(*(settings[name] for name in ("lidar_range", "speed_scale", "position_scale")))
    parts = gaplock_parts(settings["lidar_beams"], scales, settings["observe_time"])
    for name, part in parts.items():
        size = part.where.stop - part.where.start
        rows = described.pop(name)
        assert [row[0] for row in rows] == list(range(part.where.start, part.where.stop))
        assert [row[1] for row in rows] == list(part.units * (size // len(part.units)))
        np.testing.assert_allclose([row[2] for row in rows], part.scales * (size // len(part.scales)))
    assert described == {}
    assert parts["relative_pose"].where.stop == 119 and "the 119 numbers" in page


def test_outcomes_and_rewards_are_all_named(page, conf):
    assert {row[0].strip("`") for row in read_table(page, "Outcomes")} == set(OUTCOMES)
    reward = conf("reward/gaplock_full")
    sets = {}
    for names, _, group in read_table(page, "Rewards"):
        sets.setdefault(group.strip("`"), []).extend(re.findall(r"`(\w+)`", names))
    assert {name for names in sets.values() for name in names} == set(reward["components"])
    assert (
        sets.pop("") == ["terminal", "pressure"] and "All but `terminal` are also the set `shaping`" in page
    )
    sets["shaping"] = [name for name in reward["components"] if name != "terminal"]
    assert sets == reward["sets"]


def test_the_page_says_how_the_default_task_starts(page, conf):
    settings = conf("env/f110")
    assert f"{settings['spawn_speed']} m/s (`env.spawn_speed`)" in page
    assert f"for {settings['lock_steps']} physics steps" in page and settings["locked"] == ["defender"]
    seconds = settings["max_steps"] * settings["dt"]
    assert f"an episode at most {seconds:g} s" in " ".join(page.split())
