"""Commands and Python blocks of the documents."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^\n|\A)((?: {4}\S.*\n)(?:(?: {4}.*)?\n)*)", re.MULTILINE)
INLINE = re.compile(r"`((?:python -m jaxmarl_echelon|jaxmarl-\w)[^`]*)`")
# Stands for what a reader fills in: RUN, PATH/Spielberg.yaml, [--role ROLE].
PLACEHOLDER = re.compile(r"\$?[A-Z][A-Z_0-9]+$|\.\.\.")
ASSIGNMENT = re.compile(r"^([A-Z]+)=(.*)", re.DOTALL)


class Command(NamedTuple):
    """A command of a page: `python -m` or an installed name, and its arguments."""

    page: str
    program: str
    arguments: tuple[str, ...]


def find_pages(root: Path) -> list[Path]:
    """Markdown pages of the repository, generated ones excluded."""
    return sorted(
        [
            *root.glob("*.md"),
            *root.glob("docs/*.md"),
            *root.glob("docs/reference/*.md"),
            *root.glob("examples/*/*.md"),
        ]
    )


def python_blocks(text: str) -> list[str]:
    return [block for language, block in BLOCK.findall(text) if language == "python"]


def command_lines(text: str) -> list[list[str]]:
    """Words of every command of a page: in bash blocks, in indented ones, and within sentences."""
    blocks = [block for language, block in BLOCK.findall(text) if language in ("bash", "text", "console")]
    bare = BLOCK.sub("", text)
    blocks += INDENTED.findall(bare)
    sentences = [" ".join(line.split()) for line in INLINE.findall(bare)]
    return [words for block in [*blocks, *sentences] for words in split_commands(block)]


def split_commands(block: str) -> list[list[str]]:
    """Splits a block into commands; lines are joined by a backslash, or within quotes."""
    commands, pending = [], ""
    for line in block.splitlines():
        pending += line.strip()
        if pending.endswith("\\"):
            pending = f"{pending[:-1].rstrip()} "
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quote is still open
            pending += " "
            continue
        pending = ""
        commands += [words] if words else []
    return commands


def find_commands(page: Path, root: Path) -> list[Command]:
    """The commands of this project on a page, with the shell's variables that the page sets filled in."""
    found, variables = [], {}
    for words in command_lines(page.read_text()):
        if len(words) == 1 and (given := ASSIGNMENT.match(words[0])):
            variables[f"${given[1]}"] = given[2].split()
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        words = [part for word in words for part in variables.get(word, [word])]
        if words[:2] == ["python", "-m"] and words[2:] and words[2].startswith("jaxmarl_echelon."):
            found.append(Command(str(page.relative_to(root)), words[2], tuple(words[3:])))
        elif words and words[0].startswith("jaxmarl-"):
            found.append(Command(str(page.relative_to(root)), words[0], tuple(words[1:])))
        elif len(words) > 1 and words[0] == "python" and words[1].endswith(".py"):
            found.append(Command(str(page.relative_to(root)), words[1], tuple(words[2:])))
    return found
