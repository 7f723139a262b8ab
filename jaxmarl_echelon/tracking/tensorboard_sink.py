"""TensorBoard sink, by tensorboardX (no TensorFlow)."""

import json
import math
from pathlib import Path
from typing import Any

from PIL import Image

from jaxmarl_echelon.tracking.base import TABLES, RunInfo, Sink, Values

FOLDER = "tensorboard"


class TensorboardSink(Sink):
    """Writes event files to `tensorboard/` in the run's folder: scalars, texts, events and animations.

    `tensorboard --logdir outputs` shows all runs; every member of a group has its own files. A resumed run
    hides what was written after its checkpoint. Texts are written when they change, numbers where finite.
    """

    def __init__(self):
        self._writer: Any = None
        self._texts: dict[str, str] = {}

    def for_member(self) -> "TensorboardSink":
        """See `Sink`."""
        return TensorboardSink()

    def open(self, run: RunInfo) -> None:
        """See `Sink`."""
        from tensorboardX import SummaryWriter

        purge, suffix = None, ""
        if run.resume_step is not None:
            purge, suffix = run.resume_step + 1, f".{run.resume_step}"
        self._writer = SummaryWriter(str(run.folder / FOLDER), purge_step=purge, filename_suffix=suffix)
        config = json.dumps(run.config, indent=2, default=str)
        self._writer.add_text("config", f"```json\n{config}\n```", run.resume_step or 0)

    def write(self, namespace: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if namespace in TABLES:
            return
        for key, value in values.items():
            name = f"{namespace}/{key}"
            if not isinstance(value, str):
                if math.isfinite(value):  # tensorboardX warns of each other one
                    self._writer.add_scalar(name, value, step)
            elif self._texts.get(name) != value:
                self._texts[name] = value
                self._writer.add_text(name, value, step)

    def event(self, step: int, text: str) -> None:
        """See `Sink`."""
        self._writer.add_text("events", text, step)

    def media(self, step: int, name: str, path: Path) -> None:
        """See `Sink`; TensorBoard plays GIFs as images."""
        from tensorboardX.proto.summary_pb2 import Summary

        with Image.open(path) as image:
            width, height = image.size
        shown = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        summary = Summary(value=[Summary.Value(tag=name, image=shown)])
        self._writer.file_writer.add_summary(summary, step)

    def flush(self) -> None:
        """See `Sink`."""
        self._writer.flush()

    def close(self) -> None:
        """See `Sink`."""
        if self._writer is not None:
            self._writer.close()
