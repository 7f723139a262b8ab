"""Weights & Biases sink."""

import secrets

from jaxmarl_echelon.terminal import without_prompts
from jaxmarl_echelon.tracking.base import TABLES, RunInfo, Sink, Values

ID_FILE = "wandb_id.txt"


class WandbSink(Sink):
    """Logs all namespaces except single episodes, against environment steps.

    The optional package is imported by `open`, which never prompts for an account. The run's id is stored in
    its folder, so a resumed run continues the same W&B run.

    Args:
      project: the project's name.
      entity: user or team; None for the account's default.
      group: W&B group of the run.
      mode: "offline" (files in the run's folder, no network) or "online".

    Raises:
      ValueError: for another mode.
    """

    def __init__(
        self,
        project: str = "jaxmarl_echelon",
        entity: str | None = None,
        group: str | None = None,
        mode: str = "offline",
    ):
        if mode not in ("offline", "online"):
            raise ValueError(f"tracking.sinks.wandb.mode={mode}: must be one of offline, online")
        self._project = project
        self._entity = entity
        self._group = group
        self._mode = mode
        self._run = None

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        import wandb

        file = run.folder / ID_FILE
        if run.resume_step is None or not file.exists():
            file.write_text(secrets.token_hex(4))
        # Without an API key wandb would prompt for one below the dashboard and block the run.
        with without_prompts():
            self._run = wandb.init(
                project=self._project,
                entity=self._entity,
                mode=self._mode,
                id=file.read_text().strip(),
                name=run.folder.name,
                group=self._group,
                tags=[run.spec.name],
                dir=str(run.folder),
                config=dict(run.config),
                resume="allow",
                # One process may hold several runs (seeds).
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=self._mode == "offline"),
            )

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if namespace not in TABLES:
            self._run.log({f"{namespace}/{key}": value for key, value in values.items()}, step=step)

    def close(self) -> None:
        """See `Sink`."""
        if self._run is not None:
            self._run.finish()
