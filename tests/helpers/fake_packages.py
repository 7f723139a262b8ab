"""Packages of tracking as far as the sinks use them, which keep what they are given."""

from pathlib import Path
from types import SimpleNamespace


class FakeWandb:
    """W&B's and Trackio's functions: a list of runs, each with the keywords of `init` and its rows."""

    Settings = staticmethod(lambda **given: given)
    Video = staticmethod(lambda path: ("video", path))

    def __init__(self):
        self.runs = []

    def init(self, **given):
        run = SimpleNamespace(given=given, rows=[], ended=0, axes={})
        run.log = lambda values, step=None, commit=True: run.rows.append((step, values))
        run.define_metric = lambda name, step_metric: run.axes.update({name: step_metric})
        run.finish = lambda: setattr(run, "ended", run.ended + 1)
        self.runs.append(run)
        return run


class FakeMlflow:
    """MLflow's client on a dictionary of runs, and the module that has it."""

    def __init__(self):
        self.runs, self.experiments, self.uris = {}, {}, []
        self.entities = SimpleNamespace(Metric=lambda *row: row)

    def MlflowClient(self, tracking_uri):
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name):
        return None if name not in self.experiments else SimpleNamespace(experiment_id=self.experiments[name])

    def create_experiment(self, name):
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment, run_name, tags):
        name = f"run{len(self.runs)}"
        made = {"experiment": experiment, "name": run_name, "tags": tags, "metrics": [], "files": []}
        self.runs[name] = SimpleNamespace(**made, status="RUNNING", calls=0)
        return SimpleNamespace(info=SimpleNamespace(run_id=name))

    def update_run(self, name, status):
        self.runs[name].status = status

    def log_dict(self, name, config, file):
        self.runs[name].files.append((file, config))

    def log_batch(self, name, metrics):
        assert 0 < len(metrics) <= 1000
        self.runs[name].calls += 1
        self.runs[name].metrics += metrics

    def log_artifact(self, name, path, folder):
        self.runs[name].files.append((f"{folder}/{Path(path).name}", path))

    def set_terminated(self, name):
        self.runs[name].status = "FINISHED"
