"""Locations of configurations: the package's, in a checkout or a wheel, and a user's folder."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from algos.defaults import config_directory

MAIN = "config"


@dataclass(frozen=True)
class Sources:
    """Sources from which a run's configuration is composed.

    Attributes:
      folder: a user's folder with the layout of `conf`, searched in addition; or None.
      name: name of the main configuration in either folder, without `.yaml`.

    Raises:
      ValueError: one line, for a folder or name that does not exist, and for a file in `folder` with the name
        of a packaged one, which Hydra would ignore.
    """

    folder: str | Path | None = None
    name: str = MAIN

    def __post_init__(self):
        object.__setattr__(self, "name", self.name.removesuffix(".yaml"))
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(self.folder).resolve())
            self._require_own_names()
        if self.name != MAIN and self.find(self.name) is None:
            known = sorted({path.stem for folder in self.directories() for path in folder.glob("*.yaml")})
            raise ValueError(f"--config-name={self.name}: no such file; allowed: {', '.join(known)}")

    def _require_own_names(self) -> None:
        if not self.folder.is_dir():
            raise ValueError(f"--config-dir={self.folder}: no such folder")
        packaged = config_directory()
        for path in packaged.rglob("*.yaml"):
            name = path.relative_to(packaged)
            if (self.folder / name).is_file() and self.folder != packaged:
                raise ValueError(f"--config-dir={self.folder}: {name} exists in the package; rename it")

    def directories(self) -> tuple[Path, ...]:
        """Returns the searched folders, in order."""
        return (config_directory(), *(() if self.folder is None else (self.folder,)))

    def find(self, name: str) -> Path | None:
        """Finds the file of a configuration such as `env/f110`; None if it does not exist."""
        candidates = (folder / f"{name}.yaml" for folder in self.directories())
        return next((path for path in candidates if path.is_file()), None)

    def options(self, group: str) -> list[str]:
        """Lists the options of a configuration group, nested ones with their folder."""
        roots = [folder / group for folder in self.directories()]
        found = {path.relative_to(root).with_suffix("") for root in roots for path in root.rglob("*.yaml")}
        return sorted(map(str, found))

    def describe_options(self, group: str) -> dict[str, str]:
        """Returns the options of a group, each with the first line of its file, a comment."""
        files = {option: self.find(f"{group}/{option}") for option in self.options(group)}
        return {
            option: path.read_text().partition("\n")[0].lstrip("# ") for option, path in files.items() if path
        }

    def open_keys(self) -> tuple[str, ...]:
        """Returns the keys of mappings that accept arbitrary new keys, which their readers validate.

        A configuration file declares them without its group: `# keys of your own below: NAME, NAME`.
        """
        own = () if self.folder is None else _find_open_keys(self.folder)
        return tuple(sorted({*_find_packaged_keys(), *own}))

    def main_folder(self) -> Path:
        """Returns the folder of the main configuration."""
        file = self.find(self.name)
        return config_directory() if file is None else file.parents[self.name.count("/")]

    def searched(self) -> list[str]:
        """Returns the other folder, if any, as a Hydra override of the search path."""
        # Hydra looks for the main configuration in the first folder only.
        others = [str(folder) for folder in self.directories() if folder != self.main_folder()]
        quoted = [path.replace("\\", "\\\\").replace("'", "\\'") for path in others]
        return [f"hydra.searchpath=['file://{path}']" for path in quoted]


def _find_open_keys(folder: Path) -> set[str]:
    """Reads the files of a folder for the keys of `Sources.open_keys`."""
    found = set()
    for path in folder.rglob("*.yaml"):
        group = path.relative_to(folder).parts[:-1][:1]
        for names in re.findall(r"^# keys of your own below: (.*)$", path.read_text(), re.MULTILINE):
            found |= {".".join([*group, name.strip()]) for name in names.split(",")}
    return found


@cache
def _find_packaged_keys() -> frozenset[str]:
    """Reads the hundreds of packaged files once per process."""
    return frozenset(_find_open_keys(config_directory()))
