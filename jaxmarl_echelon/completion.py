"""`python -m jaxmarl_echelon.completion`: prints a shell function that completes what `jaxmarl-train` takes.

    eval "$(python -m jaxmarl_echelon.completion)"                            # bash, e.g. in ~/.bashrc
    autoload -U +X bashcompinit && bashcompinit                               # before it in zsh (not tried)

At a press of the tab key the function asks this module, which imports Hydra but not jax, and answers in a
few tenths of a second. Keys come from Hydra's own completion, options of groups from the folders of `conf`
and of `--config-dir`.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import sys

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from jaxmarl_echelon.config_sources import Sources

COMMAND = "jaxmarl-train"
FUNCTION = """_jaxmarl_train() {{
    local line="${{COMP_LINE:0:$COMP_POINT}}"
    local words="$({python} -m jaxmarl_echelon.completion --line "$line" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$words" -- "${{line##* }}"))
}}
COMP_WORDBREAKS=${{COMP_WORDBREAKS//=}}
complete -o nospace -o default -F _jaxmarl_train {command}"""
_CONFIG_DIR = re.compile(r"--config-dir[= ](\S+)")


def complete_override(line: str) -> list[str]:
    """Returns the ways to complete the last word of a command line, each as the whole word.

    Args:
      line: the command line up to the cursor, e.g. `jaxmarl-train env=f1`.
    """
    given = _CONFIG_DIR.search(line)
    sources = Sources(given and given[1])
    group, equals, start = line.rpartition(" ")[2].partition("=")
    if equals and (options := sources.options(group.lstrip("+"))):
        return [f"{group}={option}" for option in options if option.startswith(start)]
    return _ask_hydra(line, sources)


def _ask_hydra(line: str, sources: Sources) -> list[str]:
    """Returns what Hydra suggests, which reads the line from the environment and prints its answer."""
    *given, last = line.split(" ")
    overrides = [word for word in given if "=" in word and not word.startswith("-")]
    # Hydra completes no sweeps; their first value stands for all.
    overrides = [word if "[" in word else word.partition(",")[0] for word in overrides]
    os.environ["COMP_LINE"] = " ".join([COMMAND, *overrides, *sources.searched(), last])
    told, folder = io.StringIO(), str(sources.main_folder())
    with contextlib.redirect_stdout(told), initialize_config_dir(folder, version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.shell_completion(sources.name, ["query=bash"])
    return told.getvalue().split()


def main() -> None:
    """Prints the shell function, or the ways to complete a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--line", help="command line up to the cursor, whose last word is completed")
    line = parser.parse_args().line
    if line is None:
        print(FUNCTION.format(python=shlex.quote(sys.executable), command=COMMAND))
    else:
        print("\n".join(complete_override(line)))


if __name__ == "__main__":
    main()
