"""Extras, pinned versions and the image agree with each other and with the documents."""

import re
import tomllib

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from jaxmarl_echelon.optional_packages import NEEDED

# On which the pinned versions have to serve.
PYTHONS = ("3.11", "3.12", "3.13")


@pytest.fixture(scope="module")
def project(repository):
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def extras(project):
    return project["optional-dependencies"]


def required(project, names):
    """Requirements of the project and of extras, those that name further extras expanded."""
    found = [Requirement(line) for line in project["dependencies"]]
    for name in names:
        for one in map(Requirement, project["optional-dependencies"][name]):
            if one.name == project["name"]:
                found += required(project, one.extras)
            else:
                found.append(one)
    return found


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_extra_is_described_once(repository, extras):
    page = (repository / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|.*\| (yes|no)\b.*\|$", page, re.MULTILINE)
    described = {name: told for names, told in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(described) == set(extras) - {"all"}
    (joined,) = [{name for line in extras["all"] for name in Requirement(line).extras}]
    assert {name for name, told in described.items() if told == "yes"} == joined
    assert {extra for _, extra in NEEDED.values()} <= set(extras)


@pytest.mark.parametrize("python", PYTHONS)
def test_pinned_versions_are_those_that_the_project_asks_for(repository, project, python):
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    text = (repository / "constraints.txt").read_text()
    assert "://" not in text
    pins = [Requirement(line) for line in text.splitlines() if not line.startswith("#")]
    pinned = {
        canonical(one.name): one.specifier
        for one in pins
        if one.marker is None or one.marker.evaluate(environment)
    }
    assert {len(one) for one in pinned.values()} == {1}
    for one in required(project, ["dev", "docs"]):
        (pin,) = pinned[canonical(one.name)]
        assert pin.operator == "==" and one.specifier.contains(pin.version, prereleases=True), one


def test_the_image_installs_what_exists(repository, extras):
    text = (repository / "Dockerfile").read_text()
    assert re.findall(r"^ARG EXTRAS=(\w+)$", text, re.MULTILINE)[0] in extras
    assert (repository / "constraints.txt").is_file() and "constraints.txt" in text
    ignored = (repository / ".dockerignore").read_text().split()
    needed = ("pyproject.toml", "README.md", "LICENSE", "conf", "algos", "physics", "jaxmarl_echelon")
    assert not set(needed) & set(ignored)
