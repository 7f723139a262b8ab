"""Trackio sink: W&B's functions on a local database, or a server of one's own."""

import contextvars
import io
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from typing_extensions import override

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.tracking.base import RunInfo
from jaxmarl_echelon.tracking.wandb_sink import WandbSink


@take_defaults_from("tracking/trackio:sinks.trackio")
class TrackioSink(WandbSink):
    """As `WandbSink`, in Trackio: `trackio show` opens its dashboard.

    Trackio knows runs by their names, so the name has the id that is stored in the run's folder. It keeps
    them in the folder of the environment variable `TRACKIO_DIR`, and has no types of runs: names tell members
    apart.

    Args:
      project: the project's name.
      group: Trackio's group of the run; None for the folder of a group of runs.
      space: Hugging Face Space to send to; None to stay on this machine.
    """

    module = "trackio"

    def __init__(
        self, project: str = FROM_FILE, group: str | None = FROM_FILE, space: str | None = FROM_FILE
    ):
        super().__init__(project, group=group)
        self._space = space

    @override
    def _begin(self, run: RunInfo) -> Any:
        start = partial(
            self._package.init,
            project=self._project,
            name=f"{run.name}-{self._identity(run)}",
            group=self._group_of(run),
            space_id=self._space,
            config=dict(run.config),
            resume="allow",
            embed=False,
        )
        # `init` ends the run of its context, and one process may hold several runs (seeds).
        with redirect_stdout(io.StringIO()):
            return contextvars.Context().run(start)

    @override
    def _log(self, step: int, values: dict[str, Any]) -> None:
        self._run.log(values, step=step)

    @override
    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            super().close()
