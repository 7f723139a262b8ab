"""docs/architecture.md says what is in the code, and its command notices where it does not."""

import importlib.util
import re

import pytest


@pytest.fixture(scope="module")
def architecture(repository):
    spec = importlib.util.spec_from_file_location("architecture", repository / "docs" / "architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "architecture.md").read_text()


def test_the_page_says_what_is_in_the_code(architecture, page, repository):
    assert architecture.problems(page, repository) == []


def test_the_page_has_three_ways_through_several_files(architecture, page):
    ways = architecture.read(page)
    assert len(ways) == 3
    assert all(len(way.hops) > 10 and len({hop.path for hop in way.hops}) > 5 for way in ways)
    # Every numbered item is read: none falls out of the check by its form.
    assert sum(len(way.hops) for way in ways) == len(re.findall(r"^\d+\. ", page, re.MULTILINE))


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (
            "`collect_rollout` in",
            "`gather` in",
            "jaxmarl_echelon/training/rollouts/collect.py: defines no gather",
        ),
        (
            "`make_learner_controller.act` in",
            "`script.init_all` in",
            "controllers.py: defines no script.init_all",
        ),
        ("`algos/on_policy/losses.py`", "`algos/losses.py`", "algos/losses.py: no such file"),
        ("13 hops over 9 files", "12 hops over 8 files", "13 hops over 9 files"),
        ("| `script` |", "| `scripted` |", "expected no scripted"),
    ],
)
def test_what_is_not_so_is_noticed(architecture, page, repository, before, after, problem):
    assert before in page
    assert any(problem in line for line in architecture.problems(page.replace(before, after), repository))


@pytest.mark.parametrize(
    ("before", "after"),
    [("17 hops over 8 files", "Many hops"), ("1. `main` in", "1. `main`, in"), (" Hands on metadata.", "")],
)
def test_what_cannot_be_read_is_refused(architecture, page, before, after):
    assert before in page
    with pytest.raises(ValueError):
        architecture.read(page.replace(before, after))


def test_functions_are_found_by_their_dotted_names(architecture, tmp_path):
    source = "def f():\n    def g(): pass\n    return g\nclass C:\n    if True:\n        def m(self): pass\n"
    tree = architecture.ast.parse(source)
    assert architecture.defined(tree) == {"f", "f.g", "C", "C.m"}
