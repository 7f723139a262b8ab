"""The generated pages of the site have what the configurations and the package have."""

import importlib
import re
import sys

import pytest
import yaml


@pytest.fixture(scope="module")
def site(repository):
    """Imports a module of docs/site, which is no package."""
    sys.path.insert(0, str(repository / "docs" / "site"))
    yield importlib.import_module
    sys.path.remove(str(repository / "docs" / "site"))


TEXT = """\
# What it is.
# keys of your own below: places
_target_: somewhere.make
plain: 1                 # meaning, of
                         # two lines
bare: "a # b"
# About the group.
group:                   # and more
  inner: {low: 0.0,      # first
    high: 1.0}           # last
  # Alone before.
  after: [1, 2]          # pipes | are escaped
items:                   # a list
  - {a: 1}               # not a setting
  - {a: 2}
"""


def test_comments_explain_the_settings_that_they_stand_at(site):
    pages = site("setting_pages")
    assert pages.read_introduction(TEXT) == "What it is."
    found = {one.key: one for one in pages.read_settings(TEXT)}
    assert {key: one.meaning for key, one in found.items()} == {
        "plain": "meaning, of two lines",
        "bare": "",
        "group": "About the group. and more",
        "group.inner": "first last",
        "group.after": "Alone before. pipes | are escaped",
        "items": "a list",
    }
    assert found["bare"].value == '"a # b"' and found["items"].listed
    table = pages.format_table("env", TEXT)
    assert "| `env.group.inner` | `{low: 0.0, high: 1.0}` | first last |" in table
    assert "pipes \\| are escaped" in table and "items:\n  - {a: 1}" in table


def plain_leaves(node, prefix=""):
    """Values of nested mappings by dotted key; lists are values."""
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from plain_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_every_setting_is_on_a_page_with_its_value(site, repository):
    pages = site("setting_pages")
    total = 0
    for path in (repository / "conf").rglob("*.yaml"):
        text = path.read_text()
        loaded = {
            key: value for key, value in (yaml.safe_load(text) or {}).items() if key not in pages.HIDDEN
        }
        values = {one.key: yaml.safe_load(one.value) for one in pages.read_settings(text) if one.value}
        shown = dict(plain_leaves(values))
        assert shown == dict(plain_leaves(loaded)), path
        total += len(shown)
    assert total > 1500


def test_every_environment_and_group_has_a_page(site, repository):
    pages = site("setting_pages").generate_pages(repository / "conf", repository / "docs")
    for path in (repository / "conf" / "env").rglob("*.yaml"):
        name = str(path.relative_to(repository / "conf" / "env").with_suffix(""))
        page = name.partition("/")[0] if name.partition("/")[0] in site("setting_pages").LIBRARIES else name
        assert f"env={name}" in pages[f"environments/{page}.md"]
    groups = {path.name for path in (repository / "conf").iterdir() if path.is_dir()} - {"env", "hydra"}
    assert {f"settings/{group}.md" for group in groups} <= set(pages)
    assert "docs/f110.md" in pages["environments/f110.md"]
    assert "docs/games.md" in pages["environments/textgames/kuhn.md"]


def test_every_own_environment_shows_a_small_picture(site, repository):
    pages = site("setting_pages")
    made = pages.generate_pages(repository / "conf", repository / "docs")
    own = [path for path in made if path.startswith("environments/") and "Builder" in made[path]]
    assert len(own) > 15
    for path in own:
        (name,) = re.findall(r"docs/pictures/(\S+)\)", made[path])
        assert (repository / "docs" / "pictures" / name).stat().st_size <= 300_000, name


def test_every_public_name_and_command_has_an_entry(site, repository):
    import jaxmarl_echelon as je
    from jaxmarl_echelon.__main__ import list_commands

    front = site("api_pages").format_front_door()
    assert [name for name in je.__all__ if f":: jaxmarl_echelon.{name}\n" not in front] == []
    (text,) = site("command_pages").generate_pages().values()
    for script, (module, _) in list_commands().items():
        section = text.partition(f"## {script}\n")[2].partition("\n## ")[0]
        assert f"python -m {module}" in section and "usage: " in section and "--" in section


def test_the_contents_have_every_page_of_the_repository(site, repository):
    build = site("build")
    examples = {"Guides": [str(page) for page in build.find_pages() if page.parts[0] == "examples"]}
    contents = build.format_contents(examples)
    listed = {line.removeprefix("/") for line in contents.splitlines() if line.startswith("/")}
    pages = {str(page.with_suffix("")) for page in build.find_pages()} - {"README"}
    assert pages == listed
    with pytest.raises(ValueError, match=r"docs/index.md: no section Nowhere"):
        build.format_contents({"Nowhere": []})


def test_links_to_the_readme_lead_to_the_front_page(site):
    collected = {str(path): content for path, content in site("build").collect_pages().items()}
    assert "index.md" in collected and "README.md" not in collected
    index = collected["docs/index.md"].decode()
    assert "(../index.md#train)" in index and "(../README.md" not in index
    assert {"docs/pictures/f110_attack.gif", "CITATION.cff"} <= set(collected)
