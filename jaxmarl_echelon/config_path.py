"""Where the Hydra configuration lies, in a checkout and in an installed package."""

from pathlib import Path


def config_directory() -> Path:
    """Returns the absolute path of the `conf` directory.

    A wheel carries it inside the package; a checkout (also an editable install) has it at the
    top of the repository. Raises FileNotFoundError where neither exists.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parent / "conf"):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"no conf directory in {package} or {package.parent}")
