"""Robust standard input and output of commands: closed pipes, full disks, and no interactive prompts."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class LossyOutput:
    """A text stream that discards further output after a write error, such as a closed pipe or a full disk.

    One line on standard error reports it. All other attributes are those of the wrapped stream.

    Args:
      stream: standard output.

    Attributes:
      lost: the error that ended the output; None while it works.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text; returns the number of characters."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        # The buffer is written again at the end of the process, where an error could not be handled.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        with suppress(OSError):
            reason = error.strerror or type(error).__name__
            print(f"standard output: {reason}; further output is discarded", file=sys.stderr, flush=True)


@contextmanager
def lossy_output() -> Iterator[None]:
    """Lets a command continue if its standard output fails, and flushes the output at the end.

    Raises:
      SystemExit: with status 1 at the end, if output was lost for a reason other than a closed pipe.
    """
    if sys.stdout is None or isinstance(sys.stdout, LossyOutput):
        yield
        return
    before = sys.stdout
    output = sys.stdout = LossyOutput(before)
    try:
        yield
        output.flush()
    finally:
        sys.stdout = before
    if output.lost is not None and output.lost.errno != errno.EPIPE:
        raise SystemExit(1)


@contextmanager
def without_prompts() -> Iterator[None]:
    """Replaces standard input by an empty file, so that libraries do not prompt the user."""
    before = sys.stdin
    with open(os.devnull, encoding="utf-8") as nobody:
        sys.stdin = nobody
        try:
            yield
        finally:
            sys.stdin = before
