"""Folders to which commands write."""

from pathlib import Path

OUTPUT = "--output"


def make_folder(folder: Path, key: str = OUTPUT) -> None:
    """Creates a folder and those above it, where they do not exist.

    Args:
      folder: to be made.
      key: the option or setting that names it, for messages.

    Raises:
      ValueError: one line, if it cannot be created, for example because a file is in its place.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(describe_refusal(folder, key, error)) from error


def is_taken(folder: Path, key: str = OUTPUT) -> bool:
    """Whether something exists under this path; raises a one-line ValueError where that cannot be told."""
    try:
        return folder.exists()
    except OSError as error:  # too long, or below a folder without permission
        raise ValueError(describe_refusal(folder, key, error)) from error


def describe_refusal(folder: Path, key: str, error: OSError) -> str:
    """Formats the message for a folder that cannot be created."""
    return f"{key}: cannot create {folder}: {error.strerror}"
