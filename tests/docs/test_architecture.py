"""docs/architecture.md agrees with the code, and its command reports where it does not."""

import itertools
import re

import pytest
from scripts import load_script


@pytest.fixture(scope="module")
def architecture(repository):
    return load_script(repository / "docs" / "architecture.py")


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "architecture.md").read_text()


def test_the_page_agrees_with_the_code(architecture, page, repository):
    assert architecture.problems(page, repository) == []


def test_the_page_has_four_paths_through_several_files(architecture, page):
    loss, *others = routes = architecture.read(page)
    assert len(loss.hops) <= 10 and loss.counted[1] <= 6
    assert len(others) == 3
    (pool,) = (route for route in others if "pool" in route.title)
    rooms = [hop.path.split("/")[1] for hop in pool.hops]
    assert sum(a != b for a, b in itertools.pairwise(rooms)) <= 3
    assert all(len(route.hops) > 10 and len({hop.path for hop in route.hops}) > 5 for route in others)
    # Every numbered item is read and therefore checked.
    assert sum(len(route.hops) for route in routes) == len(re.findall(r"^\d+\. ", page, re.MULTILINE))


def test_the_path_of_a_prompt_agrees_with_the_code(architecture, repository):
    text = (repository / "docs" / "language.md").read_text()
    (section,) = re.findall(r"^## From a prompt.+?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert architecture.problems(section, repository) == []
    (route,) = architecture.read(section)
    assert len(route.hops) == len(re.findall(r"^\d+\. ", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("`collect_rollout` in", "`gather` in", "training/rollouts/collect.py: defines no gather"),
        ("`make_learner_controller.act` in", "`script.init` in", "controllers.py: defines no script.init"),
        ("`algos/on_policy/losses.py`", "`algos/losses.py`", "algos/losses.py: no such file"),
        ("9 hops over 6 files", "8 hops over 5 files", "9 hops over 6 files"),
        ("| `script` |", "| `scripted` |", "expected no scripted"),
    ],
)
def test_a_wrong_statement_is_reported(architecture, page, repository, before, after, problem):
    assert before in page
    assert any(problem in line for line in architecture.problems(page.replace(before, after), repository))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("17 hops over 10 files", "Many hops"),
        ("1. `main` in", "1. `main`, in"),
        ("\n   Hands on metadata.", ""),
    ],
)
def test_an_item_of_another_form_is_refused(architecture, page, before, after):
    assert before in page
    with pytest.raises(ValueError):
        architecture.read(page.replace(before, after))


def test_functions_are_found_by_their_dotted_names(architecture, tmp_path):
    source = "def f():\n    def g(): pass\n    return g\nclass C:\n    if True:\n        def m(self): pass\n"
    tree = architecture.ast.parse(source)
    assert architecture.defined(tree) == {"f", "f.g", "C", "C.m"}
