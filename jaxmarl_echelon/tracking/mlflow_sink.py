"""MLflow sink."""

import copy
import re
import time
from pathlib import Path
from typing import Any

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.tracking.base import TABLES, RunInfo, Sink, Values, recall_id

ID_FILE = "mlflow_id.txt"
# What MLflow does not allow in names, and the most metrics of one request.
_REFUSED = re.compile(r"[^\w. /-]")
_MOST = 1000


@take_defaults_from("tracking/mlflow:sinks.mlflow")
class MlflowSink(Sink):
    """Logs the numbers of all namespaces except single episodes, against environment steps.

    The run's id is stored in its folder, so a resumed run continues the same MLflow run. Members of a group
    are runs below the group's run. The configuration is the artifact `config.json`, animations are in
    `media/`. An update's metrics are sent together.

    Args:
      experiment: the experiment's name; created if there is none.
      uri: a server or a store such as `sqlite:///mlflow.db`; None for MLflow's own default (the environment
        variable `MLFLOW_TRACKING_URI`, or a store in the working directory).
    """

    def __init__(self, experiment: str = FROM_FILE, uri: str | None = FROM_FILE):
        self._experiment, self._uri = experiment, uri
        self._client: Any = None
        self._id = ""
        self._waiting: list[tuple[str, float, int, int]] = []

    def for_member(self) -> "MlflowSink":
        """See `Sink`."""
        other = copy.copy(self)
        other._waiting = []
        return other

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        self._id = recall_id(run, ID_FILE, lambda: self._create(run))
        self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, dict(run.config), "config.json")

    def _create(self, run: RunInfo) -> str:
        """Creates the run, below that of its group if it has one; returns its id."""
        found = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        tags = {"environment": run.spec.name}
        if run.variant is not None and run.group is not None:
            tags |= {"variant": run.variant, "mlflow.parentRunId": (run.group / ID_FILE).read_text().strip()}
        return self._client.create_run(number, run_name=run.name, tags=tags).info.run_id

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if namespace in TABLES:
            return
        now = int(time.time() * 1000)
        self._waiting += [
            (_REFUSED.sub("_", f"{namespace}/{key}"), float(value), now, step)
            for key, value in values.items()
            if not isinstance(value, str)
        ]

    def media(self, step: int, name: str, path: Path) -> None:
        """See `Sink`."""
        del step
        self._client.log_artifact(self._id, str(path), f"media/{_REFUSED.sub('_', name)}")

    def flush(self) -> None:
        """See `Sink`."""
        from mlflow.entities import Metric

        metrics = [Metric(*row) for row in self._waiting]
        self._waiting = []
        for begin in range(0, len(metrics), _MOST):
            self._client.log_batch(self._id, metrics=metrics[begin : begin + _MOST])

    def close(self) -> None:
        """See `Sink`."""
        if self._id:
            self.flush()
            self._client.set_terminated(self._id)
