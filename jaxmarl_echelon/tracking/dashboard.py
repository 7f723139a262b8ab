"""Live terminal dashboard."""

import sys
import threading
import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.tracking.base import RunInfo, Sink, Values
from jaxmarl_echelon.tracking.console import ConsoleSink
from jaxmarl_echelon.tracking.panels import compose_dashboard
from jaxmarl_echelon.tracking.view import RunView


class Dashboard(Sink):
    """Renders the run in place; the last frame stays on the terminal.

    A background thread redraws, so the clock advances while a program compiles. Lines printed meanwhile
    appear above the frame.

    Args:
      refresh_per_second: redraws per second.
      console: Rich console; None for a new one on standard output.
      now: a monotonic clock in seconds.
    """

    shows_events = True

    def __init__(
        self,
        refresh_per_second: float = 4.0,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        self._refresh_per_second = refresh_per_second
        self._console = console
        self._now = now
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._live: Live | None = None
        self._running = True
        self._size: tuple[int, int] | None = None

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        self._view = RunView(run, self._now())
        self._live = Live(
            self,
            console=self._console or Console(),
            refresh_per_second=self._refresh_per_second,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        with self._lock:
            self._view.write(namespace, step, values, self._now())

    def event(self, step: int, text: str) -> None:
        """See `Sink`."""
        with self._lock:
            self._view.events.append((step, text))

    def close(self) -> None:
        """See `Sink`."""
        if self._live is not None:
            self._running = False
            self._live.stop()
            self._live = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(options.max_height - 1, 1)
        with self._lock:
            picture = compose_dashboard(self._view, options.max_width, height, self._now(), self._running)
        # A terminal of another size has broken the lines of the last frame, so that it cannot be drawn over.
        if self._size not in (None, size := (options.max_width, height)) and self._live is not None:
            yield Control.home()
            yield Control.clear()
        self._size = size
        yield from console.render(picture, options.update(height=height))


@take_defaults_from("tracking/default:sinks.terminal")
def terminal_sink(every_seconds: float = FROM_FILE, refresh_per_second: float = FROM_FILE) -> Sink:
    """Returns the dashboard if standard output is a UTF-8 terminal, else plain lines."""
    console = Console()
    capable = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    if capable and sys.stdout.isatty():
        return Dashboard(refresh_per_second)
    return ConsoleSink(every_seconds)
