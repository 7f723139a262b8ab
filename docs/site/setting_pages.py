"""Pages of settings, from the YAML files of `conf/` and their comments; one page per environment."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

import yaml

# Folder of an environment's code -> its guide.
GUIDES = {"f110": "f110", "echelon": "echelon", "drive": "drive", "textgames": "games"}
GROUPS = {
    "algo": "Algorithms",
    "reward": "Rewards",
    "curriculum": "Curricula",
    "pool": "Pools of opponents",
    "transforms": "Transforms of rewards",
    "tracking": "Tracking",
    "tuning": "Tuning",
}
TARGET = re.compile(r"^_target_: (\S+)", re.MULTILINE)
HIDDEN = ("_target_", "_convert_", "defaults", "hydra")
DECLARATION = "keys of your own below:"
GAMES = "textgames"
# Libraries whose environments share a page.
LIBRARIES = {
    "gymnax": "gymnax",
    "jaxmarl": "JaxMARL",
    "brax": "brax",
    "playground": "MuJoCo Playground",
    "pgx": "PGX",
}


class Setting(NamedTuple):
    """A setting of a file: dotted key, first and last line, default as written, comment.

    A mapping in a block has no default; `listed` tells that the default is a list in a block.
    """

    key: str
    begin: int
    end: int
    value: str
    meaning: str = ""
    listed: bool = False


def read_introduction(text: str) -> str:
    """Returns the comment at the top of a file, without the line that declares open keys."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(line for line in lines if not line.startswith(DECLARATION))


def read_settings(text: str) -> list[Setting]:
    """Reads the settings of a file; nested mappings in blocks become dotted keys.

    A comment explains the setting of its line. One on a line of its own continues the comment above it if it
    is indented further than the next setting, and otherwise explains the next setting.
    """
    node = yaml.compose(text)
    settings = [] if node is None else list(_find_settings(node, ""))
    lines = text.splitlines()
    said: list[list[str]] = [[] for _ in settings]
    for line, (column, comment) in _find_comments(text).items():
        following = next((n for n, one in enumerate(settings) if one.begin > line), None)
        current = next((n for n, one in enumerate(settings) if one.begin <= line <= one.end), None)
        if current is None and settings and line > settings[0].begin:
            inner = following is None or column > _indent(lines[settings[following].begin])
            current = len(settings) - 1 if following is None else following - inner
        if current is not None and not (settings[current].listed and line > settings[current].begin):
            said[current].append(comment)
    explained = [one._replace(meaning=" ".join(words)) for one, words in zip(settings, said, strict=True)]
    return [one for one in explained if one.value or one.meaning]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _find_comments(text: str) -> dict[int, tuple[int, str]]:
    """Returns the column and the text of the comment of each line that has one."""
    ends: dict[int, int] = {}
    for token in yaml.scan(text):
        if token.end_mark.index > token.start_mark.index:
            ends[token.end_mark.line] = token.end_mark.column
    found = {}
    for number, line in enumerate(text.splitlines()):
        column = line.find("#", ends.get(number, 0))
        if column >= 0:
            found[number] = (column, line[column:].lstrip("# "))
    return found


def _find_settings(node: yaml.Node, prefix: str) -> Iterator[Setting]:
    """Yields the settings below a mapping, without comments."""
    for name, value in node.value:
        key, first = f"{prefix}{name.value}", name.start_mark.line
        if key in HIDDEN:
            continue
        block = not getattr(value, "flow_style", True)
        if block and isinstance(value, yaml.MappingNode):
            yield Setting(key, first, first, "")
            yield from _find_settings(value, f"{key}.")
        else:
            written = value.start_mark.buffer[value.start_mark.pointer : value.end_mark.pointer].rstrip()
            last = value.start_mark.line + written.count("\n")
            # The first line begins where the value does.
            yield Setting(key, first, last, dedent(" " * value.start_mark.column + written), listed=block)


def format_table(group: str, text: str) -> str:
    """Formats the settings of a file as a table, and lists in blocks below it; keys begin with `group`."""
    prefix = f"{group}." if group else ""
    settings = read_settings(text)
    values = ["below" if one.listed else _format_value(one.value) for one in settings]
    rows = [
        f"| `{prefix}{one.key}` | {value} | {_escape(one.meaning)} |"
        for one, value in zip(settings, values, strict=True)
    ]
    lists = [f"```yaml\n{one.key}:\n{indent(one.value, '  ')}\n```" for one in settings if one.listed]
    table = "\n".join(["| Key | Default | Meaning |", "|---|---|---|", *rows]) if rows else ""
    return "\n\n".join([table, *lists])


def _format_value(value: str) -> str:
    """Formats a default in one line, without the comments inside it."""
    bare = [re.sub(r"(^|\s)#.*", "", line).strip() for line in value.splitlines()]
    line = _escape(" ".join(one for one in bare if one)).replace("`", "'")
    return f"`{line}`" if line else ""


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def format_file(group: str, name: str, text: str, level: str = "##") -> str:
    """Formats the section of one option of a group."""
    prefix = "" if group == "tuning" else group
    bases = ", ".join(f"`{group}={base}`" for base in _defaults(text))
    others = f"\n\nThe other settings are those of {bases}." if bases else ""
    introduction = _escape(read_introduction(text))
    return f"{level} {group}={name}\n\n{introduction}\n\n{format_table(prefix, text)}{others}\n"


def format_environment(conf: Path, docs: Path, name: str) -> str:
    """Formats the page of an environment: picture, guide, how to make it, settings and rewards."""
    text = (conf / "env" / f"{name}.yaml").read_text()
    up = "../" * (1 + name.count("/"))
    parts = [f"# env={name}\n", f"{_escape(read_introduction(text))}\n"]
    for shown, picture in find_pictures(conf, docs, name)[:1]:
        parts.append(f"![Episodes of env={shown}]({up}docs/pictures/{picture.name})\n")
    target = TARGET.search(_inherited(conf, text))
    package = target[1].split(".")[2] if target else ""
    if package in GUIDES:
        parts.append(f"[Guide]({up}docs/{GUIDES[package]}.md)\n")
    parts.append(f"```bash\npython -m jaxmarl_echelon.train +algo=ppo env={name}\n```\n")
    parts.append(f'```python\nenv = je.make("{name}")\n```\n')
    parts.append(f"## Settings\n\n{format_table('env', text)}\n")
    if (base := _defaults(text)) and (conf / "env" / f"{base[0]}.yaml").is_file():
        parts.append(f"The other settings are those of [env={base[0]}]({up}environments/{base[0]}.md).\n")
    if (reward := conf / "reward" / f"{name}.yaml").is_file():
        rewards = reward.read_text()
        parts.append(
            f"## Rewards\n\n{_escape(read_introduction(rewards))}\n\n{format_table('reward', rewards)}\n"
        )
        same = [f"[reward={one}]({up}settings/reward.md)" for one in _defaults(rewards)]
        parts.append(f"Further components: {', '.join(same)}.\n" if same else "")
    if target:
        parts.append(f"## Builder\n\n```{{eval-rst}}\n.. autofunction:: {target[1]}\n   :no-index:\n```\n")
    return "\n".join(parts)


def find_pictures(conf: Path, docs: Path, name: str) -> list[tuple[str, Path]]:
    """Lists the pictures of an environment, then those of its relatives, as names of environments and paths.

    Relatives are the environments from whose settings its own begin, and those that begin from its settings.
    """
    own = (one for one in _list_options(conf / "env") if _library(one) is None)
    begun = {one: _defaults((conf / "env" / f"{one}.yaml").read_text()) for one in own}
    relatives = [*begun.get(name, []), *(one for one, first in begun.items() if name in first)]
    found = []
    for one in (name, *relatives):
        stem = one.replace("/", "_")
        pictures = sorted([*docs.glob(f"pictures/{stem}.png"), *docs.glob(f"pictures/{stem}_*.gif")])
        found += [(one, picture) for picture in pictures]
    return found


def format_overview(conf: Path, names: list[str]) -> str:
    """Formats the page that lists the environments with one line each."""
    rows = []
    for name in sorted(names, key=lambda name: (_library(name) is not None, "/" in name)):
        text = (conf / "env" / f"{name}.yaml").read_text().partition("\n")[0]
        page = _library(name) or name
        rows.append(f"| [{name}]({page}.md) | {_escape(text.lstrip('# '))} |")
    shown = [name for name in names if "/" not in name]
    listed = "\n".join([*shown, GAMES, *LIBRARIES])
    table = "\n".join(["| Environment | Task |", "|---|---|", *rows])
    contents = f"```{{toctree}}\n:hidden:\n\n{listed}\n```"
    return f"# All environments and their settings\n\n{table}\n\n{contents}\n"


def _list_options(folder: Path) -> list[str]:
    """Lists the options of a group by the paths of their files."""
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def _library(name: str) -> str | None:
    """Returns the library that an environment comes from; None for the project's own."""
    folder = name.partition("/")[0]
    return folder if folder in LIBRARIES else None


def _defaults(text: str) -> list[str]:
    """Returns the files of the same group that a file begins with."""
    loaded = yaml.safe_load(text) or {}
    return [one for one in loaded.get("defaults", []) if isinstance(one, str) and one != "_self_"]


def _inherited(conf: Path, text: str) -> str:
    """Returns the text of an environment's file followed by those that it begins with."""
    return "\n".join([text, *((conf / "env" / f"{one}.yaml").read_text() for one in _defaults(text))])


def generate_pages(conf: Path, docs: Path) -> dict[str, str]:
    """Returns the pages by path.

    Args:
      conf: folder of the configurations.
      docs: folder of the documents, whose `pictures` have the environments' names.
    """
    pages = {}
    options = {group: _list_options(conf / group) for group in ["env", *GROUPS]}
    for name in (name for name in options["env"] if _library(name) is None):
        pages[f"environments/{name}.md"] = format_environment(conf, docs, name)
    pages["environments/index.md"] = format_overview(conf, options["env"])
    for library, title in LIBRARIES.items():
        theirs = [name for name in options["env"] if _library(name) == library]
        files = {name: (conf / "env" / f"{name}.yaml").read_text() for name in theirs}
        sections = "\n".join(format_file("env", name, text) for name, text in files.items())
        guide = "[Guide](../docs/libraries.md)"
        pages[f"environments/{library}.md"] = f"# Environments of {title}\n\n{guide}\n\n{sections}"
    games = [name for name in options["env"] if name.startswith(f"{GAMES}/")]
    listed = "\n".join(games)
    pages[f"environments/{GAMES}.md"] = (
        f"# Games\n\n[Guide](../docs/games.md)\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
    for group, title in GROUPS.items():
        files = {name: (conf / group / f"{name}.yaml").read_text() for name in options[group]}
        sections = "\n".join(format_file(group, name, text) for name, text in files.items())
        pages[f"settings/{group}.md"] = f"# {title}\n\n{sections}"
    run = (conf / "config.yaml").read_text()
    pages["settings/run.md"] = f"# Runs\n\n{_escape(read_introduction(run))}\n\n{format_table('', run)}\n"
    listed = "\n".join(["run", *GROUPS])
    pages["settings/index.md"] = (
        "# Settings\n\nFrom `conf/`. Environments have [their own pages](../environments/index.md).\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
    return pages
