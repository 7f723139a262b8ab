"""Standard input and output of the command lines: a reader that leaves, a full disk, nobody who answers."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class LossyOutput:
    """A text stream that survives the loss of its reader or its disk: what follows the loss is discarded.

    One line on standard error tells of it. All other attributes are the stream's own.

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
        # What is buffered is written at the end of the process again, when nobody could catch its error.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        with suppress(OSError):
            reason = error.strerror or type(error).__name__
            print(f"standard output: {reason}; further output is discarded", file=sys.stderr, flush=True)


@contextmanager
def lossy_output() -> Iterator[None]:
    """Lets a command go on without its standard output, and flushes that at the end.

    Raises:
      SystemExit: with status 1 at the end, if output was lost for another reason than a reader that left.
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
def unattended() -> Iterator[None]:
    """Gives libraries that would ask the user a standard input that is no terminal."""
    before = sys.stdin
    with open(os.devnull, encoding="utf-8") as nobody:
        sys.stdin = nobody
        try:
            yield
        finally:
            sys.stdin = before
