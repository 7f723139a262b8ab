"""Weights & Biases sink, and what packages with the same functions share with it."""

import copy
import secrets
from importlib import import_module
from pathlib import Path
from typing import Any

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.terminal import without_prompts
from jaxmarl_echelon.tracking.base import TABLES, RunInfo, Sink, Values, recall_id

# Type of a group's run of means, whose members' types are their variants.
MEAN = "mean"
# Metric with the environment steps of a row. W&B's own step of a row never falls: after a resume from an
# earlier checkpoint all rows up to the step that was reached before would be dropped.
STEPS = "env_steps"


@take_defaults_from("tracking/wandb:sinks.wandb")
class WandbSink(Sink):
    """Logs all namespaces except single episodes, against environment steps.

    The optional package is imported by `open`, which never prompts for an account. The run's id is stored in
    its folder, so a resumed run continues the same W&B run. In a group every member is a run of its own:
    W&B's group is the group's folder, the type of a run its variant, and that of the group's means `MEAN`.

    Args:
      project: the project's name.
      entity: user or team; None for the account's default.
      group: W&B group of the run; None for the folder of a group of runs.
      mode: "offline" (files in the run's folder, no network) or "online".

    Raises:
      ValueError: for another mode.

    Attributes:
      module: the package's name; another one has `init`, `Video`, and runs with `log` and `finish`.
    """

    module = "wandb"

    def __init__(
        self,
        project: str = FROM_FILE,
        entity: str | None = FROM_FILE,
        group: str | None = FROM_FILE,
        mode: str = FROM_FILE,
    ):
        if mode not in ("offline", "online"):
            raise ValueError(f"tracking.sinks.wandb.mode={mode}: must be one of offline, online")
        self._project = project
        self._entity = entity
        self._group = group
        self._mode = mode
        self._package: Any = None
        self._run: Any = None
        self._step: int | None = None

    def for_member(self) -> "WandbSink":
        """See `Sink`."""
        return copy.copy(self)

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        self._package = import_module(self.module)
        self._run = self._begin(run)

    def _begin(self, run: RunInfo) -> Any:
        """Starts the package's run."""
        wandb = self._package
        # Without an API key wandb would prompt for one below the dashboard and block the run.
        with without_prompts():
            made = wandb.init(
                project=self._project,
                entity=self._entity,
                mode=self._mode,
                id=self._identity(run),
                name=run.name,
                group=self._group_of(run),
                job_type=MEAN if run.group is not None and run.variant is None else run.variant,
                tags=[run.spec.name],
                dir=str(run.folder),
                config=dict(run.config),
                resume="allow",
                # One process may hold several runs (seeds).
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=self._mode == "offline"),
            )
        if made is not None:
            made.define_metric("*", step_metric=STEPS)
        return made

    def _identity(self, run: RunInfo) -> str:
        """Returns the run's id, from its folder if it is resumed."""
        return recall_id(run, f"{self.module}_id.txt", lambda: secrets.token_hex(4))

    def _group_of(self, run: RunInfo) -> str | None:
        return self._group if self._group is not None or run.group is None else run.group.name

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if namespace not in TABLES:
            self._log(step, {f"{namespace}/{key}": value for key, value in values.items()})

    def media(self, step: int, name: str, path: Path) -> None:
        """See `Sink`; GIFs and MP4 files."""
        self._log(step, {name: self._package.Video(str(path))})

    def _log(self, step: int, values: dict[str, Any]) -> None:
        """Adds values to the row of a step; a row ends where another step begins, or with the run."""
        if self._step not in (None, step):
            self._run.log({}, commit=True)
        self._step = step
        self._run.log({STEPS: step, **values}, commit=False)

    def close(self) -> None:
        """See `Sink`."""
        if self._run is not None:
            self._run.finish()
